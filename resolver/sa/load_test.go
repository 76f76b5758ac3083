// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package sa

import (
	"fmt"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"acmd/mad"
	"acmd/mad/ring"
	madsa "acmd/mad/sa"
	"acmd/mad/transport"

	"pgregory.net/rapid"
)

// nullPort answers every send at once. Send and Recv are the owner's, so that
// the answers need no lock; only Wake comes from elsewhere.
type nullPort struct {
	ring  *ring.Ring
	ready []struct {
		h mad.UserHeader
		m mad.Packet
	}
	wake   chan struct{}
	closed atomic.Bool
	wakes  atomic.Int64
}

func newNullPort(tb testing.TB) *nullPort {
	r, err := ring.New(64, false)
	if err != nil {
		tb.Fatal(err)
	}
	return &nullPort{ring: r, wake: make(chan struct{}, 1)}
}

func (p *nullPort) Ring() *ring.Ring                      { return p.ring }
func (p *nullPort) Caps() transport.Caps                  { return transport.Caps{} }
func (p *nullPort) JoinQP(mad.GID, mad.LID, uint16) error { return nil }
func (p *nullPort) LeaveQP(mad.GID, mad.LID) error        { return nil }
func (p *nullPort) Close() error                          { p.closed.Store(true); p.Wake(); return nil }

func (p *nullPort) Wake() {
	p.wakes.Add(1)
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

func (p *nullPort) Send(slots []*ring.Slot) (int, error) {
	for _, s := range slots {
		p.ready = append(p.ready, struct {
			h mad.UserHeader
			m mad.Packet
		}{*s.Header(), *s.MAD()})
		p.ready[len(p.ready)-1].m.SetMethod(mad.MethodGetResp)
	}
	return len(slots), nil
}

func (p *nullPort) Recv(slots []*ring.Slot, deadline time.Time) (int, error) {
	if p.closed.Load() {
		return 0, net.ErrClosed
	}
	if len(p.ready) == 0 {
		if deadline.IsZero() {
			<-p.wake
			return 0, nil
		}
		t := time.NewTimer(time.Until(deadline))
		defer t.Stop()
		select {
		case <-p.wake:
		case <-t.C:
		}
		return 0, nil
	}
	n := min(len(slots), len(p.ready))
	for i, r := range p.ready[:n] {
		*slots[i].Header(), *slots[i].MAD() = r.h, r.m
	}
	p.ready = append(p.ready[:0], p.ready[n:]...)
	return n, nil
}

// Many goroutines ask at once; a lost wake-up would hang this test, as nothing
// else wakes the owner.
func TestConcurrentAskers(t *testing.T) {
	p := newNullPort(t)
	c := Open(p, activeInfo(), Config{}, nil)
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 500 {
				if o := <-ask(t, c, 1000*g+i+10); o.err != nil || o.path.DGID() != gid(1000*g+i+10) {
					t.Errorf("%v", o)
					return
				}
				if i%50 == 0 {
					info := activeInfo()
					c.Update(info)
					if err := c.Post(func() {}); err != nil {
						t.Error(err)
					}
					_ = c.Stats()
				}
			}
		})
	}
	wg.Wait()
	c.Close()
	if st := c.Stats(); st.Answers != 4000 || st.Failures != 0 {
		t.Errorf("%+v", st)
	}
}

// Field case 31: 100,000 questions leave slots, timers and lists as they were,
// make no garbage to speak of, and questions from callbacks cost no wake-up.
func TestSteadyState(t *testing.T) {
	p := newNullPort(t)
	c := Open(p, activeInfo(), Config{}, nil)
	warm := make(chan struct{})
	runQueries(c, 1000, func() { close(warm) })
	<-warm
	var before, after runtime.MemStats
	free, wakes := p.ring.Free(), p.wakes.Load()
	runtime.ReadMemStats(&before)
	const n = 100_000
	end := make(chan struct{})
	runQueries(c, n, func() { close(end) })
	<-end
	runtime.ReadMemStats(&after)
	if p.ring.Free() != free {
		t.Errorf("%d slots free, %d before", p.ring.Free(), free)
	}
	if per := float64(after.Mallocs-before.Mallocs) / n; per > 0.5 {
		t.Errorf("%.2f allocations per question", per)
	}
	if w := p.wakes.Load() - wakes; w > 50 {
		t.Errorf("%d wake-ups for %d questions asked by callbacks", w, n)
	}
	c.Close()
	if len(c.timers) != 0 || len(c.byTID) != 0 || c.queue.n+c.retry.n != 0 {
		t.Errorf("left %d timers, %d TIDs", len(c.timers), len(c.byTID))
	}
}

// runQueries asks n questions, 32 at a time, each callback asking the next.
func runQueries(c *Client, n int, end func()) {
	mask, rec := question(9)
	left, open := n, 0
	var done func(*Result)
	next := func() {
		for open < 32 && left > 0 {
			left--
			open++
			c.Path(mask, rec, done)
		}
	}
	done = func(r *Result) {
		if r.Err != nil {
			panic(r.Err)
		}
		if open--; open == 0 && left == 0 {
			end()
			return
		}
		next()
	}
	if err := c.Post(next); err != nil {
		panic(err)
	}
}

// BenchmarkPath is the client's own cost of a path query over a port that costs
// next to nothing: from Path to the callback, two packet copies of the port
// included.
func BenchmarkPath(b *testing.B) {
	for _, depth := range []int{0, 64} {
		b.Run(fmt.Sprintf("depth=%d", depth), func(b *testing.B) {
			p := newNullPort(b)
			c := Open(p, activeInfo(), Config{Depth: depth}, nil)
			defer c.Close()
			b.ReportAllocs()
			end := make(chan struct{})
			b.ResetTimer()
			runQueries(c, b.N, func() { close(end) })
			<-end
		})
	}
}

