// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package sa

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"net"
	"time"

	"acmd/mad/ring"
	"acmd/mad/transport"
)

// run is the owner goroutine: take what others brought, run timers, send what
// the window allows in one batch, then sleep in Recv.
func (c *Client) run() {
	defer close(c.done)
	err := c.borrow()
	for err == nil {
		c.now = c.clock()
		if c.expiring() {
			if err = c.catchUp(); err != nil {
				break
			}
		}
		c.unhurried()
		c.work(c.port.Send)
		switch {
		case c.stop.Load():
			err = ErrClosed
		case c.dead != nil:
			err = c.dead
		case c.lend():
		default:
			err = c.receive()
		}
	}
	c.end(err)
}

// work takes what others brought, runs timers and sends what the window allows.
func (c *Client) work(send func([]*ring.Slot) (int, error)) {
	c.send = send
	c.take()
	c.fire()
	c.fill()
	c.flush()
}

// expiring reports whether something is about to be given up. What has come is read
// before that: this process may have been kept from running, by jobs of a higher
// priority or a machine that was stopped, and that is no silence of the SA.
func (c *Client) expiring() bool {
	return len(c.timers) > 0 && c.timers[0].when <= c.now || c.queue.head != nil && c.queueLimit(c.queue.head) <= c.now
}

// catchUp reads what has come, without waiting. It does so a few times, as a wake-up
// ends a read too, and a flood of messages must not keep timers from running.
func (c *Client) catchUp() (err error) {
	for range 4 {
		if err = c.recv(c.base); err != nil { // in the past
			break
		}
	}
	return err
}

// borrow takes the slots that this client works with for its whole life, so that
// the ring's level says nothing about load and no slot can be lost under way.
func (c *Client) borrow() error {
	r := c.port.Ring()
	take := func(n int) []*ring.Slot {
		s := make([]*ring.Slot, max(min(n, r.Cap()/2), 1))
		return s[:r.GetN(s)]
	}
	c.out, c.in = take(sendBatch), take(recvBatch)
	c.outWhose = make([]*flight, len(c.out))
	if len(c.in) == 0 || len(c.out) == 0 {
		return fmt.Errorf("SA client: ring of %d slots has none free", r.Cap())
	}
	return nil
}

// take moves in what others brought.
func (c *Client) take() {
	if !c.fresh.Swap(false) {
		return
	}
	if info := c.info.Load(); info != c.cur {
		c.retarget(info)
	}
	c.mu.Lock()
	in, posts := c.inbox, c.posts
	c.inbox, c.posts, c.spare = list{}, c.spare[:0], nil
	c.mu.Unlock()
	for f := in.pop(); f != nil; f = in.pop() {
		f.queued = c.now
		if !c.reachable() {
			c.fail(f, c.noSM())
			continue
		}
		f.jitter = int64(c.rnd.Uint32N(257))
		c.queue.push(f)
	}
	for i, fn := range posts {
		posts[i] = nil
		fn()
	}
	if c.forgotten.Swap(false) {
		c.renew(true)
	}
	c.mu.Lock()
	c.spare = posts[:0]
	c.mu.Unlock()
}

// fire runs the timers that are due.
func (c *Client) fire() {
	for t := c.timers.due(c.now); t != nil; t = c.timers.due(c.now) {
		if t.owner != nil {
			c.flightTimer(t.owner)
		} else if t.Fire != nil {
			t.Fire()
		}
	}
	for f := c.queue.head; f != nil && !c.open() && c.now >= c.queueLimit(f); f = c.queue.head {
		c.queue.pop()
		c.fail(f, fmt.Errorf("%w: waited %v behind %d others", ErrTimeout,
			time.Duration(c.now-f.queued).Round(time.Millisecond), c.seated))
	}
}

// queueLimit is how long f may wait for the window: while answers come, up to
// queueLife; with an SA that is silent, no longer than a flight lives.
func (c *Client) queueLimit(f *flight) int64 {
	return min(max(f.queued, c.owing)+f.life(), f.queued+int64(queueLife))
}

func (c *Client) flightTimer(f *flight) {
	switch {
	case f.state == stateDelayed && f.seated:
		c.again(f)
	case f.state == stateDelayed:
		f.state, f.queued = stateQueued, c.now
		c.queue.pushFront(f)
	case f.moved:
		c.move(f)
	default:
		c.timedOut(f)
	}
}

// timedOut ends a try that nothing came back for.
func (c *Client) timedOut(f *flight) {
	c.timers.remove(&f.timer)
	f.silent++
	f.held = false
	if f.lid != 0 { // it was sent
		c.count.timeouts.Add(1)
		c.shrink(f.sent)
		if c.inARow++; c.inARow >= suspectAfter {
			c.inARow = 0
			c.doubt()
		}
	}
	if f.silent > f.retries || f.busy+f.norecs > 0 && c.now >= f.end {
		c.fail(f, c.timeoutError(f))
		return
	}
	c.again(f)
}

