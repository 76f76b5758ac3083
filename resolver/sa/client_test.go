// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package sa

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"acmd/mad"
	"acmd/mad/ring"
	madsa "acmd/mad/sa"
	"acmd/mad/transport"
)

// The request of an ordinary path query, byte for byte, and its header. Field
// case 13 (byte order), field case 15 (P_Key index of every send).
func TestRequestBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPort(t, func(p *scriptPort, s *sent) error { p.answer(s, time.Millisecond, reply(s)); return nil })
		info := activeInfo()
		info.SMLID = 0x1234
		info.PKeys = []mad.PKey{0x8001, 0x7fff, 0x8002}
		c := Open(p, info, Config{}, nil)
		defer closeAll(t, c, p)
		var rec madsa.PathRecord
		rec.SetDGID(gid(0x100001))
		rec.SetSGID(gid(0x100005))
		rec.SetSLID(4)
		rec.SetPKey(0xffff)
		done := make(chan error, 1)
		c.Path(0x202c, &rec, func(r *Result) { done <- r.Err })
		synctest.Wait()
		s := p.sends()[0]
		want, err := hex.DecodeString(strings.ReplaceAll("01030201000000000000000000000000"+
			"00350000000000000000000000000000"+strings.Repeat("00", 16)+
			"000000000000202c0000000000000000"+
			"fe800000000000000000000000100001"+"fe800000000000000000000000100005"+
			"00000004000000000000ffff00000000"+strings.Repeat("00", 256-112), " ", ""))
		if err != nil {
			t.Fatal(err)
		}
		if s.mad.TID() == 0 || s.mad.TID()>>32 != 0 {
			t.Errorf("TID %v: want a random low half and a zero high half", s.mad.TID())
		}
		s.mad.SetTID(0)
		if !bytes.Equal(s.mad[:], want) {
			t.Errorf("request\n%x\nwant\n%x", s.mad[:], want)
		}
		h := &s.hdr
		if h.LID() != 0x1234 || h.SL() != 3 || h.QPN() != 1 || h.QKey() != 0x80010000 || h.PKeyIndex() != 1 ||
			h.Retries() != 0 || h.HasGRH() || h.TimeoutMS() < 500 || h.TimeoutMS() > 626 {
			t.Errorf("header % x", h[:])
		}
		if err := <-done; err == nil {
			// The reply has SLID 4 and everything else as asked.
			return
		} else {
			t.Error(err)
		}
	})
}

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

// An idle client sleeps: no timer, no look at the port.
func TestIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPort(t, func(p *scriptPort, s *sent) error { p.answer(s, time.Millisecond, reply(s)); return nil })
		c := Open(p, activeInfo(), Config{Retries: 2}, nil)
		defer closeAll(t, c, p)
		if o := <-ask(t, c, 9); o.err != nil {
			t.Error(o.err)
		}
		synctest.Wait()
		before := p.recvs.Load()
		time.Sleep(24 * time.Hour)
		if n := p.recvs.Load() - before; n != 0 {
			t.Errorf("looked at the port %d times in a day", n)
		}
		if c.Info().LID != 4 || c.Caps().Timers {
			t.Errorf("info %+v, caps %+v", c.Info(), c.Caps())
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

// An answer that breaks off a transfer, and one that is only its first packet,
// are told from whole ones.
func TestBrokenTable(t *testing.T) {
	for _, typ := range []uint8{madsa.RMPPAbort, madsa.RMPPStop, madsa.RMPPData} {
		synctest.Test(t, func(t *testing.T) {
			p := newPort(t, func(p *scriptPort, s *sent) error {
				m := reply(s)
				r := madsa.RMPPHeader(m)
				r.SetVersion(madsa.RMPPVersion)
				r.SetType(typ)
				r.SetFlags(madsa.RMPPNoTime, madsa.RMPPActive|madsa.RMPPFirst)
				r.SetStatus(118)
				p.answer(s, time.Millisecond, m)
				return nil
			})
			c := Open(p, activeInfo(), Config{}, nil)
			defer closeAll(t, c, p)
			got := make(chan Result, 1)
			c.Do(&Query{Method: mad.MethodGetTable, Attr: madsa.AttrPathRecord, Tries: 3}, func(r *Result) { got <- *r })
			r := <-got
			if data := typ == madsa.RMPPData; (r.Err == nil) != data || r.Partial != data {
				t.Errorf("type %d: err %v, partial %v", typ, r.Err, r.Partial)
			}
		})
	}
}

// Field case 2: gaps of a flight that nothing answers, its end, and silence
// after it. The same with the kernel's timers.
func TestSilence(t *testing.T) {
	for _, timers := range []bool{false, true} {
		for _, retries := range []int{0, 1, 2, 6} {
			t.Run(fmt.Sprintf("timers=%v/retries=%d", timers, retries), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					p := newPort(t, nil)
					p.caps.Timers = timers
					c := Open(p, activeInfo(), Config{Retries: retries}, nil)
					defer closeAll(t, c, p)
					start := time.Now()
					o := <-ask(t, c, 7)
					if !errors.Is(o.err, ErrTimeout) || o.tries != retries+1 {
						t.Errorf("err %v, %d tries", o.err, o.tries)
					}
					time.Sleep(time.Minute)
					checkGaps(t, p.sends(), retries+1)
					life := o.at.Sub(start)
					var sum time.Duration
					for n, g := 0, MinGap; n <= retries; n, g = n+1, min(2*g, 2*time.Second) {
						sum += g
					}
					if life < sum || life > sum*5/4+100*time.Millisecond {
						t.Errorf("flight lived %v, want %v and up to a quarter more", life, sum)
					}
					if s := c.Stats(); s.Timeouts != uint64(retries+1) || s.Sent != uint64(retries+1) || s.Failures != 1 || s.Window != 1 && retries > 1 {
						t.Errorf("stats %+v", s)
					}
				})
			})
		}
	}
}