// BenchmarkPathAlone is one question at a time from another goroutine: two
// goroutine switches included.
func BenchmarkPathAlone(b *testing.B) {
	p := newNullPort(b)
	c := Open(p, activeInfo(), Config{}, nil)
	defer c.Close()
	mask, rec := question(9)
	ch := make(chan struct{}, 1)
	b.ReportAllocs()
	for b.Loop() {
		c.Path(mask, rec, func(*Result) { ch <- struct{}{} })
		<-ch
	}
}

// The heap gives timers back in order, whatever was set, moved and removed.
func TestTimerHeap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var h timerHeap
		all := make([]Timer, 20)
		model := map[*Timer]int64{}
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			tm := &all[rapid.IntRange(0, len(all)-1).Draw(t, "timer")]
			switch rapid.IntRange(0, 2).Draw(t, "op") {
			case 0:
				when := rapid.Int64Range(0, 50).Draw(t, "when")
				h.set(tm, when)
				model[tm] = when
			case 1:
				h.remove(tm)
				delete(model, tm)
			case 2:
				now := rapid.Int64Range(0, 50).Draw(t, "now")
				got := h.due(now)
				var first int64 = 1 << 62
				for _, w := range model {
					first = min(first, w)
				}
				if (got != nil) != (first <= now) || got != nil && model[got] != first {
					t.Fatalf("due(%d) gave %v, first is %d", now, got, first)
				}
				if got != nil {
					delete(model, got)
				}
			}
			if len(h) != len(model) {
				t.Fatalf("%d timers, want %d", len(h), len(model))
			}
			for i, tm := range h {
				if tm.pos != i+1 || tm.when != model[tm] {
					t.Fatalf("timer at %d: %+v", i, tm)
				}
			}
		}
	})
}

// No window of one second has more sends than the limit, and none is refused
// that would fit.
func TestRateLimit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.IntRange(1, 20).Draw(t, "limit")
		r := newRateLimit(limit)
		var now int64
		var sends []int64
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			now += rapid.Int64Range(0, int64(200*time.Millisecond)).Draw(t, "step")
			in := 0
			for _, s := range sends {
				if now-s < int64(time.Second) {
					in++
				}
			}
			if ok := r.ready() <= now; ok != (in < limit) {
				t.Fatalf("at %d with %d in the window: allowed %v", now, in, ok)
			} else if ok {
				r.note(now)
				sends = append(sends, now)
			}
		}
	})
	if (*rateLimit)(nil).ready() != 0 || newRateLimit(0) != nil {
		t.Error("no limit must always allow")
	}
}

// FuzzReceive gives the client arbitrary packets under a TID that is on the
// wire: nothing crashes, and only a true match succeeds.
func FuzzReceive(f *testing.F) {
	ok := reply(func() *sent {
		s := &sent{}
		mask, rec := fullQuestion(9)
		madsa.Init(&s.mad, mad.MethodGet, madsa.AttrPathRecord, mask)
		*madsa.Path(&s.mad) = *rec
		return s
	}())
	f.Add(ok[:], uint32(320), uint32(0), []byte(nil))
	f.Add(ok[:], uint32(64+120), uint32(0), make([]byte, 400))
	f.Add(ok[:100], uint32(0), uint32(110), []byte(nil))
	f.Add([]byte{1, 3, 2, 0x81, 0, 1}, uint32(88), uint32(0), []byte(nil))
	for _, spoil := range wrong {
		m := *ok
		var h mad.UserHeader
		spoil(&m, &h)
		f.Add(m[:], h.Length(), uint32(0), []byte(nil))
	}
	f.Fuzz(func(t *testing.T, packet []byte, length, status uint32, long []byte) {
		r, err := ring.New(2, false)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		s := r.Get()
		defer s.Release()
		c := &Client{port: &nullPort{ring: r}, byTID: map[uint32]*flight{}, window: 1, warned: map[string]time.Time{}}
		info := activeInfo()
		c.cur = &info
		c.cfg.normalize()
		c.count.init(c.cfg.Counters)
		calls := 0
		mask, rec := fullQuestion(9)
		fl := c.newTestFlight(mask, rec, func(r *Result) {
			if calls++; r.Err == nil && (r.Path().DGID() != rec.DGID() || r.Path().DLID() != 9) {
				t.Errorf("answered %x", *r.Path())
			}
		})
		copy(s.MAD()[:], packet)
		s.MAD().SetTID(mad.TID(fl.tid))
		s.Header().SetLength(length)
		s.Header().SetStatus(status)
		if len(long) >= mad.PacketSize {
			s.SetLong(long)
		}
		c.dispatch(s)
		c.dispatch(s)
		if calls > 1 {
			t.Errorf("%d callbacks", calls)
		}
	})
}

// newTestFlight puts a flight on the wire without a goroutine.
func (c *Client) newTestFlight(mask madsa.ComponentMask, rec *madsa.PathRecord, done func(*Result)) *flight {
	f := &flight{done: done, base: int64(MinGap), cap: int64(MinGap), method: mad.MethodGet, attr: madsa.AttrPathRecord,
		mask: mask, state: stateWire, tid: 7, tries: 1, lid: 1, gap: int64(MinGap), end: int64(MinGap)}
	copy(f.data[:], rec[:])
	f.timer.owner = f
	c.byTID[7] = f
	c.timers.set(&f.timer, f.gap)
	f.seated, c.seated = true, 1
	return f
}
