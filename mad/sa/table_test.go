// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package sa

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"testing"

	"acmd/mad"

	"pgregory.net/rapid"
)

// table makes a reply with n records of size bytes at a distance of offset*8, and
// extra bytes behind them. Record i is filled with i+1, gaps with 0xdd.
func table(n, size, offset, extra int) []byte {
	m := make([]byte, DataOffset+n*offset*8+extra)
	binary.BigEndian.PutUint16(m[44:], uint16(offset))
	for i := DataOffset; i < len(m); i++ {
		m[i] = 0xdd
	}
	for i := range n {
		off := DataOffset + i*offset*8
		copy(m[off:off+size], bytes.Repeat([]byte{byte(i + 1)}, size))
	}
	return m
}

func TestRecords(t *testing.T) {
	path, member := 64, 52
	for _, c := range []struct {
		name    string
		message []byte
		size    int
		want    int
		err     error
	}{
		{"no record", table(0, path, 8, 0), path, 0, nil},
		{"no record, offset 0", make([]byte, 56), path, 0, nil},
		{"one path", table(1, path, 8, 0), path, 1, nil},
		{"25 paths", table(25, path, 8, 0), path, 25, nil},
		{"padded members", table(7, member, 7, 0), member, 7, nil},
		{"last member without its pad", table(7, member, 7, 0)[:56+7*56-4], member, 7, nil},
		{"last member cut", table(7, member, 7, 0)[:56+7*56-5], member, 6, nil},
		{"cut in the second path", table(2, path, 8, 0)[:56+127], path, 1, nil},
		{"200 bytes of a longer table", table(4, path, 8, 0)[:256], path, 3, nil},
		{"data shorter than a path", table(1, path, 8, 0)[:56+63], path, 0, nil},
		{"wide records of a newer SA", table(3, path, 12, 0), path, 3, nil},
		{"stride 0", table(1, path, 0, 64), path, 0, ErrStride},
		{"stride 56 for paths", table(2, 56, 7, 0), path, 0, ErrStride},
		{"largest stride", table(1, path, 0xffff, 0), path, 1, nil},
		{"size 0", table(1, path, 8, 0), 0, 0, ErrStride},
		{"negative size", table(1, path, 8, 0), -8, 0, ErrStride},
		{"empty", nil, path, 0, ErrShort},
		{"cut in the header", make([]byte, 55), path, 0, ErrShort},
	} {
		n, err := CheckTable(c.message, c.size)
		if n != c.want || !errors.Is(err, c.err) || (err == nil) != (c.err == nil) {
			t.Errorf("%s: CheckTable = %d, %v, want %d, %v", c.name, n, err, c.want, c.err)
		}
		got := slices.Collect(Records(c.message, c.size))
		if len(got) != c.want {
			t.Errorf("%s: %d records, want %d", c.name, len(got), c.want)
		}
		for i, r := range got {
			if len(r) != c.size || cap(r) != c.size {
				t.Errorf("%s: record %d has length %d, capacity %d", c.name, i, len(r), cap(r))
			}
			if !bytes.Equal(r, bytes.Repeat([]byte{byte(i + 1)}, c.size)) {
				t.Errorf("%s: record %d is %x", c.name, i, r)
			}
		}
	}
}

func TestRecordsStop(t *testing.T) {
	n := 0
	for range Records(table(5, 64, 8, 0), 64) {
		if n++; n == 2 {
			break
		}
	}
	if n != 2 {
		t.Errorf("%d records after a break at 2", n)
	}
}

// Records lie in the message, they are no copies.
func TestRecordsInPlace(t *testing.T) {
	m := table(2, 64, 8, 0)
	for r := range Records(m, 64) {
		(*PathRecord)(r).SetDLID(0xc123)
	}
	for i := range 2 {
		if got := binary.BigEndian.Uint16(m[56+64*i+40:]); got != 0xc123 {
			t.Errorf("record %d: DLID %#x", i, got)
		}
	}
}

