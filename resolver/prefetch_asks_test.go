// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package resolver

import (
	"errors"
	"strings"
	"testing"
	"time"

	"acmd/mad"
	"acmd/mad/transport"
)

// A table that does not come is asked for less and less often, which is told once; single
// questions go on, and what was there stays in force for its time.
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
		time.Sleep(2 * tableRetryMost)
		for n := l.e.Stats().Tables; l.e.Stats().Tables == n; {
			time.Sleep(time.Second)
		}
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

func TestPrefetchLifetimeAgain(t *testing.T) {
	for name, edit := range map[string]func(*Config){
		"of routes":    func(c *Config) { c.RouteTimeout, c.Refresh = time.Hour, Forever },
		"of addresses": func(c *Config) { c.AddrTimeout, c.Refresh = time.Hour, Forever },
	} {
		t.Run(name, func(t *testing.T) {
			withTables(t, edit, func(t *testing.T, l *lab, tab *tables) {
				for range 240 {
					time.Sleep(time.Minute)
					l.want(byGID(gidOf(120)), StatusSuccess)
				}
				if n := tab.count(); l.sa.count() != 0 || n < 8 || n > 10 {
					t.Errorf("%d questions for a path, %d for tables in 4 hours", l.sa.count(), n)
				}
			})
		})
	}
}

func TestPrefetchForever(t *testing.T) {
	withTables(t, func(c *Config) { c.AddrTimeout, c.Refresh = Forever, Forever }, func(t *testing.T, l *lab, tab *tables) {
		time.Sleep(100 * time.Hour)
		l.want(byGID(gidOf(120)), StatusSuccess)
		if l.sa.count() != 0 || tab.count() != 1 {
			t.Errorf("%d questions for a path, %d for tables", l.sa.count(), tab.count())
		}
		l.fab.events <- transport.Event{Type: transport.EventReregister, Device: "mlx5_0", Port: 1}
		time.Sleep(2 * time.Second)
		if tab.count() != 2 {
			t.Errorf("%d tables after a reregistration, want 2", tab.count())
		}
	})
}

func TestPrefetchNotKept(t *testing.T) {
	for name, edit := range map[string]func(*Config){
		"addresses": func(c *Config) { c.AddrTimeout = 0 },
		"routes":    func(c *Config) { c.RouteTimeout = 0 },
	} {
		t.Run(name, func(t *testing.T) {
			withTables(t, edit, func(t *testing.T, l *lab, tab *tables) {
				time.Sleep(time.Hour)
				l.want(byGID(gidOf(120)), StatusSuccess)
				if tab.count() != 0 || l.sa.count() != 1 {
					t.Errorf("%d tables, %d questions for a path", tab.count(), l.sa.count())
				}
			})
		})
	}
}

func TestPrefetchDay(t *testing.T) {
	withTables(t, nil, func(t *testing.T, l *lab, tab *tables) {
		time.Sleep(24 * time.Hour)
		quiet := tab.count() // 15 minutes of age
		if quiet < 24*60/7.5 || quiet > 24*60*60/390 {
			t.Errorf("%d questions in a quiet day", quiet)
		}
		if n := told(l, "paths are there"); n != 1 {
			t.Errorf("told %d times that paths are there", n)
		}
		for range 12 * 60 * 24 {
			l.fab.events <- transport.Event{Type: transport.EventReregister, Device: "mlx5_0", Port: 1}
			time.Sleep(5 * time.Second)
		}
		most := int(24*time.Hour/(tableShare*tableWait)) + tableAhead + 2
		if n := tab.count() - quiet; n > most || n < most*9/10 {
			t.Errorf("%d questions in a day of events, want %d", n, most)
		}
		time.Sleep((tableAhead + 1) * tableShare * tableWait)
		for range 10 {
			n := tab.count()
			l.e.FlushAll()
			time.Sleep(2 * time.Second)
			if tab.count() != n+1 {
				t.Error("not asked soon after a single event")
			}
			time.Sleep(tableShare * tableWait)
		}
	})
}

