// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package resolver

import (
	"errors"
	"sync"
	"testing"
	"time"

	"acmd/mad"
	"acmd/mad/sa"
	"acmd/mad/transport"
)

// tables makes the SA of a lab a Tabler.
type tables struct {
	mu    sync.Mutex
	delay time.Duration
	n     int // ports 100 to 99+n have paths
	err   error
	extra []sa.PathRecord // beside them, at the end
	asked []sa.PathRecord
	masks []sa.ComponentMask
}

type tablePort struct {
	SA
	t *tables
}

func (p tablePort) Table(mask sa.ComponentMask, rec *sa.PathRecord, done func([]sa.PathRecord, error)) {
	t := p.t
	t.mu.Lock()
	t.asked, t.masks = append(t.asked, *rec), append(t.masks, mask)
	paths, err, delay := t.paths(rec), t.err, t.delay
	t.mu.Unlock()
	time.AfterFunc(delay, func() { done(paths, err) })
}

func (t *tables) paths(rec *sa.PathRecord) (paths []sa.PathRecord) {
	for i := range t.n {
		paths = append(paths, pathTo(rec, 100+uint64(i)))
	}
	return append(paths, t.extra...)
}

func pathTo(rec *sa.PathRecord, n uint64) sa.PathRecord {
	r := *rec
	r.SetDGID(gidOf(n))
	r.SetDLID(mad.LID(n))
	r.SetRate(sa.Exactly, 3)
	return r
}

func (t *tables) count() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.asked)
}

func (t *tables) set(f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f()
}

// withTables is a lab whose SA knows the ports 100 to 149, and whose engine prefetches.
func withTables(t *testing.T, edit func(*Config), f func(t *testing.T, l *lab, tab *tables)) {
	t.Helper()
	tab := &tables{n: 50, delay: 10 * time.Millisecond}
	bubble(t, func(l *lab, c *Config) {
		c.Prefetch = true
		c.OpenSA = func(dev string, info transport.PortInfo) (SA, error) {
			s, err := l.sa.openPort(dev, info)
			return tablePort{s, tab}, err
		}
		for n := uint64(100); n < 150; n++ {
			l.sa.lids[gidOf(n)] = mad.LID(n)
		}
		if edit != nil {
			edit(c)
		}
	}, func(t *testing.T, l *lab) { f(t, l, tab) })
}

// However a port of the table is asked for, the SA is not.
func TestPrefetch(t *testing.T) {
	withTables(t, nil, func(t *testing.T, l *lab, tab *tables) {
		time.Sleep(2 * time.Second)
		if tab.count() != 1 {
			t.Fatalf("%d questions for a table, want 1", tab.count())
		}
		rec := tab.asked[0]
		if tab.masks[0] != plainMask || rec.SGID() != gidOf(5) || rec.SLID() != 5 || rec.PKey() != 0xffff || rec.NumPath() != 1 || !rec.Reversible() {
			t.Errorf("asked for %#x of % x", tab.masks[0], rec)
		}
		for n := uint64(100); n < 150; n++ {
			want := pathTo(&rec, n)
			name := NameAddr("node" + string(rune('a'+n-100)))
			l.acm.gids[name] = gidOf(n)
			for _, q := range []Query{byGID(gidOf(n)), byLID(mad.LID(n)), {Kind: ByAddress, Src: NameAddr("node1"), Dst: name}} {
				if a := l.want(q, StatusSuccess); a.Path != want || a.Origin != OriginSA {
					t.Errorf("%s: % x from %v, want % x", q.describe(), a.Path, a.Origin, want)
				}
			}
		}
		if n := l.sa.count(); n != 0 {
			t.Errorf("%d questions for a path, want none", n)
		}
		// A name finds the path that the GID before it was answered with.
		if s := l.e.Stats(); s.Tables != 1 || s.TablePaths != 50 || s.TableRoutes != 100 {
			t.Errorf("stats %+v", s)
		}
		// What else a question constrains goes to the SA, and so does who is not there.
		q := byGID(gidOf(101))
		q.Path.SetMTU(sa.Exactly, 4)
		l.want(q, StatusSuccess)
		l.want(byGID(gidOf(99)), StatusNoData)
		l.want(byGID(gidOf(150)), StatusNoData)
		if n := l.sa.count(); n != 3 {
			t.Errorf("%d questions for a path, want 3", n)
		}
	})
}

