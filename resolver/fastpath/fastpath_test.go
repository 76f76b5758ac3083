// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package fastpath

import (
	"log/slog"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"acmd/bpf"
	"acmd/cache"
	"acmd/mad"
	"acmd/resolver"
)

// A question is mirrored when it was offered and has an answer, in either order,
// and follows the answer.
func TestFollows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		defer l.stop()
		for _, named := range []bool{true, false} {
			known, later := question(1, named), question(2, named)
			l.put(1, 11, cache.Meta{})
			l.want(known, 0)
			l.offer(known)
			l.want(known, 11)
			l.offer(later)
			l.want(later, 0)
			l.put(2, 12, cache.Meta{})
			l.s.settle()
			l.want(later, 12)
			l.put(1, 21, cache.Meta{})
			l.s.settle()
			l.want(known, 21)
			k := keyFor(&known.Dst)
			l.e.cache.Delete(&k)
			l.want(known, 0) // before anything is written
			l.s.settle()
			l.put(1, 31, cache.Meta{}) // nobody has to ask again
			l.s.settle()
			l.want(known, 31)
			l.e.cache.DropScope(0)
			l.want(known, 0) // before anything is written
			l.s.settle()
			if n := l.k.size(); n != 0 {
				t.Errorf("%d void paths are left", n)
			}
			l.e.cache.Flush()
		}
		if l.k.sources[bpf.FastKey{Kind: uint8(cache.KindIPv4), Addr: ourAddr.Data}] != slotOfSource {
			t.Errorf("sources %v", l.k.sources)
		}
		l.e.sources = nil
		l.s.TopologyChanged()
		if len(l.k.sources) != 0 {
			t.Errorf("sources %v after all went", l.k.sources)
		}
	})
}

// Whatever happens in whatever order, the kernel serves nothing that the cache has not,
// and after a while what it has.
func TestFollowsModel(t *testing.T) {
	for seed := range uint64(30) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 1))
			l := newLab(t, Config{Capacity: 64})
			defer l.stop()
			const dests = 20
			for range 400 {
				i := r.IntN(dests)
				a := ip(i)
				k := keyFor(&a)
				switch r.IntN(10) {
				case 0:
					l.s.Accept(uint16(i)).Offer(question(i, r.IntN(2) == 0))
				case 1:
					l.e.cache.Delete(&k)
				case 2:
					l.e.cache.DropScope(cache.Scope(r.IntN(3)))
				case 3:
					l.e.cache.DropLID(mad.LID(1 + r.IntN(50)))
				case 4:
					if r.IntN(10) == 0 {
						l.e.cache.Flush()
					}
				case 5:
					time.Sleep(time.Duration(r.IntN(100)) * time.Millisecond)
				case 6:
					l.s.TopologyChanged()
				default:
					// Scopes 1 and 1 + FastGens share a generation.
					l.put(i, mad.LID(1+r.IntN(50)), cache.Meta{Scope: []cache.Scope{0, 1, 2, 1 + bpf.FastGens}[r.IntN(4)]})
				}
				settled := r.IntN(4) == 0
				if settled {
					l.s.settle()
					synctest.Wait() // offers are not waited for
				}
				for i := range dests {
					for _, named := range []bool{true, false} {
						q := question(i, named)
						key, _ := keyOf(q, slotOfSource)
						var m resolver.Mirrored
						want := mad.LID(0)
						if l.e.Mirrored(q, l.e.Now(), &m) {
							want = m.Path.DLID()
						}
						got := l.lid(q)
						if got != want && (got != 0 || settled && l.s.tab.byKey[key] != nil) {
							t.Fatalf("seed %d: %d is served with LID %d, is %d", seed, i, got, want)
						}
					}
				}
			}
		})
	}
}