func checkGaps(t *testing.T, log []sent, n int) {
	t.Helper()
	if len(log) != n {
		t.Fatalf("%d sends, want %d", len(log), n)
	}
	var last time.Duration
	for i := 1; i < n; i++ {
		gap := log[i].at.Sub(log[i-1].at)
		if gap < MinGap || gap < last || gap > 2500*time.Millisecond+10*time.Millisecond {
			t.Errorf("gap %d is %v after %v", i, gap, last)
		}
		if log[i].mad.TID() != log[0].mad.TID() {
			t.Errorf("try %d has TID %v, not %v", i, log[i].mad.TID(), log[0].mad.TID())
		}
		last = gap
	}
}

// Field case 2, second half: 2,000 destinations into silence stay under the
// rate in every second, the window shrinks, and every question ends.
func TestSilenceOfMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPort(t, nil)
		c := Open(p, activeInfo(), Config{Retries: 2, Depth: 512, MaxRate: 100}, nil)
		defer closeAll(t, c, p)
		var outs []<-chan outcome
		for n := range 2000 {
			outs = append(outs, ask(t, c, 100+n))
		}
		start := time.Now()
		for _, ch := range outs {
			if o := <-ch; !errors.Is(o.err, ErrTimeout) {
				t.Fatal(o.err)
			}
		}
		if d := time.Since(start); d > 20*time.Second {
			t.Errorf("the last of 2000 was told after %v", d)
		}
		log := p.sends()
		for i := range log {
			if i >= 100 && log[i].at.Sub(log[i-100].at) < time.Second {
				t.Fatalf("sends %d and %d are %v apart", i-100, i, log[i].at.Sub(log[i-100].at))
			}
		}
		if len(log) < 300 {
			t.Errorf("only %d sends", len(log))
		}
	})
}

// The window opens to 16 while the SA answers, is kept full, and is never
// exceeded. Field case 1: as many Gets as questions.
func TestWindow(t *testing.T) {
	for _, depth := range []int{1, 5, 64} {
		t.Run(fmt.Sprint(depth), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var out, most atomic.Int64
				p := newPort(t, func(p *scriptPort, s *sent) error {
					if n := out.Add(1); n > most.Load() {
						most.Store(n)
					}
					s2 := *s
					time.AfterFunc(50*time.Millisecond, func() {
						out.Add(-1)
						p.answer(&s2, 0, reply(&s2))
					})
					return nil
				})
				c := Open(p, activeInfo(), Config{Depth: depth}, nil)
				defer closeAll(t, c, p)
				start := time.Now()
				var outs []<-chan outcome
				for n := range 1000 {
					outs = append(outs, ask(t, c, 100+n))
				}
				for n, ch := range outs {
					if o := <-ch; o.err != nil || o.path.DGID() != gid(100+n) || o.tries != 1 {
						t.Fatalf("%d: %v", n, o)
					}
				}
				want := int64(depth)
				if depth == 1 {
					want = AutoWindow
				}
				if most.Load() != want {
					t.Errorf("at most %d outstanding, want %d", most.Load(), want)
				}
				ideal := time.Duration(1000/want+1) * 50 * time.Millisecond
				if d := time.Since(start); d > ideal+200*time.Millisecond {
					t.Errorf("took %v, a full window takes %v", d, ideal)
				}
				if n := len(p.sends()); n != 1000 {
					t.Errorf("%d sends", n)
				}
			})
		})
	}
}

