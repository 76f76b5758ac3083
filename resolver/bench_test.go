// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package resolver

import (
	"fmt"
	"math"
	"net/netip"
	"testing"

	"acmd/mad"
)

// hits makes an engine whose cache has n destinations and a query for each.
func hits(tb testing.TB, n int) (*lab, []Query) {
	l := newLab(tb, func(l *lab, _ *Config) { l.acm.delay, l.sa.delay = 0, 0 })
	qs := make([]Query, n)
	for i := range qs {
		qs[i] = Query{Src: ip("10.0.0.1"), Dst: IPAddr(netip.AddrFrom4([4]byte{10, 16 + byte(i>>16), byte(i >> 8), byte(i)}))}
		l.acm.gids[qs[i].Dst] = gidOf(uint64(1000 + i))
		l.sa.lids[gidOf(uint64(1000+i))] = mad.LID(1 + i%0xbfff)
		l.want(qs[i], StatusSuccess)
	}
	return l, qs
}

// kinds are the ways in which a query is answered at once.
func kinds(tb testing.TB) (*lab, map[string]Query) {
	l, qs := hits(tb, 1)
	gid := byGID(gidOf(1000))
	service := gid
	service.Path.SetServiceID(1)
	name := Query{Src: NameAddr("node1"), Dst: NameAddr("node2")}
	l.knows(name.Dst, 1000)
	noSource := Query{Dst: qs[0].Dst}
	negative := byGID(gidOf(5))
	m := map[string]Query{
		"ip": qs[0], "gid": gid, "path": service, "name": name, "no-source": noSource,
		"loopback": byIP("10.0.0.1", "10.0.0.1"), "refused": byIP("10.9.9.9", "10.0.0.1"),
	}
	for _, q := range m {
		l.ask(q)
	}
	l.want(negative, StatusNoData)
	return l, m
}

// The hot path does not allocate.
func TestLookupAllocs(t *testing.T) {
	l, m := kinds(t)
	for name, q := range m {
		var a Answer
		now := l.e.Now()
		if n := testing.AllocsPerRun(100, func() {
			if !l.e.Lookup(&q, now, &a) {
				t.Fatalf("%s: not answered", name)
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

func BenchmarkLookup(b *testing.B) {
	l, m := kinds(b)
	for _, name := range []string{"ip", "gid", "path", "name", "no-source", "loopback", "refused"} {
		q := m[name]
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			var a Answer
			now := l.e.Now()
			for b.Loop() {
				if !l.e.Lookup(&q, now, &a) {
					b.Fatal("not answered")
				}
			}
		})
	}
}

func BenchmarkLookupMany(b *testing.B) {
	for _, n := range []int{1000, 40000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			l, qs := hits(b, n)
			b.ReportAllocs()
			var a Answer
			now := l.e.Now()
			i := 0
			for b.Loop() {
				if !l.e.Lookup(&qs[i], now, &a) {
					b.Fatal("not answered")
				}
				if i++; i == n {
					i = 0
				}
			}
		})
	}
}

// misses are questions that are looked up, each in its own way.
func misses(tb testing.TB) (*lab, map[string]Query) {
	l, qs := hits(tb, 1)
	lid := Query{Kind: ByPath}
	lid.Path.SetDLID(7)
	return l, map[string]Query{"ip": qs[0], "gid": byGID(gidOf(1000)), "lid": lid}
}

// A lookup takes its memory in few pieces: with many at once, collecting them costs
// more than the lookups.
func TestMissAllocs(t *testing.T) {
	l, m := misses(t)
	for name, most := range map[string]float64{"ip": 9, "gid": 5, "lid": 4} {
		q, box := m[name], make(chanWaiter, 1)
		n := math.Inf(1)
		for range 3 { // the engine's poll allocates as well
			n = min(n, testing.AllocsPerRun(100, func() {
				l.e.FlushAll()
				l.e.Resolve(&q, 1, box)
				if a := <-box; a.Status != StatusSuccess {
					t.Fatalf("%s: status %v (%v)", name, a.Status, a.Err)
				}
			}))
		}
		if n > most {
			t.Errorf("%s: %v allocations, at most %v", name, n, most)
		}
	}
}

// BenchmarkMiss is a whole lookup with sources and SA that answer at once, and the
// flush before it.
func BenchmarkMiss(b *testing.B) {
	l, m := misses(b)
	for _, name := range []string{"ip", "gid", "lid"} {
		q, box := m[name], make(chanWaiter, 1)
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				l.e.FlushAll()
				l.e.Resolve(&q, 1, box)
				<-box
			}
		})
	}
}
