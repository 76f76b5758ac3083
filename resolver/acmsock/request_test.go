// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acmsock

import (
	"bytes"
	"encoding/binary"
	"testing"

	"acmd/cache"
	"acmd/mad/sa"
	"acmd/resolver"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// rec makes a record with an IPv4-like info.
func rec(flags uint32, typ uint16, info ...byte) (r Record) {
	r.Flags, r.Type = flags, typ
	copy(r.Info[:], info)
	return r
}

func resize(b []byte, n int) []byte {
	out := make([]byte, n)
	copy(out, b)
	if n >= HeaderSize {
		putLength(out, n)
	}
	return out
}

// TestParseOrder has the validation orders of the protocol, row by row: the
// first failure wins (field case 12).
func TestParseOrder(t *testing.T) {
	const (
		ok      = resolver.StatusSuccess
		invalid = resolver.StatusInvalid
		srcAddr = resolver.StatusSrcAddr
		srcType = resolver.StatusSrcType
		dstAddr = resolver.StatusDestAddr
		dstType = resolver.StatusDestType
	)
	src, dst := rec(FlagSource, TypeIPv4, 10, 0, 0, 1), rec(FlagDest, TypeIPv4, 10, 0, 0, 2)
	name := rec(FlagDest, TypeName, 'n')
	both := rec(FlagSource|FlagDest, TypeIPv4, 10, 0, 0, 1)
	none := rec(0, TypeIPv4, 1, 2, 3, 4)
	path := PathQuery(examplePath(), 0)
	verify := PathQuery(examplePath(), FlagQuerySA)
	list := func(r ...Record) []byte { return AppendResolve(nil, 1, r...) }
	for _, c := range []struct {
		name string
		msg  []byte
		want resolver.Status
		kind resolver.QueryKind
	}{
		{"no bytes", nil, invalid, 0},
		{"15 bytes", list()[:15], invalid, 0},
		{"header only", list(), dstType, 0},
		{"17 bytes", resize(list(), 17), dstType, 0},
		{"87 bytes, destination cut off", resize(list(dst), 87), dstType, 0},
		{"88 bytes", list(dst), ok, 0},
		{"89 bytes", resize(list(dst), 89), ok, 0},
		{"padded to 592", resize(list(src, dst), MaxRequest), ok, 0},
		{"source only", list(src), dstType, 0},
		{"source, destination", list(src, dst), ok, 0},
		{"destination, source", list(dst, src), ok, 0},
		{"both in one record", list(both), ok, 0},
		{"both, then a source", list(both, src), srcAddr, 0},
		{"both, then a destination", list(both, dst), dstAddr, 0},
		{"two sources", list(src, src, dst), srcAddr, 0},
		{"two destinations", list(src, dst, dst), dstAddr, 0},
		{"two of both", list(src, dst, dst, src), dstAddr, 0},
		{"flags 0", list(none), dstType, 0},
		{"flags 0 are skipped", list(none, src, none, dst), ok, 0},
		{"source type 0", list(rec(FlagSource, 0), dst), srcType, 0},
		{"source type 6", list(rec(FlagSource, 6), dst), srcType, 0},
		{"second source has a bad type", list(src, rec(FlagSource, 6)), srcAddr, 0},
		{"source type 0x10 second", list(dst, rec(FlagSource, TypePath)), srcType, 0},
		{"source type 0xffff", list(rec(FlagSource, 0xffff), dst), srcType, 0},
		{"destination type 0", list(src, rec(FlagDest, 0)), dstType, 0},
		{"destination type 6", list(src, rec(FlagDest, 6)), dstType, 0},
		{"destination type 0x10 second", list(src, rec(FlagDest, TypePath)), dstType, 0},
		{"bad destination before a second source", list(src, rec(FlagDest, 6), src), dstType, 0},
		{"second source before a bad destination", list(src, src, rec(FlagDest, 6)), srcAddr, 0},
		{"both flags, type 6: source is checked first", list(rec(FlagSource|FlagDest, 6)), srcType, 0},
		{"destination type 4", list(src, rec(FlagDest, TypeGID, 0xfe, 0x80)), ok, resolver.ByPath},
		{"destination type 5", list(src, rec(FlagDest, TypeLID, 0, 5)), ok, resolver.ByPath},
		{"destination type 5 without source", list(rec(FlagDest, TypeLID, 0, 5)), ok, resolver.ByPath},
		{"destination GID zero", list(src, rec(FlagDest, TypeGID)), dstAddr, 0},
		{"destination LID zero", list(src, rec(FlagDest, TypeLID, 0, 0, 5)), dstAddr, 0},
		{"source type 4 is for the engine to refuse", list(rec(FlagSource, TypeGID, 1), dst), ok, 0},
		{"no source, IPv6", list(rec(FlagDest, TypeIPv6, 0x20)), ok, 0},
		{"no source, name", list(name), dstType, 0},
		{"source and name", list(rec(FlagSource, TypeName, 'm'), name), ok, 0},
		{"empty destination name", list(src, rec(FlagDest, TypeName)), dstAddr, 0},
		{"empty source name", list(rec(FlagSource, TypeName), name), srcAddr, 0},
		{"7 records, no source", list(dst, none, none, none, none, none, none), ok, 0},
		{"8 records, no source", list(dst, none, none, none, none, none, none, none), invalid, 0},
		{"8 records, no source, two destinations", list(dst, dst, none, none, none, none, none, none), dstAddr, 0},
		{"8 records, no destination either", list(none, none, none, none, none, none, none, none), dstType, 0},
		{"8 records, source", list(src, dst, none, none, none, none, none, none), ok, 0},
		{"trailing path is ignored", list(src, dst, path), ok, 0},

		{"path", list(path), ok, resolver.ByPath},
		{"path, 87 bytes", resize(list(path), 87), invalid, resolver.ByPath},
		{"path, type only", resize(list(path), 22), invalid, resolver.ByPath},
		{"path, type cut off", resize(list(path), 21), dstType, 0},
		{"path, 89 bytes", resize(list(path), 89), ok, resolver.ByPath},
		{"path and more records", list(path, src, src), ok, resolver.ByPath},
		{"path all zero", list(PathQuery(sa.PathRecord{}, 0)), dstAddr, resolver.ByPath},
		{"path with source flags", list(PathQuery(examplePath(), FlagSource|FlagDest)), ok, resolver.ByPath},

		{"SA query", list(verify), ok, resolver.AskSA},
		{"SA query, 87 bytes", resize(list(verify), 87), invalid, resolver.AskSA},
		{"SA query, 89 bytes", resize(list(verify), 89), invalid, resolver.AskSA},
		{"SA query, two records", list(verify, path), invalid, resolver.AskSA},
		{"SA query, all zero", list(PathQuery(sa.PathRecord{}, FlagQuerySA)), ok, resolver.AskSA},
	} {
		var q resolver.Query
		got := ParseRequest(c.msg, &q)
		if got != c.want {
			t.Errorf("%s: status %d, want %d", c.name, got, c.want)
		}
		if q.Kind != c.kind {
			t.Errorf("%s: kind %d, want %d", c.name, q.Kind, c.kind)
		}
	}
}

func TestParseNoDelay(t *testing.T) {
	src, dst := ip4(10, 0, 0, 1), ip4(10, 0, 0, 2)
	noDelaySrc := SourceRecord(src)
	noDelaySrc.Flags |= FlagNoDelay
	for _, c := range []struct {
		name string
		recs []Record
		want bool
	}{
		{"destination", []Record{SourceRecord(src), DestRecord(dst, true)}, true},
		{"none", []Record{SourceRecord(src), DestRecord(dst, false)}, false},
		{"only on the source", []Record{noDelaySrc, DestRecord(dst, false)}, false},
		{"path", []Record{PathQuery(examplePath(), FlagNoDelay)}, true},
		{"path without", []Record{PathQuery(examplePath(), 0)}, false},
	} {
		var q resolver.Query
		if st := ParseRequest(AppendResolve(nil, 1, c.recs...), &q); st != 0 || q.NoDelay != c.want {
			t.Errorf("%s: status %d, no delay %v", c.name, st, q.NoDelay)
		}
	}
}

// field case 4: left-over bytes behind an address are no part of it.
func TestParseNormalises(t *testing.T) {
	fill := func(n int, b byte) []byte { return bytes.Repeat([]byte{b}, n) }
	for _, c := range []struct {
		name string
		typ  uint16
		info []byte
		want resolver.Addr
	}{
		{"IPv4", TypeIPv4, append([]byte{10, 0, 0, 2}, fill(60, 0xaa)...), ip4(10, 0, 0, 2)},
		{"IPv6", TypeIPv6, append(fill(16, 0x20), fill(48, 0x55)...),
			resolver.Addr{Kind: cache.KindIPv6, Len: 16, Data: [64]byte(append(fill(16, 0x20), fill(48, 0)...))}},
		{"name", TypeName, append([]byte("node7\x00"), fill(58, 0xff)...), resolver.NameAddr("node7")},
		{"name in capitals", TypeName, []byte("NODE7"), resolver.NameAddr("node7")},
		{"name of 64 bytes", TypeName, fill(64, 'A'), resolver.NameAddr(string(fill(64, 'a')))},
	} {
		var q resolver.Query
		st := ParseRequest(AppendResolve(nil, 1, rec(FlagSource, c.typ, c.info...), rec(FlagDest, c.typ, c.info...)), &q)
		if st != 0 || q.Src != c.want || q.Dst != c.want {
			t.Errorf("%s: status %d\n%s", c.name, st, cmp.Diff(c.want, q.Dst))
		}
	}
	// field case 45: a mapped address stays IPv6, so that it is never answered
	// with an IPv4 source.
	mapped := append(fill(10, 0), 0xff, 0xff, 10, 0, 0, 2)
	var q resolver.Query
	if st := ParseRequest(AppendResolve(nil, 1, rec(FlagDest, TypeIPv6, mapped...)), &q); st != 0 || q.Dst.Kind != cache.KindIPv6 || q.Dst.Len != 16 {
		t.Errorf("status %d, %+v", st, q.Dst)
	}
}

// Whatever is put into a request of our own comes out again.
func TestRequestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		addr := func(label string) resolver.Addr {
			switch rapid.IntRange(1, 3).Draw(t, label+" kind") {
			case 1:
				return resolver.NameAddr(rapid.StringMatching(`[a-zA-Z0-9.-]{1,64}`).Draw(t, label))
			case 2:
				return ip4(10, 0, rapid.Byte().Draw(t, label), 1)
			}
			var a resolver.Addr
			a.Kind, a.Len = cache.KindIPv6, 16
			copy(a.Data[:16], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, label))
			return a
		}
		want := resolver.Query{Kind: resolver.ByAddress, Src: addr("source"), Dst: addr("destination"), NoDelay: rapid.Bool().Draw(t, "no delay")}
		tid := rapid.Uint64().Draw(t, "tid")
		b := AppendResolve(nil, tid, SourceRecord(want.Src), DestRecord(want.Dst, want.NoDelay))
		if n, f := Frame(b); f != FaultNone || n != len(b) || TID(b) != tid {
			t.Fatalf("length %d, %v, tid %x", n, f, TID(b))
		}
		var got resolver.Query
		if st := ParseRequest(b, &got); st != 0 {
			t.Fatalf("status %d", st)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatal(diff)
		}
	})
}

