// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"acmd/bpf/bpftest"
	"acmd/mad/fabric"
	"acmd/resolver/acmsock"
	"acmd/resolver/control"
	"acmd/resolver/privilege"

	"golang.org/x/sys/unix"
)

// beBounded makes the test binary one that takes all but the capabilities of a
// hexadecimal set out of its bounding set, and becomes the program of its arguments.
// What a service manager's CapabilityBoundingSet= does.
const beBounded = "ACMD_TEST_BOUNDING"

func boundBy(s privilege.Set) string { return fmt.Sprintf("%s=%x", beBounded, uint64(s)) }

func runBounded(spec string) {
	runtime.LockOSThread()
	n, err := strconv.ParseUint(spec, 16, 64)
	for c := range unix.CAP_LAST_CAP + 1 {
		if !privilege.Set(n).Has(privilege.Of(c)) && err == nil {
			err = unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0)
		}
	}
	os.Unsetenv(beBounded)
	if err == nil {
		err = syscall.Exec(os.Args[1], os.Args[1:], os.Environ())
	}
	fmt.Fprintln(os.Stderr, "bounded:", err)
	os.Exit(exitUsage)
}

// capState is what these tests read of acmd's state.
type capState struct {
	FastPath struct {
		On       bool
		Reason   string
		Port     int
		Inserted int
		Plan     struct{ All bool }
		Messages map[string]int
	} `json:"fast_path"`
	Counters struct{ In, Reason string }
	Trace    struct {
		On     bool
		Reason string
	}
	Capabilities struct {
		Kept, Bounding []string
		For            map[string][]string
		Dropped        bool
		Error          string
	}
}

func (d *daemon) capState(t *testing.T) capState {
	t.Helper()
	return readCapState(t, d.dir)
}

func readCapState(t *testing.T, runDir string) (st capState) {
	t.Helper()
	if err := control.NewClient(runDir).Do(t.Context(), "GET", "state", nil, &st); err != nil {
		t.Fatal(err)
	}
	return st
}

// needCapabilities skips the test for users that have nothing to give up.
func needCapabilities(t *testing.T) {
	t.Helper()
	h, err := privilege.Read()
	if err != nil {
		t.Fatal(err)
	}
	want := privilege.Of(unix.CAP_SETPCAP, unix.CAP_SETUID, unix.CAP_BPF, unix.CAP_NET_ADMIN, unix.CAP_PERFMON, unix.CAP_NET_BIND_SERVICE)
	if !h.Effective.Has(want) {
		bpftest.Missing(t, "the test wants %s and has %s", want, h.Effective)
	}
}

func (d *daemon) keeps(t *testing.T, want privilege.Held) {
	t.Helper()
	keeps(t, d.Process.Pid, d.dir, want)
}

// keeps fails the test unless each thread of a daemon has just these capabilities.
func keeps(t *testing.T, pid int, runDir string, want privilege.Held) {
	t.Helper()
	threads, err := privilege.Threads(pid)
	if err != nil {
		t.Fatal(err)
	}
	if len(threads) < 3 {
		t.Errorf("only %d threads", len(threads))
	}
	for tid, h := range threads {
		if h != want {
			t.Errorf("thread %d: inheritable %s, permitted %s, effective %s, bounding %s, ambient %s; want %s",
				tid, h.Inheritable, h.Permitted, h.Effective, h.Bounding, h.Ambient, want.Permitted)
		}
	}
	if kept := readCapState(t, runDir).Capabilities.Kept; strings.Join(kept, ",") != strings.Join(want.Permitted.Names(), ",") {
		t.Errorf("the state says that %v are kept", kept)
	}
}

// only is what a thread has that keeps s.
func only(s privilege.Set) privilege.Held {
	return privilege.Held{Permitted: s, Effective: s, Bounding: s}
}

