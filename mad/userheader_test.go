// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package mad

import (
	"bytes"
	"encoding/binary"
	"testing"

	"pgregory.net/rapid"
)

// hostOrder turns a header as a little-endian machine has it into the one of this
// machine: these fields are in the kernel's own order, the others are not.
func hostOrder(b []byte) []byte {
	for _, off := range []int{0, 4, 8, 12, 16} {
		binary.NativeEndian.PutUint32(b[off:], binary.LittleEndian.Uint32(b[off:]))
	}
	binary.NativeEndian.PutUint16(b[56:], binary.LittleEndian.Uint16(b[56:]))
	return b
}

// The header of a send to the SM at LID 1, agent 2, 2000 ms, 2 retries.
func TestUserHeaderGoldenSend(t *testing.T) {
	want := hostOrder(append(unhex(t, `
		02 00 00 00 00 00 00 00 d0 07 00 00 02 00 00 00
		00 00 00 00 00 00 00 01 80 01 00 00 00 01 00 00`), make([]byte, 32)...))
	var h UserHeader
	h.SetAgent(2)
	h.SetTimeoutMS(2000)
	h.SetRetries(2)
	h.SetQPN(QP1)
	h.SetQKey(WellKnownQKey)
	h.SetLID(1)
	if !bytes.Equal(h[:], want) {
		t.Errorf("got  %x\nwant %x", h[:], want)
	}
	if h.HasGRH() {
		t.Error("a GRH out of nothing")
	}
}

// field case 13: each field at its place; network order where the kernel has it.
func TestUserHeaderGoldenAll(t *testing.T) {
	want := hostOrder(unhex(t, `
		04030201 6e000000 14131211 24232221 34333231 00fffffe 80010000 c123 0e 7f
		01 05 40 aa fe80000000000000 00000000001000ff 000abcde 0900 07 0000000000`))
	gid := MakeGID(0xfe80<<48, 0x1000ff)
	var h UserHeader
	h.SetAgent(0x01020304)
	h.SetStatus(StatusTimeout)
	h.SetTimeoutMS(0x11121314)
	h.SetRetries(0x21222324)
	h.SetLength(0x31323334)
	h.SetQPN(0xfffffe)
	h.SetQKey(WellKnownQKey)
	h.SetLID(0xc123)
	h.SetSL(14)
	h.SetPathBits(0x7f)
	h.SetGID(gid)
	h.SetGIDIndex(5)
	h.SetHopLimit(64)
	h.SetTrafficClass(0xaa)
	h.SetFlowLabel(0xabcde)
	h.SetPKeyIndex(9)
	h.SetStaticRate(7)
	if !bytes.Equal(h[:], want) {
		t.Fatalf("got  %x\nwant %x", h[:], want)
	}
	if h.Agent() != 0x01020304 || h.Status() != 110 || h.TimeoutMS() != 0x11121314 || h.Retries() != 0x21222324 || h.Length() != 0x31323334 {
		t.Errorf("host fields: %#x %d %#x %#x %#x", h.Agent(), h.Status(), h.TimeoutMS(), h.Retries(), h.Length())
	}
	// field case 44: a LID above 32767 is not negative.
	if h.QPN() != 0xfffffe || h.QKey() != 0x80010000 || h.LID() != 49443 || h.SL() != 14 || h.PathBits() != 0x7f {
		t.Errorf("address: %#x %#x %d %d %#x", h.QPN(), h.QKey(), h.LID(), h.SL(), h.PathBits())
	}
	if !h.HasGRH() || h.GIDIndex() != 5 || h.HopLimit() != 64 || h.TrafficClass() != 0xaa || h.GID() != gid || h.FlowLabel() != 0xabcde || h.PKeyIndex() != 9 || h.StaticRate() != 7 {
		t.Errorf("GRH: %v %d %d %#x %v %#x %d", h.HasGRH(), h.GIDIndex(), h.HopLimit(), h.TrafficClass(), h.GID(), h.FlowLabel(), h.PKeyIndex())
	}
}

// Setters of a header in any order do not disturb each other.
func TestUserHeaderRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		u32 := rapid.SliceOfN(rapid.Uint32(), 8, 8).Draw(t, "words")
		u8 := rapid.SliceOfN(rapid.Byte(), 6, 6).Draw(t, "bytes")
		lid, index := LID(rapid.Uint16().Draw(t, "lid")), rapid.Uint16().Draw(t, "pkey index")
		gid := GID(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "gid"))
		var h UserHeader
		set := []func(){
			func() { h.SetAgent(u32[0]) }, func() { h.SetStatus(u32[1]) }, func() { h.SetTimeoutMS(u32[2]) },
			func() { h.SetRetries(u32[3]) }, func() { h.SetLength(u32[4]) }, func() { h.SetQPN(QPN(u32[5])) },
			func() { h.SetQKey(QKey(u32[6])) }, func() { h.SetFlowLabel(u32[7]) }, func() { h.SetLID(lid) },
			func() { h.SetSL(u8[0]) }, func() { h.SetPathBits(u8[1]) }, func() { h.SetGIDIndex(u8[2]) },
			func() { h.SetHopLimit(u8[3]) }, func() { h.SetTrafficClass(u8[4]) }, func() { h.SetGID(gid) },
			func() { h.SetPKeyIndex(index) }, func() { h.SetStaticRate(Rate(u8[5])) },
		}
		for _, f := range rapid.Permutation(set).Draw(t, "order") {
			f()
		}
		got := []uint32{h.Agent(), h.Status(), h.TimeoutMS(), h.Retries(), h.Length(), uint32(h.QPN()), uint32(h.QKey()), h.FlowLabel()}
		for i := range got {
			if got[i] != u32[i] {
				t.Fatalf("word %d: %#x, want %#x", i, got[i], u32[i])
			}
		}
		small := []uint8{h.SL(), h.PathBits(), h.GIDIndex(), h.HopLimit(), h.TrafficClass(), uint8(h.StaticRate())}
		if !bytes.Equal(small, u8) || h.LID() != lid || h.PKeyIndex() != index || h.GID() != gid || !h.HasGRH() {
			t.Fatalf("read back %x", h[:])
		}
	})
}
