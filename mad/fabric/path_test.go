// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package fabric

import (
	"encoding/hex"
	"fmt"
	"math/bits"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"acmd/mad"
	"acmd/mad/sa"
)

func unhex(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.Join(strings.Fields(s), ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// The answer to ibacm's query of mask 0x202C, byte by byte, against what OpenSM
// answered for its own GIDs: LIDs in network order (field case 13).
func TestPathGolden(t *testing.T) {
	f := build(t, Config{Nodes: 8})
	c := open(t, f, 0)
	r := question(f, byGIDs|sa.PathSLID, 0, 4)
	g := c.ask(func(p *mad.Packet) {
		sa.Init(p, mad.MethodGet, sa.AttrPathRecord, byGIDs|sa.PathSLID)
		*sa.Path(p) = r
	})
	if g == nil {
		t.Fatal("no answer")
	}
	head := unhex(t, `01 03 02 81 0000 0000 0000000000010001 0035 0000 00000000
		00 00 00 00 00000000 00000000 0000000000000000 0008 0000 000000000000202c`)
	if string(g.m[:sa.DataOffset]) != string(head) {
		t.Errorf("header\n%x, want\n%x", g.m[:sa.DataOffset], head)
	}
	base := uint64(guidBase(0))
	if base>>40 != 0x02acd0 || base&0xffffff != 0 {
		t.Fatalf("GUIDs begin at %#x", base)
	}
	guid := func(low uint64) string { return fmt.Sprintf("%016x", base+low) }
	record := unhex(t, `0000000000000000 fe80000000000000`+guid(0x41)+`fe80000000000000`+guid(0x01)+
		`0005 0001 00000000 00 80 ffff 0000 85 90 8e 00 000000000000`)
	if got := g.m[sa.DataOffset : sa.DataOffset+64]; string(got) != string(record) {
		t.Errorf("record\n%x, want\n%x", got, record)
	}
	for i, b := range g.m[sa.DataOffset+64:] {
		if b != garbage {
			t.Fatalf("byte %d behind the record is %#x", i, b)
		}
	}
	if g.h.LID() != f.SMLID() || g.h.QPN() != mad.QP1 || g.h.Length() != 320 || g.h.Status() != 0 {
		t.Errorf("header %x", g.h)
	}
}

// What OpenSM refuses, and how.
func TestPathStatus(t *testing.T) {
	f := build(t, Config{Nodes: 8})
	c := open(t, f, 0)
	rec := func(set func(*sa.PathRecord)) sa.PathRecord {
		r := question(f, byGIDs|sa.PathSLID|sa.PathDLID, 0, 3)
		if set != nil {
			set(&r)
		}
		return r
	}
	for _, k := range []struct {
		name string
		mask sa.ComponentMask
		set  func(*sa.PathRecord)
		want mad.Status
	}{
		{"by GIDs", byGIDs, nil, 0},
		{"by LIDs", sa.PathSLID | sa.PathDLID, nil, 0},
		{"by all", byGIDs | sa.PathSLID | sa.PathDLID, nil, 0},
		{"unknown GID", byGIDs, func(r *sa.PathRecord) { r.SetDGID(mad.MakeGID(DefaultPrefix, 0x1234)) }, 0x0300},
		{"GID of a node behind the last", byGIDs, func(r *sa.PathRecord) { r.SetDGID(f.GID(8, 1)) }, 0x0300},
		{"GID off the subnet", byGIDs, func(r *sa.PathRecord) { r.SetDGID(mad.MakeGID(0xfec0<<48|7, f.PortGUID(3, 1))) }, 0x0300},
		{"unknown LID", sa.PathSLID | sa.PathDLID, func(r *sa.PathRecord) { r.SetDLID(0x700) }, 0x0300},
		{"LID 0", sa.PathSLID | sa.PathDLID, func(r *sa.PathRecord) { r.SetDLID(0) }, 0x0300},
		{"multicast LID", sa.PathSLID | sa.PathDLID, func(r *sa.PathRecord) { r.SetDLID(0xc000) }, 0x0300},
		{"SGID of another than SLID", byGIDs | sa.PathSLID, func(r *sa.PathRecord) { r.SetSLID(f.LID(5, 1)) }, 0x0200},
		{"DGID of another than DLID", byGIDs | sa.PathDLID, func(r *sa.PathRecord) { r.SetDLID(f.LID(5, 1)) }, 0x0200},
		{"half a service ID", byGIDs | 1, nil, 0x0600},
		{"other half", byGIDs | 2, nil, 0x0600},
		{"service ID", byGIDs | sa.PathServiceID, nil, 0},
		{"only a source", sa.PathSGID, nil, 0x0400},
		{"only a destination", sa.PathDGID, nil, 0x0400},
		{"nothing", 0, nil, 0x0400},
		{"NumPath", byGIDs | sa.PathNumPath, func(r *sa.PathRecord) { r.SetReversibleNumPath(true, 77) }, 0},
		{"foreign partition", byGIDs, func(r *sa.PathRecord) { r.SetPKey(0x8123) }, 0x0300},
		{"no partition", byGIDs, func(r *sa.PathRecord) { r.SetPKey(0x8000) }, 0x0300},
		{"no such group", byGIDs, func(r *sa.PathRecord) { r.SetDGID(mad.GID{0xff, 0x12, 15: 9}) }, 0x0300},
	} {
		t.Run(k.name, func(t *testing.T) {
			r := rec(k.set)
			got, status := c.path(k.mask, r)
			if status != k.want {
				t.Fatalf("status %#04x, want %#04x", status, k.want)
			}
			want, ws := f.SAPath(k.mask, &r)
			if ws != status {
				t.Errorf("SAPath: status %#04x", ws)
			}
			if status == 0 && got != want {
				t.Errorf("wire\n%x\nSAPath\n%x", got, want)
			}
			if status != 0 && got != r {
				t.Errorf("a refusal must echo the request: %x, want %x", got, r)
			}
		})
	}
}

// Silence: what OpenSM does not answer at all.
func TestSASilence(t *testing.T) {
	f := build(t, Config{Nodes: 8})
	c := open(t, f, 0)
	good := func(p *mad.Packet) {
		sa.Init(p, mad.MethodGet, sa.AttrPathRecord, byGIDs)
		*sa.Path(p) = question(f, byGIDs, 0, 3)
	}
	if c.ask(good) == nil {
		t.Fatal("good query got no answer")
	}
	for name, spoil := range map[string]func(p *mad.Packet){
		"unknown attribute": func(p *mad.Packet) { p.SetAttrID(0x0077) },
		"unknown method":    func(p *mad.Packet) { p.SetMethod(0x13) },
		"Delete of a path":  func(p *mad.Packet) { p.SetMethod(mad.MethodDelete) },
		"a response":        func(p *mad.Packet) { p.SetMethod(mad.MethodGetResp) },
		"SM_Key":            func(p *mad.Packet) { p[43] = 1 },
		"base version":      func(p *mad.Packet) { p[0] = 2 },
		"class version":     func(p *mad.Packet) { p[2] = 1 },
	} {
		if g := c.ask(func(p *mad.Packet) { good(p); spoil(p) }); g != nil {
			t.Errorf("%s: answered %x", name, g.m[:sa.DataOffset])
		}
	}
	if n := f.Stats().Ignored; n < 5 {
		t.Errorf("%d ignored", n)
	}
}

func TestPathSelectors(t *testing.T) {
	f := build(t, Config{Nodes: 64, Topology: FatTree, SlowEvery: 8, Hosts: 4})
	const mtu, rate, life = sa.PathMTU | sa.PathMTUSel, sa.PathRate | sa.PathRateSel, sa.PathLifetime | sa.PathLifetimeSel
	for _, k := range []struct {
		name string
		mask sa.ComponentMask
		set  func(*sa.PathRecord)
		to   int // 7 is slow: 2048, 40 Gb/s; 1 is not: 4096, 100 Gb/s
		want string
	}{
		{"plain", 0, nil, 1, "85908e"},
		{"slow", 0, nil, 7, "84878f"},
		{"MTU above 2048", mtu, func(r *sa.PathRecord) { r.SetMTU(sa.GreaterThan, 4) }, 1, "85908e"},
		{"MTU above 2048, slow", mtu, func(r *sa.PathRecord) { r.SetMTU(sa.GreaterThan, 4) }, 7, ""},
		{"MTU below 4096", mtu, func(r *sa.PathRecord) { r.SetMTU(sa.LessThan, 5) }, 1, "84908e"},
		{"MTU below 256", mtu, func(r *sa.PathRecord) { r.SetMTU(sa.LessThan, 1) }, 1, ""},
		{"MTU 1024", mtu, func(r *sa.PathRecord) { r.SetMTU(sa.Exactly, 3) }, 1, "83908e"},
		{"MTU 4096, slow", mtu, func(r *sa.PathRecord) { r.SetMTU(sa.Exactly, 5) }, 7, ""},
		{"largest MTU", mtu, func(r *sa.PathRecord) { r.SetMTU(sa.Largest, 1) }, 1, "85908e"},
		{"MTU value without selector", sa.PathMTU, func(r *sa.PathRecord) { r.SetMTU(sa.GreaterThan, 5) }, 1, "85908e"},
		{"rate above 56", rate, func(r *sa.PathRecord) { r.SetRate(sa.GreaterThan, 12) }, 1, "85908e"},
		{"rate above 56, slow", rate, func(r *sa.PathRecord) { r.SetRate(sa.GreaterThan, 12) }, 7, ""},
		{"rate below 40: 30, by its speed and not its code", rate, func(r *sa.PathRecord) { r.SetRate(sa.LessThan, 7) }, 1, "85848e"},
		{"rate below 2.5", rate, func(r *sa.PathRecord) { r.SetRate(sa.LessThan, 2) }, 1, ""},
		{"rate 10", rate, func(r *sa.PathRecord) { r.SetRate(sa.Exactly, 3) }, 1, "85838e"},
		{"rate 200", rate, func(r *sa.PathRecord) { r.SetRate(sa.Exactly, 17) }, 1, ""},
		{"rate unknown", rate, func(r *sa.PathRecord) { r.SetRate(sa.Exactly, 63) }, 1, ""},
		{"lifetime above 13", life, func(r *sa.PathRecord) { r.SetLifetime(sa.GreaterThan, 13) }, 1, "85908e"},
		{"lifetime above 14", life, func(r *sa.PathRecord) { r.SetLifetime(sa.GreaterThan, 14) }, 1, ""},
		{"lifetime below 14", life, func(r *sa.PathRecord) { r.SetLifetime(sa.LessThan, 14) }, 1, "85908d"},
		{"smallest lifetime", life, func(r *sa.PathRecord) { r.SetLifetime(sa.Largest, 0) }, 1, "85908e"},
	} {
		r := question(f, byGIDs, 0, k.to)
		if k.set != nil {
			k.set(&r)
		}
		got, status := f.SAPath(byGIDs|k.mask, &r)
		text := ""
		if status == 0 {
			text = hex.EncodeToString(got[54:57])
		} else if status != 0x0300 {
			t.Errorf("%s: status %#x", k.name, status)
		}
		if text != k.want {
			t.Errorf("%s: MTU, rate, lifetime %q, want %q", k.name, text, k.want)
		}
	}
}

// The path of a port to itself, and from port to port of one adapter.
func TestPathToSelf(t *testing.T) {
	f := build(t, Config{Nodes: 8, Ports: 2})
	r := question(f, byGIDs, 2, 2)
	if got, status := f.SAPath(byGIDs, &r); status != 0 || got[56] != 0x80 || got.SLID() != got.DLID() {
		t.Errorf("to itself: %#x %x", status, got)
	}
	r.SetDGID(f.GID(2, 2))
	if got, status := f.SAPath(byGIDs, &r); status != 0 || got[56] != 0x8e || got.SLID()+1 != got.DLID() {
		t.Errorf("to the other port: %#x %x", status, got)
	}
}

// A multicast DGID gives the group's parameters.
func TestPathToGroup(t *testing.T) {
	f := build(t, Config{Nodes: 8})
	c := open(t, f, 0)
	r := question(f, sa.PathSGID, 0, 0)
	r.SetDGID(ACMGroup(mad.DefaultPKey))
	got, status := c.path(sa.PathSGID|sa.PathDGID, r)
	want := unhex(t, `c001 0001 00000000 00 80 ffff 0000 84 83 80 00 000000000000`)
	if status != 0 || string(got[40:]) != string(want) || got.DGID() != r.DGID() || got.SGID() != r.SGID() {
		t.Errorf("status %#x, %x, want %x", status, got, want)
	}
	r.SetMTU(sa.Exactly, 5)
	if _, status := c.path(sa.PathDGID|sa.PathMTU|sa.PathMTUSel, r); status != 0x0300 {
		t.Errorf("group with another MTU: status %#x", status)
	}
}

// Every path is there, symmetric, reversible, with hops and SL of its topology.
func TestPathProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := Config{
			Nodes:    rapid.IntRange(2, 700).Draw(t, "nodes"),
			Topology: Topology(rapid.IntRange(0, 2).Draw(t, "topo")),
			Seed:     rapid.Uint64().Draw(t, "seed"),
			LMC:      uint8(rapid.IntRange(0, 3).Draw(t, "lmc")),
			Ports:    rapid.IntRange(1, 2).Draw(t, "ports"),
			Dims:     rapid.IntRange(2, 3).Draw(t, "dims"),
		}
		f, err := New(c)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		a, b := rapid.IntRange(0, c.Nodes-1).Draw(t, "a"), rapid.IntRange(0, c.Nodes-1).Draw(t, "b")
		there, back := question(f, byGIDs, a, b), question(f, byGIDs, b, a)
		x, s1 := f.SAPath(byGIDs, &there)
		y, s2 := f.SAPath(byGIDs, &back)
		if s1 != 0 || s2 != 0 {
			t.Fatalf("status %#x, %#x", s1, s2)
		}
		if x.SLID() != f.LID(a, 1) || x.DLID() != f.LID(b, 1) || x.SGID() != f.GID(a, 1) || x.DGID() != f.GID(b, 1) || !x.Reversible() {
			t.Fatalf("path %x", x)
		}
		if x.SL() != y.SL() || x[56] != y[56] {
			t.Fatalf("not symmetric: %x %x", x, y)
		}
		if x.SL() >= 1<<3 || c.Topology != Torus && x.SL() != 0 {
			t.Fatalf("SL %d on %v", x.SL(), c.Topology)
		}
		// The same question by LIDs has the same answer.
		lids := sa.PathSLID | sa.PathDLID
		q := question(f, lids, a, b)
		if z, s := f.SAPath(lids, &q); s != 0 || z != x {
			t.Fatalf("by LIDs %#x %x, by GIDs %x", s, z, x)
		}
	})
}

