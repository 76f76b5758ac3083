// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package fabric

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"acmd/mad"
	"acmd/mad/ring"
	"acmd/mad/sa"
)

// sendTimed sends a path query with umad's time-out and retries.
func (c *client) sendTimed(tid mad.TID, ms, retries uint32) error {
	s := c.slot()
	defer s.Release()
	query(c.f, s, tid, byGIDs, c.p.node, 3)
	s.Header().SetTimeoutMS(ms)
	s.Header().SetRetries(retries)
	s.Header().SetAgent(5)
	s.Header().SetLength(77)
	_, err := c.p.Send([]*ring.Slot{s})
	return err
}

// What umad does with a send that gets no answer: status 110, the header as it
// was written, 24 bytes of MAD, and nothing of the rest (field case 31).
func TestKernelTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := build(t, Config{Nodes: 8, KernelTimers: true})
		c := open(t, f, 0)
		drop := f.AddRule(Rule{Do: Drop})
		begin := time.Now()
		if err := c.sendTimed(0x11, 200, 2); err != nil {
			t.Fatal(err)
		}
		if err := c.sendTimed(0x11, 200, 0); !errors.Is(err, errOutstanding) {
			t.Errorf("same TID again: %v", err)
		}
		if err := c.sendTimed(0x7700000011, 200, 0); !errors.Is(err, errOutstanding) {
			t.Errorf("same lower half: %v", err)
		}
		s := c.slot()
		defer s.Release()
		for i := range s.Bytes() {
			s.Bytes()[i] = 0xee
		}
		n, err := c.p.Recv([]*ring.Slot{s}, time.Time{})
		if n != 1 || err != nil || time.Since(begin) != 600*time.Millisecond {
			t.Fatalf("%d, %v after %v", n, err, time.Since(begin))
		}
		h, m := s.Header(), s.MAD()
		if h.Status() != mad.StatusTimeout || h.Length() != 0 || h.TimeoutMS() != 200 || h.Agent() != 5 || h.LID() != f.SMLID() {
			t.Errorf("header %x", h)
		}
		if m.TID() != mad.TID(uint64(c.p.agent)<<32|0x11) || m.Method() != mad.MethodGet || m.AttrID() != sa.AttrPathRecord {
			t.Errorf("MAD header %x", m[:24])
		}
		for i, b := range m[mad.HeaderSize:] {
			if b != 0xee {
				t.Fatalf("byte %d of the MAD was written", i+mad.HeaderSize)
			}
		}
		if drop.Hits() != 3 || f.Stats().Timeouts != 1 {
			t.Errorf("%d tries, %+v", drop.Hits(), f.Stats())
		}
		// Its TID is free again.
		drop.Remove()
		if err := c.sendTimed(0x11, 200, 0); err != nil {
			t.Error(err)
		}
		if g := c.recv(time.Second); g == nil || g.h.Status() != 0 || g.m.TID() != mad.TID(uint64(c.p.agent)<<32|0x11) {
			t.Errorf("%+v", g)
		}
		if g := c.recv(time.Minute); g != nil {
			t.Errorf("after the answer came %x", g.m[:24])
		}
	})
}

