// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package fabric

import (
	"runtime"
	"testing"
	"time"

	"acmd/mad"
	"acmd/mad/ring"
	"acmd/mad/sa"
)

// table asks for a table of paths.
func (c *client) table(mask sa.ComponentMask, r sa.PathRecord) *got {
	c.t.Helper()
	g := c.ask(func(p *mad.Packet) {
		sa.Init(p, mad.MethodGetTable, sa.AttrPathRecord, mask)
		*sa.Path(p) = r
	})
	if g == nil {
		c.t.Fatal("no answer")
	}
	return g
}

// rows checks an answer as a table and returns its records.
func rows(t testing.TB, g *got) (list []sa.PathRecord) {
	t.Helper()
	if g.m.Status() != 0 || g.m.Method() != mad.MethodTableResp || sa.AttrOffset(&g.m) != 8 {
		t.Fatalf("header %x", g.m[:sa.DataOffset])
	}
	msg := sa.Message(&g.h, &g.m, g.long)
	for b := range sa.Records(msg, 64) {
		list = append(list, sa.PathRecord(b))
	}
	data := len(msg) - sa.DataOffset
	if data != 64*len(list) {
		t.Fatalf("%d bytes of data, %d records", data, len(list))
	}
	segments := max(1, (data+199)/200)
	h := sa.RMPPHeader(&g.m)
	flags := uint8(3)
	if segments == 1 {
		flags = 7
	}
	if h.Version() != 1 || h.Type() != sa.RMPPData || h.Flags() != flags || h.Segment() != 1 ||
		h.PayloadLength() != uint32(data+20*segments) {
		t.Errorf("RMPP header %x for %d bytes", *h, data)
	}
	length := uint32(mad.UserHeaderSize + mad.PacketSize)
	if g.long != nil {
		length = uint32(mad.UserHeaderSize + len(g.long))
		if string(g.long[:mad.PacketSize]) != string(g.m[:]) {
			t.Error("the slot does not have the first 256 bytes")
		}
	} else if segments > 1 {
		t.Error("long answer was not attached")
	}
	if g.h.Length() != length {
		t.Errorf("length %d, want %d", g.h.Length(), length)
	}
	return list
}

// The half-world query of a big fabric: every path as the SA answers it by
// itself (field case 82).
func TestHalfWorld(t *testing.T) {
	for _, topo := range []Topology{Star, FatTree, Torus} {
		f := build(t, Config{Nodes: MaxNodes, Topology: topo, Seed: 7})
		c := open(t, f, 0)
		list := rows(t, c.table(sa.PathSGID, question(f, sa.PathSGID, 0, 0)))
		if len(list) != MaxNodes {
			t.Fatalf("%d records", len(list))
		}
		for i := range list {
			if i%101 != 0 && i != MaxNodes-1 {
				continue
			}
			r := question(f, byGIDs, 0, i)
			if want, status := f.SAPath(byGIDs, &r); status != 0 || want != list[i] {
				t.Fatalf("%v: record %d is %x, want %x", topo, i, list[i], want)
			}
		}
		if n := f.Stats().TableRecords; n != MaxNodes {
			t.Errorf("%d records counted", n)
		}
		c.p.Close()
	}
}

