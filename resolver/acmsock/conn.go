// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acmsock

import (
	"acmd/resolver"

	"golang.org/x/sys/unix"
)

// ringMax is how many replies a connection can be owed before the server stops
// reading it, and how many of its questions the engine can have at a time.
const ringMax = 64

// ringMin is the size of the first ring; most clients ask one thing at a time.
const ringMin = 2

type slotState uint8

const (
	slotWaiting  slotState = iota // the engine owes the answer
	slotReady                     // the reply is there, one before it is not
	slotDeferred                  // a query that is answered when its turn comes
	slotSkipped                   // superseded, never answered
	slotHeld                      // the reply is there and must not leave yet, see fastClient
)

// slot is a place for a reply in request order. buf has the request (its first
// n bytes) until the reply is there; a reply that does not fit is in long.
type slot struct {
	state slotState
	sa    bool // an SA query, which comes back in another form
	n     uint8
	asked uint16 // length of the request
	long  []byte
	buf   [maxResolveReply]byte
}

// keepRequest is as much of a request as a slot needs to answer it later.
const keepRequest = HeaderSize + RecordSize

func (s *slot) keep(msg []byte, st slotState) {
	s.state, s.long = st, nil
	s.n = uint8(copy(s.buf[:keepRequest], msg))
}

// fill makes the slot ready with a reply that was appended to s.buf[:0].
func (s *slot) fill(b []byte) {
	s.state, s.long, s.n = slotReady, nil, 0
	if len(b) > len(s.buf) {
		s.long = b
		return
	}
	s.n = uint8(len(b))
}

func (s *slot) reply() []byte {
	if s.long != nil {
		return s.long
	}
	return s.buf[:s.n]
}

// conn is a client's connection. Only its loop touches it, except for loop
// itself and for Answered, which is called from anywhere.
type conn struct {
	loop *loop
	handoff
	gen    int32       // tells it from an earlier connection with this descriptor
	events uint32      // what epoll watches
	fast   *fastClient // nil: not on the fast path

	missed bool // its last question was not answered at once
	eof    bool // the client sends no more, or the server takes no more
	stop   bool // framing is lost: nothing more is parsed
	closed bool
	queued bool // in loop.touched

	in   []byte // read and not yet handled
	left int    // bytes that were read and are still in the socket, see receive
	out  []byte // replies that did not fit the socket buffer

	// Slots by sequence number modulo the size, a power of two. They are owed
	// from head to tail. zero is one more than the sequence number of the slot
	// with tid 0, of which there is never more than one.
	ring       []slot
	head, tail uint64
	zero       uint64
	waiting    int // questions in the engine, superseded ones included

	timers [numTimers]timerLink
}

// Answered brings the engine's answer; it implements [resolver.Waiter].
func (c *conn) Answered(tag uint64, a *resolver.Answer) {
	c.loop.srv.pending.Add(-1)
	c.loop.box.answer(c, tag, a)
}

func (c *conn) idle() bool { return c.head == c.tail }

// owed counts the replies that wait in the ring.
func (c *conn) owed() (n uint64) {
	for seq := c.head; seq != c.tail; seq++ {
		if c.slot(seq).state != slotSkipped {
			n++
		}
	}
	return n
}

// direct tells whether a reply may go out at once: none is owed before it.
func (c *conn) direct() bool { return c.head == c.tail && len(c.out) == 0 }

// blocked tells that no further request may be taken: its reply could have no
// place.
func (c *conn) blocked() bool {
	return len(c.out) > 0 || c.tail-c.head >= ringMax || c.waiting >= ringMax
}

func (c *conn) slot(seq uint64) *slot { return &c.ring[seq&uint64(len(c.ring)-1)] }

// push takes the next slot for msg. The caller made sure that fewer than
// ringMax are in use.
func (c *conn) push(msg []byte) (*slot, uint64) {
	if n := int(c.tail - c.head); n == len(c.ring) {
		c.grow()
	}
	seq := c.tail
	c.tail++
	if tidZero(msg) {
		c.zero = seq + 1
	}
	s := c.slot(seq)
	s.asked = uint16(len(msg))
	return s, seq
}

func (c *conn) grow() {
	old := c.ring
	c.ring = make([]slot, max(ringMin, 2*len(old)))
	for seq := c.head; seq != c.tail; seq++ {
		*c.slot(seq) = old[seq&uint64(len(old)-1)]
	}
}

// stash keeps unhandled input, which may be part of c.in itself.
func (c *conn) stash(b []byte) {
	if len(b) == 0 {
		if cap(c.in) > MaxRequest {
			c.in = nil
		}
		c.in = c.in[:0]
		return
	}
	c.in = append(c.in[:0], b...)
}

// shrink gives back what only a burst needed.
func (c *conn) shrink() {
	if c.idle() && len(c.ring) > ringMin {
		c.ring = nil
	}
	if len(c.out) == 0 && cap(c.out) > 0 {
		c.out = nil
	}
}

// wanted is what epoll should watch for.
func (c *conn) wanted() uint32 {
	var w uint32
	if !c.eof && !c.stop && !c.blocked() {
		w = unix.EPOLLIN
	}
	if len(c.out) > 0 {
		w |= unix.EPOLLOUT
	}
	return w
}

// watch tells epoll of c.events. What is there already is reported once, and
// after that only news: epoll would otherwise look at each socket twice, the
// second time to see that nothing is left. The end of a connection is news that may
// come with the data before it.
func (c *conn) watch(op int) error {
	ev := unix.EpollEvent{Events: c.events | unix.EPOLLET, Fd: c.fd, Pad: c.gen}
	if c.events&unix.EPOLLIN != 0 {
		ev.Events |= unix.EPOLLRDHUP
	}
	return unix.EpollCtl(c.loop.ep, op, int(c.fd), &ev)
}
