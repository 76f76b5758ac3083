// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package sa

import (
	"time"
)

// A client's turns are its owner's: everything outstanding is touched there and
// nowhere else. The owner is the goroutine of run, or for a while an event loop
// that asked for it: a loop that brings many questions and waits for their
// answers saves two changes of thread for each.
const (
	ownerRun     int32 = iota // the goroutine
	ownerWanted               // the goroutine, until it sees that a loop asked
	ownerOffered              // nobody: the goroutine waits, the loop may begin
	ownerLoop                 // the loop
)

// Pollable reports whether an event loop can have the client's turns.
func (c *Client) Pollable() bool { return c.poll != nil }

// PollFDs are descriptors; [Client.Turn] should receive when one is readable.
func (c *Client) PollFDs() []int { return c.poll.PollFDs() }

// Busy reports whether questions are in hand, or others have engaged the client.
func (c *Client) Busy() bool { return c.pending.Load() > 0 || c.engaged.Load() > 0 }

// Engage tells that n more questions of another class than the SA's wait for an
// answer that comes by this port, n fewer if it is negative: that is worth as much
// to a loop. It may be called from any goroutine.
func (c *Client) Engage(n int) { c.engaged.Add(int64(n)) }

// Want asks for the turns. [Client.Take] gets them, at the earliest when wake was
// called, which from then on is also called when there is something new to do. It
// may be called from any goroutine. One loop at a time may want.
func (c *Client) Want(wake func()) {
	if c.owner.Load() != ownerRun {
		return
	}
	c.wake.Store(&wake)
	if c.owner.CompareAndSwap(ownerRun, ownerWanted) {
		c.port.Wake()
	}
}

// Take begins the loop's ownership, if it is to be had. [Client.GiveBack] ends it.
func (c *Client) Take() bool {
	if c.owner.Load() != ownerOffered {
		return false
	}
	if !c.owner.CompareAndSwap(ownerOffered, ownerLoop) {
		return false
	}
	c.poll.Drive(true)
	return true
}

// GiveBack ends the loop's ownership or its wish for it. The loop is not called
// any more when it wants nothing again.
func (c *Client) GiveBack() {
	if c.owner.CompareAndSwap(ownerWanted, ownerRun) {
		return
	}
	if c.owner.Load() == ownerLoop {
		c.poll.Drive(false)
	}
	if c.owner.Swap(ownerRun) != ownerRun {
		c.back <- struct{}{}
	}
}

// lend lets a loop have the turns that asked for them, and returns when they are
// back.
func (c *Client) lend() bool {
	if !c.owner.CompareAndSwap(ownerWanted, ownerOffered) {
		return false
	}
	(*c.wake.Load())()
	<-c.back
	return true
}

// apart runs fn, which may block, now or as soon as no loop has the turns.
func (c *Client) apart(fn func()) {
	if c.owner.Load() == ownerLoop {
		c.slow = append(c.slow, fn)
		return
	}
	fn()
}

// unhurried runs what could not run in a loop's turn.
func (c *Client) unhurried() {
	slow := c.slow
	c.slow = nil
	for _, fn := range slow {
		fn()
	}
}

// Turn does what is due, without waiting: it receives if the port is readable,
// runs timers and sends. next is when the next turn is due if nothing comes, zero
// for never. With ok false the loop must give the client back: it ends, or has to
// wait for something. Only for a loop that has taken it.
func (c *Client) Turn(readable bool) (next time.Time, ok bool) {
	faults := c.count.sendErrors.Load() + c.count.recvErrors.Load()
	c.now = c.clock()
	if readable || c.expiring() {
		n, err := c.port.Recv(c.in, c.base) // in the past
		c.received(n)
		if err != nil && !isGone(err) { // of that the goroutine will hear again
			c.count.recvErrors.Add(1)
			c.warn("recv", "receive", err)
		}
		if err != nil {
			return next, false
		}
	}
	c.work(c.poll.TrySend)
	ok = !c.stop.Load() && c.dead == nil && len(c.slow) == 0 && c.count.sendErrors.Load()+c.count.recvErrors.Load() == faults
	return c.nextDeadline(), ok
}
