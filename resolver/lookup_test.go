// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package resolver

import (
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"acmd/cache"
	"acmd/mad"
	"acmd/mad/sa"
	"acmd/mad/transport"

	"pgregory.net/rapid"
)

// Loopback bytes as ibacm answers them (client protocol, worked example).
func TestLoopbackBytes(t *testing.T) {
	p := port(1, 4)
	p.GIDs = []mad.GID{gidOf(0x100005)}
	bubble(t, func(l *lab, _ *Config) { l.fab.devs = []transport.Device{device("mlx5_0", p)} }, func(t *testing.T, l *lab) {
		a := l.want(Query{Src: NameAddr("node1"), Dst: NameAddr("NODE1")}, StatusSuccess)
		want := "0000000000000000fe800000000000000000000000100005fe800000000000000000000000100005" +
			"0004000400000000" + "0080ffff0000" + "0403" + "0000000000000000"
		if got := hex.EncodeToString(a.Path[:]); got != want {
			t.Errorf("path\n%s, want\n%s", got, want)
		}
		if a.Origin != OriginLoopback || l.sa.count()+l.acm.count() != 0 {
			t.Errorf("origin %v, %d and %d asks", a.Origin, l.sa.count(), l.acm.count())
		}
		if c := l.e.Totals(); c != (Counters{CounterResolve: 1, CounterRouteCache: 1}) {
			t.Errorf("counters %v", c)
		}
	})
}

// field case 59: local answers, also between own ports; not across partitions or
// subnets, nor between limited members, nor when it is switched off.
func TestLoopback(t *testing.T) {
	a, b, far := port(1, 5), port(2, 6), port(3, 7)
	a.PKeys = []mad.PKey{0xffff, 0x0001}
	b.PKeys = []mad.PKey{0x7fff, 0x0001}
	b.MTU, b.Rate = 5, 2 // 2.5 Gb/s, though the code is smaller than that of a faster rate
	far.GIDs = []mad.GID{mad.MakeGID(7, 7)}
	hosts := []HostAddr{
		{IP: netip.MustParseAddr("10.0.0.1"), GID: gidOf(5), PKey: 0xffff},
		{IP: netip.MustParseAddr("10.0.0.2"), GID: gidOf(6), PKey: 0xffff},
		{IP: netip.MustParseAddr("10.1.0.1"), GID: gidOf(5), PKey: 0x8001},
		{IP: netip.MustParseAddr("10.1.0.2"), GID: gidOf(6), PKey: 0x8001},
		{IP: netip.MustParseAddr("10.2.0.1"), GID: mad.MakeGID(7, 7), PKey: 0xffff},
	}
	tests := []struct {
		src, dst string
		on       bool
		want     Status // StatusTimedOut: not local, and nobody answers
	}{
		{"10.0.0.1", "10.0.0.1", true, StatusSuccess},
		{"10.0.0.1", "10.0.0.2", true, StatusSuccess},
		{"10.0.0.2", "10.0.0.1", true, StatusSuccess},
		{"10.1.0.1", "10.1.0.1", true, StatusSuccess},  // a limited member with itself
		{"10.1.0.1", "10.1.0.2", true, StatusTimedOut}, // two limited members
		{"10.0.0.1", "10.1.0.1", true, StatusTimedOut}, // other partition
		{"10.0.0.1", "10.2.0.1", true, StatusTimedOut}, // other subnet
		{"10.0.0.1", "10.0.0.1", false, StatusTimedOut},
		{"10.0.0.1", "10.0.0.2", false, StatusTimedOut},
	}
	for _, tt := range tests {
		bubble(t, func(l *lab, c *Config) {
			l.fab.devs = []transport.Device{device("mlx5_0", a, b, far)}
			l.host.addrs = hosts
			c.Loopback = tt.on
		}, func(t *testing.T, l *lab) {
			got := l.want(byIP(tt.src, tt.dst), tt.want)
			if tt.want != StatusSuccess {
				return
			}
			if l.acm.count()+l.sa.count() != 0 {
				t.Errorf("%s to %s asked the fabric", tt.src, tt.dst)
			}
			if tt.src == "10.0.0.1" && tt.dst == "10.0.0.2" {
				p := got.Path
				if p.SGID() != gidOf(5) || p.DGID() != gidOf(6) || p.SLID() != 5 || p.DLID() != 6 || p.PKey() != 0xffff || p[54] != 4 || p[55] != 2 {
					t.Errorf("path %x", p)
				}
			}
		})
	}
}

