// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package sa

import (
	"fmt"

	"acmd/mad"
	"acmd/mad/transport"
)

// doubt asks for the port's attributes and gives the answer a moment.
func (c *Client) doubt() {
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
	old := c.cur
	c.cur, c.pkey = info, info.SAPKeyIndex()
	c.hold = 0
	if !c.reachable() {
		for f := c.queue.pop(); f != nil; f = c.queue.pop() {
			c.fail(f, c.noSM())
		}
		return
	}
	if old.SMLID == info.SMLID {
		return
	}
	c.inARow = 0
	for _, f := range c.byTID {
		switch {
		case f.state != stateWire || f.held || !f.timer.Running():
			// What the kernel holds cannot be sent again before it is back.
		case f.moved && f.lid == info.SMLID: // there and back again
			f.moved = false
			c.timers.set(&f.timer, f.sent+f.gap)
		case !f.early && f.lid != info.SMLID:
			// Once per flight: an SM that wavers must not multiply the load.
			if at := c.now + c.rnd.Int64N(int64(retargetSpread)); at < f.timer.when {
				f.moved = true
				c.timers.set(&f.timer, at)
			}
		}
	}
}
