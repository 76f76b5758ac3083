// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acm

import (
	"bytes"
	"encoding/hex"
	"errors"
	"strings"
	"testing"
	"unsafe"

	"acmd/mad"

	"pgregory.net/rapid"
)

// Layout of the packet; a wrong one does not compile.
var (
	_ = [1]struct{}{}[unsafe.Sizeof(Resolve{})-240]
	_ = [1]struct{}{}[AddrSize-64]
	_ = [1]struct{}{}[DataOffset-16]
	_ [len(Resolve{}) - (136 + 16*MaxGIDs)]struct{} // all groups fit
)

// defaultGroup is the group of 10 Gb/s, MTU 2048 in the default partition.
var defaultGroup = mad.GID{0xff, 0x15, 0x40, 0x01, 0xff, 0xff, 0x00, 0x03, 0x04}

// dirty returns a packet full of somebody else's bytes, as a slot of a ring is.
func dirty() *mad.Packet {
	var p mad.Packet
	for i := range p {
		p[i] = 0xee
	}
	return &p
}

// golden puts rows of hex at their offsets into a packet of zeros.
func golden(t testing.TB, rows map[int]string) []byte {
	t.Helper()
	p := make([]byte, mad.PacketSize)
	for off, row := range rows {
		b, err := hex.DecodeString(strings.Join(strings.Fields(row), ""))
		if err != nil {
			t.Fatal(err)
		}
		copy(p[off:], b)
	}
	return p
}

func same(t *testing.T, got, want []byte) {
	t.Helper()
	if !bytes.Equal(got, want) {
		t.Fatalf("got\n%swant\n%s", hex.Dump(got), hex.Dump(want))
	}
}

// "nodeD" wanted by "nodeC", one group, as ibacm sends it.
func TestGoldenRequest(t *testing.T) {
	want := golden(t, map[int]string{
		0x00: "01 2c 01 01 00 00 00 01 00 00 00 00 00 00 00 09",
		0x10: "01 40 01 40 01 00 00 00 6e 6f 64 65 44 00 00 00",
		0x50: "00 00 00 00 00 00 00 00 6e 6f 64 65 43 00 00 00",
		0x90: "00 00 00 00 00 00 00 00 ff 15 40 01 ff ff 00 03",
		0xa0: "04",
	})
	p := dirty()
	if err := InitRequest(p, 9, TypeName, []byte("nodeD"), TypeName, []byte("nodeC"), defaultGroup); err != nil {
		t.Fatal(err)
	}
	same(t, p[:], want)
	if err := Validate(p, mad.PacketSize); err != nil {
		t.Error(err)
	}
	r := View(p)
	if r.DestType() != TypeName || r.DestLength() != 64 || r.SrcType() != TypeName || r.SrcLength() != 64 || r.GIDCount() != 1 || r.GID(0) != defaultGroup {
		t.Errorf("read back %d %d %d %d %d %v", r.DestType(), r.DestLength(), r.SrcType(), r.SrcLength(), r.GIDCount(), r.GID(0))
	}
	if *r.Dest() != [64]byte{'n', 'o', 'd', 'e', 'D'} || *r.Src() != [64]byte{'n', 'o', 'd', 'e', 'C'} {
		t.Errorf("addresses %q, %q", r.Dest()[:], r.Src()[:])
	}
}

// The answer to it.
func TestGoldenResponse(t *testing.T) {
	want := golden(t, map[int]string{
		0x00: "01 2c 01 81 00 00 00 01 00 00 00 00 00 00 00 09",
		0x10: "00 00 00 00 01",
		0x90: "00 00 00 00 00 00 00 00 ff 15 40 01 ff ff 00 03",
		0xa0: "04",
	})
	p := dirty()
	InitResponse(p, 9, defaultGroup)
	same(t, p[:], want)
	if err := Validate(p, mad.PacketSize); err != nil {
		t.Error(err)
	}
	if r := View(p); r.GIDCount() != 1 || r.GID(0) != defaultGroup || p.TID() != 9 || !p.IsResponse() {
		t.Errorf("read back %d %v %v", r.GIDCount(), r.GID(0), p.TID())
	}
}

// Six groups of two address families: the last ends at offset 248.
func TestGoldenSixGroups(t *testing.T) {
	rows := map[int]string{
		0x00: "01 2c 01 01 00 00 00 01 de ad be ef 11 22 33 44",
		0x10: "02 40 05 40 06 00 00 00 0a 00 00 07",
		0x58: "c1 23",
	}
	var groups []mad.GID
	for i := range MaxGIDs {
		g := MGID(0x0123, 0, mad.Rate(i+2), 4)
		rows[0x98+16*i] = hex.EncodeToString(g[:])
		groups = append(groups, g)
	}
	p := dirty()
	if err := InitRequest(p, 0xdeadbeef11223344, TypeIPv4, []byte{10, 0, 0, 7}, TypeLID, []byte{0xc1, 0x23}, groups...); err != nil {
		t.Fatal(err)
	}
	same(t, p[:], golden(t, rows))
	for i, g := range groups {
		if View(p).GID(i) != g {
			t.Errorf("group %d is %v, want %v", i, View(p).GID(i), g)
		}
	}
}

