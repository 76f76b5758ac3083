// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package sa

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"acmd/mad"
	"acmd/mad/ring"
	madsa "acmd/mad/sa"
	"acmd/mad/transport"
)

// Field case 15: the P_Key index of SA traffic is that of 0xFFFF, else of 0x7FFF,
// else 0, and follows the table.
func TestPKeyIndex(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPort(t, func(p *scriptPort, s *sent) error { p.answer(s, time.Millisecond, reply(s)); return nil })
		c := Open(p, activeInfo(), Config{}, nil)
		defer closeAll(t, c, p)
		for i, tt := range []struct {
			keys []mad.PKey
			want uint16
		}{
			{[]mad.PKey{0x8001, 0x7fff, 0x8002}, 1},
			{[]mad.PKey{0x8001}, 0},
			{[]mad.PKey{0x7fff, 0, 0x8002, 0xffff}, 3},
			{nil, 0},
		} {
			info := activeInfo()
			info.PKeys = tt.keys
			c.Update(info)
			if o := <-ask(t, c, 9); o.err != nil {
				t.Error(o.err)
			}
			if got := p.sends()[i].hdr.PKeyIndex(); got != tt.want {
				t.Errorf("table %v: index %d, want %d", tt.keys, got, tt.want)
			}
		}
	})
}

// A ring that has no slot to lend ends the client with a reason.
func TestNoSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPort(t, nil)
		all := make([]*ring.Slot, p.ring.Cap())
		p.ring.GetN(all)
		c := Open(p, activeInfo(), Config{}, nil)
		<-c.Done()
		if o := <-ask(t, c, 9); o.err == nil || c.Err() == nil {
			t.Errorf("%v, %v", o.err, c.Err())
		}
		if err := c.AtEnd(func(error) { t.Error("called") }); err == nil {
			t.Error("AtEnd on a client that has ended")
		}
		for _, s := range all {
			s.Release()
		}
		closeAll(t, c, p)
	})
}

// Field case 10: the SM moves without an event; after three time-outs in a row
// the port is read again and the fourth try goes to the new LID. Suspect may
// update at once or a little later.
func TestSilentMove(t *testing.T) {
	for _, delay := range []time.Duration{0, 20 * time.Millisecond} {
		for _, timers := range []bool{false, true} {
			t.Run(fmt.Sprintf("%v/timers=%v", delay, timers), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					p := newPort(t, func(p *scriptPort, s *sent) error {
						if s.hdr.LID() == 12 {
							p.answer(s, time.Millisecond, reply(s))
						}
						return nil
					})
					p.caps.Timers = timers
					info := activeInfo()
					info.SMLID = 9
					moved := info
					moved.SMLID, moved.SMSL = 12, 7
					var c *Client
					ready := make(chan struct{})
					c = Open(p, info, Config{Retries: 5, Suspect: func() {
						<-ready
						if delay == 0 {
							c.Update(moved)
							return
						}
						time.AfterFunc(delay, func() { c.Update(moved) })
					}}, nil)
					close(ready)
					defer closeAll(t, c, p)
					o := <-ask(t, c, 9)
					log := p.sends()
					if o.err != nil || len(log) != 4 {
						t.Fatalf("%v, %d sends", o.err, len(log))
					}
					for i, want := range []mad.LID{9, 9, 9, 12} {
						if log[i].hdr.LID() != want {
							t.Errorf("try %d went to %d", i+1, log[i].hdr.LID())
						}
					}
					if log[3].hdr.SL() != 7 || c.Stats().Suspects != 1 {
						t.Errorf("SL %d, stats %+v", log[3].hdr.SL(), c.Stats())
					}
				})
			})
		}
	}
}

// The SM moves and is back before the rate let the next try go: the last one may
// still be answered, and a second would come within the gap.
func TestBackBeforeRetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		p := newPort(t, func(p *scriptPort, s *sent) error {
			if n++; n != 2 {
				p.answer(s, time.Millisecond, reply(s))
			}
			return nil
		})
		info := activeInfo()
		info.SMLID = 9
		moved := info
		moved.SMLID = 12
		c := Open(p, info, Config{Retries: 3, MaxRate: 2}, nil)
		defer closeAll(t, c, p)
		if o := <-ask(t, c, 9); o.err != nil {
			t.Fatal(o.err)
		}
		time.Sleep(600 * time.Millisecond)
		out := ask(t, c, 10) // the second in this second
		time.Sleep(10 * time.Millisecond)
		c.Update(moved)
		time.Sleep(retargetSpread)
		c.Update(info)
		if o := <-out; o.err != nil {
			t.Fatal(o.err)
		}
		checkRetries(p.sends(), t.Errorf)
	})
}

