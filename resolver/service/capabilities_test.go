// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package service

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"acmd/bpf"
	"acmd/resolver/fastpath"
	"acmd/resolver/privilege"

	"golang.org/x/sys/unix"
)

// What the fast path cannot do without is kept, on kernels that want it.
func TestProofNeeds(t *testing.T) {
	neigh := privilege.Of(unix.CAP_NET_ADMIN)
	all := proofSteps[len(proofSteps)-1]
	for _, tc := range []struct {
		name  string
		wants privilege.Set
		more  privilege.Set
		tries int
	}{
		{"nothing", 0, 0, 1},
		{"what is kept anyway", neigh, 0, 1},
		{"a kernel before 5.19", privilege.Of(unix.CAP_BPF), privilege.Of(unix.CAP_BPF), 2},
		{"all that loading took", privilege.Of(unix.CAP_PERFMON), all, 3},
		{"what no capability gives", privilege.Of(63), all, 3},
	} {
		var has privilege.Set
		tries := 0
		with := func(s privilege.Set, fn func() error) error { has = s; return fn() }
		more, why := proofNeeds(neigh, with, func() error {
			if tries++; !has.Has(tc.wants) {
				return unix.EPERM
			}
			return nil
		})
		if (why != nil) != (more != 0) || more != tc.more || tries != tc.tries || !has.Has(neigh) {
			t.Errorf("%s: keeps %s more after %d tries, want %s after %d", tc.name, more, tries, tc.more, tc.tries)
		}
	}
}

// unprovable is a kernel that does not do it again. What is not told here nobody asks.
type unprovable struct {
	fastpath.Kernel
	closed int
}

func (k *unprovable) Prove() error    { return errors.New("for the test") }
func (k *unprovable) EndProof() error { panic("it was closed instead") }
func (k *unprovable) Close() error    { k.closed++; return nil }

// When the fast path does not work any more without what was dropped it is off, and
// says why; all else is served.
func TestFastPathUnproven(t *testing.T) {
	s := startFast(t, "kernel")
	other := &Daemon{log: s.log, first: s.first, door: s.door}
	other.fast = fastpath.New(fastpath.Config{Log: s.log, Changed: func(bool) { t.Error("it was on") }})
	k := &unprovable{}
	other.startFastPath(k, fmt.Errorf("not without: %w", k.Prove()))
	if k.closed != 1 {
		t.Errorf("closed %d times", k.closed)
	}
	st := other.fastPathState()
	if m := fastPathMetrics(st); st.On || !strings.Contains(st.Reason, "for the test") || m.State != "failed" || m.Reason != st.Reason {
		t.Errorf("state %+v, metrics %+v", st, m)
	}
	if err := other.fast.Switch(true); !errors.Is(err, fastpath.ErrOff) {
		t.Errorf("switched on: %v", err)
	}
	if err := other.stopFastPath(); err != nil {
		t.Error(err)
	}
}

// After the daemon's start the self-test is gone from the kernel.
func TestFastPathProofEnds(t *testing.T) {
	f, err := bpf.LoadFast(bpf.FastConfig{Port: 1})
	if err != nil {
		if os.Getenv("ACMD_CI") == "1" {
			t.Fatal(err)
		}
		t.Skip("no fast path here: ", err)
	}
	err = errors.Join(f.Prove(), f.Prove(), f.EndProof(), f.EndProof(), f.Close())
	if err != nil {
		t.Error(err)
	}
}

// A file that only its owner, or nobody, may open is found before it is too late.
func TestOutOfReach(t *testing.T) {
	if h, err := privilege.Read(); err != nil || os.Geteuid() != 0 || !h.Effective.Has(privilege.Of(unix.CAP_DAC_OVERRIDE, unix.CAP_CHOWN)) {
		if os.Getenv("ACMD_CI") == "1" {
			t.Fatalf("not root: %+v, %v", h, err)
		}
		t.Skip("root may open everything, who else runs this may not")
	}
	dir := t.TempDir()
	file := func(name string, mode os.FileMode, uid int) string {
		path := filepath.Join(dir, name)
		err := os.WriteFile(path, nil, 0o600)
		if err = errors.Join(err, os.Chmod(path, mode), os.Chown(path, uid, uid)); err != nil {
			t.Fatal(err)
		}
		return path
	}
	r, w := uint32(unix.R_OK), uint32(unix.R_OK|unix.W_OK)
	ours, everybodys := file("ours", 0o600, 0), file("everybodys", 0o644, 65534)
	closed, theirs := file("closed", 0o400, 0), file("theirs", 0o600, 65534)
	for _, tc := range []struct {
		files []access
		want  string
	}{
		{nil, ""},
		{[]access{{ours, w}, {everybodys, r}, {closed, r}, {filepath.Join(dir, "none"), r}}, ""},
		{[]access{{ours, r}, {theirs, r}}, theirs},
		{[]access{{everybodys, w}}, everybodys},
		{[]access{{closed, w}}, closed},
	} {
		if got := outOfReach(0, privilege.With, tc.files); got != tc.want {
			t.Errorf("%v: out of reach is %q, want %q", tc.files, got, tc.want)
		}
		if got := outOfReach(privilege.Of(unix.CAP_DAC_OVERRIDE), privilege.With, tc.files); got != "" {
			t.Errorf("%v: out of reach with the capability is %q", tc.files, got)
		}
	}
}