// Field case 26: BUSY, BUSY, "no records", then the path.
func TestBusyThenPath(t *testing.T) {
	for _, timers := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			n := 0
			p := newPort(t, func(p *scriptPort, s *sent) error {
				script := []mad.Status{mad.StatusBusy, mad.StatusBusy | 0x0300, 0x0300, 0}
				m := reply(s)
				m.SetStatus(script[n])
				p.answer(s, time.Millisecond, m)
				p.answer(s, 2*time.Millisecond, m) // duplicates change nothing
				n++
				return nil
			})
			p.caps.Timers = timers
			c := Open(p, activeInfo(), Config{Retries: 2, RetryNoRecords: 2}, nil)
			defer closeAll(t, c, p)
			o := <-ask(t, c, 9)
			if o.err != nil || o.tries != 4 {
				t.Errorf("%v after %d tries", o.err, o.tries)
			}
			log := p.sends()
			for i := 1; i < len(log); i++ {
				if gap := log[i].at.Sub(log[i-1].at); gap < MinGap {
					t.Errorf("gap %v", gap)
				}
			}
			if s := c.Stats(); s.Busy != 2 || s.NoRecords != 1 || s.Timeouts != 0 {
				t.Errorf("%+v", s)
			}
		})
	}
}

// Refusals end a flight with their status and the record; those that may be
// otherwise soon are asked again while the flight lives.
func TestStatus(t *testing.T) {
	for _, tt := range []struct {
		st    mad.Status
		cfg   Config
		tries int
		is    error
		text  string
	}{
		{0x0300, Config{Retries: 2}, 1, ErrNoRecords, "no records"},
		{0x0300, Config{Retries: 2, RetryNoRecords: 2}, 3, ErrNoRecords, "no records"},
		{0x0300, Config{RetryNoRecords: 30}, 1, ErrNoRecords, "no records"},
		{0x0001, Config{Retries: 2}, 3, ErrBusy, "busy"},
		{0x0301, Config{Retries: 2}, 3, ErrBusy, "busy"},
		{0x0002, Config{Retries: 2}, 1, nil, "redirect"},
		{0x0004, Config{Retries: 2}, 1, nil, "version"},
		{0x001c, Config{Retries: 2}, 1, nil, "invalid field"},
		{0x0200, Config{Retries: 2}, 1, nil, "request invalid"},
		{0x0600, Config{Retries: 2}, 1, nil, "insufficient components"},
		{0x7700, Config{Retries: 2}, 1, nil, "0x7700"},
		{0x0020, Config{Retries: 2}, 1, nil, "0x0020"},
	} {
		t.Run(fmt.Sprintf("%#04x", uint16(tt.st)), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPort(t, func(p *scriptPort, s *sent) error { p.answer(s, time.Millisecond, status(s, tt.st)); return nil })
				c := Open(p, activeInfo(), tt.cfg, nil)
				defer closeAll(t, c, p)
				o := <-ask(t, c, 9)
				var se *StatusError
				if !errors.As(o.err, &se) || se.Status != tt.st || !strings.Contains(o.err.Error(), tt.text) {
					t.Errorf("err %v", o.err)
				}
				if tt.is != nil && !errors.Is(o.err, tt.is) || errors.Is(o.err, ErrTimeout) {
					t.Errorf("err %v is not %v", o.err, tt.is)
				}
				if o.tries != tt.tries || o.path.DGID() != gid(9) {
					t.Errorf("%d tries, path %x", o.tries, o.path)
				}
			})
		})
	}
}