// An address that was somewhere else and becomes ours is answered locally from
// then on, whatever was learned or is being learned about it.
func TestAddressBecomesLocal(t *testing.T) {
	bubble(t, func(l *lab, _ *Config) { l.acm.delay = 500 * time.Millisecond }, func(t *testing.T, l *lab) {
		l.knows(ip("10.0.0.8"), 8)
		l.knows(ip("10.0.0.9"), 9)
		l.want(byIP("10.0.0.1", "10.0.0.8"), StatusSuccess)
		b := newInbox()
		l.submit(byIP("10.0.0.1", "10.0.0.9"), 1, b)
		for _, s := range []string{"10.0.0.8", "10.0.0.9"} {
			l.host.addrs = append(l.host.addrs, HostAddr{IP: netip.MustParseAddr(s), GID: gidOf(5), PKey: 0xffff})
		}
		l.e.SetAddresses(nil)
		if a := l.want(byIP("10.0.0.1", "10.0.0.8"), StatusSuccess); a.Origin != OriginLoopback {
			t.Errorf("origin %v", a.Origin)
		}
		time.Sleep(time.Second)
		if a := b.one(t, 1); a.Status != StatusSuccess || a.Origin != OriginLoopback {
			t.Errorf("the flight that was under way: %v, origin %v", a.Status, a.Origin)
		}
	})
}

// A path to one of our own addresses over the fabric ends when the address moves to
// another port, or goes: the old port's path may have been found by it, and a flight
// that found it is refused.
func TestLocalAddressMoves(t *testing.T) {
	own := func(lid uint64) HostAddr {
		return HostAddr{IP: netip.MustParseAddr("10.0.0.2"), GID: gidOf(lid), PKey: 0xffff}
	}
	bubble(t, func(l *lab, c *Config) {
		c.Loopback = false
		l.fab.set(device("mlx5_0", port(1, 5), port(2, 6)))
		l.host.addrs = append(l.host.addrs, own(6))
		l.acm.delay = 0
		l.sa.delay = time.Millisecond
	}, func(t *testing.T, l *lab) {
		l.knows(ip("10.0.0.2"), 6)
		if a := l.want(byIP("10.0.0.1", "10.0.0.2"), StatusSuccess); a.Path.DLID() != 6 {
			t.Fatalf("LID %v", a.Path.DLID())
		}
		l.want(byIP("10.0.0.1", "10.0.0.2"), StatusSuccess) // cached
		asked := l.sa.count()
		b := newInbox()
		l.e.FlushAll()
		l.submit(byIP("2001:db8::1", "10.0.0.2"), 1, b) // under way with the old port
		l.submit(byIP("10.0.0.1", "10.0.0.2"), 2, b)
		l.knows(ip("10.0.0.2"), 5)
		l.host.set(l.host.addrs[0], l.host.addrs[1], own(5))
		l.e.SetAddresses(nil)
		time.Sleep(time.Second)
		for tag := range uint64(2) {
			if a := b.one(t, tag+1); a.Status != StatusSuccess || a.Path.DLID() != 5 {
				t.Errorf("flight %d: %v, LID %v", tag+1, a.Status, a.Path.DLID())
			}
		}
		if a := l.want(byIP("10.0.0.1", "10.0.0.2"), StatusSuccess); a.Path.DLID() != 5 || l.sa.count() == asked {
			t.Errorf("LID %v", a.Path.DLID())
		}
		l.knows(ip("10.0.0.2"), 7) // another node has it now
		l.host.set(l.host.addrs[0], l.host.addrs[1])
		l.e.SetAddresses(nil)
		if a := l.want(byIP("10.0.0.1", "10.0.0.2"), StatusSuccess); a.Path.DLID() != 7 {
			t.Errorf("after it left: LID %v", a.Path.DLID())
		}
	})
}

