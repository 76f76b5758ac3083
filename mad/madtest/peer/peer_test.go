// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package peer

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"acmd/mad"

	"github.com/google/go-cmp/cmp"
)

// Port GUIDs of small.net as ibsim makes them: node GUID and port number.
const (
	nodeA  mad.GUID = 0x100001
	nodeB  mad.GUID = 0x100003
	smHost mad.GUID = 0x10000f
)

func TestNodeIP(t *testing.T) {
	for node, want := range map[string]string{
		"node-a": "10.77.0.1", "node-g": "10.77.0.7", "h1": "10.78.0.2", "h249": "10.78.0.250",
		"h250": "10.78.1.1", "sm-host": "", "node-": "", "node-A": "", "hx": "", "": "",
	} {
		if got := NodeIP(node); got != want {
			t.Errorf("NodeIP(%q) = %q, want %q", node, got, want)
		}
	}
}

func TestField(t *testing.T) {
	const out = "PathRecord dump:\n\t\tdlid....................5\n\t\tmtu.....................0x84\nreturn status: 0x0\ndlid7\n"
	for name, want := range map[string]string{"dlid": "5", "mtu": "0x84", "return status": "0x0", "nothing": "", "dli": ""} {
		if got := Field(out, name); got != want {
			t.Errorf("field %q: %q, want %q", name, got, want)
		}
	}
}

func TestReadGUID2LID(t *testing.T) {
	file := filepath.Join(t.TempDir(), "guid2lid")
	for _, c := range []struct {
		text string
		want map[mad.GUID]mad.LID
	}{
		{"0x0000000000100003 0x0005 0x0005\n\n0x0000000000200000 0x0002 0x0003\n\n", map[mad.GUID]mad.LID{nodeB: 5, 0x200000: 2}},
		{"", map[mad.GUID]mad.LID{}},
		{"0x100003 0x0005\n", nil},
		{"0x100003 0x10005 0x10005\n", nil},
		{"port 5 5\n", nil},
	} {
		if err := os.WriteFile(file, []byte(c.text), 0o644); err != nil {
			t.Fatal(err)
		}
		got, err := readGUID2LID(file)
		if (err == nil) != (c.want != nil) {
			t.Errorf("%q: %v", c.text, err)
		}
		if err == nil && !cmp.Equal(got, c.want) {
			t.Errorf("%q: %s", c.text, cmp.Diff(c.want, got))
		}
	}
}

// TestStockPeers has two stock daemons resolve each other, asked by both stock
// clients, and compares with what saquery says.
func TestStockPeers(t *testing.T) {
	f := StartFabric(t, "small.net")
	if len(f.LIDs()) != 10 { // 8 adapters, 2 switches
		t.Errorf("LIDs: %v", f.LIDs())
	}
	a := StartIbacm(t, f, "node-a", Address("10.99.0.1"))
	b := StartIbacm(t, f, "node-b", Option("log_level 1"))
	a.WaitJoined(t, "node-a")
	b.WaitJoined(t, "node-b")
	client := Client{RunDir: a.Dir, GUID: nodeA - 1}
	lidA, lidB := f.LID(t, nodeA), f.LID(t, nodeB)

	out, status := IbAcme(t, client, "-f", "i", "-s", NodeIP("node-a"), "-d", NodeIP("node-b"))
	if status != 0 || Field(out, "dlid") != fmt.Sprint(lidB) || Field(out, "return status") != "" {
		t.Errorf("ib_acme by address: exit status %d\n%s", status, out)
	}
	// -v asks the SA through umad, which this process does not have: the daemon does it.
	out, status = IbAcme(t, client, "-S", a.Sock, "-f", "l", "-s", fmt.Sprint(lidA), "-d", fmt.Sprint(lidB), "-v")
	if status != 0 || !strings.Contains(out, "SA verification: success") {
		t.Errorf("ib_acme by LID: exit status %d\n%s", status, out)
	}
	out, status = Raitest(t, client, "10.99.0.1", NodeIP("node-b"), 50)
	if status != 0 || !strings.Contains(out, "50 of 50 with a route") || !strings.Contains(out, fmt.Sprintf("dlid %d", lidB)) {
		t.Errorf("raitest: exit status %d\n%s", status, out)
	}
	out = Saquery(t, f, "node-c", "-p", "--slid", fmt.Sprint(lidA), "--dlid", fmt.Sprint(lidB))
	if Field(out, "dlid") != fmt.Sprint(lidB) || Field(out, "mtu") != "0x84" {
		t.Errorf("saquery:\n%s", out)
	}
	if d := a.Proc.CPU(); d <= 0 || d > time.Minute {
		t.Errorf("CPU time of ibacm: %v", d)
	}
}

// TestProcessesEnd looks for the processes after the test that started them.
func TestProcessesEnd(t *testing.T) {
	var pids []int
	var dir string
	t.Run("fabric", func(t *testing.T) {
		f := StartFabric(t, "small.net", Remote(), SMHost("node-g"))
		dir, pids = f.Dir, []int{f.Ibsim.Pid, f.OpenSM.Pid}
		for _, pid := range pids {
			if err := syscall.Kill(pid, 0); err != nil {
				t.Errorf("pid %d: %v", pid, err)
			}
		}
		if out := f.Tool(t, "node-a", "smpquery", "portinfo", "-D", "0", "1"); Field(out, "LinkState") != "Active" {
			t.Errorf("portinfo of node-a:\n%s", out)
		}
	})
	for _, pid := range pids {
		if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
			t.Errorf("pid %d: %v, want it gone", pid, err)
		}
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("directory %s: %v, want it gone", dir, err)
	}
	if len(pids) != 2 {
		t.Skip("no fabric") // what was missing is said above
	}
}

// TestStopped stops a program that does not listen to SIGTERM.
func TestStopped(t *testing.T) {
	p := start(t, t.TempDir(), nil, nil, "/bin/sh", "-c", "trap '' TERM; echo up; exec sleep 600")
	waitFor(t, p, "shell", func() bool { return contains(p.Log, "up") })
	if err, over := p.ended(); over {
		t.Fatal(err)
	}
	p.Kill()
	if _, over := p.ended(); !over {
		t.Error("killed, but not ended")
	}
	p.Stop() // of what has ended
}
