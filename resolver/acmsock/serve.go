// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acmsock

import (
	"syscall"

	"acmd/bpf"
	"acmd/resolver"

	"golang.org/x/sys/unix"
)

// read takes what one recv gives and serves it. More is left for the next turn,
// so that a busy client does not starve others: epoll reports an edge, so that it
// has to be asked again where something may be left. ended tells that after the
// data comes the end of the connection.
func (l *loop) read(c *conn, ended bool) {
	had := copy(l.in, c.in)
	n, errno := l.receive(c, l.in[had:])
	switch {
	case errno == unix.EAGAIN:
		return
	case errno == unix.EINTR:
		l.again(c)
		return
	case errno == errPassed:
		l.warn("client closed", "reason", "it passed a descriptor")
		l.close(c, ClosedPassed)
		return
	case errno != 0:
		l.close(c, failure(errno))
		return
	case n == 0:
		// The client may have shut down only its sending side: what it asked
		// for is still answered. A message that it did not complete is not.
		c.eof = true
		c.stash(nil)
		l.run(c, nil)
		return
	}
	l.bytesIn += uint64(n)
	full := had+n == len(l.in)
	l.run(c, l.in[:had+n])
	l.received(c, n)
	if full || ended {
		l.again(c)
	}
}

// again makes epoll report once more what is still there.
func (l *loop) again(c *conn) {
	if !c.closed && c.events != 0 && c.watch(unix.EPOLL_CTL_MOD) != nil {
		l.close(c, ClosedByError)
	}
}

// run moves a connection on as far as it goes: replies whose turn has come
// leave, then the input b is handled until it ends or no reply has a place any
// more. b may be c.in.
func (l *loop) run(c *conn, b []byte) {
	l.pop(c)
	if len(b) >= HeaderSize {
		if l.seen == 0 {
			l.seen = l.srv.r.Now()
		}
		l.now = l.seen
	}
	progress := false
	for !c.closed && !c.stop && len(b) >= HeaderSize {
		if c.blocked() {
			if l.pop(c); c.blocked() { // a reply that is held leaves when there is no room behind it
				break
			}
		}
		n, fault := Frame(b)
		if fault != FaultNone {
			l.fault(c, b, fault)
			break
		}
		if n > len(b) {
			break
		}
		owed := c.tail
		l.handle(c, b[:n])
		if c.fast != nil && c.tail == owed {
			c.fast.answered += uint64(n)
		}
		b = b[n:]
		progress = true
		if len(l.out) >= outLimit {
			l.flush(c)
		}
	}
	if c.closed {
		l.out = l.out[:0]
		return
	}
	if !l.flush(c) {
		return
	}
	if c.stop {
		b = nil
	}
	c.stash(b)
	l.settle(c, progress)
}

// pop appends the replies whose turn has come to the output. It stops where a
// reply is still owed, and when the client does not take what it has.
func (l *loop) pop(c *conn) {
	for c.head != c.tail && len(c.out) == 0 && !c.closed {
		s := c.slot(c.head)
		switch s.state {
		case slotWaiting:
			return
		case slotHeld:
			if c.fast != nil && !c.fast.free() && c.tail-c.head < ringMax {
				return // with no room behind it nothing more would be read, so then it goes
			}
			l.out = append(l.out, s.reply()...)
			s.long = nil
		case slotReady:
			l.out = append(l.out, s.reply()...)
			s.long = nil
		case slotDeferred:
			l.out = l.query(c, l.out, s.buf[:s.n])
		}
		if c.fast != nil {
			c.fast.answered += uint64(s.asked)
		}
		c.head++
		if c.zero == c.head {
			c.zero = 0
		}
		if len(l.out) >= outLimit {
			l.flush(c)
		}
	}
}

// flush writes the output; what the socket does not take is kept in c.out. It
// returns false if the connection was closed.
func (l *loop) flush(c *conn) bool {
	l.timeHits()
	if len(l.out) == 0 || c.closed {
		l.out = l.out[:0]
		return !c.closed
	}
	if c.fast != nil {
		c.fast.publish(len(l.out))
	}
	if len(c.out) > 0 { // nothing may overtake it
		c.out = append(c.out, l.out...)
		l.out = l.out[:0]
		return true
	}
	n, errno := send(c.fd, l.out)
	switch errno {
	case 0:
		l.bytesOut += uint64(n)
	case unix.EAGAIN, unix.EINTR:
		n = 0
	default:
		l.close(c, failure(errno))
		l.out = l.out[:0]
		return false
	}
	if n < len(l.out) {
		c.out = append(c.out, l.out[n:]...)
	}
	if cap(l.out) > keepOut {
		l.out = make([]byte, 0, outLimit+MaxRequest)
	}
	l.out = l.out[:0]
	return true
}

