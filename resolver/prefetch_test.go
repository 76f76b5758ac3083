// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package resolver

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"acmd/cache"
	"acmd/mad"
	"acmd/mad/sa"
	"acmd/mad/transport"

	"pgregory.net/rapid"
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
func TestPrefetchFails(t *testing.T) {
	withTables(t, nil, func(t *testing.T, l *lab, tab *tables) {
		tab.set(func() { tab.err = ErrCut })
		time.Sleep(time.Hour)
		if n := tab.count(); n < 8 || n > 12 {
			t.Errorf("%d questions in an hour", n)
		}
		if n := told(l, ErrCut.Error()); n != 1 {
			t.Errorf("told %d times", n)
		}
		l.want(byGID(gidOf(120)), StatusSuccess)
		tab.set(func() { tab.err = nil })
		time.Sleep(tableRetryMost + 2*tableWait)
		l.want(byGID(gidOf(121)), StatusSuccess)
		if l.sa.count() != 1 || l.e.Stats().Tables == 0 {
			t.Errorf("%d questions for a path, %+v", l.sa.count(), l.e.Stats())
		}
		// What was there stays while the next one does not come.
		tab.set(func() { tab.err = errors.New("aborted") })
		time.Sleep(8 * time.Minute)
		l.want(byGID(gidOf(122)), StatusSuccess)
		if l.sa.count() != 1 || l.e.Stats().TableFailures < 9 {
			t.Errorf("%d questions for a path, %+v", l.sa.count(), l.e.Stats())
		}
		// But not beyond the age at which it would be looked at again.
		time.Sleep(10 * time.Minute)
		l.want(byGID(gidOf(123)), StatusSuccess)
		if l.sa.count() != 2 {
			t.Errorf("%d questions for a path, want 2", l.sa.count())
		}
	})
}

func told(l *lab, what string) (n int) {
	for _, line := range l.log.lines() {
		if strings.Contains(line, what) {
			n++
		}
	}
	return n
}

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
				func(r *sa.PathRecord) { r.SetDGID(mad.GID{0xff, 0x12}) },
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

// Lifetimes count from when the table was asked for.
func TestPrefetchLifetime(t *testing.T) {
	withTables(t, func(c *Config) { c.RouteTimeout, c.Refresh = time.Minute, -1 }, func(t *testing.T, l *lab, tab *tables) {
		time.Sleep(50 * time.Second)
		l.want(byGID(gidOf(120)), StatusSuccess)
		if l.sa.count() != 0 {
			t.Fatal("not found in the table")
		}
		time.Sleep(15 * time.Second)
		l.want(byGID(gidOf(120)), StatusSuccess) // it did not begin a new life in the cache
		l.want(byGID(gidOf(121)), StatusSuccess)
		if l.sa.count() != 2 {
			t.Errorf("%d questions for a path, want 2", l.sa.count())
		}
	})
}

// A table finds what a map would.
func TestPathTableModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		guids := rapid.SliceOfN(rapid.Uint64Range(1, 400), 0, 300).Draw(t, "guids")
		var paths []sa.PathRecord
		byGID, byLID := map[mad.GID]sa.PathRecord{}, map[mad.LID]sa.PathRecord{}
		for i, g := range guids {
			var r sa.PathRecord
			r.SetDGID(mad.MakeGID(prefix+g%3, mad.GUID(g<<rapid.IntRange(0, 40).Draw(t, "shift"))))
			r.SetDLID(mad.LID(rapid.IntRange(1, 0xbfff).Draw(t, "lid")))
			r.SetServiceID(uint64(i))
			paths = append(paths, r)
			if i%7 == 0 {
				continue // does not fit
			}
			if _, ok := byGID[r.DGID()]; !ok {
				byGID[r.DGID()] = r
			}
			if _, ok := byLID[r.DLID()]; !ok {
				byLID[r.DLID()] = r
			}
		}
		all := slices.Clone(paths)
		tab := newPathTable(paths, 1, cache.Epoch(2), func(r *sa.PathRecord) bool { return r.ServiceID()%7 != 0 })
		check := func(route *sa.PathRecord, want sa.PathRecord, there bool) {
			n := tab.find(route)
			if there != (n >= 0) || there && tab.paths[n] != want {
				t.Fatalf("found %d for % x, want % x, %v", n, *route, want, there)
			}
		}
		lookAt := func() {
			for i := range all {
				var g, l sa.PathRecord
				g.SetDGID(all[i].DGID())
				l.SetDLID(all[i].DLID())
				want, there := byGID[all[i].DGID()]
				check(&g, want, there)
				want, there = byLID[all[i].DLID()]
				check(&l, want, there)
			}
		}
		lookAt()
		check(pathRoute(1<<60), sa.PathRecord{}, false)
		for i := 0; i < len(all); i += 5 {
			var g sa.PathRecord
			g.SetDGID(all[i].DGID())
			tab.drop(&g)
			gone, had := byGID[g.DGID()]
			delete(byGID, g.DGID())
			if had && byLID[gone.DLID()] == gone {
				delete(byLID, gone.DLID())
			}
		}
		lookAt()
	})
}

// BenchmarkPathTable is what 40,000 paths cost once the transport has them: to take them
// over, to look at each and to index them. And what it costs to find one.
func BenchmarkPathTable(b *testing.B) {
	const n = 40_000
	from := make([]sa.PathRecord, n)
	for i := range from {
		from[i].SetDGID(mad.MakeGID(prefix, mad.GUID(0x0002c90300000000+uint64(i)*0x10)))
		from[i].SetDLID(mad.LID(i + 1))
		from[i].SetSGID(gidOf(5))
		from[i].SetPKey(0xffff)
	}
	fits := func(p *sa.PathRecord) bool { return p.SGID() == gidOf(5) && p.PKey().Matches(0xffff) }
	build := func() *pathTable { return newPathTable(slices.Clone(from), 1, 1, fits) }
	b.Run("build", func(b *testing.B) {
		for b.Loop() {
			if tab := build(); len(tab.paths) != n {
				b.Fatal(len(tab.paths))
			}
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/path")
	})
	for name, clear := range map[string]func(*sa.PathRecord){
		"by GID": func(p *sa.PathRecord) { p.SetDLID(0) },
		"by LID": func(p *sa.PathRecord) { p.SetDGID(mad.GID{}) },
	} {
		b.Run(name, func(b *testing.B) {
			tab := build()
			routes := slices.Clone(from)
			for i := range routes {
				clear(&routes[i])
			}
			i := uint32(1)
			for b.Loop() {
				i = i*1664525 + 1013904223
				if tab.find(&routes[uint64(i)*n>>32]) < 0 {
					b.Fatal("not found")
				}
			}
		})
	}
}