// Torus paths counted by walking, link by link.
func TestTorusRoute(t *testing.T) {
	s := newShape(&Config{Nodes: 5 * 4 * 3, Topology: Torus, Hosts: 1, Dims: 3})
	if s.size != [3]int{4, 4, 4} {
		t.Fatalf("torus of %v for 60 switches", s.size)
	}
	for a := range s.place {
		for b := range s.place {
			hops, sl := s.route(a, b)
			wantHops, wantSL := 1, uint8(0)
			for d := range 3 {
				up, down, n := int(s.place[a][d]), int(s.place[a][d]), 0
				for up != int(s.place[b][d]) && down != int(s.place[b][d]) {
					up, down = (up+1)%s.size[d], (down+s.size[d]-1)%s.size[d]
					n++
				}
				wantHops += n
				direct := max(s.place[a][d], s.place[b][d]) - min(s.place[a][d], s.place[b][d])
				if int(direct) > n {
					wantSL |= 1 << d
				}
			}
			if a != b && (hops != wantHops || sl != wantSL) {
				t.Fatalf("%v to %v: %d hops SL %d, want %d, %d", s.place[a], s.place[b], hops, sl, wantHops, wantSL)
			}
		}
	}
}

func TestFatTreeLevels(t *testing.T) {
	for _, k := range []struct{ nodes, to, hops int }{
		{600, 17, 1}, {600, 18, 3}, {600, 599, 3}, // two levels of 36-port switches
		{5000, 17, 1}, {5000, 18, 3}, {5000, 323, 3}, {5000, 324, 5}, {5000, 4999, 5},
		{MaxNodes, 31, 1}, {MaxNodes, 32, 3}, {MaxNodes, 1023, 3}, {MaxNodes, 1024, 5}, {MaxNodes, MaxNodes - 1, 5},
	} {
		s := newShape(&Config{Nodes: k.nodes, Topology: FatTree})
		if hops, sl := s.route(0, k.to); hops != k.hops || sl != 0 {
			t.Errorf("%d nodes, 0 to %d: %d hops, want %d", k.nodes, k.to, hops, k.hops)
		}
	}
	if lifetime(1) != 14 || lifetime(5) != 13+uint8(bits.Len(5)) {
		t.Error("lifetime")
	}
}