// again makes f's next try due.
func (c *Client) again(f *flight) {
	f.state = stateRetry
	c.retry.push(f)
}

func (c *Client) timeoutError(f *flight) error {
	if f.tries == 0 && f.err != nil {
		return f.err
	}
	err := fmt.Errorf("%w: %d tries, the last to LID %d", ErrTimeout, f.tries, f.lid)
	if f.err != nil {
		err = fmt.Errorf("%w: %w", err, f.err)
	}
	return err
}

// nextDeadline is when the owner has to act if nothing comes.
func (c *Client) nextDeadline() time.Time {
	at := int64(math.MaxInt64)
	if len(c.timers) > 0 {
		at = c.timers[0].when
	}
	if f := c.queue.head; f != nil {
		at = min(at, c.queueLimit(f))
	}
	if c.retry.n > 0 || c.queue.n > 0 && c.seated < c.window {
		// Only the hold or the rate keeps these from going.
		at = min(at, max(c.hold, c.limit.ready()))
	}
	if at == math.MaxInt64 {
		return time.Time{}
	}
	return c.base.Add(time.Duration(at))
}

// receive sleeps until there is something to do and handles what came.
func (c *Client) receive() error {
	deadline := c.nextDeadline()
	c.asleep.Store(true)
	if c.fresh.Load() && c.asleep.CompareAndSwap(true, false) {
		// Brought before the flag was up, so that nobody wakes us. Wake ourselves
		// rather than skip Recv: answers must get through beside a flood of work.
		c.port.Wake()
	}
	return c.recv(deadline)
}

// recv handles what came by the deadline.
func (c *Client) recv(deadline time.Time) error {
	n, err := c.port.Recv(c.in, deadline)
	c.asleep.Store(false)
	c.received(n)
	if err == nil {
		c.pause = 0
		return nil
	}
	if isGone(err) {
		return goneError(err)
	}
	return c.fault(err)
}

// received handles the first n slots of in.
func (c *Client) received(n int) {
	c.now = c.clock()
	for _, s := range c.in[:n] {
		c.dispatch(s)
		if s.Long() != nil {
			s.SetLong(nil)
		}
	}
}

// fault waits after a passing error, longer each time, so that a broken device
// does not cost a core.
func (c *Client) fault(err error) error {
	c.count.recvErrors.Add(1)
	c.warn("recv", "receive", err)
	c.pause = min(max(2*c.pause, time.Millisecond), 100*time.Millisecond)
	t := time.NewTimer(c.pause)
	defer t.Stop()
	select {
	case <-t.C:
	case <-c.quit:
	}
	return nil
}

func isGone(err error) bool {
	return errors.Is(err, transport.ErrGone) || errors.Is(err, net.ErrClosed) || errors.Is(err, fs.ErrClosed)
}

func goneError(err error) error { return fmt.Errorf("SA client: port: %w", err) }

// warn logs at most one line per kind and ten seconds; counters have the rest.
func (c *Client) warn(kind, msg string, err error) {
	now := time.Now()
	if last, ok := c.warned[kind]; ok && now.Sub(last) < 10*time.Second {
		return
	}
	c.warned[kind] = now
	c.log.Warn("SA client: "+msg, "port", c.cur.Num, "err", err)
}

// end refuses what comes from now on, fails all that is in hand, and gives back
// slots and port.
func (c *Client) end(err error) {
	c.mu.Lock()
	c.closed = err
	in, posts, hooks := c.inbox, c.posts, c.atEnd
	c.inbox, c.posts, c.spare, c.atEnd = list{}, nil, nil, nil
	c.mu.Unlock()
	if errors.Is(err, ErrClosed) {
		c.unsubscribe()
	}
	c.unhurried()
	slots := append(c.in, c.out...)
	c.in, c.out, c.nout = nil, nil, 0 // SendTo is over

	for _, l := range []*list{&in, &c.queue, &c.retry} {
		for f := l.pop(); f != nil; f = l.pop() {
			c.fail(f, err)
		}
	}
	for len(c.byTID) > 0 { // callbacks may not add to it: nothing is sent any more
		for _, f := range c.byTID {
			c.fail(f, err)
		}
	}
	for _, fn := range posts {
		fn()
	}
	for _, fn := range hooks {
		fn(err)
	}
	for _, t := range c.timers {
		t.pos = 0
	}
	c.timers = nil
	for _, s := range slots {
		s.Release()
	}
	if cerr := c.port.Close(); cerr != nil && !isGone(cerr) {
		c.log.Warn("SA client: close", "port", c.cur.Num, "err", cerr)
	}
}
