// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package sa

import (
	"fmt"
	"syscall"
	"time"

	"acmd/bpf"
	"acmd/mad"
	"acmd/mad/ring"
	madsa "acmd/mad/sa"
)

// dispatch sorts one received message.
func (c *Client) dispatch(s *ring.Slot) {
	h, m := s.Header(), s.MAD()
	if h.Status() != 0 {
		c.handBack(h, m)
		return
	}
	if m.Class() == mad.ClassSA && m.IsResponse() {
		c.answer(s)
		return
	}
	if fn := c.handlers[m.Class()].Load(); fn != nil {
		(*fn)(s)
		return
	}
	c.count.unhandled.Add(1)
}

// handBack takes a send of ours that came back: no answer in time, or it could
// not be delivered. Only the 24 bytes of the MAD header are valid.
func (c *Client) handBack(h *mad.UserHeader, m *mad.Packet) {
	if m.Class() != mad.ClassSA {
		return // ACM requests have timers of their own
	}
	f := c.byTID[m.TID().Low()]
	st := h.Status()
	if f == nil || f.state != stateWire || m.IsResponse() || !f.held && st == mad.StatusTimeout {
		c.count.stray.Add(1)
		return
	}
	f.held = false
	if st != mad.StatusTimeout {
		f.err = fmt.Errorf("send: %w", syscall.Errno(st))
	}
	switch {
	case f.moved: // its timer has the next try
	case c.now < f.overdue():
		c.timers.set(&f.timer, f.overdue())
	default:
		c.timedOut(f)
	}
}

// answer judges a response of the SA class.
func (c *Client) answer(s *ring.Slot) {
	m := s.MAD()
	short := s.Header().Length() != 0 && s.Header().Length() < mad.UserHeaderSize+madsa.DataOffset
	if short || m.BaseVersion() != mad.BaseVersion || m.ClassVersion() != mad.SAClassVersion {
		c.count.malformed.Add(1)
		return
	}
	f := c.byTID[m.TID().Low()]
	if f == nil || f.tries == 0 {
		c.count.stray.Add(1)
		return
	}
	if m.AttrID() != f.attr || m.Method() != responseMethod(f.method) {
		c.mismatch(f)
		return
	}
	switch st := m.Status(); {
	case st == 0:
		if !f.matches(s) {
			c.mismatch(f)
			return
		}
		c.count.ok.Add(1)
		c.alive()
		c.isBack(f)
		c.report(f, s, transferError(m))
	case f.state != stateWire:
		c.count.stray.Add(1) // a second copy of the answer that delayed it, or late
	case st&mad.StatusBusy != 0:
		c.count.busy.Add(1)
		c.inARow = 0
		c.shrink(f.sent)
		f.busy++
		c.later(f, s, f.interval(f.busy-1), true)
	case isNoSA(st):
		c.noSA(f, st)
	case isNoRecords(st):
		c.count.noRecords.Add(1)
		c.alive()
		f.norecs++
		c.later(f, s, f.interval(0), f.norecs <= f.norecsN && !c.isGone(f))
	default:
		c.count.errors.Add(1)
		c.alive()
		c.refused(f, s)
	}
}

// isNoSA reports the status with which a node's kernel answers a class that
// nobody serves there.
func isNoSA(s mad.Status) bool {
	return s&mad.StatusRedirect == 0 && s.InvalidField() == 3
}

// alive notes that the SA answers.
func (c *Client) alive() {
	c.inARow, c.owing = 0, c.now
	c.askIfDoubted()
	if c.auto() && c.window < AutoWindow {
		c.window++
		c.count.window.Store(int64(c.window))
	}
}

// shrink halves the window, once for all that was on the wire together.
func (c *Client) shrink(sent int64) {
	if !c.auto() || sent <= c.shrunk {
		return
	}
	c.shrunk = c.now
	c.window = max(c.window/2, 1)
	c.count.window.Store(int64(c.window))
}

// mismatch drops an answer to something else. It took the kernel's hold off the
// TID, so that the flight's own timer has to do.
func (c *Client) mismatch(f *flight) {
	c.count.mismatched.Add(1)
	c.unhold(f)
}

func (c *Client) unhold(f *flight) {
	if !f.held {
		return
	}
	f.held = false
	if !f.moved {
		c.timers.set(&f.timer, max(f.overdue(), c.now))
	}
}