// Late, double, wrong and unasked answers do not come through; an answer on the
// second try does.
func TestKernelAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := build(t, Config{Nodes: 8, KernelTimers: true})
		c := open(t, f, 0)
		late := f.AddRule(Rule{Delay: 300 * time.Millisecond})
		c.sendTimed(1, 200, 0)
		if g := c.recv(time.Minute); g == nil || g.h.Status() != mad.StatusTimeout {
			t.Errorf("late answer: %+v", g)
		}
		if g := c.recv(time.Minute); g != nil || f.Stats().Lost[LostUnasked] != 1 {
			t.Errorf("then %+v, %v", g, f.Stats().Lost)
		}
		c.sendTimed(2, 200, 1)
		if g := c.recv(time.Minute); g == nil || g.h.Status() != 0 || g.m.TID().Low() != 2 {
			t.Errorf("answer to the first try during the second: %+v", g)
		}
		if g := c.recv(time.Minute); g != nil {
			t.Errorf("the second answer came, too: %+v", g)
		}
		late.Remove()
		r := f.AddRule(Rule{Copies: 1})
		c.sendTimed(3, 200, 0)
		if c.recv(time.Second) == nil || c.recv(time.Minute) != nil {
			t.Error("double answer")
		}
		r.Remove()
		r = f.AddRule(Rule{Do: OtherTID})
		c.sendTimed(4, 200, 0)
		if g := c.recv(time.Minute); g == nil || g.h.Status() != mad.StatusTimeout || g.m.TID().Low() != 4 {
			t.Errorf("wrong TID: %+v", g)
		}
		r.Remove()
		c.sendTimed(5, 0, 0)
		if g := c.recv(time.Minute); g != nil {
			t.Errorf("answer to a send without time-out: %+v", g)
		}
		// An answer with the right lower half and another agent's upper half.
		r = f.AddRule(Rule{Do: Drop})
		c.sendTimed(7, 200, 0)
		r.Remove()
		var forged mad.Packet
		sa.Init(&forged, mad.MethodGetResp, sa.AttrPathRecord, 0)
		forged.SetTID(mad.TID(uint64(c.p.agent+1)<<32 | 7))
		if err := f.Unicast(3, 1, f.LID(0, 1), mad.QP1, &forged); err != nil {
			t.Error(err)
		}
		if g := c.recv(time.Minute); g == nil || g.h.Status() != mad.StatusTimeout {
			t.Errorf("answer to another agent: %+v", g)
		}
		r = f.AddRule(Rule{Do: Drop, Count: 1})
		c.sendTimed(6, 200, 1)
		if g := c.recv(time.Minute); g == nil || g.h.Status() != 0 || r.Hits() != 1 {
			t.Errorf("second try: %+v", g)
		}
	})
}

// Outstanding requests are bounded, and closing ends their timers.
func TestKernelOutstanding(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := build(t, Config{Nodes: 8, KernelTimers: true, Queue: 100})
		c := open(t, f, 0)
		f.AddRule(Rule{Do: Drop})
		for i := range 100 {
			if err := c.sendTimed(mad.TID(i), uint32(1000+i), 0); err != nil {
				t.Fatal(err)
			}
		}
		if err := c.sendTimed(1000, 10, 0); err == nil {
			t.Error("request 101 was taken")
		}
		for i := range 60 {
			if g := c.recv(time.Minute); g == nil || g.m.TID().Low() != uint32(i) {
				t.Fatalf("time-out %d: %+v", i, g)
			}
		}
		if err := c.p.Close(); err != nil {
			t.Error(err)
		}
	})
}

// Without kernel timers nothing comes back and a TID may be used again.
func TestNoTimers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := build(t, Config{Nodes: 8})
		c := open(t, f, 0)
		r := f.AddRule(Rule{Do: Drop})
		for range 2 {
			if err := c.sendTimed(1, 100, 1); err != nil {
				t.Fatal(err)
			}
		}
		if g := c.recv(time.Minute); g != nil || r.Hits() != 2 {
			t.Errorf("%+v, %d tries", g, r.Hits())
		}
		r.Remove()
		c.sendTimed(0x7700000001, 100, 0)
		if g := c.recv(0); g == nil || g.m.TID() != 0x7700000001 {
			t.Errorf("TID was changed: %+v", g)
		}
	})
}

// Requests that are answered leave nothing behind, however long their time-out;
// what waits still ends in order.
func TestKernelAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := build(t, Config{Nodes: 8, KernelTimers: true})
		c := open(t, f, 0)
		drop := f.AddRule(Rule{Do: Drop})
		for i := range 100 {
			c.sendTimed(mad.TID(1+i), uint32(60000+100*(i*37%100)), 0)
		}
		drop.Remove()
		for i := range 5000 {
			c.sendTimed(mad.TID(1000+i), 50000, 0)
			if g := c.recv(0); g == nil || g.h.Status() != 0 {
				t.Fatalf("request %d: %+v", i, g)
			}
		}
		if n := len(c.p.in.late.heap); n > 2*100+compactFrom {
			t.Errorf("%d entries for 100 outstanding requests", n)
		}
		begin, last := time.Now(), time.Duration(0)
		for i := range 100 {
			g := c.recv(time.Hour)
			if g == nil || g.h.Status() != mad.StatusTimeout || time.Since(begin) < last {
				t.Fatalf("time-out %d: %+v", i, g)
			}
			last = time.Since(begin)
		}
		if g := c.recv(time.Hour); g != nil || last != 69900*time.Millisecond {
			t.Errorf("after %v %+v", last, g)
		}
	})
}
