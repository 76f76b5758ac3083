// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package kernelnl_test

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"acmd/bpf"
	"acmd/mad/madtest"
	"acmd/resolver"
	"acmd/resolver/kernelnl"
	"acmd/resolver/kernelnl/kernelfake"

	"golang.org/x/sys/unix"
)

var errPermission = unix.EPERM

// nowhere is an engine that answers nothing until it is told to.
type nowhere struct {
	resolver.Resolver
	asked chan func() // tells one waiter
}

func (nowhere) Now() int64                                           { return 0 }
func (nowhere) Lookup(*resolver.Query, int64, *resolver.Answer) bool { return false }
func (nowhere) Endpoints() []*resolver.Endpoint                      { return nil }
func (n nowhere) Resolve(q *resolver.Query, tag uint64, w resolver.Waiter) {
	path := answer(q.Path)
	n.asked <- func() { w.Answered(tag, &resolver.Answer{Path: path}) }
}

// alone runs f with a door whose engine is a script.
func alone(t *testing.T, edit func(*kernelnl.Config), f func(l *lab, e nowhere)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		e := nowhere{asked: make(chan func(), 1<<16)}
		l := &lab{t: t, k: kernelfake.New(), log: &madtest.Output{}, maps: bpf.NewMemory()}
		c := kernelnl.Config{Engine: e, Log: l.log.Logger(), Counters: l.maps.Shard()}
		if edit != nil {
			edit(&c)
		}
		l.d = kernelnl.New(l.k, c)
		f(l, e)
		l.d.Close()
		l.accounts()
	})
}

// Messages that are not from the kernel are ignored, whatever they look like.
func TestForeign(t *testing.T) {
	alone(t, nil, func(l *lab, e nowhere) {
		b := make([]byte, 152)
		binary.NativeEndian.PutUint32(b, 152)
		binary.NativeEndian.PutUint16(b[4:], 0x1000)
		for range 100 {
			l.k.Inject(4321, b)
		}
		if s := l.stats(); s.Foreign != 100 || s.Resolves+s.Malformed+s.Unknown != 0 {
			t.Errorf("%+v", s)
		}
		if n := l.log.Count("not from the kernel"); n != 1 {
			t.Errorf("said %d times", n)
		}
		l.clean()
	})
}

// field case 18: the door reads on after messages were lost.
func TestOverrun(t *testing.T) {
	bubble(t, nil, func(l *lab) {
		l.k.Overrun(3)
		if c := l.k.Resolve(ask(7)); c.Wait() != kernelfake.Answered {
			t.Errorf("outcome %d", c.Outcome)
		}
		if s := l.stats(); s.Overruns != 3 {
			t.Errorf("%+v", s)
		}
		if n := l.log.Count("faster than it could be answered"); n != 1 {
			t.Errorf("said %d times", n)
		}
		l.clean()
	})
}

// A full receive buffer costs the requests that did not fit into it their wait,
// all others are answered.
func TestFullBuffer(t *testing.T) {
	bubble(t, nil, func(l *lab) {
		var calls []*kernelfake.Call
		for range 5000 { // the door runs when the test sleeps
			calls = append(calls, l.k.Resolve(ask(7)))
		}
		n := map[kernelfake.Outcome]int{}
		for _, c := range calls {
			n[c.Wait()]++
		}
		if lost := l.k.Counts().Lost; n[kernelfake.TimedOut] != lost || n[kernelfake.Answered] != len(calls)-lost {
			t.Errorf("%v, %d lost", n, lost)
		}
	})
}

