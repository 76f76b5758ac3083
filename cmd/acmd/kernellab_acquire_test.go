// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package main

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"acmd/mad/umad/kernellab"
	"acmd/resolver/control"
)

// acmctl acquire on real ports: the entry of each path that the daemon resolves,
// and each of the three failures, also after an adapter was pulled.
func TestKernelAcquire(t *testing.T) {
	l := startLab(t)
	t.Cleanup(func() { kernellab.Plug(t, "sib3") })
	acquire := func(arg ...string) (r control.AcquireReply, fault string) {
		t.Helper()
		out, err := exec.Command(labAcmctl, append([]string{"--run-dir", l.dir, "--json", "acquire"}, arg...)...).CombinedOutput()
		if err != nil {
			return r, string(out)
		}
		if err := json.Unmarshal(out, &r); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return r, ""
	}
	p := l.resolves("sib2")
	ours, theirs := p.SGID().String(), p.DGID().String()
	want := control.AcquireReply{Device: "sib1", Port: 1, GID: ours, Type: "IB"}
	for _, arg := range [][]string{
		{"--sgid", ours, "--pkey", p.PKey().String()},
		{"--sgid", ours, "--listener", "sib1/1", "--source", "name:node1"},
		{"--slid", p.SLID().String(), "--source", "gid:" + ours},
		{"--incoming", "--dgid", ours, "--sgid", theirs, "--listener", "sib1"},
	} {
		if got, fault := acquire(arg...); got != want {
			t.Errorf("%v: %+v %s", arg, got, fault)
		}
	}
	for fault, arg := range map[string][]string{
		"no device:":    {"--sgid", ours, "--listener", "sib2"},
		"no port:":      {"--sgid", ours, "--pkey", "0x8123"},
		"no GID entry:": {"--sgid", ours, "--source", "gid:" + theirs},
	} {
		if _, said := acquire(arg...); !strings.Contains(said, fault) {
			t.Errorf("%v: %q, want %q", arg, said, fault)
		}
	}
	gone := l.info("sib3").GIDs[0].String()
	if got, fault := acquire("--sgid", gone); got.Device != "sib3" {
		t.Errorf("%+v %s", got, fault)
	}
	kernellab.Control(t, "unplug sib3")
	// Right after it the engine may know the device, or the port, by its last look, but
	// the GID is in no table.
	for fault, arg := range map[string][]string{
		"no port:":   {"--sgid", gone},
		"no device:": {"--sgid", gone, "--listener", "sib3"},
	} {
		kernellab.Eventually(t, fmt.Sprintf("%v: %s", arg, fault), func() bool {
			got, said := acquire(arg...)
			if got.Device != "" {
				t.Fatalf("acquired %+v on an adapter that was pulled", got)
			}
			return strings.Contains(said, fault)
		})
	}
}