func TestSlower(t *testing.T) {
	for _, tt := range []struct{ a, b, want mad.Rate }{
		{3, 3, 3}, {3, 2, 2}, {2, 3, 2}, {10, 11, 11}, {15, 4, 15}, {24, 23, 23}, {63, 3, 3}, {3, 63, 3}, {63, 62, 62}, {0, 0, 0},
	} {
		if got := slower(tt.a, tt.b); got != tt.want {
			t.Errorf("slower(%d, %d) = %d, want %d", tt.a, tt.b, got, tt.want)
		}
	}
}

// B-11, field case 45: the source that routing chooses.
func TestSourceSelection(t *testing.T) {
	bubble(t, nil, func(t *testing.T, l *lab) {
		l.knows(ip("10.0.0.9"), 9)
		l.knows(ip("2001:db8::9"), 9)
		for range 3 {
			if a := l.want(byIP("", "10.0.0.9"), StatusSuccess); a.Src != ip("10.0.0.1") {
				t.Errorf("source %v", a.Src)
			}
		}
		if a := l.want(byIP("", "2001:db8::9"), StatusSuccess); a.Src != ip("2001:db8::1") {
			t.Errorf("source %v", a.Src)
		}
		if a := l.want(byIP("10.0.0.1", "2001:db8::9"), StatusSuccess); !a.Src.IsZero() {
			t.Errorf("a source that the client named is told: %v", a.Src)
		}
		if l.host.asked != 2 {
			t.Errorf("routing was asked %d times, want 2", l.host.asked)
		}
		// Another generation, or 30 s, and it is asked again.
		l.host.set(l.host.addrs...)
		l.want(byIP("", "10.0.0.9"), StatusSuccess)
		time.Sleep(31 * time.Second)
		l.want(byIP("", "10.0.0.9"), StatusSuccess)
		if l.host.asked != 4 {
			t.Errorf("routing was asked %d times, want 4", l.host.asked)
		}
		for _, tt := range []struct {
			dst    string
			choose func(netip.Addr) (netip.Addr, error)
		}{
			{"2001:db8::a", func(netip.Addr) (netip.Addr, error) { return netip.MustParseAddr("10.0.0.1"), nil }},
			{"10.0.0.11", func(netip.Addr) (netip.Addr, error) { return netip.Addr{}, syscall.ENETUNREACH }},
			{"10.0.0.12", func(netip.Addr) (netip.Addr, error) { return netip.MustParseAddr("192.0.2.1"), nil }}, // not InfiniBand
		} {
			l.host.choose = tt.choose
			for range 2 {
				if a := l.want(byIP("", tt.dst), StatusSrcAddr); !a.Core || !a.Src.IsZero() {
					t.Errorf("%s: %+v", tt.dst, a)
				}
			}
		}
		for _, dst := range []Addr{NameAddr("node9"), GIDAddr(gidOf(9)), LIDAddr(9), {}} {
			if a := l.want(Query{Dst: dst}, StatusDestType); !a.Core {
				t.Errorf("%+v", a)
			}
		}
		l.want(byIP("10.0.0.77", "10.0.0.9"), StatusSrcAddr)
		l.want(Query{Kind: ByPath}, StatusDestAddr)
		l.want(Query{Kind: 9, Path: byGID(gidOf(9)).Path}, StatusInvalid)
	})
}

