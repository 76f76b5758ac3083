// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package sa

import (
	"fmt"

	"acmd/mad"
	"acmd/mad/transport"
)

// doubt asks for the port's attributes and gives the answer a moment.
func (c *Client) doubt() {
	c.doubtSubscription()
	if c.cfg.Suspect == nil || c.now < c.suspect {
		return
	}
	c.suspect = c.now + int64(MinGap)
	c.hold = c.now + int64(suspectHold)
	c.count.suspects.Add(1)
	c.cfg.Suspect()
	if info := c.info.Load(); info != c.cur {
		c.retarget(info)
	}
}

// reachable reports whether an SA can be asked at all.
func (c *Client) reachable() bool {
	return c.cur.State == mad.PortActive && c.cur.SMLID.IsUnicast()
}

func (c *Client) noSM() error {
	if c.cur.State != mad.PortActive {
		return fmt.Errorf("%w: port %d is %v", ErrNoSM, c.cur.Num, c.cur.State)
	}
	return fmt.Errorf("%w: port %d has SM LID %d", ErrNoSM, c.cur.Num, c.cur.SMLID)
}

// retarget puts new port attributes in force. What is on the wire to an SM that
// has moved would wait out its gap for nothing; it is asked again at the new
// place, spread, as every other node does the same now.
func (c *Client) retarget(info *transport.PortInfo) {
	old, was := c.cur, c.reachable()
	c.cur, c.pkey = info, info.SAPKeyIndex()
	c.hold = 0
	if !c.reachable() {
		c.unheld(c.now) // the SM drops what a port that went down had
		for f := c.queue.pop(); f != nil; f = c.queue.pop() {
			c.fail(f, c.noSM())
		}
		return
	}
	if !was || old.SMLID != info.SMLID || old.LID != info.LID {
		c.renew(true)
	}
	if old.SMLID == info.SMLID {
		return
	}
	c.inARow = 0
	for _, f := range c.byTID {
		if f.state != stateWire || f.moved || f.early || f.lid == info.SMLID {
			continue // its next try goes to the right place, or it had its chance
		}
		if at := c.now + c.rnd.Int64N(int64(retargetSpread)); at < f.sent+f.gap {
			f.moved = true
			c.timers.set(&f.timer, at)
		}
	}
}

// move makes the next try of a flight due whose SM has moved: once per flight, as
// an SM that wavers must not multiply the load, and not if the SM is back where
// the last try went. While the kernel holds that one under its TID, the flight
// goes on under another.
func (c *Client) move(f *flight) {
	f.moved = false
	if f.lid == c.cur.SMLID {
		c.timers.set(&f.timer, f.overdue())
		return
	}
	f.early = true
	if f.held {
		f.held = false
		delete(c.byTID, f.tid)
		f.tid = c.newTID()
		c.byTID[f.tid] = f
	}
	c.again(f)
}
