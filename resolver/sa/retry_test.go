// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package sa

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"acmd/mad"
)

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
// doubt at once, so that the next try finds the SM where it is now.
func TestNoSA(t *testing.T) {
	for _, timers := range []bool{false, true} {
		for _, reread := range []bool{false, true} {
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
				ready := make(chan struct{})
				c = Open(p, activeInfo(), Config{Retries: 2, Suspect: func() {
					<-ready
					if reread {
						info := activeInfo()
						info.SMLID = 12
						c.Update(info)
					}
				}}, nil)
				close(ready)
				defer closeAll(t, c, p)
				o := <-ask(t, c, 9)
				if reread && (o.err != nil || o.tries != 2) {
					t.Errorf("%v after %d tries", o.err, o.tries)
				}
				if !reread && (!errors.Is(o.err, ErrTimeout) || !errors.Is(o.err, ErrNoSA) || o.tries != 3) {
					t.Errorf("%v after %d tries", o.err, o.tries)
				}
			})
		}
	}
}
