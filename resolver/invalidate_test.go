// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package resolver

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"acmd/mad"
	"acmd/mad/sa"
	"acmd/mad/transport"

	"pgregory.net/rapid"
)

// versioned makes the SA answer with the version that the path had when the
// question was sent, in the flow label: an answer is as old as its question.
type versioned struct{ now [8]atomic.Uint32 }

func (v *versioned) of(gid mad.GID) *atomic.Uint32 { return &v.now[gid.GUID()%8] }

func (v *versioned) answer(rec *sa.PathRecord) SAResult {
	r := SAResult{Path: *rec, Valid: true}
	r.Path.SetFlowHop(v.of(rec.DGID()).Load(), 0)
	r.Path.SetDLID(mad.LID(100 + rec.DGID().GUID()))
	return r
}

// step is one step of the model test.
type step struct {
	op    int
	dest  int
	spell int
	delay time.Duration
}

// The guarantee of the engine: no query that starts after an acknowledged
// invalidation is answered with the path of before (field case 8, 82). Steps come
// in any order and the SA's answers take any time.
func TestInvalidationModel(t *testing.T) {
	const dests = 4
	steps := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) step {
		return step{rapid.IntRange(0, 9).Draw(t, "op"), rapid.IntRange(0, dests-1).Draw(t, "dest"), rapid.IntRange(0, 2).Draw(t, "spelling"),
			time.Duration(rapid.IntRange(0, 40).Draw(t, "ms")) * time.Millisecond}
	}), 1, 60)
	rapid.Check(t, func(rt *rapid.T) {
		plan := steps.Draw(rt, "steps")
		var bad string
		synctest.Test(t, func(t *testing.T) { bad = runModel(t, plan) })
		if bad != "" {
			rt.Fatal(bad)
		}
	})
}

// modelQuery spells destination d in one of three ways.
func modelQuery(d, spelling int) Query {
	switch spelling {
	case 0:
		return byIP("10.0.0.1", fmt.Sprintf("10.0.5.%d", d))
	case 1:
		return Query{Src: NameAddr("node1"), Dst: NameAddr(fmt.Sprintf("host%d", d))}
	}
	return byGID(gidOf(uint64(16 + d)))
}

// pending is a query and the oldest version that may answer it.
type pending struct {
	dest  int
	floor uint32
	text  string
}

func runModel(t *testing.T, plan []step) (bad string) {
	var v versioned
	var next atomic.Int64 // how long the SA takes
	l := newLab(t, func(l *lab, c *Config) {
		c.RequestTimeout = time.Minute
		l.sa.respond = func(_ sa.ComponentMask, rec *sa.PathRecord) (SAResult, time.Duration) {
			return v.answer(rec), time.Duration(next.Load())
		}
		for d := range 4 {
			for s := range 2 {
				l.acm.gids[modelQuery(d, s).Dst] = gidOf(uint64(16 + d))
			}
		}
	})
	defer l.e.Close()
	b := newInbox()
	asked := map[uint64]pending{}
	lid := mad.LID(5)
	for i, s := range plan {
		next.Store(int64(s.delay))
		l.acm.mu.Lock()
		l.acm.delay = s.delay / 2
		l.acm.mu.Unlock()
		gid := gidOf(uint64(16 + s.dest))
		tag := uint64(i)
		switch s.op {
		case 0, 1, 2, 3, 4:
			asked[tag] = pending{s.dest, v.of(gid).Load(), fmt.Sprintf("step %d of %v", i, plan)}
			l.submit(modelQuery(s.dest, s.spell), tag, b)
		case 5: // the path changes and the GID is dropped, as for a notice
			v.of(gid).Add(1)
			l.e.FlushGID(gid)
		case 6:
			v.of(gid).Add(1)
			l.e.FlushLID(mad.LID(100 + gid.GUID()))
		case 7: // by the operator, who names the destination in every way
			v.of(gid).Add(1)
			for spell := range 2 {
				l.e.FlushDest(modelQuery(s.dest, spell).Dst)
			}
			l.e.FlushDest(GIDAddr(gid))
		case 8:
			for d := range v.now {
				v.now[d].Add(1)
			}
			if s.spell == 0 {
				l.e.FlushAll()
			} else if _, err := l.e.FlushPort("mlx5_0", 1); err != nil {
				return err.Error()
			}
		case 9: // our own LID changes
			for d := range v.now {
				v.now[d].Add(1)
			}
			lid++
			p := port(1, lid)
			p.GIDs = []mad.GID{gidOf(5)}
			l.fab.set(device("mlx5_0", p))
			l.e.SetAddresses(l.e.cfg.Addresses) // acknowledges the look
		}
		time.Sleep(s.delay / 3)
	}
	time.Sleep(30 * time.Second)
	synctest.Wait()
	for tag, p := range asked {
		if len(b.got[tag]) != 1 {
			return fmt.Sprintf("%d answers: %s", len(b.got[tag]), p.text)
		}
		a := b.got[tag][0]
		switch {
		case a.Err != nil && a.Err != errVoided:
			return fmt.Sprintf("%v: %s", a.Err, p.text)
		case a.Err == nil && a.Path.FlowLabel() < p.floor:
			return fmt.Sprintf("version %d after %d was acknowledged: %s", a.Path.FlowLabel(), p.floor, p.text)
		}
	}
	return ""
}