// newClientHits connects anew and asks until the kernel answers: the path is mirrored,
// and the socket was put onto the map after the drop.
func (d *daemon) newClientHits(t *testing.T) {
	t.Helper()
	st := d.capState(t).FastPath
	c, err := net.Dial("tcp4", fmt.Sprint("127.0.0.1:", st.Port))
	if err != nil {
		t.Fatal(err)
	}
	cl := acmsock.NewClient(c)
	defer cl.Close()
	wait(t, "a hit in the kernel", func() bool {
		r, err := cl.ResolveIP(t.Context(), netip.Addr{}, fabric.IPv4(5, 1), false)
		var status *acmsock.StatusError
		if errors.As(err, &status) {
			return false // nobody waits on such a connection
		}
		if err != nil || r.Paths[0].Record.DLID() != 6 {
			t.Fatalf("%+v, %v", r, err)
		}
		now := d.capState(t).FastPath
		return now.Messages["hit"] > st.Messages["hit"] && (now.Plan.All || now.Inserted > st.Inserted)
	})
}

// goesOn does what an operator and programs may do with a daemon that serves.
func (d *daemon) goesOn(t *testing.T, fast bool) {
	t.Helper()
	ctl := control.NewClient(d.dir)
	post := func(path string, in any) {
		t.Helper()
		if err := ctl.Do(t.Context(), "POST", path, in, nil); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
	if err := resolve(t, d.sock()); err != nil {
		t.Error(err)
	}
	post("flush", control.FlushRequest{All: true})
	if err := resolve(t, d.sock()); err != nil {
		t.Errorf("after a flush: %v", err)
	}
	portFile := func() bool { _, err := os.Stat(filepath.Join(d.dir, "ibacm.port")); return err == nil }
	if fast {
		d.newClientHits(t)
		post("fast-path", control.FastPathRequest{On: false})
		hits := d.capState(t).FastPath.Messages["hit"]
		if err := resolve(t, d.sock()); err != nil || portFile() {
			t.Errorf("switched off: %v, port file %v", err, portFile())
		}
		if n := d.capState(t).FastPath.Messages["hit"]; n != hits {
			t.Errorf("%d hits while it was switched off", n-hits)
		}
		post("fast-path", control.FastPathRequest{On: true})
		if !portFile() {
			t.Error("no port file after it was switched on")
		}
		d.newClientHits(t)
	}
	// A rotated log is made anew, and the other files are read again.
	log := filepath.Join(d.dir, "log")
	if err := os.Rename(log, log+".1"); err != nil {
		t.Fatal(err)
	}
	post("reload", nil)
	if b, err := os.ReadFile(log); err != nil || !strings.Contains(string(b), "reloaded") || strings.Contains(string(b), "denied") {
		t.Errorf("the new log: %v\n%s", err, b)
	}
	if err := resolve(t, d.sock()); err != nil {
		t.Errorf("after a reload: %v", err)
	}
}

// ends checks that nothing is left behind.
func (d *daemon) ends(t *testing.T) {
	t.Helper()
	if err := d.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := d.end(t); code != 0 {
		t.Errorf("exit status %d after SIGTERM", code)
	}
	for _, name := range []string{"ibacm-unix.sock", "ibacm.sock", "acmd.ctl", "ibacm.port", "ibacm-tcp.port"} {
		if _, err := os.Lstat(filepath.Join(d.dir, name)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is left behind (%v)", name, err)
		}
	}
}

// startLogging is start with a log file that can be rotated.
func startLogging(t *testing.T, s setup) *daemon {
	t.Helper()
	if s.dir == "" {
		s.dir = t.TempDir()
	}
	log := filepath.Join(s.dir, "log")
	s.opts = append(s.opts, "log_file "+log)
	d := launch(t, s)
	t.Cleanup(func() {
		if b, err := os.ReadFile(log); t.Failed() && err == nil {
			t.Logf("log:\n%s", b)
		}
	})
	wait(t, "acmd to serve", func() bool {
		select {
		case <-d.done:
			t.Fatalf("acmd ended (%v):\n%s", d.err, d.out)
		default:
		}
		b, _ := os.ReadFile(log)
		return strings.Contains(string(b), "serving clients")
	})
	return d
}

func linuxBefore(t *testing.T, major, minor int) bool {
	t.Helper()
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		t.Fatal(err)
	}
	var have [2]int
	if _, err := fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &have[0], &have[1]); err != nil {
		t.Fatal(err)
	}
	return have[0] < major || have[0] == major && have[1] < minor
}

func unprivilegedPorts(t *testing.T) int {
	t.Helper()
	b, err := os.ReadFile("/proc/sys/net/ipv4/ip_unprivileged_port_start")
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		t.Fatal(err)
	}
	return n
}