func TestTableForms(t *testing.T) {
	f := build(t, Config{Nodes: 10, LMC: 2})
	c := open(t, f, 0)
	q := func(mask sa.ComponentMask) sa.PathRecord { return question(f, mask, 0, 3) }
	if n := len(rows(t, c.table(byGIDs, q(byGIDs)))); n != 4 {
		t.Errorf("%d paths between two ports with LMC 2, want 4", n)
	}
	list := rows(t, c.table(byGIDs, q(byGIDs)))
	for i := range list {
		if list[i].DLID() != f.LID(3, 1)+mad.LID(i) || list[i].SLID() != f.LID(0, 1)+mad.LID(i) {
			t.Errorf("path %d from %v to %v", i, list[i].SLID(), list[i].DLID())
		}
	}
	r := q(byGIDs)
	r.SetReversibleNumPath(true, 3)
	if n := len(rows(t, c.table(byGIDs|sa.PathNumPath, r))); n != 3 {
		t.Errorf("%d paths, asked for 3", n)
	}
	r = q(byGIDs)
	r.SetDLID(f.LID(3, 1) + 2)
	if list := rows(t, c.table(byGIDs|sa.PathDLID, r)); len(list) != 1 || list[0].DLID() != r.DLID() {
		t.Errorf("by one LID of four: %x", list)
	}
	if n := len(rows(t, c.table(sa.PathDGID, q(sa.PathDGID)))); n != 40 {
		t.Errorf("%d paths to one port, want 40", n)
	}
	if n := len(rows(t, c.table(0, sa.PathRecord{}))); n != 400 {
		t.Errorf("%d paths in all, want 400", n)
	}
	r = q(byGIDs)
	r.SetPKey(0x8123)
	if n := len(rows(t, c.table(byGIDs, r))); n != 0 {
		t.Errorf("%d paths in a foreign partition", n)
	}
	r = q(byGIDs)
	r.SetDGID(mad.MakeGID(DefaultPrefix, 1))
	if g := c.table(byGIDs, r); g.m.Status() != 0x0300 || g.long != nil {
		t.Errorf("unknown GID: status %#x", g.m.Status())
	}
	r.SetDGID(ACMGroup(mad.DefaultPKey))
	if list := rows(t, c.table(byGIDs, r)); len(list) != 1 || list[0].DLID() != 0xc001 {
		t.Errorf("group: %x", list)
	}
}

// A slot that had a long answer has none when the next message is short.
func TestLongIsCleared(t *testing.T) {
	f := build(t, Config{Nodes: 100})
	c := open(t, f, 0)
	s := c.slot()
	defer s.Release()
	for _, method := range []uint8{mad.MethodGetTable, mad.MethodGet} {
		query(f, s, 1, byGIDs&^sa.PathDGID, 0, 3)
		if method == mad.MethodGet {
			query(f, s, 1, byGIDs, 0, 3)
		}
		s.MAD().SetMethod(method)
		c.put(s)
		if n, err := c.p.Recv([]*ring.Slot{s}, time.Time{}); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		if (s.Long() != nil) != (method == mad.MethodGetTable) {
			t.Errorf("method %#x: %d bytes of long answer", method, len(s.Long()))
		}
	}
}

// All pairs of a big fabric are more than the SA has memory for.
func TestTableBound(t *testing.T) {
	f := build(t, Config{Nodes: 600})
	c := open(t, f, 0)
	g := c.table(0, sa.PathRecord{})
	if g.m.Status() != 0x0100 || g.long != nil {
		t.Errorf("360,000 records: status %#x, %d bytes", g.m.Status(), len(g.long))
	}
}

// A subnet of the largest size is made in less than a second of processor time, and
// stays small.
func TestGeneration(t *testing.T) {
	for _, topo := range []Topology{Star, FatTree, Torus} {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		begin := cpu(t)
		f, err := New(Config{Nodes: MaxNodes, Topology: topo})
		took := cpu(t) - begin
		if err != nil {
			t.Fatal(err)
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		size := int64(after.HeapAlloc) - int64(before.HeapAlloc)
		t.Logf("%v: %d nodes in %v, %d KB", topo, MaxNodes, took, size/1024)
		if took > time.Second {
			t.Errorf("%v: %v", topo, took)
		}
		if size > 16<<20 {
			t.Errorf("%v: %d bytes", topo, size)
		}
		f.Close()
	}
}

// What no path fits is not looked for among all pairs of a large fabric: the SA answers
// inside Send, and whoever sends serves others as well.
func TestOpenEndsBounded(t *testing.T) {
	f := build(t, Config{Nodes: 2100})
	c := open(t, f, 0)
	for name, ask := range map[string]func(*sa.PathRecord) sa.ComponentMask{
		"P_Key": func(r *sa.PathRecord) sa.ComponentMask { r.SetPKey(0x8000); return sa.PathPKey },
		"MTU": func(r *sa.PathRecord) sa.ComponentMask {
			r.SetMTU(sa.GreaterThan, 5)
			return sa.PathMTUSel | sa.PathMTU
		},
	} {
		var r sa.PathRecord
		mask := ask(&r)
		if _, s := f.SAPath(mask, &r); s != classStatus(sa.StatusNoResources) {
			t.Errorf("%s: Get: status %#x", name, s)
		}
		if g := c.table(mask, r); g.m.Status() != classStatus(sa.StatusNoResources) {
			t.Errorf("%s: GetTable: status %#x", name, g.m.Status())
		}
	}
}
