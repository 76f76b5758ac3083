// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package sa

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"acmd/mad"
	madsa "acmd/mad/sa"
	"acmd/mad/transport"

	"pgregory.net/rapid"
)

// wrong lists answers that are none to the question they carry the TID of.
var wrong = map[string]func(m *mad.Packet, hdr *mad.UserHeader){
	"dgid":          func(m *mad.Packet, _ *mad.UserHeader) { madsa.Path(m).SetDGID(gid(0xbad)) },
	"sgid":          func(m *mad.Packet, _ *mad.UserHeader) { madsa.Path(m).SetSGID(gid(0xbad)) },
	"dlid":          func(m *mad.Packet, _ *mad.UserHeader) { madsa.Path(m).SetDLID(0x0bad) },
	"slid":          func(m *mad.Packet, _ *mad.UserHeader) { madsa.Path(m).SetSLID(0x0bad) },
	"pkey":          func(m *mad.Packet, _ *mad.UserHeader) { madsa.Path(m).SetPKey(0x8bad) },
	"attribute":     func(m *mad.Packet, _ *mad.UserHeader) { m.SetAttrID(madsa.AttrMCMemberRecord) },
	"method":        func(m *mad.Packet, _ *mad.UserHeader) { m.SetMethod(mad.MethodTableResp) },
	"tid":           func(m *mad.Packet, _ *mad.UserHeader) { m.SetTID(m.TID() ^ 1) },
	"base version":  func(m *mad.Packet, _ *mad.UserHeader) { m[0] = 2 },
	"class version": func(m *mad.Packet, _ *mad.UserHeader) { m[2] = 1 },
	"class":         func(m *mad.Packet, _ *mad.UserHeader) { m[1] = mad.ClassPerf },
	"request":       func(m *mad.Packet, _ *mad.UserHeader) { m.SetMethod(mad.MethodGet) },
	"short":         func(_ *mad.Packet, h *mad.UserHeader) { h.SetLength(64 + 56 + 63) },
	"no header":     func(_ *mad.Packet, h *mad.UserHeader) { h.SetLength(64 + 24) },
}

// fullQuestion constrains everything that an answer is compared with.
func fullQuestion(n int) (madsa.ComponentMask, *madsa.PathRecord) {
	mask, r := question(n)
	r.SetDLID(mad.LID(n))
	r.SetSLID(4)
	return mask | madsa.PathDLID | madsa.PathSLID, r
}

// A wrong answer is dropped and counted, and the right one, later or after the
// next try, is taken.
func TestWrongAnswers(t *testing.T) {
	for name, spoil := range wrong {
		for _, timers := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/timers=%v", name, timers), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					n := 0
					p := newPort(t, func(p *scriptPort, s *sent) error {
						m := reply(s)
						msg := &message{hdr: s.hdr, mad: m[:]}
						if n++; n == 1 {
							spoil(m, &msg.hdr)
						}
						p.deliver(time.Millisecond, msg)
						return nil
					})
					p.caps.Timers = timers
					c := Open(p, activeInfo(), Config{Retries: 2}, nil)
					defer closeAll(t, c, p)
					mask, rec := fullQuestion(9)
					done := make(chan Result, 1)
					c.Path(mask, rec, func(r *Result) { done <- *r })
					if r := <-done; r.Err != nil || r.Tries != 2 {
						t.Errorf("%v after %d tries", r.Err, r.Tries)
					}
					log := p.sends()
					if gap := log[1].at.Sub(log[0].at); gap < MinGap || gap > 1100*time.Millisecond {
						t.Errorf("gap %v", gap)
					}
					st := c.Stats()
					dropped := st.Mismatched + st.Stray + st.Malformed + st.Unhandled
					if timers && (name == "tid" || name == "class") {
						return // the kernel drops these already
					}
					if dropped != 1 {
						t.Errorf("%+v", st)
					}
				})
			})
		}
	}
}

// The membership bit of a P_Key is not part of the question. Field case 5.
func TestLimitedMemberAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPort(t, func(p *scriptPort, s *sent) error {
			m := reply(s)
			madsa.Path(m).SetPKey(0x7fff)
			p.answer(s, time.Millisecond, m)
			return nil
		})
		c := Open(p, activeInfo(), Config{}, nil)
		defer closeAll(t, c, p)
		if o := <-ask(t, c, 9); o.err != nil || o.path.PKey() != 0x7fff {
			t.Errorf("%v", o)
		}
	})
}