// Operations and forms that are not known are refused with their own type and
// sequence number, and said once.
func TestUnknown(t *testing.T) {
	alone(t, nil, func(l *lab, e nowhere) {
		for range 50 {
			for _, op := range []uint16{1, 3, 9, 1023} {
				if c := l.k.Ask(op, make([]byte, 100)); c.Wait() != kernelfake.Refused || c.After != 0 {
					t.Fatalf("operation %d: outcome %d", op, c.Outcome)
				}
			}
			for _, body := range [][]byte{nil, make([]byte, 10), make([]byte, 68), make([]byte, 72)} {
				if c := l.k.Ask(0, body); c.Wait() != kernelfake.Refused || c.After != 0 {
					t.Fatalf("RESOLVE of %d bytes: outcome %d", len(body), c.Outcome)
				}
			}
		}
		if s := l.stats(); s.Unknown != 200 || s.Malformed != 200 || s.Failed != 0 {
			t.Errorf("%+v", s)
		}
		if a, b := l.log.Count("operation refused"), l.log.Count("request refused"); a != 1 || b != 1 {
			t.Errorf("said %d and %d times", a, b)
		}
		l.clean()
	})
}

// What cannot be read is counted, and what netlink itself says is not answered.
func TestUnreadable(t *testing.T) {
	alone(t, nil, func(l *lab, e nowhere) {
		ne := binary.NativeEndian
		noop := make([]byte, 16)
		ne.PutUint32(noop, 16)
		ne.PutUint16(noop[4:], 1)
		refusal := make([]byte, 20)
		ne.PutUint32(refusal, 20)
		ne.PutUint16(refusal[4:], 2)
		ne.PutUint32(refusal[16:], ^uint32(0)) // EPERM
		ack := append([]byte(nil), refusal...)
		ne.PutUint32(ack[16:], 0)
		for _, b := range [][]byte{make([]byte, 3), make([]byte, 20), make([]byte, 5000), noop, refusal, ack, append(append([]byte(nil), noop...), noop...)} {
			l.k.Inject(0, b)
		}
		l.k.Inject(0, nil)
		if s := l.stats(); s.Unreadable != 3 || s.Control != 4 || s.Rejected != 1 || s.Failed != 0 {
			t.Errorf("%+v", s)
		}
		l.clean()
	})
}

// The work for this door is bounded: what is beyond it is refused at once, and a
// place is free again only when the engine has spoken.
func TestBusy(t *testing.T) {
	alone(t, func(c *kernelnl.Config) { c.Pending = 4 }, func(l *lab, e nowhere) {
		var calls []*kernelfake.Call
		for n := range 10 {
			calls = append(calls, l.k.Resolve(ask(n+2)))
		}
		for _, c := range calls[4:] {
			if c.Wait() != kernelfake.Refused || c.After != 0 {
				t.Errorf("outcome %d after %v", c.Outcome, c.After)
			}
		}
		for _, c := range calls[:4] {
			if c.Wait() != kernelfake.Refused || c.After < 1500*time.Millisecond {
				t.Errorf("outcome %d after %v", c.Outcome, c.After)
			}
		}
		if c := l.k.Resolve(ask(2)); c.Wait() != kernelfake.Refused || c.After != 0 {
			t.Errorf("the engine has not spoken: outcome %d after %v", c.Outcome, c.After)
		}
		for range 4 {
			(<-e.asked)()
		}
		c := l.k.Resolve(ask(2))
		(<-e.asked)()
		if c.Wait() != kernelfake.Answered {
			t.Errorf("outcome %d after %v", c.Outcome, c.After)
		}
		if s := l.stats(); s.Busy != 7 || s.Expired != 4 || s.Answered != 1 {
			t.Errorf("%+v", s)
		}
		if n := l.log.Count("too many requests"); n != 1 {
			t.Errorf("said %d times", n)
		}
		l.clean()
	})
}

// The last answer goes out at 0.95 of the wait; what the engine says later is kept
// from the kernel.
func TestNeverLate(t *testing.T) {
	for _, after := range []time.Duration{0, 1799, 1801, 1899, 1901, 1999, 2001, 5000} {
		alone(t, nil, func(l *lab, e nowhere) {
			c := l.k.Resolve(ask(7))
			tell := <-e.asked
			time.Sleep(after * time.Millisecond)
			tell()
			want := kernelfake.Answered
			if after > 1800 {
				want = kernelfake.Refused
			}
			if c.Wait() != want || c.After > 1900*time.Millisecond {
				t.Errorf("answer after %d ms: outcome %d after %v", after, c.Outcome, c.After)
			}
			time.Sleep(5 * time.Second)
			l.clean()
		})
	}
}