// Update while questions are on the wire: they are asked at the new place soon,
// queued ones go there, and an answer that the old SM still sends counts.
func TestUpdateRetargets(t *testing.T) {
	for _, timers := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			p := newPort(t, func(p *scriptPort, s *sent) error {
				if s.hdr.LID() == 9 {
					p.answer(s, time.Millisecond, reply(s))
				}
				return nil
			})
			p.caps.Timers = timers
			c := Open(p, activeInfo(), Config{Depth: 4, Retries: 1}, nil)
			defer closeAll(t, c, p)
			var outs []<-chan outcome
			for n := range 12 {
				outs = append(outs, ask(t, c, 100+n))
			}
			time.Sleep(10 * time.Millisecond)
			info := activeInfo()
			info.SMLID = 9
			c.Update(info)
			start := time.Now()
			for _, ch := range outs {
				if o := <-ch; o.err != nil {
					t.Error(o.err)
				}
			}
			if d := time.Since(start); d > 300*time.Millisecond {
				t.Errorf("took %v", d)
			}
			time.Sleep(10 * time.Second)
			if s := c.Stats(); s.Timeouts != 0 || s.Sent != 16 || s.SendErrors != 0 || timers && s.Stray != 4 {
				t.Errorf("%+v", s)
			}
		})
	}
}

// An SM that wavers: there and back before anything was sent changes nothing,
// and a flight is asked again early once at most.
func TestWaveringSM(t *testing.T) {
	for _, timers := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			p := newPort(t, nil)
			p.caps.Timers = timers
			c := Open(p, activeInfo(), Config{Retries: 3}, nil)
			defer closeAll(t, c, p)
			ch := ask(t, c, 9)
			synctest.Wait()
			here, there := activeInfo(), activeInfo()
			there.SMLID = 9
			c.Update(there)
			synctest.Wait()
			c.Update(here)
			time.Sleep(400 * time.Millisecond)
			if n := len(p.sends()); n != 1 {
				t.Errorf("%d sends after there and back", n)
			}
			for range 50 {
				c.Update(there)
				time.Sleep(260 * time.Millisecond)
				c.Update(here)
				time.Sleep(260 * time.Millisecond)
			}
			if o := <-ch; !errors.Is(o.err, ErrTimeout) || o.tries > 5 {
				t.Errorf("%v after %d tries", o.err, o.tries)
			}
		})
	}
}

// A port without SM or link refuses at once and says so; one that comes back
// serves. What is on the wire when the link goes lives out its flight.
func TestPortDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPort(t, func(p *scriptPort, s *sent) error { p.answer(s, 5*time.Millisecond, reply(s)); return nil })
		down, noSM := activeInfo(), activeInfo()
		down.State = mad.PortInit
		noSM.SMLID = 0
		c := Open(p, down, Config{Retries: 2, Depth: 2}, nil)
		defer closeAll(t, c, p)
		start := time.Now()
		if o := <-ask(t, c, 9); !errors.Is(o.err, ErrNoSM) || !strings.Contains(o.err.Error(), "INIT") {
			t.Error(o.err)
		}
		c.Update(noSM)
		if o := <-ask(t, c, 9); !errors.Is(o.err, ErrNoSM) || !strings.Contains(o.err.Error(), "SM LID 0") {
			t.Error(o.err)
		}
		if time.Since(start) != 0 {
			t.Errorf("refusals took %v", time.Since(start))
		}
		c.Update(activeInfo())
		var outs []<-chan outcome
		for n := range 4 {
			outs = append(outs, ask(t, c, 100+n))
		}
		synctest.Wait()
		c.Update(down)
		for n, ch := range outs {
			o := <-ch
			if n < 2 && o.err != nil || n >= 2 && !errors.Is(o.err, ErrNoSM) {
				t.Errorf("%d: %v", n, o.err)
			}
		}
		if n := len(p.sends()); n != 2 {
			t.Errorf("%d sends", n)
		}
	})
}

