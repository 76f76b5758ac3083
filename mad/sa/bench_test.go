// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package sa

import (
	"testing"

	"acmd/mad"
)

var sink struct {
	path PathRecord
	lid  mad.LID
	pkey mad.PKey
	sl   uint8
	mask ComponentMask
	n    int
}

// encodeQuery builds a complete PathRecord query in place.
//
//go:noinline
func encodeQuery(p *mad.Packet, tid mad.TID, sgid, dgid mad.GID) {
	Init(p, mad.MethodGet, AttrPathRecord, PathDGID|PathSGID|PathSLID|PathPKey|PathReversible|PathNumPath)
	p.SetTID(tid)
	r := Path(p)
	r.SetDGID(dgid)
	r.SetSGID(sgid)
	r.SetSLID(4)
	r.SetPKey(mad.DefaultPKey)
	r.SetReversibleNumPath(true, 1)
}

// decodeAnswer is what a receiver does with an answer: is it one, whose, which
// status, and the record as a whole.
//
//go:noinline
func decodeAnswer(p *mad.Packet, out *PathRecord) (low uint32, ok bool) {
	if p.Class() != mad.ClassSA || p.Method() != mad.MethodGetResp || p.AttrID() != AttrPathRecord || p.Status() != 0 {
		return 0, false
	}
	*out = *Path(p)
	return p.TID().Low(), true
}

// view reads three fields of a record where it lies.
//
//go:noinline
func view(p *mad.Packet) (mad.LID, mad.PKey, uint8) {
	r := Path(p)
	return r.DLID(), r.PKey(), r.SL()
}

func answer() *mad.Packet {
	p := new(mad.Packet)
	encodeQuery(p, 3, gid5, gid1)
	p.SetMethod(mad.MethodGetResp)
	Path(p).SetDLID(1)
	return p
}

// The hot paths allocate nothing.
func TestAllocations(t *testing.T) {
	p, long := answer(), table(25, 64, 8, 0)
	var h mad.UserHeader
	for _, c := range []struct {
		name string
		f    func()
	}{
		{"encode", func() { encodeQuery(p, 3, gid5, gid1) }},
		{"decode", func() { p.SetMethod(mad.MethodGetResp); decodeAnswer(p, &sink.path) }},
		{"view", func() { sink.lid, sink.pkey, sink.sl = view(p) }},
		{"mask", func() { sink.mask = PathMask(Path(p)) }},
		{"records", func() {
			for r := range Records(Message(&h, p, long), 64) {
				sink.n += int((*PathRecord)(r).DLID())
			}
		}},
	} {
		if n := testing.AllocsPerRun(100, c.f); n != 0 {
			t.Errorf("%s: %v allocations, want 0", c.name, n)
		}
	}
}

func BenchmarkEncode(b *testing.B) {
	p, tid := new(mad.Packet), mad.TID(0)
	b.ReportAllocs()
	for b.Loop() {
		tid++
		encodeQuery(p, tid, gid5, gid1)
	}
}

func BenchmarkDecode(b *testing.B) {
	p := answer()
	b.ReportAllocs()
	for b.Loop() {
		if _, ok := decodeAnswer(p, &sink.path); !ok {
			b.Fatal("not an answer")
		}
	}
}

func BenchmarkView(b *testing.B) {
	p := answer()
	b.ReportAllocs()
	for b.Loop() {
		sink.lid, sink.pkey, sink.sl = view(p)
	}
}

func BenchmarkPathMask(b *testing.B) {
	p := answer()
	b.ReportAllocs()
	for b.Loop() {
		sink.mask = PathMask(Path(p))
	}
}

func BenchmarkRecords(b *testing.B) {
	m := table(25, 64, 8, 0)
	b.ReportAllocs()
	for b.Loop() {
		for r := range Records(m, 64) {
			sink.n += int((*PathRecord)(r).DLID())
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/25, "ns/record")
}
