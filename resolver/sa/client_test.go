// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package sa

import (
	"bytes"
	"encoding/hex"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"acmd/mad"
	"acmd/mad/ring"
	madsa "acmd/mad/sa"
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