// A put that is under way while its path is invalidated is void when it comes, and
// nobody waits for it.
func TestPutHeldBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		defer l.stop()
		q := question(1, true)
		l.put(1, 11, cache.Meta{})
		l.k.mu.Lock()
		l.k.hold, l.k.held = make(chan struct{}), make(chan struct{}, 1)
		hold := l.k.hold
		l.k.mu.Unlock()
		l.offer(q)
		<-l.k.held
		k := keyFor(&q.Dst)
		l.e.cache.Delete(&k)
		l.put(1, 12, cache.Meta{})
		arrived := false
		l.k.mu.Lock()
		l.k.arrive = func() {
			arrived = true
			l.want(q, 0)
		}
		l.k.hold = nil
		l.k.mu.Unlock()
		close(hold)
		l.s.settle()
		if l.want(q, 12); !arrived {
			t.Error("the old path never came")
		}
	})
}

// A change of the host's generation voids what has a chosen source at once, and
// nothing else. Who asks gets it back, others after the next sweep.
func TestRechoose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		defer l.stop()
		named, asked, swept := question(1, true), question(1, false), question(2, false)
		l.put(1, 11, cache.Meta{})
		l.put(2, 12, cache.Meta{})
		for range 3 {
			for _, q := range []*resolver.Query{named, asked, swept} {
				l.offer(q)
			}
			l.want(asked, 11)
			l.e.gen.Raise()
			l.want(named, 11)
			l.want(asked, 0)
			l.want(swept, 0)
			l.offer(asked)
			l.want(asked, 11)
			l.want(swept, 0)
			time.Sleep(time.Second)
			l.want(swept, 12)
		}
		// An answer that was made before the change and is written after it.
		l.k.mu.Lock()
		l.k.hold, l.k.held = make(chan struct{}), make(chan struct{}, 1)
		hold := l.k.hold
		l.k.mu.Unlock()
		late := question(3, false)
		l.put(3, 13, cache.Meta{})
		l.s.Accept(1).Offer(late)
		<-l.k.held
		l.e.gen.Raise()
		l.k.mu.Lock()
		l.k.hold = nil
		l.k.mu.Unlock()
		close(hold)
		l.s.settle()
		l.want(late, 0)
		time.Sleep(time.Second)
		l.want(late, 13)
	})
}

// What cannot be deleted must not be served: the switch goes off, and stays.
func TestDeleteFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		defer l.stop()
		if on := <-l.changes; !on {
			t.Error("off after the start")
		}
		q := question(1, true)
		l.put(1, 11, cache.Meta{})
		l.offer(q)
		l.k.mu.Lock()
		l.k.deleteErr = errKernel
		l.k.mu.Unlock()
		l.e.cache.Flush()
		l.s.settle()
		l.want(q, 0)
		if on := <-l.changes; on {
			t.Error("nobody was told")
		}
		if st := l.s.State(); st.On || st.Reason == "" || l.k.on {
			t.Errorf("state %+v", st)
		}
		if err := l.s.Switch(true); err == nil {
			t.Error("on again")
		}
	})
}

// An answer that the kernel does not take is not served, and is counted.
func TestPutFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		defer l.stop()
		l.k.mu.Lock()
		l.k.putErr = errKernel
		l.k.mu.Unlock()
		q := question(1, true)
		l.put(1, 11, cache.Meta{})
		l.offer(q)
		l.want(q, 0)
		if st := l.s.State(); !st.On || st.Lost != 1 {
			t.Errorf("state %+v", st)
		}
		l.k.mu.Lock()
		l.k.putErr = nil
		l.k.mu.Unlock()
		l.offer(q) // the next question tries again
		l.want(q, 11)
	})
}

