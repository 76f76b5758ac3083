// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package umad

import (
	"errors"
	"fmt"
	"os"
	"time"

	"acmd/mad"
	"acmd/mad/ring"

	"golang.org/x/sys/unix"
)

// rxState belongs to the one goroutine in Recv. poll and look are kept so that a
// call does not allocate closures.
type rxState struct {
	iov   [maxBatch]unix.Iovec
	slots []*ring.Slot
	n     int
	err   error
	poll  func(fd uintptr) bool // reads, waits while there is nothing
	look  func(fd uintptr)      // reads, never waits
}

// Recv implements [transport.Port]. What is queued is returned even when the
// deadline is over.
func (p *Port) Recv(slots []*ring.Slot, deadline time.Time) (int, error) {
	if len(slots) == 0 {
		return 0, errors.New("umad: recv without a slot")
	}
	p.rx.slots = slots[:min(len(slots), maxBatch)]
	for {
		if err := p.usable(); err != nil {
			return 0, err
		}
		if err := p.file.SetReadDeadline(deadline); err != nil {
			return 0, p.fault(err)
		}
		// Looked at only now: see Wake.
		if p.woken.Swap(false) {
			return 0, nil
		}
		p.rx.n, p.rx.err = 0, nil
		var err error
		if over(deadline) {
			err = p.conn.Control(p.rx.look) // the poller would not even look
		} else {
			err = p.conn.Read(p.rx.poll)
		}
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			if p.woken.Swap(false) || over(deadline) {
				return 0, nil
			}
			continue // it was the end of a Wake that an earlier call has taken
		case err != nil:
			return 0, p.fault(err)
		case p.rx.err == unix.EAGAIN:
			return 0, nil
		case p.rx.err != nil:
			return 0, p.fault(p.rx.err)
		}
		return p.rx.n, nil
	}
}

// over tells whether a deadline has passed; the zero time is none.
func over(deadline time.Time) bool {
	return !deadline.IsZero() && !time.Now().Before(deadline)
}

// Wake implements [transport.Port].
func (p *Port) Wake() {
	p.woken.Store(true)
	// Ends a read that waits. A Recv that sets its own deadline after this sees
	// the flag, since it looks only then. An error means the file is closed.
	_ = p.file.SetReadDeadline(time.Unix(1, 0))
}

// readv fills slots with what is queued and returns how many messages there are.
// EAGAIN alone says that nothing is: the poller is edge-triggered, so that it may
// be asked to wait only after the queue was seen empty.
func (p *Port) readv(fd int) (int, error) {
	slots := p.rx.slots
	for {
		bytes, err := p.dev.readv(fd, aim(p.rx.iov[:], slots))
		switch err {
		case nil:
			if n := settle(slots, bytes); n > 0 {
				return n, nil
			}
			// Not even a header: whatever that is, it must not be read in a loop.
			return 0, unix.EIO
		case unix.ENOSPC:
			if err := p.readLong(fd, slots[0]); err != nil {
				return 0, err
			}
			return 1, nil
		case unix.EINVAL:
			// A single MAD larger than a slot, which only Omni-Path has. It stays
			// queued until it is read, and nobody asked for it.
			switch _, err := p.dev.read(fd, make([]byte, jumboSize)); err {
			case nil:
			case unix.EAGAIN:
				return 0, err
			default:
				return 0, p.stuck(err)
			}
		default:
			return 0, err
		}
	}
}

// readLong reads a reassembled message again, after ENOSPC left its header and
// first 256 bytes in the slot, into memory of its own size. PayloadLength of the
// RMPP header is no guide to it: it counts 20 bytes per segment.
func (p *Port) readLong(fd int, s *ring.Slot) error {
	size := int64(s.Header().Length())
	if size <= ring.SlotSize {
		return p.stuck(fmt.Errorf("no space for a message of %d bytes", size))
	}
	if size > maxMessage {
		return p.refuseLong(fd, s, size)
	}
	buf := make([]byte, size)
	n, err := p.dev.read(fd, buf)
	if err != nil {
		return p.stuck(err)
	}
	if n <= ring.SlotSize {
		return fmt.Errorf("read %d bytes of a message of %d", n, size)
	}
	copy(s.Bytes(), buf)
	s.SetLong(buf[mad.UserHeaderSize:n])
	return nil
}

// refuseLong takes a message off the queue that is larger than anybody may make us
// keep. Its first 256 bytes go to the owner of the transaction with the status
// EMSGSIZE, for the kernel takes the request for answered.
func (p *Port) refuseLong(fd int, s *ring.Slot, size int64) error {
	mem, err := unix.Mmap(-1, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return p.stuck(err)
	}
	defer unix.Munmap(mem)
	if _, err := p.dev.read(fd, mem); err != nil {
		return p.stuck(err)
	}
	copy(s.Bytes(), mem)
	s.Header().SetStatus(uint32(unix.EMSGSIZE))
	return nil
}

// stuck ends the port when the message at the head of its queue cannot be read:
// nothing behind it ever could, and each try would fail at once. A port that is
// opened anew has an empty queue.
func (p *Port) stuck(err error) error {
	p.gone.Store(true)
	return err
}
