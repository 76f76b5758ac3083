// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package kernellab

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// Peer is another host: a network namespace with IPoIB interfaces in it. Their
// adapters stay where they are.
type Peer struct {
	t   testing.TB
	pid string // of a process that lives there
}

// StartPeer makes a network namespace and moves interfaces into it. They come back
// at the end of the test.
func StartPeer(t testing.TB, interfaces ...string) *Peer {
	t.Helper()
	cmd := exec.Command("sleep", "1000")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	if err := cmd.Start(); err != nil {
		t.Fatalf("network namespace: %v", err)
	}
	p := &Peer{t, strconv.Itoa(cmd.Process.Pid)}
	for _, i := range interfaces {
		Run(t, "ip", "link", "set", "dev", i, "netns", p.pid)
	}
	t.Cleanup(func() {
		for _, i := range interfaces {
			p.IP("link set dev " + i + " netns " + strconv.Itoa(os.Getpid()))
		}
		_ = cmd.Process.Kill() // it sleeps
		_ = cmd.Wait()
	})
	return p
}

// Command is a program in the peer's namespace, not started.
func (p *Peer) Command(name string, arg ...string) *exec.Cmd {
	return exec.Command("nsenter", append([]string{"--net=/proc/" + p.pid + "/ns/net", name}, arg...)...)
}

// IP runs ip with these words there.
func (p *Peer) IP(words string) {
	p.t.Helper()
	if out, err := p.Command("ip", strings.Fields(words)...).CombinedOutput(); err != nil {
		p.t.Fatalf("ip %s, in the peer's namespace: %v\n%s", words, err, out)
	}
}