// B-22: what constrains the answer is in the key and in the question, what does
// not is in neither.
func TestPathKeys(t *testing.T) {
	plain := sa.PathSGID | sa.PathSLID | sa.PathPKey | sa.PathReversible | sa.PathNumPath
	gid, lid := byGID(gidOf(9)), byLID(9)
	edit := func(q Query, f func(*sa.PathRecord)) Query { f(&q.Path); return q }
	tests := []struct {
		name string
		q    Query
		key  cache.Kind
		mask sa.ComponentMask
		same int // index of the test whose entry this is
	}{
		{"GID", gid, cache.KindGID, plain | sa.PathDGID, 0},
		{"GID with what we fill in", edit(gid, func(p *sa.PathRecord) {
			p.SetSGID(gidOf(5))
			p.SetSLID(5)
			p.SetPKey(0x7fff)
			p.SetReversibleNumPath(true, 1)
		}), cache.KindGID, 0, 0},
		{"GID, unidirectional", edit(gid, func(p *sa.PathRecord) { p.SetReversibleNumPath(false, 1) }), cache.KindGID, 0, 0},
		{"GID, garbage in reserved fields", edit(gid, func(p *sa.PathRecord) { p[44], p[57], p[63] = 0x70, 9, 1 }), cache.KindGID, 0, 0},
		{"LID", lid, cache.KindLID, plain | sa.PathDLID, 4},
		{"LID and GID", edit(gid, func(p *sa.PathRecord) { p.SetDLID(9) }), cache.KindPath, plain | sa.PathDGID | sa.PathDLID, 5},
		{"service", edit(gid, func(p *sa.PathRecord) { p.SetServiceID(0x1234) }), cache.KindPath, plain | sa.PathDGID | sa.PathServiceID, 6},
		{"service, source filled in", edit(gid, func(p *sa.PathRecord) { p.SetServiceID(0x1234); p.SetSGID(gidOf(5)); p.SetSLID(5) }), cache.KindPath, 0, 6},
		{"traffic class", edit(gid, func(p *sa.PathRecord) { p.SetTClass(3) }), cache.KindPath, plain | sa.PathDGID | sa.PathTClass, 8},
		{"flow and hop", edit(gid, func(p *sa.PathRecord) { p.SetFlowHop(0xfffff, 3) }), cache.KindPath, plain | sa.PathDGID | sa.PathFlowLabel | sa.PathHopLimit, 9},
		{"QoS and SL", edit(gid, func(p *sa.PathRecord) { p.SetQoSClassSL(5, 3) }), cache.KindPath, plain | sa.PathDGID | sa.PathQoSClass | sa.PathSL, 10},
		{"other SL", edit(gid, func(p *sa.PathRecord) { p.SetQoSClassSL(5, 4) }), cache.KindPath, plain | sa.PathDGID | sa.PathQoSClass | sa.PathSL, 11},
		{"MTU", edit(gid, func(p *sa.PathRecord) { p.SetMTU(sa.Exactly, 4) }), cache.KindPath, plain | sa.PathDGID | sa.PathMTUSel | sa.PathMTU, 12},
		{"rate", edit(gid, func(p *sa.PathRecord) { p.SetRate(sa.Largest, 0) }), cache.KindPath, plain | sa.PathDGID | sa.PathRateSel, 13},
		{"lifetime", edit(lid, func(p *sa.PathRecord) { p.SetLifetime(sa.LessThan, 18) }), cache.KindPath, plain | sa.PathDLID | sa.PathLifetimeSel | sa.PathLifetime, 14},
		{"raw traffic", edit(lid, func(p *sa.PathRecord) { p[44] = 0xf0 }), cache.KindPath, plain | sa.PathDLID | sa.PathRawTraffic, 15},
		{"second path of an LMC range", edit(lid, func(p *sa.PathRecord) { p.SetSLID(6) }), cache.KindPath, plain | sa.PathDLID, 16},
		{"alias source", edit(gid, func(p *sa.PathRecord) { p.SetSGID(gidOf(0xa3)) }), cache.KindPath, plain | sa.PathDGID, 17},
	}
	p := port(1, 4)
	p.LID, p.LMC, p.GIDs = 5, 0, []mad.GID{gidOf(5), gidOf(0xa3)}
	lmc := p
	lmc.LID, lmc.LMC = 4, 2
	bubble(t, func(l *lab, _ *Config) { l.fab.devs = []transport.Device{device("mlx5_0", p)} }, func(t *testing.T, l *lab) {
		l.sa.respond = func(_ sa.ComponentMask, rec *sa.PathRecord) (SAResult, time.Duration) {
			return SAResult{Path: *rec, Valid: true}, 0
		}
		keys := make([]cache.Key, len(tests))
		for i, tt := range tests {
			if tt.name == "second path of an LMC range" {
				tt.q.Path.SetSLID(5) // see below for another one
				keys[i] = cache.Key{Kind: cache.KindPath, Len: 1}
				continue
			}
			before := l.sa.count()
			var tg target
			var a Answer
			if l.e.target(l.e.topo.Load(), &tt.q, l.e.Now(), &tg, &a) != mapped {
				t.Fatalf("%s: %v", tt.name, a.Err)
			}
			keys[i] = tg.key
			l.want(tt.q, StatusSuccess)
			if tg.key.Kind != tt.key {
				t.Errorf("%s: key of kind %d, want %d", tt.name, tg.key.Kind, tt.key)
			}
			for j := range i {
				if (keys[j] == keys[i]) != (tests[j].same == tt.same) {
					t.Errorf("%s and %s: same key %v", tt.name, tests[j].name, keys[j] == keys[i])
				}
			}
			if tt.same != i {
				if l.sa.count() != before {
					t.Errorf("%s: asked, though %s had been", tt.name, tests[tt.same].name)
				}
				continue
			}
			if l.sa.count() != before+1 {
				t.Errorf("%s: not asked", tt.name)
				continue
			}
			if got := l.sa.masks[before]; got != tt.mask {
				t.Errorf("%s: mask %#x, want %#x", tt.name, got, tt.mask)
			}
			rec := l.sa.records[before]
			if rec.SLID() != 5 || rec.PKey() != 0xffff || !rec.Reversible() || rec.NumPath() != 1 || rec.SGID().IsZero() {
				t.Errorf("%s: asked %x", tt.name, rec)
			}
		}
		l.fab.set(device("mlx5_0", lmc))
		time.Sleep(2 * time.Second)
		q := edit(lid, func(p *sa.PathRecord) { p.SetSLID(6) })
		if a := l.want(q, StatusSuccess); a.Path.SLID() != 6 {
			t.Errorf("source LID %v", a.Path.SLID())
		}
	})
}