// SL constrains only where routing depends on it.
func TestPathSL(t *testing.T) {
	f := build(t, Config{Nodes: 100, Topology: Torus, Dims: 2, Hosts: 1})
	r := question(f, byGIDs, 0, 9) // the other end of the first ring
	got, status := f.SAPath(byGIDs, &r)
	if status != 0 || got.SL() != 1 {
		t.Fatalf("status %#x SL %d", status, got.SL())
	}
	r.SetQoSClassSL(0, 1)
	if got2, status := f.SAPath(byGIDs|sa.PathSL, &r); status != 0 || got2 != got {
		t.Errorf("asked for its SL: %#x %x", status, got2)
	}
	r.SetQoSClassSL(0, 2)
	if _, status := f.SAPath(byGIDs|sa.PathSL, &r); status != 0x0300 {
		t.Errorf("asked for another SL: status %#x", status)
	}
	star := build(t, Config{Nodes: 8})
	r = question(star, byGIDs, 0, 3)
	r.SetQoSClassSL(7, 5)
	if got, status := star.SAPath(byGIDs|sa.PathSL|sa.PathQoSClass, &r); status != 0 || got.SL() != 5 || got.QoSClass() != 7 {
		t.Errorf("star with SL: %#x %x", status, got)
	}
}

// Full and limited members of a partition talk, two limited ones do not; the
// answer has the key as it was asked for (field case 5).
func TestPathPartitions(t *testing.T) {
	f := build(t, Config{Nodes: 4, PKeys: func(n int) []mad.PKey {
		return [][]mad.PKey{{0x7fff, 0x0123}, {0x7fff, 0, 0x8000, 0x8123}, {0x7fff, 0x0123}, {0xffff}}[n]
	}})
	for _, k := range []struct {
		from, to int
		ask      mad.PKey
		want     mad.PKey // 0: no path
	}{
		{0, 1, 0, 0x8123}, {1, 0, 0, 0x8123}, {0, 1, 0x0123, 0x0123}, {0, 1, 0x8123, 0x8123},
		{0, 2, 0, 0}, {0, 2, 0x8123, 0}, {0, 2, 0xffff, 0}, {0, 3, 0, 0xffff}, {0, 3, 0x7fff, 0x7fff}, {1, 3, 0x8123, 0},
	} {
		mask := sa.PathDGID | sa.PathSGID
		r := question(f, mask, k.from, k.to)
		if k.ask != 0 {
			mask |= sa.PathPKey
			r.SetPKey(k.ask)
		}
		got, status := f.SAPath(mask, &r)
		if k.want == 0 && status != 0x0300 || k.want != 0 && (status != 0 || got.PKey() != k.want) {
			t.Errorf("%d to %d with %v: status %#x P_Key %v, want %v", k.from, k.to, k.ask, status, got.PKey(), k.want)
		}
	}
}
