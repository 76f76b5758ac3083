// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package ibsim

import (
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"time"

	"acmd/mad"
	"acmd/mad/ring"
	"acmd/mad/transport"

	"golang.org/x/sys/unix"
)

// sendPatience is how long Send waits for the simulator to make room. Its queue
// has net.unix.max_dgram_qlen places, ten by default, and it empties one in some
// ten microseconds unless it waits itself for a client that does not read, which
// may be ours: then Send must end for Recv to go on.
const sendPatience = 100 * time.Millisecond

// Port is the open port. See [transport.Port] for the rules of its methods.
//
// Receiving blocks in ppoll(2) on the data socket and an event descriptor. That
// was measured against Go's network poller, which is told of every packet that
// the simulator takes as well and cost a third more CPU per query.
type Port struct {
	fabric *Fabric
	ring   *ring.Ring
	caps   transport.Caps
	sqp    mad.QPN
	data   int // the link's
	kick   int // eventfd: makes a Recv return

	// users counts calls that use the descriptors; the top bit says that no more
	// may come. The last of them closes idle.
	users atomic.Uint32
	idle  chan struct{}
	cause atomic.Pointer[error] // why the port is shut
	woken atomic.Bool

	in  recvBatch // Recv's
	out sendBatch // Send's
}

var _ transport.Port = (*Port)(nil)

const shutBit = 1 << 31

func newPort(f *Fabric, data int, r *ring.Ring) (*Port, error) {
	kick, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("eventfd", err)
	}
	p := &Port{fabric: f, ring: r, data: data, kick: kick, sqp: mad.QP1, idle: make(chan struct{})}
	if f.cfg.QP > 1 {
		p.sqp = f.cfg.QP
	}
	p.caps = transport.Caps{Reports: f.cfg.ISSM || f.cfg.QP > 1, QPN: p.sqp}
	p.in.init()
	p.out.init()
	return p, nil
}

// Ring returns the port's ring.
func (p *Port) Ring() *ring.Ring { return p.ring }

// Caps: only Reports depends on the configuration.
func (p *Port) Caps() transport.Caps { return p.caps }

// JoinQP and LeaveQP have nothing to do: the simulator carries no multicast.
func (p *Port) JoinQP(mad.GID, mad.LID) error { return nil }

// LeaveQP does nothing.
func (p *Port) LeaveQP(mad.GID, mad.LID) error { return nil }

// enter protects the descriptors until leave, or says why the port is shut.
func (p *Port) enter() error {
	for {
		u := p.users.Load()
		if u&shutBit != 0 {
			return fmt.Errorf("ibsim: %w", *p.cause.Load())
		}
		if p.users.CompareAndSwap(u, u+1) {
			return nil
		}
	}
}

func (p *Port) leave() {
	if p.users.Add(^uint32(0)) == shutBit {
		close(p.idle)
	}
}

// shut makes all calls fail with cause and waits for those in progress. It is
// not called twice at a time: the fabric's goroutine does it, or Close by way of
// winning the shut bit.
func (p *Port) shut(cause error) {
	p.cause.CompareAndSwap(nil, &cause)
	was := p.users.Or(shutBit)
	if was&shutBit != 0 {
		<-p.idle
		return
	}
	p.signal()
	if was == 0 {
		close(p.idle)
	}
	<-p.idle
	unix.Close(p.kick)
	p.ring.Retire()
}

// Close detaches from the simulator.
func (p *Port) Close() error {
	p.shut(net.ErrClosed)
	closed := net.ErrClosed
	p.cause.Store(&closed) // also after the device was gone
	p.fabric.portClosed(p)
	return nil
}

func (p *Port) signal() {
	var one = [8]byte{1, 1, 1, 1, 1, 1, 1, 1} // any number but 0, in either byte order
	unix.Write(p.kick, one[:])
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
	unix.Read(p.kick, b[:])
	p.woken.Store(false)
	return true
}

// Send hands slots to the simulator, up to 32 in one system call. It waits a
// little for room; [unix.EAGAIN] then means that the simulator does not read.
func (p *Port) Send(slots []*ring.Slot) (int, error) {
	if err := p.enter(); err != nil {
		return 0, err
	}
	defer p.leave()
	sent := 0
	for sent < len(slots) {
		n, err := p.out.send(p.data, slots[sent:], p.sqp)
		sent += n
		p.fabric.stats.sent.Add(uint64(n))
		if err == unix.EAGAIN {
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
	for end := time.Now().Add(sendPatience); p.users.Load()&shutBit == 0; {
		left := time.Until(end)
		if left <= 0 {
			return unix.EAGAIN
		}
		ts := unix.NsecToTimespec(int64(left))
		if n, err := unix.Ppoll(fds[:], &ts, nil); n > 0 || err != nil && err != unix.EINTR {
			return err
		}
	}
	return *p.cause.Load()
}

// Recv fills slots, up to 32 in one system call.
func (p *Port) Recv(slots []*ring.Slot, deadline time.Time) (int, error) {
	if err := p.enter(); err != nil {
		return 0, err
	}
	n, err := p.recv(slots, deadline)
	if p.users.Load()&shutBit != 0 && n == 0 {
		err = *p.cause.Load()
	}
	p.leave()
	if err != nil {
		return 0, fmt.Errorf("ibsim: receive: %w", err)
	}
	return n, nil
}

func (p *Port) recv(slots []*ring.Slot, deadline time.Time) (int, error) {
	fds := [2]unix.PollFd{{Fd: int32(p.data), Events: unix.POLLIN}, {Fd: int32(p.kick), Events: unix.POLLIN}}
	for {
		if p.wasWoken() || p.users.Load()&shutBit != 0 || len(slots) == 0 {
			return 0, nil
		}
		n, err := p.in.recv(p.data, slots, &p.fabric.stats)
		if n > 0 {
			return n, nil
		}
		switch {
		case err == nil || err == unix.EINTR: // nothing of use among what came
			continue
		case isDown(err):
			return 0, transport.ErrGone
		case err != unix.EAGAIN:
			return 0, err
		}
		var wait *unix.Timespec
		if !deadline.IsZero() {
			left := time.Until(deadline)
			if left <= 0 {
				return 0, nil
			}
			ts := unix.NsecToTimespec(int64(left))
			wait = &ts
		}
		if _, err := unix.Ppoll(fds[:], wait, nil); err != nil && err != unix.EINTR {
			return 0, os.NewSyscallError("ppoll", err)
		}
	}
}