// The same with real goroutines: one invalidates, eight ask. The version that is
// acknowledged before a query starts is the oldest that may answer it.
func TestInvalidationRace(t *testing.T) {
	var v versioned
	var acked atomic.Uint32
	gid := gidOf(17)
	l := newLab(t, func(l *lab, _ *Config) {
		l.acm.delay = 0
		l.acm.gids[ip("10.0.0.17")] = gid
		l.sa.respond = func(_ sa.ComponentMask, rec *sa.PathRecord) (SAResult, time.Duration) {
			return v.answer(rec), time.Duration(v.of(gid).Load()%3) * 20 * time.Microsecond
		}
	})
	stop := make(chan struct{})
	var wg sync.WaitGroup
	var answered atomic.Uint64
	for g := range 8 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			q := byGID(gid)
			if g%2 == 0 {
				q = byIP("10.0.0.1", "10.0.0.17")
			}
			for {
				select {
				case <-stop:
					return
				default:
				}
				floor := acked.Load()
				a, _ := l.ask(q)
				if a.Err == nil {
					answered.Add(1)
				}
				if a.Err == nil && a.Path.FlowLabel() < floor {
					t.Errorf("version %d after %d was acknowledged", a.Path.FlowLabel(), floor)
					return
				}
			}
		}()
	}
	// For a second, and as long as it takes until there was something to see: with
	// one processor the askers leave the invalidations few turns.
	begin, rounds := time.Now(), 0
	enough := func() bool { return answered.Load() >= 100 && rounds >= 20 }
	for ; !enough() && time.Since(begin) < time.Minute || time.Since(begin) < time.Second; rounds++ {
		n := v.of(gid).Add(1)
		switch rounds % 4 {
		case 0:
			l.e.FlushGID(gid)
		case 1:
			l.e.FlushAll()
		case 2:
			l.e.FlushPort("mlx5_0", 1)
		case 3:
			l.e.FlushLID(mad.LID(100 + gid.GUID()))
		}
		acked.Store(n)
		time.Sleep(200 * time.Microsecond)
	}
	close(stop)
	wg.Wait()
	if !enough() {
		t.Errorf("only %d answers over %d invalidations", answered.Load(), rounds)
	}
	t.Logf("%d answers over %d invalidations, %d voided", answered.Load(), rounds, l.e.Stats().Voided)
}

// A flight whose answers are voided again and again gives up after some tries.
func TestVoidedForEver(t *testing.T) {
	bubble(t, nil, func(t *testing.T, l *lab) {
		l.sa.respond = func(_ sa.ComponentMask, rec *sa.PathRecord) (SAResult, time.Duration) {
			time.AfterFunc(time.Millisecond, func() { l.e.FlushGID(gidOf(9)) })
			return SAResult{Path: *rec, Valid: true}, 2 * time.Millisecond
		}
		a := l.want(byGID(gidOf(9)), StatusNoData)
		if a.Err != errVoided || l.sa.count() != maxAttempts {
			t.Errorf("%v, %d asks", a.Err, l.sa.count())
		}
	})
}

// An address is dropped while nothing is known of it but the path by GID: that path is
// from before, and the next lookup asks the SA instead of resting on it.
func TestDroppedBesidePath(t *testing.T) {
	bubble(t, nil, func(t *testing.T, l *lab) {
		q := byIP("10.0.0.1", "10.0.0.9")
		l.knows(q.Dst, 17)
		l.want(byGID(gidOf(17)), StatusSuccess)
		l.e.deleteDest(&q.Dst, nil)
		l.want(q, StatusSuccess)
		if l.sa.count() != 2 {
			t.Errorf("%d asks", l.sa.count())
		}
	})
}

// What is flushed is looked up again, by whichever path it was known; what is not
// still rests on the path that is known of it.
func TestFlushDestOthers(t *testing.T) {
	bubble(t, nil, func(t *testing.T, l *lab) {
		q, other := byIP("10.0.0.1", "10.0.0.9"), byIP("10.0.0.1", "10.0.0.10")
		l.knows(q.Dst, 17)
		l.knows(other.Dst, 18)
		l.want(byGID(gidOf(17)), StatusSuccess)
		l.want(byGID(gidOf(18)), StatusSuccess)
		l.e.FlushDest(q.Dst)
		l.want(other, StatusSuccess)
		if l.sa.count() != 2 {
			t.Errorf("%d asks, one for the other", l.sa.count())
		}
		if l.want(q, StatusSuccess); l.sa.count() != 3 {
			t.Errorf("%d asks, none for what was flushed", l.sa.count())
		}
	})
}

