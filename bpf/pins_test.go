// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package bpf_test

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"acmd/bpf"
	"acmd/bpf/bpftest"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// roleEnv makes the test binary open pins as another user would.
const roleEnv = "ACMD_BPF_ROLE"

// runRole says on stdout what came of it: "open" counts there, "load" reads.
func runRole(role, dir string) {
	switch role {
	case "open":
		m, err := bpf.Open(bpf.Options{Dir: dir, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			fmt.Println(err)
			return
		}
		m.Shard().Add(bpf.DoorRefused, 1)
		s := snapshot(m)
		fmt.Println(m.Place(), s.Totals, m.Reason())
		m.Close()
	case "load":
		r, err := bpf.Load(dir)
		if err != nil {
			fmt.Println(err)
			return
		}
		var s bpf.Snapshot
		fmt.Println(r.Read(&s), s.Totals)
		r.Close()
	}
}

const nobody = 65534

// asNobody runs a role as a user without privileges other than caps.
func asNobody(t *testing.T, role, dir string, caps ...uintptr) string {
	t.Helper()
	self, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer self.Close()
	bin := filepath.Join(t.TempDir(), "test")
	f, err := os.OpenFile(bin, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(f, self); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	for d := filepath.Dir(bin); d != os.TempDir() && d != "/"; d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(bin)
	cmd.Env = append(os.Environ(), roleEnv+"="+role+" "+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}, AmbientCaps: caps}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return strings.TrimSpace(string(out))
}

// Whoever may read files may read the counters; counting takes CAP_BPF, and
// without it goes on in memory.
func TestUnprivileged(t *testing.T) {
	root := bpftest.Mount(t)
	dir := root + "/acmd/v1"
	m, _ := open(t, dir)
	want := fill(m)
	m.Close()
	if got := asNobody(t, "load", dir); got != fmt.Sprint("<nil> ", want) {
		if strings.Contains(got, "operation not permitted") {
			t.Log("this kernel lets nobody look at maps without CAP_BPF (before 5.19)")
		} else {
			t.Errorf("read by nobody: %s, want totals %v", got, want)
		}
	}
	// The directory is root's.
	if got := asNobody(t, "open", dir); !strings.HasPrefix(got, "memory ") || !strings.HasSuffix(got, "making maps takes CAP_BPF: operation not permitted") {
		t.Errorf("counted by nobody: %s", got)
	}
	if got := asNobody(t, "open", dir, unix.CAP_BPF); got != "anonymous [1 1 0 0 0 0 0] pin directory "+dir+": belongs to user 0" {
		t.Errorf("counted by nobody with CAP_BPF: %s", got)
	}
	// In a directory of its own a service user needs CAP_BPF and nothing else,
	// also to go on from its own pins, which their mode keeps even it from writing.
	own := root + "/own"
	if err := errors.Join(os.Mkdir(own, 0o700), os.Chown(own, nobody, nobody)); err != nil {
		t.Fatal(err)
	}
	if got := asNobody(t, "open", own+"/v1"); !strings.HasPrefix(got, "memory ") {
		t.Errorf("a service user without CAP_BPF: %s", got)
	}
	if _, err := os.Stat(own + "/v1"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a pin directory with nothing in it: %v", err)
	}
	for i := 1; i <= 3; i++ {
		if got, want := asNobody(t, "open", own+"/v1", unix.CAP_BPF), fmt.Sprintf("pinned [%d %d 0 0 0 0 0] <nil>", i, i); got != want {
			t.Errorf("run %d of a service user: %s, want %s", i, got, want)
		}
	}
	if st, err := os.Stat(own + "/v1/acm_meta"); err != nil || st.Mode().Perm() != 0o444 {
		t.Errorf("mode %v, %v", st.Mode(), err)
	}
	// Somebody else's directory is not written to.
	foreign := root + "/foreign"
	if err := errors.Join(os.Mkdir(foreign, 0o755), os.Chown(foreign, 1, 1)); err != nil {
		t.Fatal(err)
	}
	if _, log := open(t, foreign); !strings.Contains(log, "belongs to user 1") {
		t.Errorf("somebody else's directory: %s", log)
	}
}

// Pins that do not fit are replaced as a whole, with a line in the log.
func TestReplaced(t *testing.T) {
	meta := func(t *testing.T, dir string, edit func([]byte)) {
		m, err := ebpf.LoadPinnedMap(dir+"/acm_meta", nil)
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		var v []byte
		if err := m.Lookup(uint32(0), &v); err != nil {
			t.Fatal(err)
		}
		edit(v)
		if err := m.Put(uint32(0), v); err != nil {
			t.Fatal(err)
		}
	}
	for name, tc := range map[string]struct {
		spoil func(t *testing.T, dir string)
		want  string
	}{
		"magic":  {func(t *testing.T, dir string) { meta(t, dir, func(b []byte) { b[0] = 'X' }) }, "magic"},
		"schema": {func(t *testing.T, dir string) { meta(t, dir, func(b []byte) { b[8] = 77 }) }, "schema 77, this is 1"},
		"header": {func(t *testing.T, dir string) {
			meta(t, dir, func(b []byte) { copy(b[36:], []byte{0xff, 0xff, 0xff, 0xff}) })
		}, "does not make sense"},
		"missing":    {func(t *testing.T, dir string) { os.Remove(dir + "/acm_ep") }, "1 of 7 maps are missing"},
		"unfinished": {func(t *testing.T, dir string) { os.Remove(dir + "/acm_meta") }, "1 of 7 maps are missing"},
		"size": {func(t *testing.T, dir string) {
			os.Remove(dir + "/acm_lat")
			other, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1, Flags: unix.BPF_F_MMAPABLE})
			if err != nil {
				t.Fatal(err)
			}
			defer other.Close()
			if err := other.Pin(dir + "/acm_lat"); err != nil {
				t.Fatal(err)
			}
		}, "acm_lat"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := bpftest.Mount(t) + "/v1"
			m, _ := open(t, dir)
			fill(m)
			m.Close()
			tc.spoil(t, dir)
			m, log := open(t, dir)
			defer m.Close()
			if !strings.Contains(log, "replaced") || !strings.Contains(log, tc.want) {
				t.Errorf("log %s, want %q in it", log, tc.want)
			}
			want := fill(m)
			s := snapshot(m)
			checkFilled(t, &s, want, 1)
			if m.Place() != bpf.Pinned || s.Boots != 1 {
				t.Errorf("in %v, boots %d", m.Place(), s.Boots)
			}
			r, err := bpf.Load(dir)
			if err != nil {
				t.Fatal(err)
			}
			r.Close()
		})
	}
}

