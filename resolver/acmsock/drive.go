// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acmsock

import (
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// Port is where answers to misses come from: work of another goroutine that the
// loop can do itself while it has nothing but misses to wait for. What a thread
// reads from a client, asks, is answered and writes back then costs no change of
// thread. [acmd/resolver/sa.Client] has these methods and says what they do.
type Port interface {
	PollFDs() []int
	Busy() bool
	Want(wake func())
	Take() bool
	Turn(readable bool) (next time.Time, ok bool)
	GiveBack()
}

const (
	// wantWithin is the time between two misses below which the loop asks for the
	// ports, and idleAfter how long it keeps one that has nothing in hand. A change
	// of hands costs about as much as one miss.
	wantWithin = int64(5 * time.Millisecond)
	idleAfter  = int64(20 * time.Millisecond)
)

// driven is one port as the loop sees it.
type driven struct {
	port     Port
	fds      []int // while it is mine
	mine     bool
	readable bool
	used     int64 // when it last had work, loop's clock
	next     int64 // when its next turn is due, 0: not by time
}

// Drive offers a port to the first loop.
func (s *Server) Drive(p Port) { s.setPorts(func(l []Port) []Port { return append(l, p) }) }

// Undrive takes a port away that has ended. A loop that has it gives it back at
// its next turn.
func (s *Server) Undrive(p Port) {
	s.setPorts(func(l []Port) []Port { return slices.DeleteFunc(l, func(q Port) bool { return q == p }) })
}

// setPorts waits for nobody: a port may go while Drain waits for the loop that has it.
func (s *Server) setPorts(change func([]Port) []Port) {
	for {
		old := s.ports.Load()
		var list []Port
		if old != nil {
			list = slices.Clone(*old)
		}
		list = change(list)
		if s.ports.CompareAndSwap(old, &list) {
			return
		}
	}
}

// missed notes that a request was handed over. A port is for one loop at a time:
// others than the first leave it to its goroutine.
func (l *loop) missed() {
	if l != l.srv.loops[0] || l.srv.ports.Load() == nil {
		return
	}
	now := l.clock()
	l.dense = l.dense || now-l.lastMiss < wantWithin
	l.lastMiss = now
}

// drive takes the ports that it wants and is given, and runs the turns of those
// that it has.
func (l *loop) drive() {
	if list := l.srv.ports.Load(); list != l.portList {
		l.followPorts(list)
	}
	now := l.clock()
	for i := range l.ports {
		d := &l.ports[i]
		switch {
		case d.mine:
		case d.port.Take():
			if !l.begin(d) {
				continue
			}
		case l.dense && d.port.Busy():
			d.port.Want(l.box.poke)
			continue
		default:
			continue
		}
		l.turn(d, now)
	}
	l.dense = false
}

func (l *loop) begin(d *driven) bool {
	d.fds = d.port.PollFDs()
	for i, fd := range d.fds {
		ev := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd), Pad: markPort}
		if unix.EpollCtl(l.ep, unix.EPOLL_CTL_ADD, fd, &ev) != nil {
			l.unwatch(d.fds[:i])
			d.port.GiveBack()
			return false
		}
	}
	d.mine, d.readable, d.used = true, true, l.clock()
	l.driving++
	return true
}

func (l *loop) turn(d *driven, now int64) {
	if d.readable {
		l.lingerer.came = now
	}
	next, ok := d.port.Turn(d.readable)
	d.readable = false
	if d.port.Busy() {
		d.used = now
	} else if now-d.used > idleAfter {
		ok = false
	}
	d.next = d.used + idleAfter + 1
	if !next.IsZero() {
		d.next = min(d.next, int64(next.Sub(l.base)))
	}
	if !ok {
		l.giveBack(d)
	}
}

// giveBack also takes back a wish.
func (l *loop) giveBack(d *driven) {
	if d.mine {
		d.mine = false
		l.driving--
		l.unwatch(d.fds)
	}
	d.port.GiveBack()
}

func (l *loop) unwatch(fds []int) {
	for _, fd := range fds {
		_ = unix.EpollCtl(l.ep, unix.EPOLL_CTL_DEL, fd, nil) // the port may have closed it
	}
}

// followPorts takes over the server's list.
func (l *loop) followPorts(list *[]Port) {
	l.portList = list
	old := l.ports
	l.ports = nil
	for _, p := range *list {
		d := driven{port: p}
		if i := slices.IndexFunc(old, func(o driven) bool { return o.port == p }); i >= 0 {
			d = old[i]
			old = slices.Delete(old, i, i+1)
		}
		l.ports = append(l.ports, d)
	}
	for i := range old {
		l.giveBack(&old[i])
	}
}

// portReadable marks the port that has this descriptor.
func (l *loop) portReadable(fd int) {
	for i := range l.ports {
		if d := &l.ports[i]; d.mine && slices.Contains(d.fds, fd) {
			d.readable = true
		}
	}
}