// A door that was kept from running until the wait was over says nothing at all.
func TestStalled(t *testing.T) {
	for _, stall := range []time.Duration{1899, 1901, 2500} {
		alone(t, nil, func(l *lab, e nowhere) {
			c := l.k.Resolve(ask(7))
			<-e.asked
			l.k.Stall(stall * time.Millisecond)
			want := kernelfake.Refused
			if stall > 1900 {
				want = kernelfake.TimedOut
			}
			if c.Wait() != want {
				t.Errorf("stalled for %d ms: outcome %d after %v", stall, c.Outcome, c.After)
			}
			time.Sleep(5 * time.Second)
			l.clean()
			if s := l.stats(); (s.Late > 0) != (want == kernelfake.TimedOut) {
				t.Errorf("stalled for %d ms: %+v", stall, s)
			}
		})
	}
}

// Answers that cannot be sent are counted and said once; the door goes on.
func TestSendFails(t *testing.T) {
	bubble(t, nil, func(l *lab) {
		l.k.FailSends(errPermission)
		var calls []*kernelfake.Call
		for n := range 5 {
			calls = append(calls, l.k.Resolve(ask(n+2)))
		}
		for _, c := range calls {
			if c.Wait() != kernelfake.TimedOut {
				t.Errorf("outcome %d", c.Outcome)
			}
		}
		l.k.FailSends(nil)
		if c := l.k.Resolve(ask(2)); c.Wait() != kernelfake.Answered {
			t.Errorf("outcome %d", c.Outcome)
		}
		if s := l.stats(); s.SendErrors != 5 || s.Answered != 1 {
			t.Errorf("%+v", s)
		}
		if n := l.log.Count("CAP_NET_ADMIN"); n != 1 {
			t.Errorf("said %d times", n)
		}
	})
}

// A socket that fails ends the door, which tells why.
func TestBrokenSocket(t *testing.T) {
	alone(t, nil, func(l *lab, e nowhere) {
		c := l.k.Resolve(ask(7))
		<-e.asked
		broken := errors.New("broken")
		l.k.Break(broken)
		<-l.d.Done()
		if err := l.d.Err(); !errors.Is(err, broken) {
			t.Errorf("Err() = %v", err)
		}
		if c.Wait() != kernelfake.Refused {
			t.Errorf("outcome %d", c.Outcome)
		}
	})
}

// 20,000 requests of a random kind with an engine that answers when it likes: each
// has one answer, in time.
func TestEachOnce(t *testing.T) {
	alone(t, func(c *kernelnl.Config) { c.Pending = 64 }, func(l *lab, e nowhere) {
		rnd := rand.New(rand.NewPCG(1, 2))
		var calls []*kernelfake.Call
		for i := range 20_000 {
			switch rnd.IntN(4) {
			case 0:
				calls = append(calls, l.k.Ask(uint16(rnd.IntN(6)), make([]byte, rnd.IntN(90))))
			default:
				calls = append(calls, l.k.Resolve(ask(i%9000+2)))
			}
			if rnd.IntN(3) == 0 {
				time.Sleep(time.Duration(rnd.IntN(50)) * time.Millisecond)
			}
			for len(e.asked) > 0 && rnd.IntN(3) > 0 {
				tell := <-e.asked
				time.AfterFunc(time.Duration(rnd.IntN(2300))*time.Millisecond, tell)
			}
		}
		n := map[kernelfake.Outcome]int{}
		for _, c := range calls {
			n[c.Wait()]++
			if c.After > 1900*time.Millisecond {
				t.Fatalf("answered after %v", c.After)
			}
		}
		if n[kernelfake.Answered] == 0 || n[kernelfake.Refused] == 0 || n[kernelfake.Answered]+n[kernelfake.Refused] != len(calls) {
			t.Errorf("outcomes %v", n)
		}
		time.Sleep(5 * time.Second) // the last callbacks
		l.clean()
		t.Logf("%v, %+v", n, l.stats())
	})
}
