// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"acmd/mad/umad/kernellab"
	"acmd/resolver"
	"acmd/resolver/control"
)

// field case 20: a host whose only ports are Ethernet ones. The daemon serves, says
// once that there is no InfiniBand port, opens none of them and refuses requests at
// once; acquire finds their GID-table entries all the same.
func TestRXEDaemon(t *testing.T) {
	kernellab.Need(t, kernellab.RXE)
	d := launchLab(t, nil)
	l := &kernelLab{daemon: d, t: t}
	t.Cleanup(func() {
		_ = d.Process.Signal(syscall.SIGTERM)
		if code := d.end(t); code != 0 {
			t.Errorf("exit status %d after SIGTERM", code)
		}
		if t.Failed() {
			t.Logf("acmd said:\n%s", d.out)
		}
	})
	d.serves(t)
	time.Sleep(1500 * time.Millisecond) // some polls, none of which should change anything
	if n := strings.Count(d.out.String(), "no InfiniBand port yet"); n != 1 {
		t.Errorf("said %d times that there is no port", n)
	}
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", d.Process.Pid))
	if err != nil || len(files) == 0 {
		t.Fatal("no descriptors of the daemon: ", err)
	}
	for _, f := range files {
		if to, err := os.Readlink(f); err == nil && strings.HasPrefix(to, "/dev/infiniband/umad") {
			t.Errorf("it has opened %s", to)
		}
	}
	if s := l.counts(); s.Resolves != 0 { // the kernel asks nothing for RoCE, and is served
		t.Errorf("counters %+v", s)
	}
	if err := resolve(t, d.sock()); err == nil || !strings.Contains(err.Error(), resolver.StatusNotConn.String()) {
		t.Errorf("resolve: %v, want %v", err, resolver.StatusNotConn)
	}
	for _, x := range []struct {
		gid, source string
		want        control.AcquireReply
	}{
		{"fe80::ff:fe00:1", "", control.AcquireReply{Device: "rxe0", Port: 1, Index: 0, GID: "fe80::ff:fe00:1", Type: "RoCE v2", Interface: "k0"}},
		{"fe80::ff:fe00:2", "10.77.0.2", control.AcquireReply{Device: "rxe1", Port: 1, Index: 1, GID: "::ffff:10.77.0.2", Type: "RoCE v2", Interface: "k1"}},
	} {
		arg := []string{"--json", "acquire", "--sgid", x.gid, "--pkey", "0xffff", "--listener", x.want.Device}
		if x.source != "" {
			arg = append(arg, "--source", x.source)
		}
		var got control.AcquireReply
		if out := l.acmctl(arg...); json.Unmarshal([]byte(out), &got) != nil || got != x.want {
			t.Errorf("%v: %s, want %+v", arg, out, x.want)
		}
	}
}