// What cannot be replaced as a whole leaves no half of it behind.
func TestNotReplaced(t *testing.T) {
	dir := bpftest.Mount(t) + "/v1"
	m, _ := open(t, dir)
	m.Close()
	if err := errors.Join(os.Remove(dir+"/acm_ep"), os.MkdirAll(dir+"/acm_ep/odd", 0o755)); err != nil {
		t.Fatal(err)
	}
	m, log := open(t, dir)
	defer m.Close()
	if m.Place() != bpf.Anonymous || !strings.Contains(log, "acm_ep") {
		t.Errorf("in %v, log %s", m.Place(), log)
	}
	if list, err := os.ReadDir(dir); err != nil || len(list) != 1 {
		t.Errorf("left: %v, %v", list, err)
	}
}

// Each run directory has its own pins; those whose run directory is gone are
// removed by the next daemon, others are not touched.
func TestSweep(t *testing.T) {
	root := bpftest.Mount(t)
	runs := t.TempDir()
	openFor := func(run string) *bpf.Maps {
		m, err := bpf.Open(bpf.Options{Dir: bpf.PinDir(root, run), RunDir: run, Log: slog.New(slog.DiscardHandler)})
		if err != nil || m.Place() != bpf.Pinned {
			t.Fatal(err, m.Reason())
		}
		return m
	}
	for _, name := range []string{"gone", "alive", "kept"} {
		if err := os.Mkdir(filepath.Join(runs, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	gone, alive, kept := filepath.Join(runs, "gone"), filepath.Join(runs, "alive"), filepath.Join(runs, "kept")
	goneDir := bpf.PinDir(root, gone)
	openFor(gone).Close()
	openFor(kept).Close()
	defer openFor(alive).Close()
	if err := errors.Join(os.Remove(gone), os.Remove(alive)); err != nil { // the second one's daemon lives
		t.Fatal(err)
	}
	defer openFor("/run").Close()
	if _, err := os.Stat(goneDir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("pins of a run directory that is gone: %v", err)
	}
	for _, dir := range []string{bpf.PinDir(root, alive), bpf.PinDir(root, kept), filepath.Join(root, "v1")} {
		if r, err := bpf.Load(dir); err != nil {
			t.Error(err)
		} else {
			r.Close()
		}
	}
}