func TestFrame(t *testing.T) {
	native, big := binary.NativeEndian.PutUint16, binary.BigEndian.PutUint16
	for _, c := range []struct {
		name    string
		version byte
		opcode  byte
		put     func([]byte, uint16)
		length  uint16
		want    Fault
	}{
		{"resolve", 1, 1, native, 16, FaultNone},
		{"resolve, longest", 1, 1, native, 592, FaultNone},
		{"perf", 1, 2, big, 88, FaultNone},
		{"endpoint", 1, 3, big, 16, FaultNone},
		{"length 0", 1, 1, native, 0, FaultLength},
		{"length 15", 1, 1, native, 15, FaultLength},
		{"length 593", 1, 1, native, 593, FaultLength},
		{"9 records", 1, 1, native, 16 + 9*72, FaultLength},
		{"length 65535", 1, 1, native, 65535, FaultLength},
		{"perf in the wrong order", 1, 2, binary.LittleEndian.PutUint16, 16, FaultLength},
		{"version 0", 0, 1, native, 16, FaultVersion},
		{"version 2", 2, 1, native, 16, FaultVersion},
		{"opcode 0", 1, 0, big, 16, FaultOpcode},
		{"opcode 4", 1, 4, big, 16, FaultOpcode},
		{"opcode 0x0f", 1, 0x0f, big, 16, FaultOpcode},
		{"opcode 0x11", 1, 0x11, native, 16, FaultOpcode},
		{"opcode 0x81", 1, 0x81, native, 16, FaultOpcode},
		{"opcode 0x82", 1, 0x82, big, 16, FaultOpcode},
	} {
		b := make([]byte, HeaderSize)
		b[0], b[1] = c.version, c.opcode
		c.put(b[6:], c.length)
		if n, f := Frame(b); f != c.want || f == FaultNone && n != int(c.length) {
			t.Errorf("%s: %d, %v, want %v", c.name, n, f, c.want)
		}
	}
}

func TestParseAllocatesNothing(t *testing.T) {
	msg := ask(1, 0, 5)
	var q resolver.Query
	a := resolver.Answer{Path: examplePath(), Src: ip4(10, 0, 0, 1)}
	out := make([]byte, 0, MaxRequest)
	if n := testing.AllocsPerRun(100, func() {
		ParseRequest(msg, &q)
		out = AppendAnswer(out[:0], msg, &a)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkParseAndReply(b *testing.B) {
	msg := ask(1, 0, 5)
	var q resolver.Query
	a := resolver.Answer{Path: examplePath()}
	out := make([]byte, 0, MaxRequest)
	b.ReportAllocs()
	for b.Loop() {
		if ParseRequest(msg, &q) != 0 {
			b.Fatal("refused")
		}
		out = AppendAnswer(out[:0], msg, &a)
	}
}
