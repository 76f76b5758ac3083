// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"acmd/bpf"
	"acmd/bpf/bpftest"
	"acmd/mad/madtest/peer"
	"acmd/resolver/privilege"

	"golang.org/x/sys/unix"
)

// What is not needed after the start is gone from every thread, and all goes on
// without.
func TestCapabilitiesDropped(t *testing.T) {
	needCapabilities(t)
	for _, mode := range []string{"off", "kernel", "kernel-all"} {
		t.Run("fast_path "+mode, func(t *testing.T) {
			root, dir := bpftest.Mount(t), t.TempDir()
			d := startLogging(t, setup{dir: dir, opts: []string{"bpf_dir " + root, "fast_path " + mode, "fast_path_port 0", "metrics_addr 127.0.0.1:0"}})
			st := d.capState(t)
			if st.FastPath.On != (mode != "off") || st.Counters.In != "pinned" || !st.Capabilities.Dropped || st.Capabilities.Error != "" {
				t.Fatalf("%+v", st)
			}
			var fast privilege.Set
			if mode != "off" && linuxBefore(t, 5, 19) { // a map takes changes from CAP_BPF only
				fast = privilege.Of(unix.CAP_BPF)
			}
			d.keeps(t, only(fast))
			d.goesOn(t, mode != "off")
			if s := pinned(t, bpf.PinDir(root, dir)); s.Totals[bpf.CountResolve] < 3 {
				t.Errorf("counted %v", s.Totals)
			}
			d.keeps(t, only(fast)) // of threads that came since too
			d.ends(t)
		})
	}
}

// The daemon of an ordinary node without adapters keeps what the kernel's questions
// need, and what following requests will once there are any.
func TestCapabilitiesOfNode(t *testing.T) {
	needCapabilities(t)
	if entries, err := os.ReadDir("/sys/class/infiniband"); err == nil && len(entries) > 0 {
		t.Skip("this machine has InfiniBand devices")
	}
	for _, prot := range []string{"acm", "neigh"} {
		d := startLogging(t, setup{fabric: "umad", opts: []string{"addr_prot " + prot}})
		want := privilege.Of(unix.CAP_NET_ADMIN, unix.CAP_BPF, unix.CAP_PERFMON)
		d.keeps(t, only(want))
		st := d.capState(t).Capabilities
		if len(st.For["kernel"]) != 1 || len(st.For["trace"]) != 2 || len(st.For["neigh"]) != strings.Count(prot, "neigh") {
			t.Errorf("addr_prot %s: for %v", prot, st.For)
		}
		d.ends(t)
	}
}

// A run directory of another user's, whom only a capability lets root write to.
func TestCapabilitiesForeignDirectory(t *testing.T) {
	needCapabilities(t)
	dir := t.TempDir()
	if err := os.Chown(dir, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	d := startLogging(t, setup{dir: dir, opts: []string{"fast_path kernel", "fast_path_port 0"}})
	d.keeps(t, only(privilege.Of(unix.CAP_DAC_OVERRIDE)))
	d.goesOn(t, true)
	d.ends(t)
}

// A daemon that was not given a capability does without what needs it, says why, and
// does the rest.
func TestCapabilitiesMissing(t *testing.T) {
	needCapabilities(t)
	const (
		programs = "CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON are needed"
		maps     = "making maps takes CAP_BPF"
	)
	var (
		bpf   = privilege.Of(unix.CAP_BPF)
		net   = privilege.Of(unix.CAP_NET_ADMIN)
		perf  = privilege.Of(unix.CAP_PERFMON)
		bind  = privilege.Of(unix.CAP_NET_BIND_SERVICE)
		pcap  = privilege.Of(unix.CAP_SETPCAP)
		given = bpf | net | perf
	)
	for _, tc := range []struct {
		bounding privilege.Set
		port     string
		fast     string // why it is off; "": it is on
		counters string // why they end with the process; "": they do not
	}{
		{given | pcap, "0", "", ""},
		{given, "0", "", ""},
		{net | perf | bind, "0", programs, maps},
		{bpf | perf | bind, "0", programs, ""},
		{bpf | net | bind, "0", programs, ""},
		{given, "249", "permission denied", ""},
		{pcap, "249", "permission denied", maps},
		{0, "0", programs, maps},
	} {
		t.Run(tc.bounding.String()+" port "+tc.port, func(t *testing.T) {
			if tc.port != "0" && unprivilegedPorts(t) <= 249 {
				bpftest.Missing(t, "net.ipv4.ip_unprivileged_port_start lets everybody have port %s", tc.port)
			}
			root, dir := bpftest.Mount(t), t.TempDir()
			d := startLogging(t, setup{dir: dir, bounding: &tc.bounding,
				opts: []string{"bpf_dir " + root, "fast_path kernel", "fast_path_port " + tc.port}})
			st := d.capState(t)
			if st.FastPath.On != (tc.fast == "") || !strings.Contains(st.FastPath.Reason, tc.fast) {
				t.Errorf("fast path on %v, reason %q, want %q", st.FastPath.On, st.FastPath.Reason, tc.fast)
			}
			if (st.Counters.In == "pinned") != (tc.counters == "") || !strings.Contains(st.Counters.Reason, tc.counters) {
				t.Errorf("counters %+v, want %q", st.Counters, tc.counters)
			}
			d.goesOn(t, st.FastPath.On)
			want := only(0)
			if !tc.bounding.Has(pcap) { // which it takes to change the bounding set
				want.Bounding = tc.bounding
			}
			d.keeps(t, want)
			d.ends(t)
		})
	}
}

// A service user with what README.md lists has it all, and keeps nothing.
func TestCapabilitiesOfUser(t *testing.T) {
	needCapabilities(t)
	const user = 65534
	dir, bin := t.TempDir(), filepath.Join(t.TempDir(), "acmd")
	b, err := os.ReadFile(os.Args[0])
	if err == nil {
		err = os.WriteFile(bin, b, 0o755)
	}
	for _, d := range []string{dir, filepath.Dir(dir), filepath.Dir(bin)} {
		err = errors.Join(err, os.Chmod(d, 0o755))
	}
	if err = errors.Join(err, os.Chown(dir, user, user)); err != nil {
		t.Fatal(err)
	}
	held, err := privilege.Read()
	if err != nil {
		t.Fatal(err)
	}
	d := startLogging(t, setup{dir: dir, program: bin, user: user, opts: []string{"fast_path kernel", "fast_path_port 0"},
		ambient: []uintptr{unix.CAP_BPF, unix.CAP_NET_ADMIN, unix.CAP_PERFMON}})
	if st := d.capState(t); !st.FastPath.On || !st.Capabilities.Dropped || st.Capabilities.Error != "" {
		t.Errorf("%+v", st)
	}
	d.goesOn(t, true)
	d.keeps(t, privilege.Held{Bounding: held.Bounding})
	d.ends(t)
}

// The binary with queue pairs, whose threads are those of C, drops as well, and keeps
// what queue pairs of ports that come up need.
func TestCapabilitiesOfVerbs(t *testing.T) {
	needCapabilities(t)
	d := startLogging(t, setup{program: peer.AcmdVerbs(t), opts: []string{"fast_path kernel", "fast_path_port 0"}})
	d.keeps(t, only(0))
	d.goesOn(t, true)
	d.keeps(t, only(0))
	d.ends(t)

	a := peer.StartAcmd(t, peer.StartFabric(t, "small.net"), "node-c")
	keeps(t, a.Proc.Pid, a.Dir, only(privilege.Of(unix.CAP_NET_RAW, unix.CAP_IPC_LOCK)))
}