func TestPrefetchPortFlaps(t *testing.T) {
	withTables(t, nil, func(t *testing.T, l *lab, tab *tables) {
		down := port(1, 5)
		down.State = mad.PortDown
		for range 360 {
			for _, p := range []transport.PortInfo{down, port(1, 5)} {
				l.fab.set(device("mlx5_0", p))
				l.e.Kick()
				time.Sleep(5 * time.Second)
			}
		}
		if n, most := tab.count(), int(time.Hour/(tableShare*tableWait))+tableAhead+2; n > most || n < most/2 {
			t.Errorf("%d questions in an hour, want %d at most", n, most)
		}
		time.Sleep(10 * time.Minute)
		l.want(byGID(gidOf(120)), StatusSuccess)
		if l.sa.count() != 0 {
			t.Error("no table in the end")
		}
	})
}

func TestPrefetchRetries(t *testing.T) {
	low, high := time.Hour, time.Duration(0)
	for range 12 {
		withTables(t, nil, func(t *testing.T, l *lab, tab *tables) {
			tab.set(func() { tab.err = errors.New("no SM") })
			wait := func(n int) {
				for tab.count() < n {
					time.Sleep(100 * time.Millisecond)
				}
			}
			wait(1)
			begin := time.Now()
			wait(2)
			low, high = min(low, time.Since(begin)), max(high, time.Since(begin))
			time.Sleep(3 * time.Hour)
			n := tab.count()
			tab.set(func() { tab.err = nil })
			l.fab.events <- transport.Event{Type: transport.EventReregister, Device: "mlx5_0", Port: 1}
			time.Sleep(2 * time.Second)
			if tab.count() != n+1 || l.e.Stats().Tables != 1 {
				t.Errorf("%d questions, %+v", tab.count()-n, l.e.Stats())
			}
		})
	}
	if low < tableRetry || high > 2*tableRetry+time.Second || high-low < time.Second {
		t.Errorf("second questions after %v to %v", low, high)
	}
}

func TestPrefetchFirst(t *testing.T) {
	var late time.Duration
	for range 12 {
		withTables(t, func(c *Config) {
			f := c.Fabric.(*fakeFabric)
			p := port(1, 4000)
			p.GIDs = []mad.GID{gidOf(5)}
			f.set(device("mlx5_0", p))
		}, func(t *testing.T, l *lab, tab *tables) {
			begin := time.Now()
			for tab.count() == 0 {
				time.Sleep(100 * time.Millisecond)
			}
			late = max(late, time.Since(begin))
		})
	}
	if most := spreadOver(4000); late < most/10 || late > most+time.Second {
		t.Errorf("asked after up to %v, want %v", late, most)
	}
}

// Where an SA needs long for the tables of all nodes, it is asked for them less often
// than paths are refreshed.
func TestPrefetchLarge(t *testing.T) {
	withTables(t, nil, func(t *testing.T, l *lab, tab *tables) {
		tab.set(func() { tab.n = 5000 })
		time.Sleep(24 * time.Hour)
		if n, want := tab.count(), int(24*time.Hour/(tableShare*spreadOver(5000))); n < want-1 || n > want+2 {
			t.Errorf("%d questions in a day, want %d", n, want)
		}
	})
}

// An event is a reason to ask at once also when the question that it overtook fails.
// A table that does not come is asked for less and less often, which is told once; single
// questions go on, and what was there stays in force for its time.
func TestPrefetchFailsOvertaken(t *testing.T) {
	withTables(t, nil, func(t *testing.T, l *lab, tab *tables) {
		tab.set(func() { tab.delay, tab.err = 5*time.Second, errors.New("the SM moved") })
		time.Sleep(2 * time.Second)
		l.fab.events <- transport.Event{Type: transport.EventReregister, Device: "mlx5_0", Port: 1}
		time.Sleep(4500 * time.Millisecond)
		if n := tab.count(); n != 2 {
			t.Errorf("%d questions, want 2", n)
		}
	})
}