// A node without an SA answers 0x000C: as good as silence, and the LID is in
// doubt at once.
func TestNoSA(t *testing.T) {
	for _, timers := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			p := newPort(t, func(p *scriptPort, s *sent) error {
				m := reply(s)
				if s.hdr.LID() == 1 {
					m.SetStatus(0x000c)
				}
				p.answer(s, time.Millisecond, m)
				return nil
			})
			p.caps.Timers = timers
			var c *Client
			c = Open(p, activeInfo(), Config{Retries: 2}, nil)
			defer func() { closeAll(t, c, p) }()
			if o := <-ask(t, c, 9); !errors.Is(o.err, ErrTimeout) || !errors.Is(o.err, ErrNoSA) || o.tries != 3 {
				t.Errorf("%v after %d tries", o.err, o.tries)
			}
			closeAll(t, c, p)

			p2 := newPort(t, p.script)
			p2.caps.Timers = timers
			ready := make(chan struct{})
			c, p = Open(p2, activeInfo(), Config{Retries: 2, Suspect: func() {
				<-ready
				info := activeInfo()
				info.SMLID = 12
				c.Update(info)
			}}, nil), p2
			close(ready)
			if o := <-ask(t, c, 9); o.err != nil || o.tries != 2 {
				t.Errorf("%v after %d tries", o.err, o.tries)
			}
			p = p2
		})
	}
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

// Update while questions are on the wire: they are asked at the new place soon,
// queued ones go there, and an answer that the old SM still sends counts.
func TestUpdateRetargets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPort(t, func(p *scriptPort, s *sent) error {
			if s.hdr.LID() == 9 {
				p.answer(s, time.Millisecond, reply(s))
			}
			return nil
		})
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
		if s := c.Stats(); s.Timeouts != 0 || s.Sent != 16 {
			t.Errorf("%+v", s)
		}
	})
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

// The queue is bounded, and a bound that was hit is refused before Path returns.
func TestQueueFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPort(t, nil)
		c := Open(p, activeInfo(), Config{Queue: 10}, nil)
		defer closeAll(t, c, p)
		for n := range 10 {
			ask(t, c, n)
		}
		ch := ask(t, c, 9)
		if len(ch) != 1 {
			t.Fatal("not refused at once")
		}
		if o := <-ch; !errors.Is(o.err, ErrQueueFull) {
			t.Error(o.err)
		}
		if s := c.Stats(); s.Refused != 1 || s.Queries != 10 {
			t.Errorf("%+v", s)
		}
	})
}

// Close calls every pending callback once, with an error, before it returns;
// callbacks that ask again are refused and do not keep it.
func TestCloseWhilePending(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPort(t, nil)
		c := Open(p, activeInfo(), Config{}, nil)
		var called, again int
		for n := range 100 {
			mask, rec := question(n)
			c.Path(mask, rec, func(r *Result) {
				called++
				if !errors.Is(r.Err, ErrClosed) {
					t.Error(r.Err)
				}
				c.Path(mask, rec, func(r *Result) {
					again++
					if !errors.Is(r.Err, ErrClosed) {
						t.Error(r.Err)
					}
				})
			})
			if n == 50 {
				synctest.Wait()
			}
		}
		closeAll(t, c, p)
		c.Close()
		if called != 100 || again != 100 {
			t.Errorf("%d of 100 called, %d of 100 asked again", called, again)
		}
	})
}

