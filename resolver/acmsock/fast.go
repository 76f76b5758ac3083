// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acmsock

import (
	"encoding/binary"
	"errors"
	"fmt"

	"acmd/resolver"

	"golang.org/x/sys/unix"
)

// FastPath answers clients of the TCP listener in the kernel, from copies of what
// the server answered before. It has to know what the server has done for each of
// them, so that it never overtakes a reply that is owed.
type FastPath interface {
	// Accept takes a connection from 127.0.0.1:port to 127.0.0.1, before
	// anything is read from it. Connections of one port come one after the other:
	// the one before is released. nil: not this one.
	Accept(port uint16) FastConn
}

// FastConn is the fast path's side of a connection. Only the connection's loop
// calls it.
type FastConn interface {
	// Publish tells how many bytes of requests were answered, or will never be,
	// and how many bytes of replies were written, before they are.
	Publish(answered, replied uint64)
	// OnMap reports whether the kernel may answer on this connection now.
	OnMap() bool
	// Offer tells of a question that the kernel could answer next time. q is lent.
	Offer(q *resolver.Query)
	// Insert asks for the kernel to answer on this connection from now on, and
	// reports whether done will be called: from anywhere, with how many bytes the
	// client had sent when its socket was taken over, or with false if it was
	// not. It is not called when this was asked for before.
	Insert(done func(sent uint64, ok bool)) bool
	// Release ends it.
	Release()
}

// fastClient is what a connection keeps for the fast path.
//
// Clients that always use tid 0 (librdmacm) take any reply for the one to their
// last question. On the map the kernel refuses a question with tid 0 while an
// earlier one is open. So the first success with tid 0 is held back until the
// socket is on the map and everything was read that the client sent before: if
// another question is there, it supersedes the one whose reply is held. Until then
// no path has left, and after that no question can meet the path of another.
type fastClient struct {
	FastConn
	port      uint16
	done      func(sent uint64, ok bool) // of Insert, which each hit asks for until it is under way
	good      bool                       // a question was answered with success
	asked     bool                       // Insert is under way
	received  uint64                     // bytes read and handled
	expected  uint64                     // bytes that have to be, before a reply with tid 0 leaves
	answered  uint64                     // bytes of requests
	replied   uint64                     // bytes of replies
	published uint64                     // answered, as last published
}

// guarded is the outcome of Insert on its way to the loop.
type guarded struct {
	c    *conn
	sent uint64
	ok   bool
}

// free tells whether replies with tid 0 may leave.
func (f *fastClient) free() bool { return !f.asked && f.received >= f.expected }

// UseFast sets the fast path. It must be called before Start.
func (s *Server) UseFast(f FastPath) { s.fast = f }

// FastPort is the port of the listener whose clients on 127.0.0.1 the kernel can
// answer, or why there is none.
func (s *Server) FastPort() (uint16, error) { return s.rdv.fastPort, s.rdv.fastErr }

// Announce leads librdmacm to the fast path's port, or back to the unix socket. It
// does nothing where the port file is written anyway.
func (s *Server) Announce(on bool) error { return s.rdv.announce(on) }

// fastPeer returns the port of a client that the kernel can answer, 0 for others:
// those of other loopback addresses are not told apart by their port.
func fastPeer(fd int) uint16 {
	local, err := unix.Getsockname(fd)
	if err != nil || !isLocalhost(local) {
		return 0
	}
	peer, err := unix.Getpeername(fd)
	if err != nil || !isLocalhost(peer) {
		return 0
	}
	return uint16(peer.(*unix.SockaddrInet4).Port)
}

func isLocalhost(sa unix.Sockaddr) bool {
	in, ok := sa.(*unix.SockaddrInet4)
	return ok && in.Addr == [4]byte{127, 0, 0, 1}
}

// listenFast finds the listener for the fast path: the TCP listener that there is,
// else one more on 127.0.0.1. Without one the server serves as ever.
func (r *rendezvous) listenFast(cfg *Config) {
	r.fastErr = nil
	fd := -1
	for _, l := range r.listeners {
		if l.tcp {
			fd = l.fd
			break
		}
	}
	if fd < 0 {
		l, err := openTCP(&unix.SockaddrInet4{Port: int(cfg.FastPort), Addr: [4]byte{127, 0, 0, 1}})
		if err == nil {
			if err = unix.Listen(l, backlog); err != nil {
				unix.Close(l)
			}
		}
		if err != nil {
			r.fastErr = err
			return
		}
		r.listeners = append(r.listeners, listener{fd: l, tcp: true})
		fd = l
	}
	if r.fastErr = reachable(fd); r.fastErr != nil {
		return
	}
	r.fastFD, r.fastPort = fd, uint16(localPort(fd))
}

