// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acmsock

import (
	"fmt"
	"syscall"
	"time"

	"acmd/bpf"

	"golang.org/x/sys/unix"
)

const (
	// acceptBatch bounds the connections taken in one turn.
	acceptBatch = 64
	// acceptPause is how long accepting rests when the kernel has no memory or
	// descriptors. The listener stays readable meanwhile and would spin.
	acceptPause = 100 * time.Millisecond
	// warnEvery spaces out log lines that clients can cause.
	warnEvery = 10 * time.Second
)

// listen makes the loop the one that accepts.
func (l *loop) listen(ls []listener) error {
	l.listeners = ls
	l.spare = openSpare()
	for i := range ls {
		if err := l.watch(i, unix.EPOLL_CTL_ADD, unix.EPOLLIN); err != nil {
			return fmt.Errorf("epoll on listener: %w", err)
		}
	}
	return nil
}

func (l *loop) watch(i, op int, events uint32) error {
	ev := unix.EpollEvent{Events: events, Fd: int32(i), Pad: markListener}
	return unix.EpollCtl(l.ep, op, l.listeners[i].fd, &ev)
}

// closeListeners ends accepting. The descriptors belong to the rendezvous only
// until the loop runs.
func (l *loop) closeListeners() {
	for _, li := range l.listeners {
		unix.Close(li.fd)
	}
	l.listeners, l.paused = nil, 0
}

// pause stops watching the listeners for a while.
func (l *loop) pause() {
	if l.paused != 0 || l.draining {
		return
	}
	for i := range l.listeners {
		l.watch(i, unix.EPOLL_CTL_MOD, 0)
	}
	l.paused = max(1, l.clock()+int64(acceptPause))
	l.stats.paused.add(1)
}

func (l *loop) resume() {
	l.paused = 0
	if l.spare < 0 {
		l.spare = openSpare()
	}
	for i := range l.listeners {
		l.watch(i, unix.EPOLL_CTL_MOD, unix.EPOLLIN)
	}
}

// acceptFrom takes waiting connections of a listener.
func (l *loop) acceptFrom(i int) {
	if i >= len(l.listeners) || l.paused != 0 {
		return
	}
	li := l.listeners[i]
	for range acceptBatch {
		fd, errno := accept(li.fd)
		switch errno {
		case 0:
			l.admit(fd, li.tcp)
		case unix.EAGAIN:
			return
		case unix.EMFILE, unix.ENFILE:
			if !l.rejectWithSpare(li.fd, errno) {
				return
			}
		case unix.EINTR, unix.ECONNABORTED, unix.EPROTO, unix.ENETDOWN, unix.ENETUNREACH,
			unix.EHOSTDOWN, unix.EHOSTUNREACH, unix.ENONET, unix.ENOPROTOOPT:
			// Failures of one connection, which is gone (accept(2)).
		default: // ENOBUFS, ENOMEM and what else would come again at once
			l.warn("accepting pauses", "err", errno)
			l.pause()
			return
		}
	}
}

// rejectWithSpare closes the next waiting connection by means of the spare
// descriptor: a client that is told can fall back at once, one in the backlog
// waits for as long as it has patience. false: accepting has to pause.
func (l *loop) rejectWithSpare(lfd int, cause syscall.Errno) bool {
	l.warn("no descriptor left, rejecting clients", "err", cause, "open", l.srv.open.Load())
	if l.spare < 0 {
		l.pause()
		return false
	}
	unix.Close(l.spare)
	fd, errno := accept(lfd)
	if errno == 0 {
		l.srv.open.Add(1)
		l.reject(handoff{fd: int32(fd), passes: passes(fd)}, RejectedDescriptors)
	}
	l.spare = openSpare()
	if errno == unix.EAGAIN {
		return false
	}
	if errno != 0 || l.spare < 0 {
		l.pause()
		return false
	}
	return true
}

