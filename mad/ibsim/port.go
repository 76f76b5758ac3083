// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package ibsim

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"acmd/mad"
	"acmd/mad/ring"
	"acmd/mad/transport"

	"golang.org/x/sys/unix"
)

// sendPatience is how long Send waits for the simulator to make room. Some 280
// packets fit (SO_SNDBUF of the default size), and it takes one in some ten
// microseconds unless it waits itself, spinning, for a client that has as many
// answers unread. That client may be ours: then Send must end for Recv to go on.
const sendPatience = 100 * time.Millisecond

// rubbishLimit is how many batches of nothing but malformed packets one Recv looks
// at before it returns with nothing: a flood of them must not hold it beyond its
// deadline.
const rubbishLimit = 256

// Port is the open port. See [transport.Port] for the rules of its methods.
//
// How it waits was measured with 16 queries outstanding on two processors: some
// 19 us of processor time per query blocked in ppoll(2) under Go's scheduler or
// with Go's poller on the socket, 12 us (6 to 18, less the more answers one
// wake-up finds) for what is here. Two things cost the difference. Entering a
// system call that may block wakes the runtime's monitor thread, which then polls
// every 20 us: so the calls here, none of which blocks, are raw. And Go's poller
// asks for room to send as well, and is woken for every packet that the simulator
// takes: so it watches an epoll descriptor of ours that asks for input only.
type Port struct {
	fabric  *Fabric
	ring    *ring.Ring
	caps    transport.Caps
	sqp     mad.QPN
	link    *link
	data    int      // the link's
	kick    int      // eventfd: makes a Recv return
	watched int      // epoll descriptor that watches data and kick for input
	poll    *os.File // the same, under Go's poller
	raw     syscall.RawConn

	gate  *transport.Gate // of the calls that use the descriptors
	woken atomic.Bool

	// Recv's: the call in progress, which try works on, and the deadline that poll has.
	in       recvBatch
	try      func(uintptr) bool
	slots    []*ring.Slot
	n        int
	err      error
	deadline time.Time

	out sendBatch // Send's
}

var _ transport.Pollable = (*Port)(nil)

func newPort(f *Fabric, l *link, r *ring.Ring) (*Port, error) {
	p := &Port{fabric: f, ring: r, link: l, data: l.data, sqp: mad.QP1, gate: transport.NewGate()}
	if f.cfg.QP > 1 {
		p.sqp = f.cfg.QP
	}
	p.caps = transport.Caps{Reports: f.cfg.ISSM || f.cfg.QP > 1, QPN: p.sqp}
	p.in.init()
	p.out.init()
	p.try = p.tryRecv // once, for a method value is allocated
	var err error
	if p.kick, err = unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC); err != nil {
		return nil, os.NewSyscallError("eventfd", err)
	}
	if err := p.watch(); err != nil {
		unix.Close(p.kick)
		return nil, err
	}
	return p, nil
}

// watch makes the epoll descriptor and hands it to Go's poller. Nobody calls
// epoll_wait on it: that it is readable is all that is of interest.
func (p *Port) watch() error {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return os.NewSyscallError("epoll_create1", err)
	}
	for _, w := range []int{p.data, p.kick} {
		if err := unix.EpollCtl(fd, unix.EPOLL_CTL_ADD, w, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(w)}); err != nil {
			unix.Close(fd)
			return os.NewSyscallError("epoll_ctl", err)
		}
	}
	if err := unix.SetNonblock(fd, true); err != nil { // what os.NewFile goes by
		unix.Close(fd)
		return os.NewSyscallError("fcntl", err)
	}
	p.watched, p.poll = fd, os.NewFile(uintptr(fd), "ibsim")
	if p.raw, err = p.poll.SyscallConn(); err == nil {
		err = p.poll.SetReadDeadline(time.Time{}) // fails if the poller did not take it
	}
	if err != nil {
		p.poll.Close()
	}
	return err
}

// Ring returns the port's ring.
func (p *Port) Ring() *ring.Ring { return p.ring }

// Caps: only Reports depends on the configuration.
func (p *Port) Caps() transport.Caps { return p.caps }

// JoinQP and LeaveQP have nothing to do: the simulator carries no multicast.
func (p *Port) JoinQP(mad.GID, mad.LID, uint16) error { return nil }

// LeaveQP does nothing.
func (p *Port) LeaveQP(mad.GID, mad.LID) error { return nil }

// enter protects the descriptors until leave, or says why the port is shut.
func (p *Port) enter() error {
	if err := p.gate.Enter(); err != nil {
		return fmt.Errorf("ibsim: %w", err)
	}
	return nil
}

func (p *Port) leave() { p.gate.Leave() }

// shut makes all calls fail with cause and waits for those in progress. It is
// not called twice at a time: the fabric's goroutine does it, or Close by way of
// winning the shut bit.
func (p *Port) shut(cause error) {
	if !p.gate.Shut(cause) {
		p.gate.Wait()
		return
	}
	p.signal()
	p.gate.Wait()
	p.link.unread.Store(true) // only now, or a Recv would lose messages
	p.poll.Close()
	unix.Close(p.kick)
	p.ring.Retire()
}

