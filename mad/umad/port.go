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

const (
	maxBatch = 64
	// maxMessage bounds a reassembled answer; 64 Ki path records are 4 MiB.
	maxMessage = 256 << 20
	// timedOutSize is what read(2) returns for a send that got no answer.
	timedOutSize = mad.UserHeaderSize + mad.HeaderSize
)

// Port is one umad device.
type Port struct {
	fabric   *Fabric
	name     string
	file     *os.File
	conn     syscall.RawConn
	ring     *ring.Ring
	caps     transport.Caps
	saAgent  uint32
	acmAgent uint32

	woken     atomic.Bool
	closeOnce sync.Once
	closeErr  error

	rx [maxBatch][]byte // of the one goroutine in Recv
	tx [maxBatch][]byte // of the one goroutine in Send
}

// Ring implements [transport.Port].
func (p *Port) Ring() *ring.Ring { return p.ring }

// Caps implements [transport.Port].
func (p *Port) Caps() transport.Caps { return p.caps }

// JoinQP implements [transport.Port]; there is no queue pair to attach.
func (p *Port) JoinQP(mad.GID, mad.LID) error { return nil }

// LeaveQP implements [transport.Port].
func (p *Port) LeaveQP(mad.GID, mad.LID) error { return nil }

// Send implements [transport.Port]. The agent is chosen by the MAD's class.
func (p *Port) Send(slots []*ring.Slot) (n int, err error) {
	for n < len(slots) {
		batch := slots[n:min(len(slots), n+maxBatch)]
		for i, s := range batch {
			if err := p.address(s); err != nil {
				batch = batch[:i]
				if i == 0 {
					return n, err
				}
				break
			}
			p.tx[i] = s.Bytes()
		}
		k, err := p.writev(p.tx[:len(batch)])
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

// writev writes one frame per slice and returns how many were taken.
func (p *Port) writev(frames [][]byte) (n int, err error) {
	var bytes int
	cerr := p.conn.Control(func(fd uintptr) {
		for {
			if bytes, err = unix.Writev(int(fd), frames); err != unix.EINTR {
				return
			}
		}
	})
	if cerr != nil {
		return 0, p.fault(cerr)
	}
	if err != nil {
		return 0, p.fault(err)
	}
	// A frame that fails behind good ones ends the call short; its own error
	// shows when it is the first of the next call.
	return bytes / ring.SlotSize, nil
}

// Recv implements [transport.Port].
func (p *Port) Recv(slots []*ring.Slot, deadline time.Time) (int, error) {
	slots = slots[:min(len(slots), maxBatch)]
	if len(slots) == 0 {
		return 0, errors.New("umad: Recv without a slot")
	}
	for i, s := range slots {
		p.rx[i] = s.Bytes()
	}
	if err := p.file.SetReadDeadline(deadline); err != nil {
		return 0, p.fault(err)
	}
	if p.woken.Swap(false) {
		return 0, nil
	}
	var (
		n    int
		rerr error
	)
	err := p.conn.Read(func(fd uintptr) bool {
		n, rerr = p.readv(int(fd), slots)
		return rerr != unix.EAGAIN
	})
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		p.woken.Store(false)
		return 0, nil
	case err != nil:
		return 0, p.fault(err)
	case rerr != nil:
		return n, p.fault(rerr)
	}
	return n, nil
}

// readv fills slots with what is queued. The kernel reads one MAD per iovec and
// stops at the first that is shorter than its iovec, which is a send that timed
// out.
func (p *Port) readv(fd int, slots []*ring.Slot) (int, error) {
	bytes, err := unix.Readv(fd, p.rx[:len(slots)])
	switch err {
	case nil:
	case unix.EINTR:
		return 0, unix.EAGAIN // try again through the poller, which looks at once
	case unix.ENOSPC:
		if err := readLong(fd, slots[0]); err != nil {
			return 0, err
		}
		return 1, nil
	default:
		return 0, err
	}
	if bytes == 0 {
		return 0, unix.EIO
	}
	n := bytes / ring.SlotSize
	switch rest := bytes % ring.SlotSize; {
	case rest == timedOutSize:
		n++
	case rest != 0:
		return n, fmt.Errorf("read of %d bytes", bytes)
	}
	return n, nil
}

// readLong reads a reassembled message again, after ENOSPC left its header and
// first 256 bytes in the slot, into memory of its own size. PayloadLength of the
// RMPP header is no guide to it: it counts 20 bytes per segment.
func readLong(fd int, s *ring.Slot) error {
	size := int(s.Header().Length())
	if size <= ring.SlotSize || size > maxMessage {
		return fmt.Errorf("reassembled message of %d bytes", size)
	}
	buf := make([]byte, size)
	n, err := unix.Read(fd, buf)
	if err != nil {
		return err
	}
	if n <= ring.SlotSize {
		return fmt.Errorf("reassembled message: read %d of %d bytes", n, size)
	}
	copy(s.Bytes(), buf)
	s.SetLong(buf[mad.UserHeaderSize:n])
	return nil
}

// Wake implements [transport.Port].
func (p *Port) Wake() {
	p.woken.Store(true)
	// Ends a read that waits. If Recv sets its own deadline after this it sees
	// the flag, since it looks only then. An error means the file is closed.
	_ = p.file.SetReadDeadline(time.Unix(1, 0))
}

// fault translates what the kernel and the runtime say.
func (p *Port) fault(err error) error {
	switch {
	case errors.Is(err, os.ErrClosed) || errors.Is(err, net.ErrClosed):
		return net.ErrClosed
	case errors.Is(err, unix.EIO) && !p.present(), errors.Is(err, unix.ENODEV), errors.Is(err, unix.EPIPE):
		return fmt.Errorf("%s: %w", p.name, transport.ErrGone)
	}
	return fmt.Errorf("%s: %w", p.name, err)
}

// present asks the kernel whether the device behind the descriptor still lives:
// write answers EIO both for that and for an unknown agent, and a device of the
// same name may be back. Poll reports POLLERR alone for a dead one.
func (p *Port) present() bool {
	alive := false
	err := p.conn.Control(func(fd uintptr) {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN | unix.POLLOUT}}
		_, err := unix.Poll(fds, 0)
		alive = err == nil && fds[0].Revents&unix.POLLERR == 0
	})
	return err == nil && alive
}

// Close implements [transport.Port].
func (p *Port) Close() error {
	p.closeOnce.Do(func() {
		p.closeErr = p.file.Close()
		p.fabric.mu.Lock()
		delete(p.fabric.ports, p)
		p.fabric.mu.Unlock()
	})
	return p.closeErr
}