// What an event says of one port is not answered from before it; the rest of the table
// holds.
func TestPrefetchOneVoid(t *testing.T) {
	for name, drop := range map[string]func(*lab){
		"flush of the GID": func(l *lab) { l.e.FlushGID(gidOf(120)) },
		"flush of the LID": func(l *lab) { l.e.FlushLID(120) },
		"flush by GID":     func(l *lab) { l.e.FlushDest(GIDAddr(gidOf(120))) },
		"out of service":   func(l *lab) { l.e.notice(portID{"mlx5_0", 1}, serviceNotice(sa.TrapGIDOutOfService, gidOf(120))) },
		"in service":       func(l *lab) { l.e.notice(portID{"mlx5_0", 1}, serviceNotice(sa.TrapGIDInService, gidOf(120))) },
	} {
		t.Run(name, func(t *testing.T) {
			withTables(t, nil, func(t *testing.T, l *lab, tab *tables) {
				time.Sleep(2 * time.Second)
				drop(l)
				l.sa.set(func() { l.sa.lids[gidOf(120)] = 42 })
				if a := l.want(byGID(gidOf(120)), StatusSuccess); a.Path.DLID() != 42 {
					t.Errorf("LID %v, want the new one", a.Path.DLID())
				}
				for n := uint64(100); n < 120; n++ {
					l.want(byGID(gidOf(n)), StatusSuccess)
				}
				// An epoch is that of a few more GIDs and LIDs, rarely.
				if n := l.sa.count(); n > 3 {
					t.Errorf("%d questions for a path, want 1", n)
				}
				if tab.count() != 1 {
					t.Errorf("%d tables", tab.count())
				}
			})
		})
	}
}

// An event that voids everything brings a new table.
func TestPrefetchAllVoid(t *testing.T) {
	for name, drop := range map[string]func(*testing.T, *lab){
		"flush": func(_ *testing.T, l *lab) { l.e.FlushAll() },
		"flush of the port": func(t *testing.T, l *lab) {
			if _, err := l.e.FlushPort("mlx5_0", 1); err != nil {
				t.Error(err)
			}
		},
		"reregister": func(_ *testing.T, l *lab) {
			l.fab.events <- transport.Event{Type: transport.EventReregister, Device: "mlx5_0", Port: 1}
		},
		"another SM": func(_ *testing.T, l *lab) {
			p := port(1, 5)
			p.SMLID = 2
			l.fab.set(device("mlx5_0", p))
			l.e.Kick()
		},
		"another LID": func(_ *testing.T, l *lab) {
			p := port(1, 6)
			p.GIDs = []mad.GID{gidOf(5)}
			l.fab.set(device("mlx5_0", p))
			l.e.Kick()
		},
	} {
		t.Run(name, func(t *testing.T) {
			withTables(t, nil, func(t *testing.T, l *lab, tab *tables) {
				time.Sleep(2 * time.Second)
				l.want(byGID(gidOf(110)), StatusSuccess)
				tab.set(func() { tab.delay = 5 * time.Second })
				drop(t, l)
				time.Sleep(3 * time.Second) // asked, not yet answered
				l.want(byGID(gidOf(120)), StatusSuccess)
				if n := l.e.Stats().TablePaths; n != 0 {
					t.Errorf("%d paths in a table that is void", n)
				}
				if l.sa.count() != 1 || tab.count() != 2 {
					t.Fatalf("%d questions for a path, %d for tables, want 1 and 2", l.sa.count(), tab.count())
				}
				time.Sleep(5 * time.Second)
				a := l.want(byGID(gidOf(130)), StatusSuccess)
				if l.sa.count() != 1 || a.Path.SLID() != l.e.Endpoints()[0].Port.LID {
					t.Errorf("%d questions for a path, source LID %v", l.sa.count(), a.Path.SLID())
				}
			})
		})
	}
}