// write goes on with replies that did not fit before.
func (l *loop) write(c *conn) {
	n, errno := send(c.fd, c.out)
	switch errno {
	case 0:
		l.bytesOut += uint64(n)
	case unix.EAGAIN:
		return
	case unix.EINTR:
		l.again(c)
		return
	default:
		l.close(c, failure(errno))
		return
	}
	if n < len(c.out) {
		c.out = append(c.out[:0], c.out[n:]...)
		return
	}
	c.out = c.out[:0]
	l.timers[timerBlocked].drop(c) // a slow reader is not a blocked one
	l.run(c, c.in)
}

// failure tells a client that left from other failures of its socket.
func failure(errno syscall.Errno) CloseReason {
	if errno == unix.EPIPE || errno == unix.ECONNRESET {
		return ClosedByClient
	}
	return ClosedByError
}

// settle brings timers and epoll in line with the state of c, or closes it when
// nothing is left to do. progress tells that a message was completed.
func (l *loop) settle(c *conn, progress bool) {
	if c.direct() && (c.stop || c.eof && !c.blocked()) {
		switch {
		case c.stop:
			l.close(c, ClosedFraming)
		case l.draining:
			l.close(c, ClosedShutdown)
		default:
			l.close(c, ClosedByClient)
		}
		return
	}
	if c.left > 0 && !c.mayLeave() && !l.take(c) {
		l.close(c, ClosedByError)
		return
	}
	l.settled(c)
	c.shrink()
	want := c.wanted()
	if want != c.events {
		c.events = want
		if c.watch(unix.EPOLL_CTL_MOD) != nil {
			l.close(c, ClosedByError)
			return
		}
	}
	partial, blocked := &l.timers[timerPartial], &l.timers[timerBlocked]
	if progress {
		partial.drop(c)
	}
	if want&unix.EPOLLIN != 0 && len(c.in) > 0 {
		partial.set(c, l.clock())
	} else {
		partial.drop(c)
	}
	if len(c.out) > 0 {
		blocked.set(c, l.clock())
	} else {
		blocked.drop(c)
	}
}

// fault answers a header that frames nothing, after the replies that are owed,
// and ends parsing.
func (l *loop) fault(c *conn, b []byte, f Fault) {
	l.stats.faults[f].add(1)
	l.count.Add(bpf.RequestWord(c.door, bpf.KindInvalid), 1)
	l.overtake(c, b)
	c.stop = true
	if c.closed {
		return
	}
	l.replied(c, resolver.StatusInvalid)
	if c.direct() {
		l.out = appendError(l.out, b, resolver.StatusInvalid)
		return
	}
	s, _ := c.push(b)
	s.fill(appendError(s.buf[:0], b, resolver.StatusInvalid))
}

// handle serves one framed request.
func (l *loop) handle(c *conn, msg []byte) {
	l.overtake(c, msg)
	if c.closed {
		return
	}
	if opOf(msg) == OpResolve {
		l.resolve(c, msg)
		return
	}
	kind := bpf.KindPerf
	if opOf(msg) == OpEndpoint {
		kind = bpf.KindEndpoint
	}
	l.count.Add(bpf.RequestWord(c.door, kind), 1)
	if c.direct() {
		l.out = l.query(c, l.out, msg)
		return
	}
	// Answered in its turn: it then counts what was answered before it, and an
	// endpoint reply of 64 KiB need not be kept.
	s, _ := c.push(msg)
	s.keep(msg, slotDeferred)
}

// overtake skips the reply that is owed with tid 0 when another request with
// tid 0 comes: the client gave up on it, and would take it for the answer to
// its new question.
func (l *loop) overtake(c *conn, msg []byte) {
	if c.zero == 0 || !tidZero(msg) {
		return
	}
	s := c.slot(c.zero - 1)
	s.state, s.long = slotSkipped, nil
	c.zero = 0
	l.stats.superseded.add(1)
	l.count.Add(bpf.Superseded, 1)
	l.pop(c)
}

