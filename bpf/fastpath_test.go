// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package bpf

import (
	"os"
	"testing"
	"unsafe"

	"github.com/cilium/ebpf"
)

// needSockets skips the test unless it may make socket maps.
func needSockets(t *testing.T) {
	t.Helper()
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.SockHash, KeySize: 8, ValueSize: 8, MaxEntries: 1})
	if err == nil {
		m.Close()
		return
	}
	if os.Getenv("ACMD_CI") == "1" {
		t.Fatalf("socket maps cannot be made (CAP_BPF, CAP_NET_ADMIN): %v", err)
	}
	t.Skipf("socket maps cannot be made (CAP_BPF, CAP_NET_ADMIN): %v", err)
}

// Every plan passes the self-test, or the kernel says that it has no such thing;
// one of them works on each kernel that tests run on.
func TestFastPlans(t *testing.T) {
	needSockets(t)
	works := map[bool]int{}
	for _, plan := range fastPlans {
		for _, plan.Unread = range []string{unreadRmem, unreadPsock} {
			for _, plan.All = range []bool{false, true} {
				if err := selfTest(FastConfig{All: plan.All}, plan); err != nil {
					t.Logf("%+v: %v", plan, err)
				} else {
					works[plan.All]++
				}
			}
		}
	}
	for all, n := range works {
		t.Logf("all %v: %d of %d plans work", all, n, 2*len(fastPlans))
	}
	for _, all := range []bool{false, true} {
		f, err := LoadFast(FastConfig{Port: 1, All: all})
		if err != nil {
			t.Fatalf("all %v: %v", all, err)
		}
		t.Logf("%+v", f.Plan())
		if f.On() {
			t.Error("on before anybody said so")
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestFastLayouts(t *testing.T) {
	spec, err := loadFast()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range []struct {
		name       string
		have, want uintptr
	}{
		{"FastKey", unsafe.Sizeof(FastKey{}), uintptr(spec.Maps[fastMapAcmPaths].KeySize)},
		{"FastKey of sources", unsafe.Sizeof(FastKey{}), uintptr(spec.Maps[fastMapAcmSrc].KeySize)},
		{"FastPath", unsafe.Sizeof(FastPath{}), uintptr(spec.Maps[fastMapAcmPaths].ValueSize)},
		{"FastConn", unsafe.Sizeof(FastConn{}), uintptr(spec.Maps[fastMapAcmConns].ValueSize)},
	} {
		if l.have != l.want {
			t.Errorf("%s has %d bytes, the program's %d", l.name, l.have, l.want)
		}
	}
	for name, want := range map[string]uint32{
		fastMapAcmPaths: FastPaths, fastMapAcmUse: FastPaths, fastMapAcmSrc: FastSources, fastMapAcmGen: FastGens, fastMapAcmConns: fastPorts,
	} {
		if n := spec.Maps[name].MaxEntries; n != want {
			t.Errorf("%s has %d entries, want %d", name, n, want)
		}
	}
}