// Whatever a path request has in it: its key is the same after filling it in, and
// two requests have one key only if they are one question.
func TestPathKeyProperty(t *testing.T) {
	info := port(1, 5)
	v := &portView{state: &portState{}, info: info}
	ev := &epView{ep: &Endpoint{Slot: 7, PKey: 0xffff, GID: gidOf(5), Port: info}, port: v}
	gen := rapid.Custom(func(t *rapid.T) (r sa.PathRecord) {
		// Few values, so that requests coincide.
		b := rapid.SampledFrom([]byte{0, 1, 0x80})
		for i := range r {
			if rapid.IntRange(0, 9).Draw(t, "set") == 0 {
				r[i] = b.Draw(t, "byte")
			}
		}
		r.SetDGID(rapid.SampledFrom([]mad.GID{{}, gidOf(9), gidOf(10)}).Draw(t, "dgid"))
		r.SetDLID(rapid.SampledFrom([]mad.LID{0, 9}).Draw(t, "dlid"))
		r.SetSGID(rapid.SampledFrom([]mad.GID{{}, gidOf(5)}).Draw(t, "sgid"))
		r.SetSLID(rapid.SampledFrom([]mad.LID{0, 5}).Draw(t, "slid"))
		r.SetPKey(rapid.SampledFrom([]mad.PKey{0, 0xffff, 0x7fff}).Draw(t, "pkey"))
		return r
	})
	targetOf := func(r *sa.PathRecord) *target {
		tg := &target{ev: ev, slot: 7, sgid: r.SGID()}
		if tg.sgid.IsZero() {
			tg.sgid = v.sourceGID(r.DGID())
		}
		return tg
	}
	rapid.Check(t, func(t *rapid.T) {
		x, y := gen.Draw(t, "x"), gen.Draw(t, "y")
		tx, ty := targetOf(&x), targetOf(&y)
		fx, fy := fillPath(tx, &x), fillPath(ty, &y)
		kx, ky := pathKey(tx, &x), pathKey(ty, &y)
		if again := pathKey(tx, &fx); again != kx {
			t.Fatalf("key of the filled request differs: %v, %v", kx, again)
		}
		if maskOf(&fx)&(sa.PathSGID|sa.PathSLID|sa.PathPKey|sa.PathReversible|sa.PathNumPath) != plainMask {
			t.Fatalf("mask %#x", maskOf(&fx))
		}
		if (kx == ky) != (fx == fy) {
			t.Fatalf("keys equal: %v, questions equal: %v\n%x\n%x", kx == ky, fx == fy, fx, fy)
		}
	})
}