// A full mirror makes room of what is not used, and of nothing else.
func TestFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const room = 8
		l := newLab(t, Config{Capacity: room})
		defer l.stop()
		for i := range 3 * room {
			l.put(i, mad.LID(100+i), cache.Meta{})
		}
		for i := range room {
			l.offer(question(i, true))
		}
		for range 60 { // the first half stays in use
			for i := range room / 2 {
				l.want(question(i, true), mad.LID(100+i))
			}
			time.Sleep(time.Second)
		}
		for i := room; i < 3*room; i++ {
			l.offer(question(i, true))
			l.want(question(i, true), mad.LID(100+i)) // which is a use of it
			time.Sleep(3 * time.Second)
			for i := range room / 2 {
				l.want(question(i, true), mad.LID(100+i))
			}
		}
		if n := l.k.size(); n > room {
			t.Errorf("%d paths in room for %d", n, room)
		}
		for i := range 3 * room { // nothing is cold
			l.lid(question(i, true))
		}
		full := l.s.State().Full
		l.offer(question(room, true))
		if st := l.s.State(); st.Full != full+1 {
			t.Errorf("%d questions found no room, want %d", st.Full, full+1)
		}
	})
}

// A path that is due and used in the kernel is looked up again, once in a while, at
// the engine's pace; one that is not used is not.
func TestRefresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		defer l.stop()
		now := l.e.Now()
		const due = 50
		for i := range due + 1 {
			l.put(i, 11, cache.Meta{Deadline: now + int64(time.Hour), Refresh: now})
			l.offer(question(i, true))
		}
		for i := range due {
			l.want(question(i, true), 11)
		}
		time.Sleep(100*time.Millisecond + 500*time.Millisecond)
		l.e.mu.Lock()
		first := len(l.e.refreshed)
		l.e.mu.Unlock()
		if first == 0 || first > 20 {
			t.Errorf("%d refreshes in a tenth of a second, at most 100 in one are meant", first)
		}
		time.Sleep(time.Second)
		l.e.mu.Lock()
		defer l.e.mu.Unlock()
		if len(l.e.refreshed) != due || l.e.refreshed[ip(due)] != 0 {
			t.Errorf("%d destinations were refreshed, want the %d that were used", len(l.e.refreshed), due)
		}
	})
}

// The choice of a source is renewed while it is used, ends when it is not, and is
// made anew when routing changes.
func TestChosenSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		defer l.stop()
		used, unused := question(1, false), question(2, false)
		for i := 1; i <= 2; i++ {
			l.put(i, 11, cache.Meta{})
		}
		l.offer(used)
		l.offer(unused)
		for i := range 100 {
			l.want(used, 11)
			if i == 50 { // its choice has ended, and it is not forgotten yet
				l.want(unused, 0)
				l.offer(unused)
				l.want(unused, 11)
			}
			time.Sleep(time.Second)
		}
		l.want(unused, 0)
		if n := l.k.size(); n != 1 {
			t.Errorf("%d paths, want the one that is used", n)
		}
		time.Sleep(2 * time.Minute)
		if n := l.s.State().Paths; n != 0 {
			t.Errorf("%d questions are remembered", n)
		}
	})
}

// A failure and the end do not come between the check of the switch and its store:
// it is off after the one, and left alone after the other.
func TestSwitchMeetsFailAndStop(t *testing.T) {
	for _, stop := range []bool{false, true} {
		l := newLab(t, Config{})
		if err := l.s.Switch(false); err != nil {
			t.Fatal(err)
		}
		over := make(chan struct{})
		l.k.turning = func() {
			go func() {
				defer close(over)
				if stop {
					l.stop()
				} else {
					l.s.Fail(errKernel)
				}
			}()
			select {
			case <-over:
			case <-time.After(50 * time.Millisecond): // it waits
			}
		}
		if err := l.s.Switch(true); err != nil {
			t.Error(err)
		}
		<-over
		if l.k.on || l.s.State().On {
			t.Errorf("stop %v: the switch is on", stop)
		}
		if !stop {
			l.stop()
		}
	}
}

