// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

// Package netns runs tests in a network namespace of their own, in which they may
// do what they like with links, addresses and routes. Nothing of acmd imports it.
//
// Namespaces belong to threads, and Go moves goroutines between threads: so it is
// the whole test binary that runs again, for one test, in a new namespace. That
// ends with the process, whatever became of it.
package netns

import (
	"errors"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

const variable = "ACMD_TEST_NETNS"

// Enter reports whether the test runs in a namespace of its own. The first time it
// runs t again in one, passes on what came of it and reports false: t has nothing
// left to do. Without the privilege to make one, or without the programs that are
// named, the test is skipped; with ACMD_CI=1 it fails.
func Enter(t *testing.T, programs ...string) bool {
	t.Helper()
	if os.Getenv(variable) == t.Name() {
		return true
	}
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			missing(t, "%s is not installed", p)
		}
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	args := []string{"-test.run=^" + t.Name() + "$", "-test.v", "-test.count=1"}
	cmd := exec.Command(exe, args...) // dies with this process, whose deadline is for both
	cmd.Env = append(os.Environ(), variable+"="+t.Name())
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	if uid := os.Geteuid(); uid != 0 {
		cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: uid, Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}
	}
	runtime.LockOSThread() // Pdeathsig means the thread
	defer runtime.UnlockOSThread()
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	switch {
	case err == nil && strings.Contains(string(out), "--- PASS: "+t.Name()):
		t.Logf("in a namespace of its own:\n%s", out)
	case err == nil && strings.Contains(string(out), "--- SKIP: "+t.Name()):
		t.Skipf("in a namespace of its own:\n%s", out)
	case err == nil || errors.As(err, &exit):
		t.Fatalf("in a namespace of its own: %v\n%s", err, out)
	default:
		missing(t, "no network namespace can be made: %v", err)
	}
	return false
}

func missing(t *testing.T, format string, a ...any) {
	t.Helper()
	if os.Getenv("ACMD_CI") == "1" {
		t.Fatalf(format, a...)
	}
	t.Skipf(format, a...)
}

// Pair makes two Ethernet interfaces that are joined by a wire. It skips the test
// where the kernel has none, as Enter does.
func Pair(t *testing.T, a, b string) {
	t.Helper()
	if out, err := exec.Command("ip", "link", "add", a, "type", "veth", "peer", "name", b).CombinedOutput(); err != nil {
		missing(t, "this kernel makes no veth pair: %v: %s", err, out)
	}
}

// Run runs a program and returns its output.
func Run(t testing.TB, name string, arg ...string) string {
	t.Helper()
	out, err := exec.Command(name, arg...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(arg, " "), err, out)
	}
	return string(out)
}