// reachable says why the kernel could not find clients of a listener on
// 127.0.0.1 of this network namespace.
func reachable(fd int) error {
	sa, err := unix.Getsockname(fd)
	if err != nil {
		return err
	}
	in, ok := sa.(*unix.SockaddrInet4)
	if !ok || in.Addr != [4]byte{} && in.Addr != [4]byte{127, 0, 0, 1} {
		return errors.New("the TCP listener is not on 127.0.0.1")
	}
	own, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(own)
	theirs, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		return nil // Linux 5.14; nobody passes such a listener before
	}
	if ours, err := unix.GetsockoptUint64(own, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE); err != nil || ours != theirs {
		return fmt.Errorf("the TCP listener is in another network namespace (%v)", err)
	}
	return nil
}

// announce writes or removes the port file of a listener that has none of its own.
func (r *rendezvous) announce(on bool) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.hasPort || r.fastPort == 0 || r.gone {
		return nil
	}
	if on {
		return r.publishPort(r.fastFD, r.noLinks)
	}
	return r.clear(portLinkName, portFileName)
}

// offerable tells whether the kernel's program can parse a request: whole records,
// a source before the destination, or a path request, with no flag but NODELAY.
func offerable(msg []byte) bool {
	flags := func(i int) uint32 { return binary.NativeEndian.Uint32(msg[HeaderSize+i*RecordSize:]) }
	path := func(i int) bool { return binary.NativeEndian.Uint16(msg[HeaderSize+i*RecordSize+4:]) == TypePath }
	switch len(msg) {
	case HeaderSize + RecordSize:
		if path(0) {
			return flags(0)&^FlagNoDelay == 0
		}
		return flags(0)&^FlagNoDelay == FlagDest
	case HeaderSize + 2*RecordSize:
		return flags(0) == FlagSource && flags(1)&^FlagNoDelay == FlagDest && !path(0) && !path(1)
	}
	return false
}

// takeFast gives a connection to the fast path.
func (l *loop) takeFast(c *conn, port uint16) {
	if old := l.fast[port]; old != nil {
		l.dropFast(old) // its client is gone, or this one could not have its port
	}
	if f := l.srv.fast.Accept(port); f != nil {
		if l.fast == nil {
			l.fast = map[uint16]*conn{}
		}
		l.fast[port] = c
		c.fast = &fastClient{FastConn: f, port: port,
			done: func(sent uint64, ok bool) { l.box.guard(guarded{c, sent, ok}) }}
	}
}

// dropFast ends the fast path's part of a connection; from then on it writes
// nothing to what is the next one's.
func (l *loop) dropFast(c *conn) {
	delete(l.fast, c.fast.port)
	c.fast.Release()
	c.fast = nil
}

// publish tells the fast path what was done, before n bytes of replies are written.
func (f *fastClient) publish(n int) {
	f.replied += uint64(n)
	f.published = f.answered
	f.Publish(f.answered, f.replied)
}

// guard asks for a connection to be put onto the map.
func (c *conn) guard() {
	c.fast.asked = c.fast.asked || c.fast.Insert(c.fast.done)
}

// guarded takes in that a socket is on the map, or stays off.
func (l *loop) guarded(g *guarded) {
	f := g.c.fast
	if f == nil {
		return
	}
	f.asked = false
	if g.ok {
		f.expected = max(f.expected, g.sent)
	}
	l.run(g.c, g.c.in)
}

// received notes what was read, after it was handled.
func (l *loop) received(c *conn, n int) {
	if c.fast == nil {
		return
	}
	held := !c.fast.free()
	c.fast.received += uint64(n)
	if held && c.fast.free() {
		l.run(c, c.in)
	}
}

// hold tells whether the reply to a message, or the reply itself, has to wait until
// its connection is guarded.
func (c *conn) hold(msg []byte, st resolver.Status) bool {
	if c.fast == nil || st != resolver.StatusSuccess {
		return false
	}
	c.fast.good = true
	if !tidZero(msg) {
		return false
	}
	c.guard()
	return !c.fast.free()
}

// settled brings the fast path up to date when nothing more can be done for now.
func (l *loop) settled(c *conn) {
	f := c.fast
	if f == nil {
		return
	}
	if f.published != f.answered {
		f.publish(0) // superseded requests
	}
	if f.good && c.direct() && len(c.in) == 0 {
		c.guard()
	}
}

// offer tells the fast path of a question that a strict client asks, one that
// waits for each reply, before the answer is known: so the answer is in the kernel
// as soon as there is one. On a connection that the kernel answers nobody is kept
// waiting, unless that is wanted: a blocked receive there ends with an error at any
// signal (see package bpf).
func (l *loop) offer(c *conn, q *resolver.Query, msg []byte) {
	if c.direct() && len(l.out) == 0 && offerable(msg) {
		c.fast.Offer(q)
	}
	if q.Kind != resolver.AskSA && !l.srv.cfg.FastWait && c.fast.OnMap() {
		q.NoDelay = true
	}
}
