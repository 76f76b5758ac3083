// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package sa

import (
	"testing"

	"acmd/mad"
)

// No table makes Records read outside, overlap, or disagree with CheckTable.
func FuzzRecords(f *testing.F) {
	f.Add(table(3, 64, 8, 0), 64)
	f.Add(table(7, 52, 7, 0), 52)
	f.Add(table(1, 64, 0, 64), 64)
	f.Add(table(1, 64, 0xffff, 0)[:256], 64)
	f.Add(make([]byte, 55), 64)
	f.Add(make([]byte, 56), 0)
	f.Add([]byte{}, -1)
	f.Fuzz(func(t *testing.T, message []byte, size int) {
		want, err := CheckTable(message, size)
		if err != nil && want != 0 {
			t.Fatalf("%d records beside %v", want, err)
		}
		n, room := 0, len(message)-DataOffset
		for r := range Records(message, size) {
			if len(r) != size || cap(r) != size {
				t.Fatalf("record of %d bytes, capacity %d, want %d", len(r), cap(r), size)
			}
			n++
			if room -= size; room < 0 {
				t.Fatalf("%d records of %d bytes in a message of %d", n, size, len(message))
			}
		}
		if n != want {
			t.Fatalf("%d records, CheckTable says %d", n, want)
		}
	})
}

// Whatever header and RMPP header claim, a message is at least the SA header and
// at most the packet, and walking it is safe.
func FuzzMessage(f *testing.F) {
	f.Add(uint32(320), table(3, 64, 8, 8))
	f.Add(uint32(0), []byte{24: 1, 25: 1, 26: 7, 31: 1, 35: 84, 45: 8, 56: 1})
	f.Add(uint32(0xffffffff), []byte{24: 1, 25: 1, 26: 7, 32: 0xff, 0xff, 0xff, 0xff})
	f.Add(uint32(64), []byte{24: 1, 25: 2, 26: 1})
	f.Fuzz(func(t *testing.T, length uint32, b []byte) {
		var h mad.UserHeader
		var p mad.Packet
		h.SetLength(length)
		copy(p[:], b)
		m := Message(&h, &p, nil)
		if len(m) < DataOffset || len(m) > mad.PacketSize || &m[0] != &p[0] {
			t.Fatalf("message of %d bytes", len(m))
		}
		for r := range Records(m, len(PathRecord{})) {
			_ = PathMask((*PathRecord)(r))
		}
	})
}

// Every RMPP header that is read and written again is the same.
func FuzzRMPP(f *testing.F) {
	f.Add([]byte{1, 1, 0x07, 0, 0, 0, 0, 1, 0, 0, 0, 84})
	f.Add([]byte{1, 2, 0xf9, 0, 0, 0, 0, 1, 0, 0, 0, 64})
	f.Add([]byte{1, 4, 0x01, 118, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, b []byte) {
		var from, to RMPP
		copy(from[:], b)
		to.SetVersion(from.Version())
		to.SetType(from.Type())
		to.SetFlags(from.ResponseTime(), from.Flags())
		to.SetStatus(from.Status())
		to.SetSegment(from.Segment())
		to.SetPayloadLength(from.PayloadLength())
		if to != from {
			t.Fatalf("%x became %x", from, to)
		}
		if from.NewWindow() != from.PayloadLength() || from.IsActive() != (from.Flags()&RMPPActive != 0) {
			t.Fatalf("%x: window %d, length %d, active %v", from, from.NewWindow(), from.PayloadLength(), from.IsActive())
		}
	})
}

// Every attribute that is read and written again is the same but for reserved
// bits.
func FuzzAttributes(f *testing.F) {
	for i, a := range attributes {
		seed := make([]byte, a.size)
		for k := range seed {
			seed[k] = byte(k*37 + 0x81)
		}
		f.Add(uint8(i), seed)
	}
	f.Fuzz(func(t *testing.T, which uint8, b []byte) {
		a := attributes[int(which)%len(attributes)]
		from, to := make([]byte, a.size), make([]byte, a.size)
		copy(from, b)
		for _, fl := range a.fields() {
			fl.copy(to, from)
		}
		for i := range from {
			if diff := (from[i] ^ to[i]) &^ a.reserved[i]; diff != 0 {
				t.Fatalf("%s, byte %d: %#02x became %#02x", a.name, i, from[i], to[i])
			}
		}
	})
}
