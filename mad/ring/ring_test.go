// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package ring

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"acmd/mad"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Layout that other packages and the kernel rely on; a wrong one does not
// compile.
var (
	_ = [1]struct{}{}[SlotSize-320]
	_ = [1]struct{}{}[SlotSize%64]
	_ = [1]struct{}{}[unsafe.Sizeof(mad.UserHeader{})-64]
	_ = [1]struct{}{}[unsafe.Sizeof(mad.Packet{})-256]
)

func newRing(t testing.TB, n int, poison bool) *Ring {
	t.Helper()
	r, err := New(n, poison)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func mustPanic(t *testing.T, text string, f func()) {
	t.Helper()
	defer func() {
		t.Helper()
		switch v := recover().(type) {
		case nil:
			t.Errorf("no panic, want %q", text)
		case string:
			if !strings.Contains(v, text) {
				t.Errorf("panic %q, want %q", v, text)
			}
		default:
			t.Errorf("panic %v, want %q", v, text)
		}
	}()
	f()
}

func TestNewRefuses(t *testing.T) {
	for _, n := range []int{-1, 0, 1<<16 + 1} {
		if r, err := New(n, false); err == nil {
			t.Errorf("New(%d) = %v, want an error", n, r)
		}
	}
}

func TestLayout(t *testing.T) {
	const n = 37
	r := newRing(t, n, false)
	seen := map[uintptr]bool{}
	for i := range n {
		s := r.Get()
		if s.Index() != i {
			t.Errorf("slot %d came at position %d: want the order of the memory", s.Index(), i)
		}
		at := uintptr(unsafe.Pointer(s.Header()))
		if at%64 != 0 {
			t.Errorf("slot %d lies at %#x, not on a cache line", i, at)
		}
		if mad := uintptr(unsafe.Pointer(s.MAD())); mad != at+64 {
			t.Errorf("slot %d: MAD is %d bytes behind the header, want 64", i, mad-at)
		}
		if b := s.Bytes(); len(b) != SlotSize || cap(b) != SlotSize || uintptr(unsafe.Pointer(&b[0])) != at {
			t.Errorf("slot %d: frame has length %d, capacity %d", i, len(b), cap(b))
		}
		if seen[at] {
			t.Errorf("slot %d shares its memory", i)
		}
		seen[at] = true
		s.MAD().SetTID(mad.TID(i))
		s.Header().SetLID(mad.LID(i + 1))
		if got := binary.BigEndian.Uint16(s.Bytes()[28:]); got != uint16(i+1) {
			t.Errorf("slot %d: LID in the frame is %d", i, got)
		}
		if got := binary.BigEndian.Uint64(s.Bytes()[64+8:]); got != uint64(i) {
			t.Errorf("slot %d: TID in the frame is %d", i, got)
		}
	}
}

func TestExhaustion(t *testing.T) {
	r := newRing(t, 3, true)
	slots := make([]*Slot, 5)
	if n := r.GetN(slots); n != 3 {
		t.Fatalf("GetN = %d, want 3", n)
	}
	if slots[3] != nil || slots[4] != nil {
		t.Error("GetN wrote past what it returned")
	}
	if s := r.Get(); s != nil {
		t.Fatalf("slot %d from an empty ring", s.Index())
	}
	if n := r.GetN(slots[3:]); n != 0 {
		t.Fatalf("GetN = %d from an empty ring", n)
	}
	if r.Free() != 0 || r.Cap() != 3 {
		t.Errorf("free %d, cap %d, want 0, 3", r.Free(), r.Cap())
	}
	slots[1].Release()
	if s := r.Get(); s != slots[1] {
		t.Error("the released slot did not come back")
	}
	for _, s := range slots[:3] {
		s.Release()
	}
	if r.Free() != 3 {
		t.Errorf("free %d, want 3", r.Free())
	}
}

func TestPoison(t *testing.T) {
	for _, poison := range []bool{false, true} {
		r := newRing(t, 1, poison)
		s := r.Get()
		for i := range s.Bytes() {
			s.Bytes()[i] = 0x11
		}
		s.SetLong([]byte{1})
		b := s.Bytes()
		s.Release()
		want := byte(0x11)
		if poison {
			want = PoisonByte
		}
		if n := bytes.Count(b, []byte{want}); n != SlotSize {
			t.Errorf("poison %v: %d of %d bytes are %#x after release", poison, n, SlotSize, want)
		}
		if s := r.Get(); s.Long() != nil {
			t.Error("a reassembled message outlived its slot")
		}
	}
}

func TestWriteAfterRelease(t *testing.T) {
	r := newRing(t, 1, true)
	s := r.Get()
	s.Release()
	s.MAD().SetTID(1)
	mustPanic(t, "byte 72 of slot 0 was written after release", func() { r.Get() })
}

func TestDoubleRelease(t *testing.T) {
	for _, poison := range []bool{false, true} {
		r := newRing(t, 2, poison)
		s := r.Get()
		s.Release()
		mustPanic(t, "released twice", s.Release)
		if r.Free() != 2 {
			t.Errorf("free %d after a refused release, want 2", r.Free())
		}
		// The ring still works, and the lock is free.
		r.Get().Release()
	}
}

// Of several goroutines that release one slot, exactly one may.
func TestDoubleReleaseRace(t *testing.T) {
	r := newRing(t, 4, false)
	for range 200 {
		s := r.Get()
		var panics atomic.Int32
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				defer func() {
					if recover() != nil {
						panics.Add(1)
					}
				}()
				s.Release()
			})
		}
		wg.Wait()
		if panics.Load() != 2 {
			t.Fatalf("%d of 3 releases were refused, want 2", panics.Load())
		}
		if r.Free() != 4 {
			t.Fatalf("free %d of 4", r.Free())
		}
	}
}

func TestClose(t *testing.T) {
	r := newRing(t, 2, false)
	s := r.Get()
	if err := r.Close(); !errors.Is(err, ErrBusy) {
		t.Fatalf("Close with a slot out: %v, want ErrBusy", err)
	}
	s.MAD().SetTID(1) // still mapped
	s.Release()
	for range 2 {
		if err := r.Close(); err != nil {
			t.Fatalf("Close: %v", err)
		}
	}
	if s := r.Get(); s != nil {
		t.Error("a closed ring lent a slot")
	}
	if n := r.GetN(make([]*Slot, 2)); n != 0 {
		t.Errorf("a closed ring lent %d slots", n)
	}
	r.Retire()
}

func TestRetire(t *testing.T) {
	r := newRing(t, 2, true)
	slots := make([]*Slot, 2)
	r.GetN(slots)
	slots[0].Release()
	r.Retire()
	if r.Get() != nil || r.GetN(make([]*Slot, 1)) != 0 {
		t.Error("a retired ring lent a slot")
	}
	slots[1].MAD().SetTID(7)
	if got := slots[1].MAD().TID(); got != 7 {
		t.Errorf("TID %v in a slot of a retired ring", got)
	}
	if err := r.Close(); !errors.Is(err, ErrBusy) {
		t.Errorf("Close: %v, want ErrBusy", err)
	}
	slots[1].Release()
	if r.region != nil {
		t.Error("the last release did not unmap the region")
	}
	if err := r.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}

	idle := newRing(t, 1, false)
	idle.Retire()
	if idle.region != nil {
		t.Error("retiring an idle ring did not unmap it")
	}
}
