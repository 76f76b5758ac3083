// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package resolver

import (
	"math"
	"testing"
	"time"

	"acmd/mad"
	"acmd/mad/sa"
	"acmd/mad/transport"
)

// What is hit past its refresh age is served and looked up once behind; the
// nodes are not asked again for the address.
func TestRefreshAhead(t *testing.T) {
	bubble(t, nil, func(t *testing.T, l *lab) {
		q := byIP("10.0.0.1", "10.0.0.9")
		l.knows(q.Dst, 9)
		l.want(q, StatusSuccess)
		time.Sleep(14 * time.Minute)
		l.want(q, StatusSuccess)
		if l.sa.count() != 1 {
			t.Fatalf("%d asks before the refresh age", l.sa.count())
		}
		l.sa.set(func() { l.sa.lids[gidOf(9)] = 42 })
		time.Sleep(time.Minute)
		for range 10 {
			if a, took := l.ask(q); a.Status != StatusSuccess || took != 0 || a.Path.DLID() != 9 {
				t.Errorf("%v after %v, LID %v", a.Status, took, a.Path.DLID())
			}
		}
		time.Sleep(10 * time.Millisecond)
		if a := l.want(q, StatusSuccess); a.Path.DLID() != 42 {
			t.Errorf("LID %v after the refresh", a.Path.DLID())
		}
		if l.sa.count() != 2 || l.acm.count() != 1 {
			t.Errorf("%d SA asks, %d address asks", l.sa.count(), l.acm.count())
		}
		// The address has its day, then all is asked anew.
		time.Sleep(24 * time.Hour)
		l.want(q, StatusSuccess)
		if l.acm.count() != 2 {
			t.Errorf("%d address asks after a day", l.acm.count())
		}
	})
}

// A refresh that is not answered leaves the path in force. If the SA says that
// there is no such path it has ten seconds to say otherwise (field case 26).
func TestRefreshFails(t *testing.T) {
	bubble(t, nil, func(t *testing.T, l *lab) {
		q := byIP("10.0.0.1", "10.0.0.9")
		l.knows(q.Dst, 9)
		l.want(q, StatusSuccess)
		l.sa.set(func() { l.sa.silent = true })
		time.Sleep(16 * time.Minute)
		for range 60 {
			l.want(q, StatusSuccess)
			time.Sleep(time.Second)
		}
		if n := l.sa.count(); n < 10 || n > 32 {
			t.Errorf("%d asks of a silent SA in a minute", n)
		}
		l.sa.set(func() { l.sa.silent = false; delete(l.sa.lids, gidOf(9)) })
		time.Sleep(5 * time.Second)
		l.want(q, StatusSuccess)
		time.Sleep(5 * time.Second)
		l.want(q, StatusSuccess)
		l.sa.set(func() { l.sa.lids[gidOf(9)] = 42 })
		time.Sleep(time.Second)
		l.want(q, StatusSuccess)
		time.Sleep(time.Minute)
		if a := l.want(q, StatusSuccess); a.Path.DLID() != 42 {
			t.Errorf("LID %v after the path was confirmed", a.Path.DLID())
		}
		l.sa.set(func() { delete(l.sa.lids, gidOf(9)) })
		time.Sleep(16 * time.Minute)
		for range 9 {
			l.want(q, StatusSuccess)
			time.Sleep(time.Second)
		}
		time.Sleep(2 * time.Second)
		l.want(q, StatusNoData)
	})
}

// A refresh that finds no room is counted, and a later hit tries again.
func TestRefreshDropped(t *testing.T) {
	bubble(t, func(_ *lab, c *Config) { c.MaxFlights = 1 }, func(t *testing.T, l *lab) {
		q, unknown := byIP("10.0.0.1", "10.0.0.9"), byIP("10.0.0.1", "10.9.0.1")
		l.knows(q.Dst, 9)
		l.want(q, StatusSuccess)
		time.Sleep(16 * time.Minute)
		l.e.Resolve(&unknown, 1, newInbox()) // for as long as its addresses are asked for
		l.want(q, StatusSuccess)
		time.Sleep(time.Millisecond)
		if st := l.e.Stats(); st.RefreshDropped != 1 || st.Refreshes != 0 {
			t.Errorf("%d refreshes, %d dropped", st.Refreshes, st.RefreshDropped)
		}
		time.Sleep(time.Minute)
		l.want(q, StatusSuccess)
		time.Sleep(time.Millisecond)
		if st := l.e.Stats(); st.RefreshDropped != 1 || st.Refreshes != 1 {
			t.Errorf("later %d refreshes, %d dropped", st.Refreshes, st.RefreshDropped)
		}
	})
}

// field case 8 (a): with a route lifetime of a minute the ask at 61 s goes to the
// SA. Before that hits refresh it.
func TestRouteLifetime(t *testing.T) {
	bubble(t, func(_ *lab, c *Config) { c.RouteTimeout = time.Minute }, func(t *testing.T, l *lab) {
		q := byIP("10.0.0.1", "10.0.0.9")
		l.knows(q.Dst, 9)
		l.want(q, StatusSuccess)
		l.sa.set(func() { l.sa.lids[gidOf(9)] = 42 })
		time.Sleep(61 * time.Second)
		if a := l.want(q, StatusSuccess); a.Path.DLID() != 42 || l.sa.count() != 2 || l.acm.count() != 1 {
			t.Errorf("LID %v, %d SA asks, %d address asks", a.Path.DLID(), l.sa.count(), l.acm.count())
		}
		if c := l.e.Totals(); c[CounterAddrCache] != 1 {
			t.Errorf("counters %v", c)
		}
		time.Sleep(50 * time.Second) // past three quarters
		l.want(q, StatusSuccess)
		time.Sleep(time.Second)
		if l.sa.count() != 3 {
			t.Errorf("%d SA asks, want a refresh", l.sa.count())
		}
	})
}