// noSA: a node answered whose kernel knows no SA. The SM was there once, so its
// LID is doubted, and the try counts as silence.
func (c *Client) noSA(f *flight, st mad.Status) {
	c.count.noSA.Add(1)
	f.err = fmt.Errorf("%w %d: %w", ErrNoSA, f.lid, &StatusError{st})
	c.unhold(f)
	c.doubt()
}

// later puts a flight off after an answer that may be different soon, or reports
// that answer when there is no time left. BUSY keeps its place in the window.
func (c *Client) later(f *flight, s *ring.Slot, delay int64, again bool) {
	at := max(c.now+delay, f.sent+int64(MinGap))
	if !again || at >= f.end {
		c.refused(f, s)
		return
	}
	if s.MAD().Status()&mad.StatusBusy == 0 {
		c.unseat(f)
	}
	f.state, f.held, f.moved = stateDelayed, false, false
	f.err = &StatusError{s.MAD().Status()}
	c.timers.set(&f.timer, at)
}

// matches reports whether a successful answer is one to this question: a path
// must have every identifier that the question named.
func (f *flight) matches(s *ring.Slot) bool {
	if f.attr != madsa.AttrPathRecord || f.method != mad.MethodGet {
		return true
	}
	if len(madsa.Message(s.Header(), s.MAD(), s.Long())) < madsa.DataOffset+len(madsa.PathRecord{}) {
		return false
	}
	asked, got := (*madsa.PathRecord)(f.data[:64]), madsa.Path(s.MAD())
	on := func(b madsa.ComponentMask) bool { return f.mask&b != 0 }
	return !(on(madsa.PathDGID) && asked.DGID() != got.DGID() ||
		on(madsa.PathSGID) && asked.SGID() != got.SGID() ||
		on(madsa.PathDLID) && asked.DLID() != got.DLID() ||
		on(madsa.PathSLID) && asked.SLID() != got.SLID() ||
		on(madsa.PathPKey) && !asked.PKey().Matches(got.PKey()))
}

// transferError is the error of an answer that is not data but the end of an
// RMPP transfer.
func transferError(m *mad.Packet) error {
	r := madsa.RMPPHeader(m)
	if r.IsActive() && (r.Type() == madsa.RMPPStop || r.Type() == madsa.RMPPAbort) {
		return fmt.Errorf("SA broke off the transfer: RMPP type %d status %d", r.Type(), r.Status())
	}
	return nil
}

// refused ends a flight with the status of its answer.
func (c *Client) refused(f *flight, s *ring.Slot) {
	c.report(f, s, &StatusError{s.MAD().Status()})
}

// report ends a flight with an answer.
func (c *Client) report(f *flight, s *ring.Slot, err error) {
	c.count.answers.Add(1)
	c.cfg.Counters.Observe(bpf.LatSA, c.now-f.sent)
	if err != nil {
		c.count.failures.Add(1)
	}
	m := s.MAD()
	r := madsa.RMPPHeader(m)
	whole := madsa.Message(s.Header(), m, s.Long())
	c.result = Result{
		Err: err, Packet: m, Message: whole, Long: s.Long(),
		// Where no kernel writes the RMPP header (ibsim) the flag for the last
		// packet is never set; a packet that is not full is the last, too.
		Partial: err == nil && r.IsActive() && r.Flags()&madsa.RMPPLast == 0 && len(whole) == mad.PacketSize,
		Tries:   f.tries, RTT: time.Duration(c.now - f.sent),
	}
	c.finish(f)
}

// fail ends a flight without an answer.
func (c *Client) fail(f *flight, err error) {
	c.count.failures.Add(1)
	c.result = Result{Err: err, Tries: f.tries}
	c.finish(f)
}

// finish takes f out of everything and calls back with c.result.
func (c *Client) finish(f *flight) {
	c.timers.remove(&f.timer)
	c.unseat(f)
	switch { // a late answer finds f in a list
	case f.state == stateRetry:
		c.retry.remove(f)
	case f.state == stateQueued && f.tid != 0:
		c.queue.remove(f)
	}
	if f.tid != 0 {
		delete(c.byTID, f.tid)
	}
	done := f.done
	*f = flight{}
	c.flights.Put(f)
	c.pending.Add(-1)
	done(&c.result)
	c.result = Result{}
}
