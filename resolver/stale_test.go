// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package resolver

import (
	"sync"
	"sync/atomic"
	"testing"
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