// An address lifetime of 0 means that nothing is kept.
func TestNoCaching(t *testing.T) {
	bubble(t, func(_ *lab, c *Config) { c.AddrTimeout = 0 }, func(t *testing.T, l *lab) {
		q := byIP("10.0.0.1", "10.0.0.9")
		l.knows(q.Dst, 9)
		for range 3 {
			l.want(q, StatusSuccess)
		}
		if l.sa.count() != 3 || l.acm.count() != 3 {
			t.Errorf("%d SA asks, %d address asks", l.sa.count(), l.acm.count())
		}
	})
}

func TestLifetimes(t *testing.T) {
	const minute = int64(time.Minute)
	asked := 10*minute + 7
	tests := []struct {
		name              string
		addr, route, life time.Duration
		refresh           time.Duration
		origin            Origin
		deadline, again   int64
	}{
		{"default", 24 * time.Hour, -1, 0, 0, OriginSA, asked + 24*60*minute, asked + 15*minute},
		{"never", -1, -1, 0, 0, OriginSA, math.MaxInt64, asked + 15*minute},
		{"never, no refresh", -1, -1, 0, -1, OriginSA, math.MaxInt64, math.MaxInt64},
		{"a day, no refresh", 24 * time.Hour, -1, 0, -1, OriginSA, asked + 24*60*minute, math.MaxInt64},
		{"short route", -1, 4 * time.Minute, 0, 0, OriginSA, asked + 4*minute, asked + 3*minute},
		{"short address", 4 * time.Minute, -1, 0, 0, OriginSA, asked + 4*minute, asked + 3*minute},
		{"no address caching", 0, -1, 0, 0, OriginSA, asked, math.MaxInt64},
		{"this minute", -1, 0, 0, 0, OriginSA, 11 * minute, math.MaxInt64},
		{"answer's own, short", -1, -1, time.Minute, 0, OriginSA, asked + minute, math.MaxInt64},
		{"answer's own, long", -1, -1, time.Hour, 0, OriginSA, asked + 60*minute, asked + 15*minute},
		{"preloaded", -1, -1, 0, 0, OriginPreload, math.MaxInt64, math.MaxInt64},
	}
	for _, tt := range tests {
		e := &Engine{cfg: Config{AddrTimeout: tt.addr, RouteTimeout: tt.route, Refresh: tt.refresh}}
		e.cfg.setDefaults()
		e.refreshAge = e.computeRefreshAge()
		d, r := e.lifetimes(asked, &Resolution{Lifetime: tt.life, Origin: tt.origin})
		if d != tt.deadline || r != tt.again {
			t.Errorf("%s: deadline %d, refresh %d, want %d, %d", tt.name, d-asked, r-asked, tt.deadline-asked, tt.again-asked)
		}
	}
}

// After a reregistration paths are served and looked up again. With refreshing
// off they are dropped, as nothing would ever look at them again.
func TestReregister(t *testing.T) {
	for _, off := range []bool{false, true} {
		bubble(t, func(_ *lab, c *Config) {
			if off {
				c.Refresh = -1
			}
		}, func(t *testing.T, l *lab) {
			q := byGID(gidOf(9))
			l.knows(ip("10.0.0.9"), 9)
			l.want(q, StatusSuccess)
			l.sa.set(func() { l.sa.lids[gidOf(9)] = 42 })
			l.event(transport.EventReregister, "mlx5_0", 1)
			time.Sleep(time.Millisecond) // what is of the same instant counts as older
			want := mad.LID(9)
			if off {
				want = 42
			}
			if a := l.want(q, StatusSuccess); a.Path.DLID() != want {
				t.Errorf("off %v: LID %v, want %v", off, a.Path.DLID(), want)
			}
			time.Sleep(time.Second)
			if a := l.want(q, StatusSuccess); a.Path.DLID() != 42 {
				t.Errorf("off %v: LID %v, want 42", off, a.Path.DLID())
			}
			time.Sleep(time.Second)
			l.want(q, StatusSuccess)
			if l.sa.count() != 2 {
				t.Errorf("off %v: %d asks", off, l.sa.count())
			}
		})
	}
}

// One busy key does not take the turns of others while its refresh hangs.
func TestRefreshTurns(t *testing.T) {
	bubble(t, func(_ *lab, c *Config) { c.RefreshRate = 10 }, func(t *testing.T, l *lab) {
		busy, rare := byGID(gidOf(8)), byGID(gidOf(9))
		l.knows(ip("10.0.0.8"), 8)
		l.knows(ip("10.0.0.9"), 9)
		l.want(busy, StatusSuccess)
		l.want(rare, StatusSuccess)
		l.sa.respond = func(_ sa.ComponentMask, rec *sa.PathRecord) (SAResult, time.Duration) {
			return SAResult{Path: *rec, Valid: true}, time.Minute
		}
		time.Sleep(16 * time.Minute)
		for i := range 1000 {
			l.want(busy, StatusSuccess)
			if i == 500 {
				time.Sleep(100 * time.Millisecond)
				l.want(rare, StatusSuccess)
			}
			time.Sleep(time.Millisecond)
		}
		if s := l.e.Stats(); s.Refreshes != 2 || s.Flights != 2 {
			t.Errorf("stats %+v", s)
		}
	})
}