// admit checks the bounds and gives the connection to the next loop.
func (l *loop) admit(fd int, tcp bool) {
	s := l.srv
	h := handoff{fd: int32(fd), door: bpf.DoorUnix}
	if tcp {
		h.door = bpf.DoorTCP
	} else {
		h.passes = passes(fd)
	}
	if s.open.Add(1) > int64(s.cfg.MaxClients) {
		l.reject(h, RejectedClients)
		return
	}
	if !tcp && s.cfg.MaxPerUID > 0 {
		cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
		if err != nil || !s.users.take(cred.Uid, s.cfg.MaxPerUID) {
			l.reject(h, RejectedUser)
			return
		}
		h.uid, h.hasUID = cred.Uid, true
	}
	if tcp {
		unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
		// A remote host that vanishes is noticed some day.
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1)
		if s.fast != nil {
			h.port = fastPeer(fd)
		}
	}
	to := s.loops[l.nextLoop]
	if h.port != 0 {
		// All that ever have this port, see takeFast. Linux prefers even ports for
		// connect(), so the lowest bit says nothing.
		to = s.loops[int(h.port>>1)%len(s.loops)]
	} else {
		l.nextLoop = (l.nextLoop + 1) % len(s.loops)
	}
	if to == l {
		l.adopt(h)
	} else if !to.box.hand(h) {
		l.reject(h, RejectedKernel)
	}
}

func (l *loop) reject(h handoff, why RejectReason) {
	l.stats.rejected[why].add(1)
	l.count.Add(bpf.Rejected, 1)
	if why != RejectedKernel {
		l.warn("client rejected", "reason", why.String(), "open", l.srv.open.Load()-1)
	}
	l.abandon(h)
}

// abandon gives back what admit took.
func (l *loop) abandon(h handoff) {
	if h.passes && !isEmpty(int(h.fd)) {
		l.srv.discard.add(func() { l.srv.closed(h) })
		return
	}
	l.srv.closed(h)
}

// closed closes a connection, which counts until then.
func (s *Server) closed(h handoff) {
	unix.Close(int(h.fd))
	s.open.Add(-1)
	if h.hasUID {
		s.users.give(h.uid)
	}
}

// adopt makes the loop serve a connection.
func (l *loop) adopt(h handoff) {
	if l.gen++; l.gen <= 0 {
		l.gen = 1
	}
	c := &conn{loop: l, handoff: h, gen: l.gen, events: unix.EPOLLIN}
	if err := c.watch(unix.EPOLL_CTL_ADD); err != nil {
		l.warn("client rejected", "reason", "epoll", "err", err)
		l.reject(h, RejectedKernel)
		return
	}
	for int(c.fd) >= len(l.conns) {
		l.conns = append(l.conns, make([]*conn, max(64, len(l.conns)))...)
	}
	l.conns[c.fd] = c
	l.open++
	l.stats.accepted.add(1)
	l.count.Add(bpf.Accepted, 1)
	if h.port != 0 {
		l.takeFast(c, h.port)
	}
	if l.draining {
		l.lastRead(c)
	}
}

// close ends a connection. Questions of it that the engine has go on; their
// answers find it closed.
func (l *loop) close(c *conn, why CloseReason) {
	if c.closed {
		return
	}
	l.take(c) // else the client would find an error instead of the end
	c.closed = true
	for i := range l.timers {
		l.timers[i].drop(c)
	}
	l.conns[c.fd] = nil
	l.open--
	if c.fast != nil {
		l.dropFast(c)
	}
	l.stats.closed[why].add(1)
	l.count.Add(bpf.Unsent, c.owed())
	c.in, c.out, c.ring = nil, nil, nil
	l.abandon(c.handoff)
}

// warn logs at most one line in a while, whatever clients do.
func (l *loop) warn(msg string, args ...any) {
	now := l.clock()
	if l.lastWarn != 0 && now-l.lastWarn < int64(warnEvery) {
		return
	}
	l.lastWarn = max(1, now)
	l.srv.log.Warn(msg, args...)
}