// Close detaches from the simulator.
func (p *Port) Close() error {
	p.shut(net.ErrClosed)
	p.gate.SetCause(net.ErrClosed) // also after the device was gone
	p.fabric.portClosed(p)
	return nil
}

func (p *Port) signal() {
	one := [8]byte{1, 1, 1, 1, 1, 1, 1, 1} // any number but 0, in either byte order
	unix.RawSyscall(unix.SYS_WRITE, uintptr(p.kick), uintptr(unsafe.Pointer(&one)), uintptr(len(one)))
}

// Wake makes a Recv return.
func (p *Port) Wake() {
	if p.enter() != nil {
		return
	}
	if !p.woken.Swap(true) {
		p.signal()
	}
	p.leave()
}

// wasWoken takes the wake-up, if there is one. The descriptor is emptied before
// the flag: a Wake in between is part of the one that is being taken.
func (p *Port) wasWoken() bool {
	if !p.woken.Load() {
		return false
	}
	var b [8]byte
	unix.RawSyscall(unix.SYS_READ, uintptr(p.kick), uintptr(unsafe.Pointer(&b)), uintptr(len(b)))
	p.woken.Store(false)
	return true
}

// PollFDs is the simulator's socket.
func (p *Port) PollFDs() []int { return []int{p.data} }

// Drive takes the socket from Go's poller while a loop waits for it: each packet
// would wake a thread of the runtime, too, for nothing.
func (p *Port) Drive(loop bool) {
	if p.enter() != nil {
		return
	}
	defer p.leave()
	ev := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(p.data)}
	if loop {
		ev.Events = 0
	}
	_ = unix.EpollCtl(p.watched, unix.EPOLL_CTL_MOD, p.data, &ev) // it is there: nothing to fail
}

// Send hands slots to the simulator, up to 32 in one system call. It waits a
// little for room; [unix.EAGAIN] then means that the simulator does not read.
func (p *Port) Send(slots []*ring.Slot) (int, error) { return p.send(slots, true) }

// TrySend is Send without the wait.
func (p *Port) TrySend(slots []*ring.Slot) (int, error) { return p.send(slots, false) }

func (p *Port) send(slots []*ring.Slot, wait bool) (int, error) {
	if err := p.enter(); err != nil {
		return 0, err
	}
	defer p.leave()
	sent := 0
	for sent < len(slots) {
		n, err := p.out.send(p.data, slots[sent:], p.sqp)
		sent += n
		p.fabric.stats.sent.Add(uint64(n))
		if err == unix.EAGAIN && wait {
			err = p.waitRoom()
		}
		if err != nil {
			if isDown(err) {
				err = transport.ErrGone
			}
			return sent, fmt.Errorf("ibsim: send: %w", err)
		}
	}
	return sent, nil
}

// waitRoom waits until the simulator's socket takes a packet.
func (p *Port) waitRoom() error {
	fds := [1]unix.PollFd{{Fd: int32(p.data), Events: unix.POLLOUT}}
	for end := time.Now().Add(sendPatience); !p.gate.IsShut(); {
		left := time.Until(end)
		if left <= 0 {
			return unix.EAGAIN
		}
		ts := unix.NsecToTimespec(int64(left))
		if n, err := unix.Ppoll(fds[:], &ts, nil); n > 0 || err != nil && err != unix.EINTR {
			return err
		}
	}
	return p.gate.Cause()
}

// Recv fills slots, up to 32 in one system call.
func (p *Port) Recv(slots []*ring.Slot, deadline time.Time) (int, error) {
	if err := p.enter(); err != nil {
		return 0, err
	}
	n, err := p.recv(slots, deadline)
	if p.gate.IsShut() && n == 0 {
		err = p.gate.Cause()
	}
	p.leave()
	if err != nil {
		return 0, fmt.Errorf("ibsim: receive: %w", err)
	}
	return n, nil
}

func (p *Port) recv(slots []*ring.Slot, deadline time.Time) (int, error) {
	p.slots, p.n, p.err = slots, 0, nil
	defer func() { p.slots = nil }()
	if !deadline.IsZero() && !deadline.After(time.Now()) {
		p.tryRecv(0) // the poller would not even look
		return p.n, p.err
	}
	if deadline != p.deadline {
		if err := p.poll.SetReadDeadline(deadline); err != nil {
			return 0, err
		}
		p.deadline = deadline
	}
	if err := p.raw.Read(p.try); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		return 0, err
	}
	return p.n, p.err
}

// tryRecv looks once, without waiting, and reports whether Recv is over. Its
// argument is the poller's descriptor, which only says when to look.
func (p *Port) tryRecv(uintptr) bool {
	if len(p.slots) == 0 {
		return true
	}
	for range rubbishLimit {
		if p.wasWoken() || p.gate.IsShut() {
			return true
		}
		var err error
		p.n, err = p.in.recv(p.data, p.slots, &p.fabric.stats)
		switch {
		case p.n > 0:
			return true
		case err == unix.EAGAIN:
			return false
		case err == nil || err == unix.EINTR: // nothing of use among what came
		case isDown(err):
			p.err = transport.ErrGone
			return true
		default:
			p.err = err
			return true
		}
	}
	return true
}