// Every status of the SA has a named outcome, and none but 0 is success.
func TestStatusTable(t *testing.T) {
	want := map[mad.Status]Status{
		0x0100: StatusNoMemory, 0x0200: StatusInvalid, 0x0300: StatusNoData, 0x0400: StatusInvalid, 0x0500: StatusNoData,
		0x0600: StatusInvalid, 0x0700: StatusNoData, 0x0800: StatusInvalid, 0x0900: StatusInvalid, 0xff00: StatusInvalid,
		0x0001: StatusTimedOut, 0x0301: StatusTimedOut, 0x0002: StatusNotConn, 0x0004: StatusNotConn, 0x0008: StatusNotConn,
		0x000c: StatusNotConn, 0x001c: StatusInvalid, 0x031c: StatusInvalid, 0x0010: StatusNotConn, 0x0080: StatusNotConn,
	}
	for s, w := range want {
		if got := statusOf(s); got != w {
			t.Errorf("SA status %#04x is %v, want %v", s, got, w)
		}
	}
	for s := 1; s <= 0xffff; s++ {
		if got := statusOf(mad.Status(s)); got == StatusSuccess || got > StatusDestType {
			t.Fatalf("SA status %#04x is %v", s, got)
		}
	}
	for _, tt := range []struct {
		err  error
		want Status
	}{
		{ErrTimeout, StatusTimedOut}, {fmt.Errorf("x: %w", ErrOverload), StatusNoMemory}, {ErrDown, StatusNotConn}, {errors.New("?"), StatusTimedOut},
	} {
		if got, err := saFailure(&SAResult{Err: tt.err}); got != tt.want || err != tt.err {
			t.Errorf("%v is %v, %v", tt.err, got, err)
		}
	}
	for s := StatusSuccess; s <= StatusDestType+1; s++ {
		if named := !strings.HasPrefix(s.String(), "status "); named != (s != 4 && s <= StatusDestType) {
			t.Errorf("status %d is called %q", s, s)
		}
	}
}

// SA failures end in the status of the table, with the step in the error.
func TestSAFailures(t *testing.T) {
	for _, tt := range []struct {
		r    SAResult
		want Status
		text string
	}{
		{SAResult{Status: 0x0300, Valid: true, Err: errors.New("SA: no records")}, StatusNoData, "route step: SA: no records"},
		{SAResult{Status: 0x0001, Valid: true}, StatusTimedOut, "route step: SA: status 0x0001 (busy)"},
		{SAResult{Err: fmt.Errorf("SA did not answer: %w", ErrTimeout)}, StatusTimedOut, "route step: SA did not answer: no answer"},
		{SAResult{Err: fmt.Errorf("no SM: %w", ErrDown)}, StatusNotConn, "route step: no SM: not connected"},
	} {
		bubble(t, nil, func(t *testing.T, l *lab) {
			l.sa.respond = func(_ sa.ComponentMask, rec *sa.PathRecord) (SAResult, time.Duration) {
				r := tt.r
				r.Path = *rec
				return r, time.Millisecond
			}
			a := l.want(byGID(gidOf(9)), tt.want)
			if a.Err.Error() != tt.text || a.Core || a.Path != (sa.PathRecord{}) {
				t.Errorf("%q, core %v, path %x", a.Err, a.Core, a.Path)
			}
		})
	}
}

