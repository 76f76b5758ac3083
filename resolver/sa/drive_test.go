// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package sa

import (
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"acmd/mad"
	"acmd/mad/ring"
	"acmd/mad/transport"
)

// pollPort is a scripted port that a loop can have.
type pollPort struct {
	*scriptPort
	full   atomic.Bool // TrySend finds no room
	tries  atomic.Int64
	driven atomic.Bool
	groups atomic.Int64 // joined less left
	hasty  atomic.Bool  // of these, one while a loop had the port
}

func (p *pollPort) JoinQP(mad.GID, mad.LID, uint16) error { return p.member(1) }
func (p *pollPort) LeaveQP(mad.GID, mad.LID) error        { return p.member(-1) }

func (p *pollPort) member(n int64) error {
	if p.driven.Load() {
		p.hasty.Store(true)
	}
	p.groups.Add(n)
	return nil
}

var _ transport.Pollable = (*pollPort)(nil)

func (p *pollPort) PollFDs() []int { return nil }

func (p *pollPort) Drive(loop bool) { p.driven.Store(loop) }

func (p *pollPort) TrySend(slots []*ring.Slot) (int, error) {
	p.tries.Add(1)
	if p.full.Load() {
		return 0, syscall.EAGAIN
	}
	return p.Send(slots)
}

// testLoop drives a client the way an event loop does.
type testLoop struct {
	c    *Client
	poke chan struct{}
}

func newTestLoop(c *Client) *testLoop { return &testLoop{c, make(chan struct{}, 1)} }

func (l *testLoop) wake() {
	select {
	case l.poke <- struct{}{}:
	default:
	}
}

// take asks and waits for the turns.
func (l *testLoop) take(t *testing.T) {
	t.Helper()
	l.c.Want(l.wake)
	for !l.c.Take() {
		select {
		case <-l.poke:
		case <-time.After(time.Minute):
			t.Fatal("not lent within a minute")
		}
	}
}

// answered runs turns until an outcome is there.
func (l *testLoop) answered(t *testing.T, ch <-chan outcome) outcome {
	t.Helper()
	for range 1000 {
		next, ok := l.c.Turn(true)
		if !ok {
			t.Fatal("the client wants to be given back")
		}
		select {
		case o := <-ch:
			return o
		default:
		}
		wait := time.Millisecond
		if !next.IsZero() {
			wait = min(wait, max(time.Until(next), 0))
		}
		time.Sleep(wait)
	}
	t.Fatal("no answer in 1000 turns")
	return outcome{}
}

func pollClient(t *testing.T, script func(*scriptPort, *sent) error) (*Client, *pollPort) {
	p := &pollPort{scriptPort: newPort(t, script)}
	c := Open(p, activeInfo(), Config{Retries: 2}, nil)
	if !c.Pollable() {
		t.Fatal("not pollable")
	}
	return c, p
}

func prompt(p *scriptPort, s *sent) error { p.answer(s, time.Millisecond, reply(s)); return nil }

// A loop has the turns, then the goroutine again, then the loop; each question is
// answered by whoever has them.
func TestLend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, p := pollClient(t, prompt)
		defer closeAll(t, c, p.scriptPort)
		l := newTestLoop(c)
		for i := range 3 {
			l.take(t)
			before := p.tries.Load()
			if o := l.answered(t, ask(t, c, 9)); o.err != nil {
				t.Error(o.err)
			}
			if p.tries.Load() == before {
				t.Error("the question did not leave in the loop's turn")
			}
			c.GiveBack()
			before = p.tries.Load()
			if o := <-ask(t, c, 10+i); o.err != nil {
				t.Error(o.err)
			}
			if p.tries.Load() != before {
				t.Error("the question left in a loop's turn, without a loop")
			}
		}
	})
}

// What may block does not run in the loop's turn: the loop is told to give the
// client back, and the goroutine does it, also when the client ends.
func TestLendJoin(t *testing.T) {
	for _, end := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			c, p := pollClient(t, prompt)
			l := newTestLoop(c)
			l.take(t)
			done := make(chan error, 3)
			join := func() { c.JoinQP(mad.GID{}, 0xc001, 0, func(err error) { done <- err }) }
			if err := c.Post(func() { join(); c.LeaveQP(mad.GID{}, 0xc001); join() }); err != nil {
				t.Fatal(err)
			}
			if _, ok := c.Turn(false); ok || p.groups.Load() != 0 || len(done) != 0 {
				t.Errorf("in the loop's turn: go on %v, %d groups, %d told", ok, p.groups.Load(), len(done))
			}
			if end {
				go c.Close()
				synctest.Wait()
			}
			c.GiveBack()
			synctest.Wait()
			if p.groups.Load() != 1 || len(done) != 2 || p.hasty.Load() {
				t.Errorf("given back: %d groups, %d told, in the loop's turn %v", p.groups.Load(), len(done), p.hasty.Load())
			}
			if !end {
				if err := c.Post(join); err != nil { // without a loop: at once
					t.Fatal(err)
				}
				synctest.Wait()
				if p.groups.Load() != 2 || len(done) != 3 {
					t.Errorf("without a loop: %d groups, %d told", p.groups.Load(), len(done))
				}
			}
			closeAll(t, c, p.scriptPort)
		})
	}
}