// A table that an event overtakes is thrown away (field case 82).
func TestPrefetchOvertaken(t *testing.T) {
	withTables(t, nil, func(t *testing.T, l *lab, tab *tables) {
		tab.set(func() { tab.delay = 5 * time.Second })
		time.Sleep(2 * time.Second)
		l.fab.events <- transport.Event{Type: transport.EventReregister, Device: "mlx5_0", Port: 1}
		time.Sleep(4 * time.Second) // the first one came meanwhile
		if s := l.e.Stats(); s.Tables != 0 || s.TablePaths != 0 {
			t.Errorf("a table from before the event is in force: %+v", s)
		}
		time.Sleep(6 * time.Second)
		if s := l.e.Stats(); s.Tables != 1 || tab.count() != 2 {
			t.Errorf("%d tables of %d, want 1 of 2", s.Tables, tab.count())
		}
	})
}

// A table that does not come is asked for less and less often, and told once.
// Paths in use are refreshed out of the tables, and see what changes.
func TestPrefetchRefresh(t *testing.T) {
	withTables(t, nil, func(t *testing.T, l *lab, tab *tables) {
		q := byGID(gidOf(120))
		for range 120 {
			time.Sleep(time.Minute)
			l.want(q, StatusSuccess)
		}
		if n := tab.count(); n < 15 || n > 20 {
			t.Errorf("%d tables in two hours", n)
		}
		if s := l.e.Stats(); l.sa.count() != 0 || s.Refreshes < 6 {
			t.Errorf("%d questions for a path, %d refreshes", l.sa.count(), s.Refreshes)
		}
	})
}

// A path that the SA does not know any more is not found in an older table.
func TestPrefetchNoPath(t *testing.T) {
	withTables(t, nil, func(t *testing.T, l *lab, tab *tables) {
		time.Sleep(2 * time.Second)
		l.e.FlushGID(gidOf(120)) // so that the SA is asked
		l.sa.set(func() { delete(l.sa.lids, gidOf(120)) })
		l.want(byGID(gidOf(120)), StatusNoData)
		if n := l.e.topo.Load().endpoints[0]; l.e.topo.Load().bySlot[n.Slot].prov.(*builtinEndpoint).table.Load().find(pathRoute(120)) >= 0 {
			t.Error("still in the table")
		}
	})
}

func serviceNotice(trap uint16, gid mad.GID) *sa.Notice {
	n := new(sa.Notice)
	n.SetGeneric(3, 4)
	n.SetTrap(trap)
	n.SetGID(gid)
	return n
}

func pathRoute(n uint64) *sa.PathRecord {
	var r sa.PathRecord
	r.SetDGID(gidOf(n))
	return &r
}

