// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package umad

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"acmd/mad"
	"acmd/mad/ring"
	"acmd/mad/transport"

	"golang.org/x/sys/unix"
)

// Port is one umad device. The rules of its methods are those of [transport.Port].
type Port struct {
	fabric   *Fabric
	name     string
	file     *os.File
	fd       int // file's
	conn     syscall.RawConn
	dev      device
	ring     *ring.Ring
	caps     transport.Caps
	saAgent  uint32
	acmAgent uint32

	woken     atomic.Bool
	closed    atomic.Bool
	gone      atomic.Bool // for ever: no call is worth a try
	closeOnce sync.Once
	closeErr  error

	rx rxState
	tx txState
}

var _ transport.Pollable = (*Port)(nil)

// txState belongs to the one goroutine in Send. call is kept so that a batch does
// not allocate a closure.
type txState struct {
	iov   [maxBatch]unix.Iovec
	batch []unix.Iovec
	n     int
	err   error
	call  func(fd uintptr)
}

// newPort takes over the descriptor fd, which must be non-blocking, also when it
// fails.
func newPort(f *Fabric, name string, fd int, dev device) (*Port, error) {
	r, err := ring.New(f.cfg.Slots, f.cfg.Poison)
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	p := &Port{fabric: f, name: name, ring: r, dev: dev, fd: fd}
	p.caps.Multicast, p.caps.QPN, p.caps.Timers = true, mad.QP1, true
	p.tx.call = func(fd uintptr) { p.tx.n, p.tx.err = p.dev.writev(int(fd), p.tx.batch) }
	p.rx.poll = func(fd uintptr) bool { p.rx.n, p.rx.err = p.readv(int(fd)); return p.rx.err != unix.EAGAIN }
	p.rx.look = func(fd uintptr) { p.rx.n, p.rx.err = p.readv(int(fd)) }
	// A non-blocking descriptor goes to the runtime's poller.
	p.file = os.NewFile(uintptr(fd), name)
	p.conn, err = p.file.SyscallConn()
	if err == nil {
		err = p.file.SetReadDeadline(time.Time{}) // fails where the poller did not take it
	}
	if err != nil {
		r.Retire()
		p.file.Close()
		return nil, err
	}
	return p, nil
}

// Ring implements [transport.Port].
func (p *Port) Ring() *ring.Ring { return p.ring }

// Caps implements [transport.Port].
func (p *Port) Caps() transport.Caps { return p.caps }

// JoinQP implements [transport.Port]; there is no queue pair to attach.
func (p *Port) JoinQP(mad.GID, mad.LID, uint16) error { return nil }

// LeaveQP implements [transport.Port].
func (p *Port) LeaveQP(mad.GID, mad.LID) error { return nil }

// PollFDs implements [transport.Pollable].
func (p *Port) PollFDs() []int { return []int{p.fd} }

// Drive implements [transport.Pollable]; Recv waits for the device itself.
func (p *Port) Drive(bool) {}

// TrySend implements [transport.Pollable]: the kernel queues what it takes, no
// write waits.
func (p *Port) TrySend(slots []*ring.Slot) (int, error) { return p.Send(slots) }

// Send implements [transport.Port]. The agent is chosen by the MAD's class. A
// frame that the kernel refuses behind good ones ends its batch; the error is the
// one of trying it again as the first.
func (p *Port) Send(slots []*ring.Slot) (n int, err error) {
	for n < len(slots) {
		if err := p.usable(); err != nil {
			return n, err
		}
		batch := slots[n:min(len(slots), n+maxBatch)]
		for i, s := range batch {
			if err := p.address(s); err != nil {
				if i == 0 {
					return n, err
				}
				batch = batch[:i]
				break
			}
		}
		k, err := p.write(batch)
		n += k
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// address fills in the agent of the slot's class.
func (p *Port) address(s *ring.Slot) error {
	switch class := s.MAD().Class(); class {
	case mad.ClassSA:
		s.Header().SetAgent(p.saAgent)
	case mad.ClassACM:
		s.Header().SetAgent(p.acmAgent)
	default:
		return fmt.Errorf("%s: no agent for class 0x%02x", p.name, class)
	}
	return nil
}

// write writes slots with one call and returns how many were taken, at least one
// unless there is an error.
func (p *Port) write(slots []*ring.Slot) (int, error) {
	p.tx.batch = aim(p.tx.iov[:], slots)
	if err := p.conn.Control(p.tx.call); err != nil {
		return 0, p.fault(err)
	}
	switch {
	case p.tx.err == unix.EINVAL:
		return 0, fmt.Errorf("%s: refused by the kernel (bad address, or its TID %v is still outstanding): %w",
			p.name, slots[0].MAD().TID(), p.tx.err)
	case p.tx.err != nil:
		return 0, p.fault(p.tx.err)
	case p.tx.n < ring.SlotSize:
		return 0, fmt.Errorf("%s: wrote %d bytes of a frame", p.name, p.tx.n)
	}
	return p.tx.n / ring.SlotSize, nil
}

// usable says why no call is worth a try. A write on a descriptor whose device is
// gone would, besides, take some kernels down while ib_umad's tracepoint is on.
func (p *Port) usable() error {
	switch {
	case p.closed.Load():
		return net.ErrClosed
	case p.gone.Load():
		return fmt.Errorf("%s: %w", p.name, transport.ErrGone)
	}
	return nil
}

// fault translates what the kernel and the runtime's poller say. The poller has
// errors of its own, without a type, for a closed descriptor and for one that
// polls as failed; so what counts is what became of the port.
func (p *Port) fault(err error) error {
	if errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EPIPE) || p.isDead() {
		p.gone.Store(true)
	}
	switch {
	case p.closed.Load():
		return net.ErrClosed
	case p.gone.Load():
		return fmt.Errorf("%s: %w: %w", p.name, transport.ErrGone, err)
	}
	return fmt.Errorf("%s: %w", p.name, err)
}

// isDead asks the kernel whether the device was removed.
func (p *Port) isDead() (dead bool) {
	err := p.conn.Control(func(fd uintptr) { dead = p.dev.dead(int(fd)) })
	return err == nil && dead
}

// Close implements [transport.Port].
func (p *Port) Close() error {
	p.closeOnce.Do(func() {
		p.closed.Store(true)
		p.closeErr = p.file.Close()
		p.ring.Retire()
		p.fabric.forget(p)
	})
	return p.closeErr
}