// Timers run in the loop's turns: a lost answer is asked for again.
func TestLendTimers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		c, p := pollClient(t, func(p *scriptPort, s *sent) error {
			if n++; n > 1 {
				p.answer(s, 0, reply(s))
			}
			return nil
		})
		defer closeAll(t, c, p.scriptPort)
		l := newTestLoop(c)
		l.take(t)
		if o := l.answered(t, ask(t, c, 9)); o.err != nil || o.tries != 2 {
			t.Errorf("%d tries, %v", o.tries, o.err)
		}
		c.GiveBack()
	})
}

// What is brought from elsewhere while the loop has the turns wakes the loop.
func TestLendWakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, p := pollClient(t, prompt)
		defer closeAll(t, c, p.scriptPort)
		l := newTestLoop(c)
		l.take(t)
		ch := ask(t, c, 9)
		select {
		case <-l.poke:
		default:
			t.Error("a question did not wake the loop")
		}
		if o := l.answered(t, ch); o.err != nil {
			t.Error(o.err)
		}
		c.GiveBack()
	})
}

// A loop that finds no room gives back; the goroutine, which can wait, sends.
func TestLendNoRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, p := pollClient(t, prompt)
		defer closeAll(t, c, p.scriptPort)
		l := newTestLoop(c)
		l.take(t)
		p.full.Store(true)
		ch := ask(t, c, 9)
		if _, ok := c.Turn(false); ok {
			t.Fatal("the loop should give back")
		}
		c.GiveBack()
		if o := <-ch; o.err != nil {
			t.Error(o.err)
		}
	})
}

// Close and the device's end reach a client that a loop has.
func TestLendEnd(t *testing.T) {
	for name, end := range map[string]func(*Client, *pollPort){
		"close": func(c *Client, _ *pollPort) { go c.Close() },
		"gone":  func(_ *Client, p *pollPort) { p.set(func() { p.recvErr = transport.ErrGone }) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, p := pollClient(t, nil)
				l := newTestLoop(c)
				l.take(t)
				ch := ask(t, c, 9)
				end(c, p)
				synctest.Wait()
				if _, ok := c.Turn(true); ok {
					t.Error("the loop should give back")
				}
				c.GiveBack()
				<-c.Done()
				if o := <-ch; o.err == nil {
					t.Error("answered by nobody")
				}
				closeAll(t, c, p.scriptPort)
			})
		})
	}
}

// A wish that is taken back leaves the client as it was, also when it had been
// granted already.
func TestLendUnwanted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, p := pollClient(t, prompt)
		defer closeAll(t, c, p.scriptPort)
		for _, wait := range []bool{false, true} {
			c.Want(func() {})
			if wait {
				synctest.Wait() // lent
			}
			c.GiveBack()
			c.GiveBack() // nothing to give
			if o := <-ask(t, c, 9); o.err != nil {
				t.Error(o.err)
			}
		}
	})
}

// Many askers while the turns change hands all the time: everybody is answered
// once.
func TestLendStress(t *testing.T) {
	c, p := pollClient(t, func(p *scriptPort, s *sent) error { p.answer(s, 0, reply(s)); return nil })
	p.keepLog = false
	l := newTestLoop(c)
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for i := 0; ; i++ {
			select {
			case <-stop:
				c.GiveBack()
				return
			default:
			}
			c.Want(l.wake)
			if !c.Take() {
				runtime.Gosched()
				continue
			}
			for range i % 7 {
				if _, ok := c.Turn(true); !ok {
					break
				}
			}
			c.GiveBack()
		}
	}()
	var wg sync.WaitGroup
	var failed atomic.Int64
	for range 4 {
		wg.Go(func() {
			for i := range 500 {
				if o := <-ask(t, c, 1+i%100); o.err != nil && !errors.Is(o.err, ErrQueueFull) {
					failed.Add(1)
				}
			}
		})
	}
	wg.Wait()
	close(stop)
	<-done
	if n := failed.Load(); n > 0 {
		t.Errorf("%d failed", n)
	}
	closeAll(t, c, p.scriptPort)
}