func TestInitRequestRefuses(t *testing.T) {
	name, long := []byte("a"), make([]byte, 65)
	one := []mad.GID{defaultGroup}
	for _, c := range []struct {
		name     string
		destType uint8
		dest     []byte
		srcType  uint8
		src      []byte
		groups   []mad.GID
	}{
		{"no type", TypeInvalid, name, TypeName, name, one},
		{"type 6", 6, name, TypeName, name, one},
		{"no source type", TypeName, name, TypeInvalid, name, one},
		{"source type 6", TypeName, name, 6, name, one},
		{"no destination", TypeName, nil, TypeName, name, one},
		{"long destination", TypeName, long, TypeName, name, one},
		{"no source", TypeName, name, TypeName, nil, one},
		{"long source", TypeName, name, TypeName, long, one},
		{"no group", TypeName, name, TypeName, name, nil},
		{"seven groups", TypeName, name, TypeName, name, make([]mad.GID, 7)},
	} {
		p := dirty()
		if err := InitRequest(p, 1, c.destType, c.dest, c.srcType, c.src, c.groups...); !errors.Is(err, ErrArgument) {
			t.Errorf("%s: %v, want ErrArgument", c.name, err)
		}
		if *p != *dirty() {
			t.Errorf("%s: the packet was changed", c.name)
		}
	}
}

func TestRequestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		address := rapid.SliceOfN(rapid.Byte(), 1, AddrSize)
		types := rapid.Uint8Range(TypeName, TypeLID)
		dest, src := address.Draw(t, "dest"), address.Draw(t, "src")
		destType, srcType := types.Draw(t, "dest type"), types.Draw(t, "src type")
		tid := mad.TID(rapid.Uint64().Draw(t, "tid"))
		var groups []mad.GID
		for range rapid.IntRange(1, MaxGIDs).Draw(t, "groups") {
			groups = append(groups, mad.GID(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "gid")))
		}
		p := dirty()
		if err := InitRequest(p, tid, destType, dest, srcType, src, groups...); err != nil {
			t.Fatal(err)
		}
		if err := Validate(p, mad.PacketSize); err != nil {
			t.Fatal(err)
		}
		r := View(p)
		if p.TID() != tid || r.DestType() != destType || r.SrcType() != srcType || r.GIDCount() != len(groups) {
			t.Fatalf("read back %x", p[:24])
		}
		for i, g := range groups {
			if r.GID(i) != g {
				t.Fatalf("group %d is %v, want %v", i, r.GID(i), g)
			}
		}
		// Padded with zeros: field case 4.
		for _, a := range []struct{ got, want []byte }{{r.Dest()[:], dest}, {r.Src()[:], src}} {
			if !bytes.Equal(a.got[:len(a.want)], a.want) || len(bytes.Trim(a.got[len(a.want):], "\x00")) != 0 {
				t.Fatalf("address %x, want %x and zeros", a.got, a.want)
			}
		}
		if rest := p[152+16*len(groups):]; len(bytes.Trim(rest, "\x00")) != 0 {
			t.Fatalf("%x behind the groups", rest)
		}
	})
}

func TestAllocations(t *testing.T) {
	p, dest, src := new(mad.Packet), []byte("nodeD"), []byte("nodeC")
	var failed error
	if n := testing.AllocsPerRun(100, func() {
		failed = InitRequest(p, 9, TypeName, dest, TypeName, src, defaultGroup)
		_ = Validate(p, mad.PacketSize)
		p[0] = 0
		_ = Validate(p, mad.PacketSize)
		InitResponse(p, 9, defaultGroup)
	}); n != 0 || failed != nil {
		t.Errorf("%v allocations, want 0; %v", n, failed)
	}
}

func BenchmarkInitRequest(b *testing.B) {
	p, dest, src := new(mad.Packet), []byte("nodeD"), []byte("nodeC")
	b.ReportAllocs()
	for b.Loop() {
		if err := InitRequest(p, 9, TypeName, dest, TypeName, src, defaultGroup); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkValidate(b *testing.B) {
	p := new(mad.Packet)
	InitResponse(p, 9, defaultGroup)
	b.ReportAllocs()
	for b.Loop() {
		if err := Validate(p, mad.PacketSize); err != nil {
			b.Fatal(err)
		}
	}
}