// What does not begin here, leads to nobody or comes twice is not taken.
func TestPrefetchUnfit(t *testing.T) {
	withTables(t, nil, func(t *testing.T, l *lab, tab *tables) {
		tab.set(func() {
			var q sa.PathRecord
			q.SetSGID(gidOf(5))
			q.SetSLID(5)
			q.SetPKey(0xffff)
			for i, spoil := range []func(*sa.PathRecord){
				func(r *sa.PathRecord) { r.SetSGID(gidOf(6)) },
				func(r *sa.PathRecord) { r.SetSLID(6) },
				func(r *sa.PathRecord) { r.SetPKey(0x8001) },
				func(r *sa.PathRecord) { r.SetDLID(0) },
				func(r *sa.PathRecord) { r.SetDLID(0xc001) },
				func(r *sa.PathRecord) { r.SetDGID(mad.GID{}) },
				func(r *sa.PathRecord) { r.SetDGID(mad.GID{0xff, 0x12, 15: 1}) },
			} {
				r := pathTo(&q, 200+uint64(i))
				spoil(&r)
				tab.extra = append(tab.extra, r)
			}
			second := pathTo(&q, 100)
			second.SetDLID(300)
			tab.extra = append(tab.extra, second)
		})
		time.Sleep(2 * time.Second)
		if s := l.e.Stats(); s.TablePaths != 51 {
			t.Errorf("%d paths, want 50 and a second one", s.TablePaths)
		}
		if a := l.want(byGID(gidOf(100)), StatusSuccess); a.Path.DLID() != 100 {
			t.Errorf("LID %v, want that of the first path", a.Path.DLID())
		}
		for n := uint64(200); n < 207; n++ {
			l.want(byGID(gidOf(n)), StatusNoData)
		}
	})
}

// Lifetimes count from when the table was asked for, and what ended is no path in a
// table.
func TestPrefetchLifetime(t *testing.T) {
	withTables(t, func(c *Config) { c.RouteTimeout, c.Refresh = time.Minute, Forever }, func(t *testing.T, l *lab, tab *tables) {
		time.Sleep(2 * time.Second)
		tab.set(func() { tab.err = errors.New("aborted") })
		time.Sleep(48 * time.Second)
		l.want(byGID(gidOf(120)), StatusSuccess)
		if l.sa.count() != 0 || l.e.Stats().TablePaths != 50 {
			t.Fatal("not found in the table")
		}
		time.Sleep(15 * time.Second)
		if n := l.e.Stats().TablePaths; n != 0 {
			t.Errorf("%d paths in the table, want none", n)
		}
		l.want(byGID(gidOf(120)), StatusSuccess) // it did not begin a new life in the cache
		l.want(byGID(gidOf(121)), StatusSuccess)
		if l.sa.count() != 2 {
			t.Errorf("%d questions for a path, want 2", l.sa.count())
		}
	})
}

// Without a refresh age the table is asked for at half of the lifetime.
// With nothing that would ever age, one question is enough.
// Where nothing is kept, nothing is asked for ahead.
// What an SA is asked for in a day: by a fabric that is quiet, and by one where an event
// voids all paths every few seconds. A second table is not in the way of events that
// come singly.
// A port that goes and comes again and again does not ask each time.
// An answer that comes after its port went and came is not taken for the new one's.
func TestPrefetchReopened(t *testing.T) {
	withTables(t, nil, func(t *testing.T, l *lab, tab *tables) {
		tab.set(func() { tab.delay = 10 * time.Second })
		time.Sleep(2 * time.Second)
		down := port(1, 5)
		down.State = mad.PortDown
		for _, p := range []transport.PortInfo{down, port(1, 5)} {
			l.fab.set(device("mlx5_0", p))
			l.e.Kick()
			time.Sleep(time.Second)
		}
		time.Sleep(7500 * time.Millisecond) // the first answer is there
		if s := l.e.Stats(); tab.count() != 2 || s.Tables != 0 || s.TablePaths != 0 {
			t.Errorf("%d asked for, %+v", tab.count(), s)
		}
		time.Sleep(3 * time.Second)
		if s := l.e.Stats(); tab.count() != 2 || s.Tables != 1 || s.TablePaths != 50 {
			t.Errorf("%d asked for, %+v", tab.count(), s)
		}
		l.fab.set(device("mlx5_0", down))
		l.e.Kick()
		time.Sleep(time.Second)
		if s := l.e.Stats(); s.TablePaths != 0 {
			t.Errorf("%d paths in the table of a port that is down", s.TablePaths)
		}
	})
}