func TestMessage(t *testing.T) {
	rmpp := func(typ, flags uint8, payload uint32) func(*mad.UserHeader, *mad.Packet) {
		return func(_ *mad.UserHeader, p *mad.Packet) {
			h := RMPPHeader(p)
			h.SetVersion(RMPPVersion)
			h.SetType(typ)
			h.SetFlags(0, flags)
			h.SetPayloadLength(payload)
		}
	}
	length := func(n uint32) func(*mad.UserHeader, *mad.Packet) {
		return func(h *mad.UserHeader, _ *mad.Packet) { h.SetLength(n) }
	}
	for _, c := range []struct {
		name string
		set  func(*mad.UserHeader, *mad.Packet)
		want int
	}{
		{"plain", func(*mad.UserHeader, *mad.Packet) {}, 256},
		{"one path in one segment", rmpp(RMPPData, 7, 84), 120},
		{"no record", rmpp(RMPPData, 7, 20), 56},
		{"full segment", rmpp(RMPPData, 7, 220), 256},
		{"payload too long", rmpp(RMPPData, 7, 221), 256},
		{"payload far too long", rmpp(RMPPData, 7, 0xffffffff), 256},
		{"payload below the header", rmpp(RMPPData, 7, 19), 256},
		{"payload 0", rmpp(RMPPData, 7, 0), 256},
		{"first of several", rmpp(RMPPData, RMPPActive|RMPPFirst, 84), 256},
		{"not active", rmpp(RMPPData, RMPPFirst|RMPPLast, 84), 256},
		{"ack", rmpp(RMPPAck, 7, 84), 256},
		{"length of the transport", length(64 + 92), 92},
		{"length 0", length(0), 256},
		{"time-out", length(64 + 24), 256},
		{"length below the SA header", length(64 + 55), 256},
		{"only the SA header", length(64 + 56), 56},
		{"full length", length(320), 256},
		{"length beyond the slot", length(0xffffffff), 256},
		{"the smaller of both", func(h *mad.UserHeader, p *mad.Packet) {
			rmpp(RMPPData, 7, 84)(h, p)
			h.SetLength(64 + 100)
		}, 100},
	} {
		var h mad.UserHeader
		p := new(mad.Packet)
		c.set(&h, p)
		got := Message(&h, p, nil)
		if len(got) != c.want || &got[0] != &p[0] {
			t.Errorf("%s: %d bytes, want %d", c.name, len(got), c.want)
		}
		long := make([]byte, 1000)
		if got := Message(&h, p, long); len(got) != 1000 || &got[0] != &long[0] {
			t.Errorf("%s: %d bytes of a long message", c.name, len(got))
		}
	}
}

// A stale record behind the payload is not taken for one.
func TestMessageStale(t *testing.T) {
	p := (*mad.Packet)(table(3, 64, 8, 8))
	Init(p, mad.MethodTableResp, AttrPathRecord, 0)
	for i := range 3 {
		(*PathRecord)(p[56+64*i:]).SetDLID(mad.LID(i + 1))
	}
	SetAttrOffset(p, 8)
	h := RMPPHeader(p)
	h.SetVersion(RMPPVersion)
	h.SetType(RMPPData)
	h.SetFlags(0, 7)
	h.SetPayloadLength(84)
	var uh mad.UserHeader
	if n := len(slices.Collect(Records(Message(&uh, p, nil), 64))); n != 1 {
		t.Errorf("%d records, want 1", n)
	}
}

// What was laid out is found again, whatever follows the last record.
func TestRecordsProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.IntRange(1, 200).Draw(t, "size")
		offset := rapid.IntRange((size+7)/8, 40).Draw(t, "offset")
		n := rapid.IntRange(0, 50).Draw(t, "records")
		m := table(n, size, offset, rapid.IntRange(0, size-1).Draw(t, "extra"))
		got := slices.Collect(Records(m, size))
		if len(got) != n {
			t.Fatalf("%d records, want %d", len(got), n)
		}
		for i, r := range got {
			if !bytes.Equal(r, bytes.Repeat([]byte{byte(i + 1)}, size)) {
				t.Fatalf("record %d is %x", i, r)
			}
		}
	})
}