// The link goes while a question is out and its answer is lost: no send while
// down, an answer after it is back, or an end in time.
func TestLinkBounce(t *testing.T) {
	for _, back := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			n := 0
			p := newPort(t, func(p *scriptPort, s *sent) error {
				if n++; n > 1 {
					p.answer(s, time.Millisecond, reply(s))
				}
				return nil
			})
			down := activeInfo()
			down.State = mad.PortDown
			c := Open(p, activeInfo(), Config{Retries: 2}, nil)
			defer closeAll(t, c, p)
			ch := ask(t, c, 9)
			time.Sleep(100 * time.Millisecond)
			c.Update(down)
			time.Sleep(900 * time.Millisecond)
			if back {
				c.Update(activeInfo())
			}
			o := <-ch
			if back && o.err != nil || !back && !errors.Is(o.err, ErrTimeout) {
				t.Errorf("back %v: %v", back, o.err)
			}
			if !back && len(p.sends()) != 1 {
				t.Errorf("%d sends on a port that is down", len(p.sends()))
			}
		})
	}
}

// A send that the transport refuses costs its try, not the batch.
func TestSendRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bad := map[mad.GID]int{gid(101): 1, gid(103): 9}
		p := newPort(t, func(p *scriptPort, s *sent) error {
			g := madsa.Path(&s.mad).DGID()
			if bad[g] > 0 {
				bad[g]--
				return syscall.ENOBUFS
			}
			p.answer(s, time.Millisecond, reply(s))
			return nil
		})
		c := Open(p, activeInfo(), Config{Retries: 2, Depth: 16}, nil)
		defer closeAll(t, c, p)
		var outs []<-chan outcome
		for n := range 6 {
			outs = append(outs, ask(t, c, 100+n))
		}
		for n, ch := range outs {
			o := <-ch
			if n == 3 {
				if !errors.Is(o.err, syscall.ENOBUFS) || !errors.Is(o.err, ErrTimeout) {
					t.Error(o.err)
				}
			} else if o.err != nil || n == 1 && o.tries != 2 {
				t.Errorf("%d: %v", n, o)
			}
		}
	})
}

// Field case 76: a device that is gone ends the client; what is in hand fails,
// what comes later fails at once.
func TestGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPort(t, nil)
		c := Open(p, activeInfo(), Config{Depth: 2}, nil)
		ended := 0
		if err := c.AtEnd(func(err error) {
			if !errors.Is(err, transport.ErrGone) {
				t.Error(err)
			}
			ended++
		}); err != nil {
			t.Fatal(err)
		}
		var outs []<-chan outcome
		for n := range 5 {
			outs = append(outs, ask(t, c, 100+n))
		}
		synctest.Wait()
		p.set(func() { p.recvErr = transport.ErrGone })
		for _, ch := range outs {
			if o := <-ch; !errors.Is(o.err, transport.ErrGone) {
				t.Error(o.err)
			}
		}
		<-c.Done()
		if o := <-ask(t, c, 9); !errors.Is(o.err, transport.ErrGone) || !errors.Is(c.Err(), transport.ErrGone) {
			t.Error(o.err)
		}
		if err := c.Post(func() { t.Error("posted after the end") }); !errors.Is(err, transport.ErrGone) {
			t.Error(err)
		}
		if ended != 1 {
			t.Errorf("AtEnd ran %d times", ended)
		}
		closeAll(t, c, p)
	})
}

// A passing fault of receive costs pauses, not a core, and work goes on after.
func TestRecvFault(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPort(t, func(p *scriptPort, s *sent) error { p.answer(s, 0, reply(s)); return nil })
		c := Open(p, activeInfo(), Config{Retries: 2}, nil)
		defer closeAll(t, c, p)
		p.set(func() { p.recvErr = syscall.EIO })
		time.Sleep(10 * time.Second)
		if n := c.Stats().RecvErrors; n < 10 || n > 120 {
			t.Errorf("%d faults in 10 s", n)
		}
		p.set(func() { p.recvErr = nil })
		if o := <-ask(t, c, 9); o.err != nil {
			t.Error(o.err)
		}
		p.set(func() { p.recvErr = syscall.EIO }) // closing must not wait for the fault to pass
		time.Sleep(time.Second)
		start := time.Now()
		c.Close()
		if d := time.Since(start); d > 0 {
			t.Errorf("close took %v", d)
		}
	})
}