// A late answer to a flight that waits for its next try ends it; duplicates and
// answers after the end change nothing.
func TestLateAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		p := newPort(t, func(p *scriptPort, s *sent) error {
			switch n++; n {
			case 1: // refused for now; the path comes while the client waits
				p.answer(s, time.Millisecond, status(s, 0x0300))
				p.answer(s, 100*time.Millisecond, reply(s))
				p.answer(s, 101*time.Millisecond, reply(s))
			case 2: // the answer comes after the flight's end
				p.answer(s, time.Minute, reply(s))
			}
			return nil
		})
		c := Open(p, activeInfo(), Config{Retries: 2, RetryNoRecords: 2}, nil)
		defer closeAll(t, c, p)
		if o := <-ask(t, c, 9); o.err != nil || o.tries != 1 {
			t.Errorf("%v", o)
		}
		if o := <-ask(t, c, 10); !errors.Is(o.err, ErrTimeout) {
			t.Errorf("%v", o)
		}
		time.Sleep(2 * time.Minute)
		if st := c.Stats(); st.Stray != 2 || st.Outstanding != 0 {
			t.Errorf("%+v", st)
		}
	})
}

// A late answer can find its flight in the retry list (held back by the rate)
// or in the queue (no seat free); the lists must survive it.
func TestAnswerWhileListed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		p := newPort(t, func(p *scriptPort, s *sent) error {
			n++
			if n <= 3 {
				p.answer(s, 900*time.Millisecond, reply(s)) // after the time-out, before the rate allows more
			} else {
				p.answer(s, time.Millisecond, reply(s))
			}
			return nil
		})
		c := Open(p, activeInfo(), Config{Retries: 2, Depth: 3, MaxRate: 3}, nil)
		defer closeAll(t, c, p)
		var outs []<-chan outcome
		for i := range 9 {
			outs = append(outs, ask(t, c, 100+i))
		}
		for i, ch := range outs {
			if o := <-ch; o.err != nil || o.tries != 1 || o.path.DGID() != gid(100+i) {
				t.Errorf("%d: %v", i, o)
			}
		}
	})
	synctest.Test(t, func(t *testing.T) {
		n := 0
		p := newPort(t, func(p *scriptPort, s *sent) error {
			switch n++; n {
			case 1:
				p.answer(s, time.Millisecond, status(s, 0x0300)) // leaves its seat to the second
				p.answer(s, time.Second, reply(s))
			case 2:
				p.answer(s, 1500*time.Millisecond, reply(s)) // keeps it meanwhile
			default:
				p.answer(s, time.Millisecond, reply(s))
			}
			return nil
		})
		c := Open(p, activeInfo(), Config{Retries: 4, Depth: 2, RetryNoRecords: 2}, nil)
		if err := c.Post(func() { c.cfg.Depth, c.window = 2, 1 }); err != nil { // a fixed window of one
			t.Fatal(err)
		}
		defer closeAll(t, c, p)
		outs := []<-chan outcome{ask(t, c, 9), ask(t, c, 10), ask(t, c, 11)}
		for i, ch := range outs {
			if o := <-ch; o.err != nil || o.path.DGID() != gid(9+i) {
				t.Errorf("%d: %v", i, o)
			}
		}
	})
}

// Field case 31: a send that comes back with an error ends that try and no
// other; foreign read-backs change nothing.
func TestHandBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPort(t, func(p *scriptPort, s *sent) error {
			if madsa.Path(&s.mad).DGID() == gid(9) {
				for _, tid := range []mad.TID{s.mad.TID(), s.mad.TID() + 1, 0} {
					m := s.mad
					m.SetTID(tid)
					back := &message{hdr: s.hdr, mad: slices.Clone(m[:mad.HeaderSize])}
					back.hdr.SetStatus(uint32(syscall.EHOSTUNREACH))
					p.deliver(10*time.Millisecond, back)
				}
				return nil
			}
			p.answer(s, 20*time.Millisecond, reply(s))
			return nil
		})
		c := Open(p, activeInfo(), Config{Retries: 1, Depth: 4}, nil)
		defer closeAll(t, c, p)
		bad, good := ask(t, c, 9), ask(t, c, 10)
		if o := <-good; o.err != nil {
			t.Error(o.err)
		}
		if o := <-bad; !errors.Is(o.err, ErrTimeout) || !errors.Is(o.err, syscall.EHOSTUNREACH) || o.tries != 2 {
			t.Errorf("%v", o)
		}
	})
}

