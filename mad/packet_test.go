// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package mad

import (
	"bytes"
	"encoding/hex"
	"strings"
	"testing"
	"unsafe"

	"pgregory.net/rapid"
)

// Layout fixed by the standard and by the kernel; a wrong one does not compile.
var (
	_ = [1]struct{}{}[unsafe.Sizeof(Packet{})-256]
	_ = [1]struct{}{}[unsafe.Sizeof(UserHeader{})-64]
	_ = [1]struct{}{}[unsafe.Sizeof(GID{})-16]
	_ = [1]struct{}{}[HeaderSize-24]
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.Join(strings.Fields(s), ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// field case 13: every field of the header at its place and in network order.
func TestPacketGolden(t *testing.T) {
	want := append(unhex(t, "01 03 02 81 8304 0102 deadbeef11223344 0035 0000 a1b2c3d4"), make([]byte, 232)...)
	var p Packet
	for i := range p {
		p[i] = 0xee // Init must clear
	}
	p.Init(ClassSA, SAClassVersion, MethodGet)
	p.SetMethod(MethodGetResp)
	p.SetStatus(0x8304)
	p.SetSpecific(0x0102)
	p.SetTID(0xdeadbeef11223344)
	p.SetAttrID(0x0035)
	p.SetAttrMod(0xa1b2c3d4)
	if !bytes.Equal(p[:], want) {
		t.Fatalf("got  %x\nwant %x", p[:24], want[:24])
	}
	if p.BaseVersion() != 1 || p.Class() != 3 || p.ClassVersion() != 2 || p.Method() != 0x81 || !p.IsResponse() {
		t.Errorf("first four bytes read as %d, %d, %d, %#x", p.BaseVersion(), p.Class(), p.ClassVersion(), p.Method())
	}
	if p.Status() != 0x8304 || p.Status().Class() != 0x83 || p.Status().InvalidField() != 1 {
		t.Errorf("status %#x, class %#x, invalid field %d", p.Status(), p.Status().Class(), p.Status().InvalidField())
	}
	if p.Specific() != 0x0102 || p.AttrID() != 0x35 || p.AttrMod() != 0xa1b2c3d4 {
		t.Errorf("specific %#x, attribute %#x, modifier %#x", p.Specific(), p.AttrID(), p.AttrMod())
	}
	if p.TID() != 0xdeadbeef11223344 || p.TID().Low() != 0x11223344 {
		t.Errorf("tid %v, low %#x", p.TID(), p.TID().Low())
	}
	p.SetMethod(MethodReport)
	if p.IsResponse() {
		t.Error("a Report is no response")
	}
}

func TestStatus(t *testing.T) {
	for _, c := range []struct {
		s              Status
		class, invalid uint8
	}{
		{0, 0, 0}, {StatusBusy, 0, 0}, {StatusRedirect, 0, 0},
		{0x0004, 0, 1}, {0x0008, 0, 2}, {0x000c, 0, 3}, {0x001c, 0, 7},
		{0x0300, 3, 0}, {0x0700, 7, 0}, {0xff1c, 0xff, 7},
	} {
		if c.s.Class() != c.class || c.s.InvalidField() != c.invalid {
			t.Errorf("%#04x: class %d, invalid field %d, want %d, %d", uint16(c.s), c.s.Class(), c.s.InvalidField(), c.class, c.invalid)
		}
	}
}

// What is set is read back, and no setter touches another's bytes.
func TestPacketRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var p Packet
		copy(p[:], rapid.SliceOfN(rapid.Byte(), PacketSize, PacketSize).Draw(t, "before"))
		before := p
		method := rapid.Uint8().Draw(t, "method")
		status := Status(rapid.Uint16().Draw(t, "status"))
		specific := rapid.Uint16().Draw(t, "specific")
		tid := TID(rapid.Uint64().Draw(t, "tid"))
		attr := rapid.Uint16().Draw(t, "attr")
		mod := rapid.Uint32().Draw(t, "mod")
		set := []func(){
			func() { p.SetMethod(method) }, func() { p.SetStatus(status) }, func() { p.SetSpecific(specific) },
			func() { p.SetTID(tid) }, func() { p.SetAttrID(attr) }, func() { p.SetAttrMod(mod) },
		}
		for _, f := range rapid.Permutation(set).Draw(t, "order") {
			f()
		}
		if p.Method() != method || p.Status() != status || p.Specific() != specific ||
			p.TID() != tid || p.AttrID() != attr || p.AttrMod() != mod {
			t.Fatalf("read back %x", p[:24])
		}
		if !bytes.Equal(p[:3], before[:3]) || !bytes.Equal(p[18:20], before[18:20]) || !bytes.Equal(p[24:], before[24:]) {
			t.Fatal("bytes of no setter were changed")
		}
	})
}