// query answers PERF_QUERY and EP_QUERY.
func (l *loop) query(c *conn, b, msg []byte) []byte {
	n := len(b)
	if opOf(msg) == OpPerf {
		b = appendPerf(b, msg, l.srv.r)
	} else {
		b = appendEndpoint(b, msg, l.srv.r)
	}
	l.replied(c, resolver.Status(b[n+offStatus]))
	return b
}

// resolve answers a RESOLVE at once or hands it to the engine.
func (l *loop) resolve(c *conn, msg []byte) {
	q := &l.q
	st := ParseRequest(msg, q)
	l.count.Add(bpf.RequestWord(c.door, bpf.Kind(q.Kind)), 1)
	if st == resolver.StatusSuccess && q.Kind == resolver.ByPath && !q.Src.IsZero() {
		st = l.pathSource(q)
	}
	if c.fast != nil && st == resolver.StatusSuccess {
		l.offer(c, q, msg)
	}
	r := l.srv.r
	switch {
	case st != resolver.StatusSuccess:
		l.stats.bodyErrors.add(1)
		l.count.Add(bpf.DoorRefused, 1)
		l.refuse(c, msg, st)
	case r.Lookup(q, l.now, &l.a):
		l.answer(c, msg)
	case l.srv.pending.Load() >= int64(l.srv.cfg.MaxPending):
		l.stats.refused.add(1)
		l.count.Add(bpf.DoorRefused, 1)
		l.refuse(c, msg, resolver.StatusNoMemory)
	default:
		s, seq := c.push(msg)
		s.keep(msg, slotWaiting)
		s.sa = q.Kind == resolver.AskSA
		c.waiting++
		c.missed = true
		l.srv.pending.Add(1)
		l.missed()
		r.Resolve(q, seq, c)
	}
}

// answer places the reply that Lookup gave.
func (l *loop) answer(c *conn, msg []byte) {
	l.replied(c, l.a.Status)
	l.hits++
	c.missed = false
	held := c.hold(msg, l.a.Status)
	var s *slot
	b := l.out
	if held || !c.direct() {
		s, _ = c.push(msg)
		b = s.buf[:0]
	}
	if l.q.Kind == resolver.AskSA {
		b = appendSAReply(b, msg, l.a.Status, &l.a)
	} else {
		b = AppendAnswer(b, msg, &l.a)
	}
	l.place(s, b)
	if held {
		s.state = slotHeld
	}
}

// refuse places a failure that the door found.
func (l *loop) refuse(c *conn, msg []byte, st resolver.Status) {
	l.replied(c, st)
	l.hits++
	var s *slot
	b := l.out
	if !c.direct() {
		s, _ = c.push(msg)
		b = s.buf[:0]
	}
	if l.q.Kind == resolver.AskSA {
		b = appendSAReply(b, msg, st, nil)
	} else {
		b = appendError(b, msg, st)
	}
	l.place(s, b)
}

// replied counts a reply. Counts come before the reply that they are of, so that
// whoever has one finds it counted, also after this process was killed.
func (l *loop) replied(c *conn, st resolver.Status) {
	l.count.Add(bpf.ReplyWord(c.door, uint8(st)), 1)
}

// timeHits notes how long the requests took that were answered at once: from the
// reading of the clock before the first of them, one for all that came together,
// to the write of their replies. That reading is the one after the hits before, if
// nothing else was done since.
func (l *loop) timeHits() {
	if l.hits == 0 {
		l.seen = 0
		return
	}
	l.seen = l.srv.r.Now()
	l.count.ObserveN(bpf.LatHit, l.seen-l.now, l.hits)
	l.hits = 0
}

func (l *loop) place(s *slot, b []byte) {
	if s == nil {
		l.out = b
	} else {
		s.fill(b)
	}
}

// pathSource turns the source address that was given with a GID or LID
// destination into the path's own source.
func (l *loop) pathSource(q *resolver.Query) resolver.Status {
	ep := l.srv.r.BySource(&q.Src)
	if ep == nil {
		return resolver.StatusSrcAddr
	}
	gid := ep.GID
	for i := range ep.Addrs {
		if a := &ep.Addrs[i]; a.Addr == q.Src && !a.GID.IsZero() {
			gid = a.GID
		}
	}
	q.Path.SetSGID(gid)
	q.Path.SetPKey(ep.PKey)
	q.Src = resolver.Addr{}
	return resolver.StatusSuccess
}
