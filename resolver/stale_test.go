// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package resolver

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"acmd/mad"
)

// Whoever sees the snapshot with the port's new LID finds no path with an older
// one in the cache, not even between two instructions of the change.
func TestNoOldLIDBesideNewSnapshot(t *testing.T) {
	l := newLab(t, func(_ *lab, c *Config) { c.Poll = time.Millisecond })
	l.sa.lids[gidOf(9)] = 9
	q := byGID(gidOf(9))
	var stop atomic.Bool
	var hits, stale atomic.Int64
	var readers sync.WaitGroup
	for range 2 {
		readers.Go(func() {
			var a Answer
			for !stop.Load() {
				eps := l.e.Endpoints()
				if len(eps) == 0 || !l.e.Lookup(&q, l.e.Now(), &a) || a.Status != StatusSuccess {
					continue
				}
				hits.Add(1)
				if a.Path.SLID() < eps[0].Port.LID {
					stale.Add(1)
				}
			}
		})
	}
	for lid := mad.LID(10); lid < 40; lid++ {
		moved := port(1, lid)
		moved.GIDs = []mad.GID{gidOf(5)}
		l.fab.set(device("mlx5_0", moved))
		for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(100 * time.Microsecond) {
			if a, _ := l.ask(q); a.Status == StatusSuccess && a.Path.SLID() == lid {
				break
			} else if time.Now().After(deadline) {
				t.Fatalf("no path from LID %v: %v", lid, a.Err)
			}
		}
	}
	stop.Store(true)
	readers.Wait()
	if hits.Load() == 0 || stale.Load() > 0 {
		t.Errorf("%d of %d answers from the cache have a LID older than the snapshot's", stale.Load(), hits.Load())
	}
}

// A lookup that took its time to find where a name is asks for the path from the port as
// it was at first. Who asks after the port's LID changed does not get that path, neither
// with it nor out of the cache.
func TestNoOldLIDFromSlowName(t *testing.T) {
	bubble(t, func(_ *lab, c *Config) { c.RequestTimeout = time.Minute }, func(t *testing.T, l *lab) {
		l.knows(NameAddr("slow"), 9)
		l.acm.delay, l.sa.delay = 2*time.Second, 2*time.Second
		b := newInbox()
		l.submit(Query{Src: NameAddr("node1"), Dst: NameAddr("slow")}, 1, b)
		time.Sleep(time.Second)
		moved := port(1, 6)
		moved.GIDs = []mad.GID{gidOf(5)}
		l.fab.set(device("mlx5_0", moved))
		l.e.SetAddresses(l.e.cfg.Addresses) // acknowledges the look
		time.Sleep(1500 * time.Millisecond)
		for range 3 {
			if a := l.want(byGID(gidOf(9)), StatusSuccess); a.Path.SLID() != 6 {
				t.Errorf("path from LID %v, want 6", a.Path.SLID())
			}
			l.e.FlushDest(GIDAddr(gidOf(1))) // another one
			time.Sleep(time.Second)
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if a := b.got[1]; len(a) != 1 || a[0].Path.SLID() != 6 {
			t.Errorf("who was there first has %v", a)
		}
	})
}