// field case 8 (b): a notice for a GID; the next ask sees the new LID at once.
func TestFlushGID(t *testing.T) {
	bubble(t, nil, func(t *testing.T, l *lab) {
		q := byIP("10.0.0.1", "10.0.0.9")
		l.knows(q.Dst, 17)
		l.knows(ip("10.0.0.10"), 18)
		l.want(q, StatusSuccess)
		l.want(byIP("10.0.0.1", "10.0.0.10"), StatusSuccess)
		l.sa.set(func() { l.sa.lids[gidOf(17)] = 42 })
		l.e.FlushGID(gidOf(17))
		if a := l.want(q, StatusSuccess); a.Path.DLID() != 42 {
			t.Errorf("LID %v", a.Path.DLID())
		}
		l.want(byIP("10.0.0.1", "10.0.0.10"), StatusSuccess)
		if l.sa.count() != 3 {
			t.Errorf("%d asks: the other path had to stay", l.sa.count())
		}
		// The node is gone and its address is another node's now: what was learned
		// about addresses at that GID goes with the paths.
		l.knows(q.Dst, 19)
		l.e.FlushGID(gidOf(17))
		if a := l.want(q, StatusSuccess); a.Path.DGID() != gidOf(19) {
			t.Errorf("path to %v, where the address was before", a.Path.DGID())
		}
		if _, err := l.e.FlushPort("mlx5_0", 2); err == nil {
			t.Error("a port that is not there was flushed")
		}
		if n, err := l.e.FlushPort("mlx5_0", 1); err != nil || n == 0 {
			t.Errorf("FlushPort = %d, %v", n, err)
		}
	})
}

// The endpoint of a flight goes while its answer is being voided.
func TestEndpointGoesUnderFlight(t *testing.T) {
	bubble(t, func(l *lab, _ *Config) { l.sa.delay = 500 * time.Millisecond }, func(t *testing.T, l *lab) {
		l.knows(ip("10.0.0.9"), 9)
		b := newInbox()
		l.submit(byIP("10.0.0.1", "10.0.0.9"), 1, b)
		l.submit(byGID(gidOf(9)), 2, b)
		l.fab.set(device("other", port(1, 6)))
		l.event(transport.EventDeviceRemove, "mlx5_0", 0)
		time.Sleep(5 * time.Second)
		for tag := range uint64(2) {
			if a := b.one(t, tag+1); a.Status != StatusSrcAddr && a.Status != StatusSuccess {
				t.Errorf("tag %d: %v %v", tag+1, a.Status, a.Err)
			} else if a.Status == StatusSuccess && a.Path.SGID() != gidOf(6) {
				t.Errorf("tag %d: path from %v, which is gone", tag+1, a.Path.SGID())
			}
		}
		if s := l.e.Stats(); s.Flights != 0 || s.Waiters != 0 {
			t.Errorf("stats %+v", s)
		}
	})
}

// An address that is flushed while the address step runs may have been told
// before it moved: the step is run again.
func TestFlushDuringAddressStep(t *testing.T) {
	bubble(t, func(l *lab, _ *Config) { l.acm.delay = 500 * time.Millisecond }, func(t *testing.T, l *lab) {
		q := byIP("10.0.0.1", "10.0.0.9")
		l.knows(q.Dst, 8)
		b := newInbox()
		l.submit(q, 1, b)
		time.Sleep(100 * time.Millisecond)
		l.knows(q.Dst, 9)
		l.e.FlushDest(q.Dst)
		l.submit(q, 2, b)
		time.Sleep(time.Second)
		synctest.Wait()
		if a := b.one(t, 2); a.Path.DGID() != gidOf(9) {
			t.Errorf("path to %v, which has the address no more", a.Path.DGID())
		}
		if l.acm.count() != 2 {
			t.Errorf("%d address asks", l.acm.count())
		}
	})
}

// A destination that is flushed is not answered with the route that is kept for
// another spelling of it.
func TestFlushDestForgetsSharedRoute(t *testing.T) {
	bubble(t, func(l *lab, _ *Config) { l.acm.delay = 500 * time.Millisecond }, func(t *testing.T, l *lab) {
		q := byIP("10.0.0.1", "10.0.0.9")
		l.knows(q.Dst, 9)
		l.want(byGID(gidOf(9)), StatusSuccess)
		l.sa.set(func() { l.sa.lids[gidOf(9)] = 42 })
		b := newInbox()
		l.submit(q, 1, b)
		time.Sleep(100 * time.Millisecond)
		l.e.FlushDest(q.Dst) // has no entry yet, so that it leads to no GID
		l.submit(q, 2, b)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if a := b.one(t, 2); a.Path.DLID() != 42 {
			t.Errorf("LID %v from before the flush", a.Path.DLID())
		}
	})
}