// Nodes whose SA was away do not come back all at once, and an event is a reason to try
// again at once.
// How many nodes will ask is not known at first; all may start at once. A node with
// a high LID is one of many.
// A question that asks for more than a path may have the answer that there is none:
// that says nothing about the path.
func TestPrefetchConstrained(t *testing.T) {
	withTables(t, nil, func(t *testing.T, l *lab, tab *tables) {
		time.Sleep(2 * time.Second)
		l.sa.set(func() {
			l.sa.respond = func(sa.ComponentMask, *sa.PathRecord) (SAResult, time.Duration) {
				return SAResult{Valid: true, Status: mad.Status(sa.StatusNoRecords) << 8}, time.Millisecond
			}
		})
		q := byGID(gidOf(120))
		q.Path.SetMTU(sa.GreaterThan, 4)
		l.want(q, StatusNoData)
		q = byLID(120)
		q.Path.SetRate(sa.GreaterThan, 3)
		l.want(q, StatusNoData)
		l.want(byGID(gidOf(120)), StatusSuccess)
		l.want(byLID(120), StatusSuccess)
		if l.sa.count() != 2 {
			t.Errorf("%d questions for a path, want 2", l.sa.count())
		}
	})
}

// However destinations are chosen, one is found at once.
// A table finds what a map would.
// BenchmarkPathTable is what 40,000 paths cost once the transport has them: to take them
// over, to look at each and to index them. And what it costs to find one.

// Paths from another GID or LID of the port are not those of the table, whose paths all
// begin at the first ones; what the port has a better GID for is not taken.
func TestPrefetchOtherSource(t *testing.T) {
	alias, there := gidOf(0x55), mad.MakeGID(prefix+1, 5)
	withTables(t, func(c *Config) {
		p := port(1, 4)
		p.LMC, p.GIDs = 1, []mad.GID{gidOf(5), alias, there}
		c.Fabric.(*fakeFabric).set(device("mlx5_0", p))
	}, func(t *testing.T, l *lab, tab *tables) {
		far := mad.MakeGID(prefix+1, 120)
		l.sa.set(func() { l.sa.lids[far] = 320 })
		tab.set(func() {
			var r sa.PathRecord
			r.SetSGID(gidOf(5))
			r.SetSLID(4)
			r.SetPKey(0xffff)
			r = pathTo(&r, 320)
			r.SetDGID(far)
			tab.extra = append(tab.extra, r)
		})
		time.Sleep(2 * time.Second)
		if n := l.e.Stats().TablePaths; n != 50 {
			t.Errorf("%d paths in the table, want 50", n)
		}
		fromAlias, fromLID := byGID(gidOf(120)), byGID(gidOf(120))
		fromAlias.Path.SetSGID(alias)
		fromLID.Path.SetSLID(5)
		for i, c := range []struct {
			q    Query
			sgid mad.GID
			slid mad.LID
		}{{fromAlias, alias, 4}, {fromLID, gidOf(5), 5}, {byGID(far), there, 4}} {
			if a := l.want(c.q, StatusSuccess); a.Path.SGID() != c.sgid || a.Path.SLID() != c.slid || l.sa.count() != i+1 {
				t.Errorf("%s: from %v, LID %v, %d questions for a path", c.q.describe(), a.Path.SGID(), a.Path.SLID(), l.sa.count())
			}
		}
	})
}

// Who flushes a name has it asked for anew, though nobody had asked for it by then.
func TestPrefetchFlushedName(t *testing.T) {
	withTables(t, nil, func(t *testing.T, l *lab, _ *tables) {
		time.Sleep(2 * time.Second)
		for i, name := range []Addr{NameAddr("a"), NameAddr("b")} {
			l.acm.gids[name] = gidOf(120)
			if i == 0 {
				l.e.FlushDest(name)
			}
			l.want(Query{Src: NameAddr("node1"), Dst: name}, StatusSuccess)
			if l.sa.count() != 1 {
				t.Errorf("%s: %d questions for a path, want 1", name.String(), l.sa.count())
			}
		}
	})
}