// Whatever the far end does, every callback runs exactly once and no record is
// reported that does not match its question.
func TestRandomFaults(t *testing.T) {
	names := make([]string, 0, len(wrong))
	for n := range wrong {
		names = append(names, n)
	}
	slices.Sort(names)
	rapid.Check(t, func(rt *rapid.T) {
		seed := rapid.Uint64().Draw(rt, "seed")
		cfg := Config{
			Retries:        rapid.IntRange(0, 3).Draw(rt, "retries"),
			Depth:          rapid.SampledFrom([]int{0, 2, 7, 64}).Draw(rt, "depth"),
			RetryNoRecords: rapid.IntRange(0, 2).Draw(rt, "norecords"),
			MaxRate:        rapid.SampledFrom([]int{0, 0, 20}).Draw(rt, "rate"),
			Queue:          rapid.SampledFrom([]int{0, 30}).Draw(rt, "queue"),
		}
		timers := rapid.Bool().Draw(rt, "timers")
		questions := rapid.IntRange(1, 60).Draw(rt, "questions")
		moves := rapid.IntRange(0, 4).Draw(rt, "moves")
		closeAfter := time.Duration(rapid.SampledFrom([]int{0, 300, 2000, 60000}).Draw(rt, "close")) * time.Millisecond
		var report error
		var mu sync.Mutex
		bad := func(format string, a ...any) {
			mu.Lock()
			defer mu.Unlock()
			if report == nil {
				report = fmt.Errorf(format, a...)
			}
		}
		synctest.Test(t, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 1))
			p := newPort(t, func(p *scriptPort, s *sent) error { return misbehave(p, s, rnd, names) })
			p.caps.Timers = timers
			var c *Client
			ready := make(chan struct{})
			cfg.Suspect = func() {
				<-ready
				if rnd.IntN(2) == 0 {
					c.Update(randomInfo(rnd))
				}
			}
			c = Open(p, activeInfo(), cfg, nil)
			close(ready)
			calls := make([]int, questions)
			for i := range questions {
				mask, rec := fullQuestion(100 + i)
				c.Path(mask, rec, func(r *Result) {
					mu.Lock()
					calls[i]++
					mu.Unlock()
					if r.Err == nil && (r.Path().DGID() != rec.DGID() || r.Path().DLID() != rec.DLID() ||
						r.Path().SGID() != rec.SGID() || r.Path().SLID() != rec.SLID() || !r.Path().PKey().Matches(rec.PKey())) {
						bad("question %d was answered %x", i, *r.Path())
					}
				})
			}
			moveRnd := rand.New(rand.NewPCG(seed, 2))
			for range moves {
				time.Sleep(time.Duration(moveRnd.IntN(1000)) * time.Millisecond)
				c.Update(randomInfo(moveRnd))
			}
			time.Sleep(closeAfter)
			synctest.Wait()
			if closeAfter == time.Minute {
				for i, n := range calls {
					if n != 1 {
						bad("question %d: %d callbacks a minute later", i, n)
					}
				}
				if st := c.Stats(); st.Outstanding != 0 || st.Queued != 0 || len(c.byTID) != 0 || len(c.timers) != 0 || c.retry.n+c.queue.n != 0 {
					bad("left: %+v, %d TIDs, %d timers", st, len(c.byTID), len(c.timers))
				}
			}
			closeAll(t, c, p)
			for i, n := range calls {
				if n != 1 {
					bad("question %d: %d callbacks", i, n)
				}
			}
			checkRetries(p.sends(), bad)
			time.Sleep(10 * time.Second) // let late deliveries of the script run out
		})
		if report != nil {
			rt.Fatal(report)
		}
	})
}

// checkRetries holds for every script: no copy sooner than MinGap after the last
// one to the same LID.
func checkRetries(log []sent, bad func(string, ...any)) {
	type key struct {
		tid uint32
		lid mad.LID
	}
	last := map[key]time.Time{}
	for _, s := range log {
		k := key{s.mad.TID().Low(), s.hdr.LID()}
		if at, ok := last[k]; ok && s.at.Sub(at) < MinGap {
			bad("TID %v: two copies to LID %d within %v", s.mad.TID(), s.hdr.LID(), s.at.Sub(at))
		}
		last[k] = s.at
	}
}

func randomInfo(rnd *rand.Rand) (info transport.PortInfo) {
	info = activeInfo()
	info.SMLID = mad.LID(rnd.IntN(4)) // sometimes none
	if rnd.IntN(6) == 0 {
		info.State = mad.PortArmed
	}
	return info
}

// misbehave plays a random fault for one send.
func misbehave(p *scriptPort, s *sent, rnd *rand.Rand, names []string) error {
	delay := time.Duration(rnd.IntN(3)*rnd.IntN(900)) * time.Millisecond
	right := reply(s)
	switch rnd.IntN(9) {
	case 0: // silence
	case 1:
		p.answer(s, delay, status(s, mad.StatusBusy))
	case 2:
		p.answer(s, delay, status(s, []mad.Status{0x0300, 0x0200, 0x0002, 0x000c, 0x0301}[rnd.IntN(5)]))
	case 3, 4:
		msg := &message{hdr: s.hdr, mad: right[:]}
		wrong[names[rnd.IntN(len(names))]](right, &msg.hdr)
		p.deliver(delay, msg)
	case 5:
		p.answer(s, delay, right)
		p.answer(s, delay+time.Duration(rnd.IntN(600))*time.Millisecond, right)
	case 6:
		return syscall.ENOBUFS
	default:
		p.answer(s, delay, right)
	}
	return nil
}