// AskSA: one question with the mask of the fields that are not zero, the answer's
// bytes whatever the status, nothing cached.
func TestAskSA(t *testing.T) {
	bubble(t, nil, func(t *testing.T, l *lab) {
		l.sa.lids[gidOf(9)] = 9
		q := Query{Kind: AskSA}
		q.Path.SetDGID(gidOf(9))
		q.Path.SetSGID(gidOf(5))
		q.Path.SetReversibleNumPath(true, 1)
		q.Path.SetMTU(0, 4) // as a loopback path has it: no selector
		q.Path[57] = 3
		for range 2 {
			a := l.want(q, StatusSuccess)
			if !a.Asked || a.Path.DLID() != 9 || a.Core {
				t.Errorf("%+v", a)
			}
		}
		if got, want := l.sa.masks[0], sa.PathDGID|sa.PathSGID|sa.PathReversible|sa.PathMTU; got != want {
			t.Errorf("mask %#x, want %#x", got, want)
		}
		if l.sa.records[0] != q.Path || l.sa.count() != 2 || l.e.CacheLen() != 0 {
			t.Errorf("asked %x, %d times, %d cached", l.sa.records[0], l.sa.count(), l.e.CacheLen())
		}
		q.Path.SetDGID(gidOf(10))
		if a := l.want(q, StatusNoData); !a.Asked || a.Path != q.Path {
			t.Errorf("%+v", a)
		}
		l.sa.silent = true
		a, took := l.ask(q)
		if a.Status != StatusTimedOut || a.Asked || a.Path != q.Path || took != 2*time.Second {
			t.Errorf("%+v after %v", a, took)
		}
		q.Path.SetSGID(gidOf(77))
		l.want(q, StatusSrcAddr)
		time.Sleep(5 * time.Second)
		if got, want := l.e.Totals(), (Counters{CounterError: 2, CounterResolve: 5, CounterNoData: 1, CounterRouteQuery: 4}); got != want {
			t.Errorf("counters %v, want %v", got, want)
		}
		// An endpoint counts SA queries only where they fail.
		if got, want := l.e.EndpointCounters(l.e.Endpoints()[0]), (Counters{CounterError: 1, CounterNoData: 1, CounterRouteQuery: 4}); got != want {
			t.Errorf("endpoint's counters %v, want %v", got, want)
		}
	})
}

// A preloaded route is taken before the SA is asked, unless something is
// constrained that a file knows nothing of.
func TestRouteSource(t *testing.T) {
	var rec sa.PathRecord
	rec.SetDGID(gidOf(9))
	rec.SetDLID(90)
	bubble(t, func(_ *lab, c *Config) { c.Routes = routes{gidOf(9): rec} }, func(t *testing.T, l *lab) {
		l.knows(ip("10.0.0.9"), 9)
		for _, q := range []Query{byIP("10.0.0.1", "10.0.0.9"), byGID(gidOf(9)), byGID(gidOf(9))} {
			if a := l.want(q, StatusSuccess); a.Path != rec || a.Origin != OriginPreload {
				t.Errorf("%+v", a)
			}
		}
		if l.sa.count() != 0 {
			t.Errorf("%d asks", l.sa.count())
		}
		q := byGID(gidOf(9))
		q.Path.SetTClass(1)
		if a := l.want(q, StatusSuccess); a.Origin != OriginSA {
			t.Errorf("origin %v", a.Origin)
		}
	})
}

type routes map[mad.GID]sa.PathRecord

func (r routes) Route(_ *Endpoint, dst Addr) (sa.PathRecord, bool) {
	if dst.Kind != cache.KindGID {
		return sa.PathRecord{}, false
	}
	rec, ok := r[mad.GID(dst.Data[:16])]
	return rec, ok
}