// Sockets are put onto the map after what their clients asked for, and once.
func TestInsert(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		defer l.stop()
		type outcome struct {
			sent uint64
			ok   bool
		}
		got := make(chan outcome, 10)
		done := func(sent uint64, ok bool) { got <- outcome{sent, ok} }
		insert := func(c *Client, want bool) {
			t.Helper()
			if c.Insert(done) != want {
				t.Errorf("asked for: %v, want %v", !want, want)
			}
		}
		c := l.s.Accept(10).(*Client)
		insert(c, true)
		if o := <-got; !o.ok || o.sent != 88 || !c.OnMap() {
			t.Errorf("%+v, on map %v", o, c.OnMap())
		}
		insert(c, false)
		l.k.refuse[11] = true
		r := l.s.Accept(11).(*Client)
		insert(r, true)
		if o := <-got; o.ok || r.OnMap() {
			t.Errorf("refused: %+v, on map %v", o, r.OnMap())
		}
		r.Offer(question(1, true))
		synctest.Wait()
		if n := l.s.State().Paths; n != 0 {
			t.Errorf("%d questions of a client that stays with the daemon", n)
		}
		gone := l.s.Accept(12).(*Client)
		insert(gone, true)
		gone.Release()
		if o := <-got; o.ok && gone.OnMap() && !l.k.socks[12] {
			t.Errorf("released: %+v", o)
		}
		// Switched off, sockets stay on the map: what lies unread there must not be
		// lost. Nobody new is put there.
		if err := l.s.Switch(false); err != nil || !c.OnMap() || !l.k.socks[10] || l.k.on {
			t.Errorf("switched off: %v, on map %v %v", err, c.OnMap(), l.k.socks)
		}
		n := l.s.Accept(13).(*Client)
		insert(n, false)
		if err := l.s.Switch(true); err != nil {
			t.Error(err)
		}
		insert(n, true)
		if o := <-got; !o.ok || !n.OnMap() {
			t.Errorf("switched on: %+v", o)
		}
		st := l.s.State()
		if st.Refused != 1 || st.Inserted < 2 {
			t.Errorf("state %+v", st)
		}
	})
}

// A client that is in a system call is asked for again, with the others' sockets put
// onto the map meanwhile; one that never leaves it stays with the daemon.
func TestInsertBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		defer l.stop()
		l.k.busy[10], l.k.busy[11] = 20, math.MaxInt
		type outcome struct {
			port uint16
			sent uint64
			ok   bool
			took time.Duration
		}
		var got []outcome
		begin := time.Now()
		for _, port := range []uint16{10, 11, 12} {
			if !l.s.Accept(port).(*Client).Insert(func(sent uint64, ok bool) {
				got = append(got, outcome{port, sent, ok, time.Since(begin)})
			}) {
				t.Errorf("%d is not put onto the map", port)
			}
			synctest.Wait() // each that comes has the ones before it asked again at once
		}
		time.Sleep(busyTime + time.Second)
		synctest.Wait()
		want := []outcome{{12, 88, true, 0}, {10, 88, true, 18 * busyPause}, {11, 0, false, busyTime}}
		if !slices.Equal(got, want) {
			t.Errorf("%+v, want %+v", got, want)
		}
		if st := l.s.State(); st.Inserted != 2 || st.Refused != 1 {
			t.Errorf("state %+v", st)
		}
	})
}

// A service that was never started, or has stopped, keeps nobody waiting.
func TestNotStarted(t *testing.T) {
	s := New(Config{Log: slog.New(slog.DiscardHandler)})
	k := cache.MakeKey(1, cache.KindIPv4, []byte{1, 2, 3, 4})
	s.Changed(&k, true)
	s.Dropped(1)
	if s.Used(&k) || s.Accept(1) != nil {
		t.Error("in use")
	}
	s.settle()
	s.TopologyChanged()
	if err := s.Switch(true); err == nil {
		t.Error("switched on")
	}
	s.Fail(errKernel)
	if st := s.State(); st.Reason == "" || st.On {
		t.Errorf("state %+v", st)
	}
	if err := s.Stop(); err != nil {
		t.Error(err)
	}
}