// Do carries any method; tables arrive whole. Malformed queries are refused.
func TestDo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		long := make([]byte, madsa.DataOffset+64*10)
		p := newPort(t, func(p *scriptPort, s *sent) error {
			m := reply(s)
			msg := &message{hdr: s.hdr, mad: m[:]}
			if m.Method() == mad.MethodTableResp {
				copy(long, m[:madsa.DataOffset])
				long[45] = 8
				msg.long = long
				msg.hdr.SetLength(uint32(mad.UserHeaderSize + len(long)))
			} else {
				msg.hdr.SetLength(mad.UserHeaderSize + madsa.DataOffset + 36)
			}
			p.deliver(time.Millisecond, msg)
			return nil
		})
		c := Open(p, activeInfo(), Config{}, nil)
		defer closeAll(t, c, p)
		got := make(chan int, 1)
		c.Do(&Query{Method: mad.MethodGetTable, Attr: madsa.AttrPathRecord, Data: make([]byte, 64), Gap: 5 * time.Second}, func(r *Result) {
			n := 0
			for range madsa.Records(r.Message, 64) {
				n++
			}
			if r.Err != nil || r.Partial || len(r.Long) != len(long) {
				t.Errorf("%+v", r)
			}
			got <- n
		})
		if n := <-got; n != 10 {
			t.Errorf("%d records", n)
		}
		if ms := p.sends()[0].hdr.TimeoutMS(); ms < 5000 || ms > 6250 {
			t.Errorf("time-out %d ms", ms)
		}
		for _, method := range []uint8{mad.MethodSet, mad.MethodDelete} {
			c.Do(&Query{Method: method, Attr: madsa.AttrInformInfo, Mod: 0x01020304, Data: []byte{1, 2, 3}}, func(r *Result) {
				if r.Err == nil && r.Packet.AttrMod() != 0x01020304 {
					t.Errorf("modifier %#x", r.Packet.AttrMod())
				}
				got <- len(r.Message)
			})
			if n := <-got; n != madsa.DataOffset+36 {
				t.Errorf("method %#x: message of %d bytes", method, n)
			}
		}
		for _, q := range []*Query{{Method: mad.MethodReport}, {Method: mad.MethodGet, Data: make([]byte, 201)}, {}} {
			c.Do(q, func(r *Result) {
				if !errors.Is(r.Err, ErrQuery) {
					t.Error(r.Err)
				}
				got <- 0
			})
			<-got
		}
	})
}

// Reports and other classes go to their handlers, and Reply answers where they
// came from.
func TestHandleAndReply(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPort(t, nil)
		c := Open(p, activeInfo(), Config{}, nil)
		defer closeAll(t, c, p)
		c.Handle(mad.ClassSA, func(s *ring.Slot) {
			s.MAD().SetMethod(mad.MethodReportResp)
			c.Reply(s)
		})
		var m mad.Packet
		madsa.Init(&m, mad.MethodReport, madsa.AttrNotice, 0)
		m.SetTID(0xdeadbeef00000007)
		msg := &message{mad: m[:]}
		msg.hdr.SetLID(1)
		msg.hdr.SetQPN(1)
		msg.hdr.SetSL(2)
		msg.hdr.SetPKeyIndex(5)
		msg.hdr.SetLength(320)
		p.deliver(0, msg)
		acm := &message{mad: append([]byte{1, mad.ClassACM, 1, 1}, make([]byte, 252)...)}
		p.deliver(0, acm) // nobody takes it
		synctest.Wait()
		log := p.sends()
		if len(log) != 1 {
			t.Fatalf("%d sends", len(log))
		}
		s := log[0]
		if s.mad.Method() != mad.MethodReportResp || s.mad.TID() != 0xdeadbeef00000007 || s.hdr.LID() != 1 || s.hdr.SL() != 2 ||
			s.hdr.PKeyIndex() != 5 || s.hdr.QKey() != mad.WellKnownQKey || s.hdr.TimeoutMS() != 0 || s.hdr.Length() != 0 {
			t.Errorf("reply % x", s.hdr[:])
		}
		if st := c.Stats(); st.Unhandled != 1 || st.Datagrams != 1 {
			t.Errorf("%+v", st)
		}
		c.Handle(mad.ClassSA, nil)
		p.deliver(0, msg)
		synctest.Wait()
		if c.Stats().Unhandled != 2 {
			t.Errorf("%+v", c.Stats())
		}
	})
}

// Timers fire on the owner goroutine, once, and stop when told.
func TestTimers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPort(t, nil)
		c := Open(p, activeInfo(), Config{}, nil)
		defer closeAll(t, c, p)
		var fired [3]time.Duration
		start := time.Now()
		var ts [3]Timer
		for i := range ts {
			ts[i].Fire = func() { fired[i] += time.Since(start) }
		}
		err := c.Post(func() {
			c.Start(&ts[0], 3*time.Second)
			c.Start(&ts[1], time.Second)
			c.Start(&ts[2], 2*time.Second)
			c.Start(&ts[0], 500*time.Millisecond) // moved
			c.Stop(&ts[2])
			c.Stop(&ts[2])
		})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if fired != [3]time.Duration{500 * time.Millisecond, time.Second, 0} {
			t.Errorf("fired at %v", fired)
		}
	})
}
