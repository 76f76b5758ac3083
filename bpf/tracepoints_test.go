// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package bpf

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"acmd/bpf/bpftest"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
)

// The formats of testdata are those of Debian's 6.1 and 6.12 kernels, which are
// alike.
func TestRecords(t *testing.T) {
	spec, err := loadTrace()
	if err != nil {
		t.Fatal(err)
	}
	if err := checkRecords(spec.Types, "testdata/tracefs"); err != nil {
		t.Error(err)
	}
	if err := checkRecords(spec.Types, t.TempDir()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without tracepoints: %v", err)
	}
	var record *btf.Struct
	if err := spec.Types.TypeByName(onAnswer.record, &record); err != nil {
		t.Fatal(err)
	}
	format, err := os.ReadFile(filepath.Join("testdata/tracefs/events", onAnswer.group, onAnswer.name, "format"))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ old, new, want string }{
		{"u64 tid;\toffset:24", "u64 tid;\toffset:32", "tid has 8 bytes at 32 in this kernel's record, 8 at 24 were expected"},
		{"size:8;\tsigned:0;\n\tfield:u8 method", "size:4;\tsigned:0;\n\tfield:u8 method", "tid has 4 bytes at 24 in this kernel's record, 8 at 24 were expected"},
		{"mgmt_class", "management_class", "this kernel's record has no mgmt_class"},
	} {
		bad := strings.Replace(string(format), c.old, c.new, 1)
		if bad == string(format) {
			t.Errorf("%q is not in the format", c.old)
		}
		if err := checkRecord(record, []byte(bad)); err == nil || err.Error() != c.want {
			t.Errorf("%v, want %q", err, c.want)
		}
	}
}

// The verifier of the running kernel takes the programs, also where there are no
// tracepoints to attach them to.
func TestTraceLoads(t *testing.T) {
	bpftest.NeedMaps(t)
	m, err := Open(Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	spec, err := loadTrace()
	if err != nil {
		t.Fatal(err)
	}
	opts, err := m.Share(spec)
	if err != nil {
		t.Fatal(err)
	}
	var progs tracePrograms
	if err := spec.LoadAndAssign(&progs, &opts); err != nil {
		var ve *ebpf.VerifierError
		if errors.As(err, &ve) {
			t.Fatalf("%+v", ve)
		}
		t.Fatal(err)
	}
	if err := progs.Close(); err != nil {
		t.Error(err)
	}
}

// Without the tracepoints, and without maps, the error says so, and a trace that
// is not there does nothing.
func TestTraceAbsent(t *testing.T) {
	if _, err := os.Stat(filepath.Join(tracefs(), "events", "ib_umad")); err == nil {
		t.Skip("this kernel has the tracepoints: the kernel laboratory tests them")
	}
	tr, err := NewMemory().TraceFabric()
	if !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v, want not exist", err)
	}
	tr.Asked(1)
	if err := tr.Close(); err != nil {
		t.Error(err)
	}
}

// A request leaves its TID and the time where the program looks, and the second
// copy of one that is on its way leaves what the program has noted.
func TestAsked(t *testing.T) {
	tr := &Trace{asked: make([]traceAcmAsk, 8)}
	tr.Asked(0xdeadbe03)
	a := &tr.asked[3]
	if a.Tid != 0xdeadbe03 || a.Asked == 0 || a.Sent|a.Copies|a.Arrived != 0 {
		t.Fatalf("%+v", a)
	}
	a.Asked, a.Sent, a.Copies, a.Arrived = 0, 7, 1, 9 // as the program does
	tr.Asked(0xdeadbe03)
	if a.Tid != 0xdeadbe03 || a.Asked == 0 || a.Sent != 7 || a.Copies != 1 || a.Arrived != 9 {
		t.Fatalf("second copy: %+v", a)
	}
	tr.Asked(0x0000000b) // another one takes the slot
	if a.Tid != 0xb || a.Asked == 0 || a.Sent|a.Copies|a.Arrived != 0 {
		t.Fatalf("another: %+v", a)
	}
}

// Whatever a format says, it does no harm, and none passes that lacks a field.
func FuzzRecord(f *testing.F) {
	for _, at := range []tracepoint{onSend, onSent, onAnswer, onRead} {
		text, err := os.ReadFile(filepath.Join("testdata/tracefs/events", at.group, at.name, "format"))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	spec, err := loadTrace()
	if err != nil {
		f.Fatal(err)
	}
	var record *btf.Struct
	if err := spec.Types.TypeByName(onSent.record, &record); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, format []byte) {
		if checkRecord(record, format) != nil {
			return
		}
		for _, m := range record.Members {
			if m.Name != "common" && !bytes.Contains(format, []byte(m.Name)) {
				t.Errorf("no %s in\n%s", m.Name, format)
			}
		}
	})
}
