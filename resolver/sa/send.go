// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package sa

import (
	"fmt"
	"time"

	"acmd/mad"
	"acmd/mad/ring"
	madsa "acmd/mad/sa"
)

// fill sends tries that are due and lets the queue into the window.
func (c *Client) fill() {
	for c.free() {
		f := c.retry.pop()
		if f == nil {
			if c.seated >= c.window {
				return
			}
			if f = c.queue.pop(); f == nil {
				return
			}
			c.seat(f)
		} else if c.returned(f) {
			continue
		}
		c.try(f)
	}
}

// returned puts a flight back on the wire whose next try was due because the SM had
// moved, if that is back where the last try went before the rate let the next one go:
// two copies would reach it within the gap. The kernel holds none, so the TID is the
// same.
func (c *Client) returned(f *flight) bool {
	if c.caps.Timers || f.lid != c.cur.SMLID || c.now >= f.sent+f.gap {
		return false
	}
	f.state = stateWire
	c.timers.set(&f.timer, f.overdue())
	return true
}

// free reports whether hold and rate let a try go.
func (c *Client) free() bool { return c.now >= c.hold && c.now >= c.limit.ready() }

// open reports whether the next of the queue can be sent.
func (c *Client) open() bool { return c.free() && c.seated < c.window }

// seat lets f into the window.
func (c *Client) seat(f *flight) {
	if c.seated == 0 {
		c.owing = c.now
	}
	f.seated = true
	c.seated++
	c.count.outstanding.Store(int64(c.seated))
	if f.tid == 0 {
		f.tid = c.newTID()
		c.byTID[f.tid] = f
		f.end = c.now + f.life()
	}
}

func (c *Client) unseat(f *flight) {
	if f.seated {
		f.seated = false
		c.seated--
		c.count.outstanding.Store(int64(c.seated))
	}
}

// newTID draws a TID that no flight in hand has. 0 is what an uninitialised
// packet carries.
func (c *Client) newTID() uint32 {
	for {
		t := c.rnd.Uint32()
		if t != 0 && c.byTID[t] == nil {
			return t
		}
	}
}

// try puts the next copy of f into the batch and arms its timer. Without an SM
// the try is spent in silence: the SM may be back for the next one. A kernel that
// has timers tells when the time is over, and takes no second copy before.
func (c *Client) try(f *flight) {
	f.state = stateWire
	f.gap = f.interval(f.silent)
	f.sent = c.now
	f.held = c.caps.Timers && c.reachable()
	c.timers.set(&f.timer, f.overdue())
	if !c.reachable() {
		f.lid = 0
		f.err = c.noSM()
		return
	}
	f.lid = c.cur.SMLID
	f.tries++
	c.count.sent.Add(1)
	if f.tries > 1 {
		c.count.retries.Add(1)
	}
	c.limit.note(c.now)
	s := c.slot(f)
	h, m := s.Header(), s.MAD()
	c.address(h)
	h.SetTimeoutMS(uint32((f.gap + int64(time.Millisecond) - 1) / int64(time.Millisecond)))
	madsa.Init(m, f.method, f.attr, f.mask)
	m.SetAttrMod(f.mod)
	m.SetTID(mad.TID(f.tid))
	copy(m[madsa.DataOffset:], f.data[:f.size])
}

// address names the SA as the destination.
func (c *Client) address(h *mad.UserHeader) {
	h.SetLID(c.cur.SMLID)
	h.SetSL(c.cur.SMSL)
	h.SetQPN(mad.QP1)
	h.SetQKey(mad.WellKnownQKey)
	h.SetPKeyIndex(c.pkey)
}

// slot returns the next send slot, header cleared.
func (c *Client) slot(f *flight) *ring.Slot {
	if c.nout == len(c.out) {
		c.flush()
	}
	s := c.out[c.nout]
	c.outWhose[c.nout] = f
	c.nout++
	*s.Header() = mad.UserHeader{}
	return s
}

// flush hands the batch to the transport. A refused packet loses its try, no
// more: the rest is sent, and the flight's timer goes on.
func (c *Client) flush() {
	rest, whose := c.out[:c.nout], c.outWhose[:c.nout]
	c.nout = 0
	for len(rest) > 0 && c.dead == nil {
		c.tellAsked(whose)
		n, err := c.send(rest)
		if n == len(rest) {
			return
		}
		if err == nil {
			err = fmt.Errorf("transport took %d of %d", n, len(rest))
		}
		if isGone(err) {
			c.dead = goneError(err)
			return
		}
		c.count.sendErrors.Add(1)
		c.warn("send", "send", err)
		if f := whose[n]; f != nil {
			f.err = fmt.Errorf("send: %w", err)
			f.held = false
			c.timers.set(&f.timer, f.overdue())
		}
		rest, whose = rest[n+1:], whose[n+1:]
	}
}

func (c *Client) tellAsked(whose []*flight) {
	if c.cfg.Asked == nil {
		return
	}
	for _, f := range whose {
		if f != nil {
			c.cfg.Asked(f.tid)
		}
	}
}

// SendTo puts one packet of any class into this turn's batch. h names the
// destination (LID, SL, QPN, Q_Key, P_Key index, GRH) and the time-out that the
// kernel is to keep, 0 for what expects no answer; both are copied. Owner
// goroutine only. Refusals are counted and logged.
func (c *Client) SendTo(h *mad.UserHeader, m *mad.Packet) {
	if c.out == nil {
		return // closing
	}
	s := c.slot(nil)
	*s.Header(), *s.MAD() = *h, *m
	c.count.datagrams.Add(1)
}

// Reply sends the MAD of a received slot, as the caller has changed it, back to
// where it came from. Owner goroutine only, during the handler's call.
func (c *Client) Reply(s *ring.Slot) {
	h := *s.Header()
	h.SetStatus(0)
	h.SetTimeoutMS(0)
	h.SetRetries(0)
	h.SetLength(0)
	h.SetQKey(mad.WellKnownQKey)
	c.SendTo(&h, s.MAD())
}
