// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package umad

import (
	"unsafe"

	"acmd/mad"
	"acmd/mad/ring"

	"golang.org/x/sys/unix"
)

const (
	// maxBatch is how many frames one readv(2) or writev(2) moves.
	maxBatch = 64
	// maxMessage bounds a reassembled answer: a million path records.
	maxMessage = 64 << 20
	// timedOutSize is what read(2) returns for a send that got no answer: the
	// header and 24 bytes of MAD. It is the shortest frame there is.
	timedOutSize = mad.UserHeaderSize + mad.HeaderSize
	// jumboSize holds the largest single MAD that ib_mad receives (2048 bytes, on
	// Omni-Path ports).
	jumboSize = mad.UserHeaderSize + 2048
)

// device is what the kernel does with the descriptor; tests put a model of it in
// its place. Calls return -1 or 0 and an errno.
type device interface {
	// readv and writev move one frame per iovec.
	readv(fd int, iov []unix.Iovec) (int, error)
	writev(fd int, iov []unix.Iovec) (int, error)
	read(fd int, b []byte) (int, error)
	// dead reports whether the adapter behind the descriptor was removed.
	dead(fd int) bool
}

// kernel is the device of production.
type kernel struct{}

func (kernel) readv(fd int, iov []unix.Iovec) (int, error) {
	return vectored(unix.SYS_READV, fd, iov)
}

func (kernel) writev(fd int, iov []unix.Iovec) (int, error) {
	return vectored(unix.SYS_WRITEV, fd, iov)
}

func (kernel) read(fd int, b []byte) (int, error) {
	for {
		n, err := unix.Read(fd, b)
		if err != unix.EINTR {
			return n, err
		}
	}
}

// dead polls: write(2) answers EIO both for a removed device and for an unknown
// agent, and a device of the same name may be back. Only a dead one has POLLERR.
func (kernel) dead(fd int) bool {
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN | unix.POLLOUT}}
	for {
		_, err := unix.Poll(fds, 0)
		if err == unix.EINTR {
			continue
		}
		return err == nil && fds[0].Revents&unix.POLLERR != 0
	}
}

// vectored is readv(2) or writev(2) on iovecs that the caller keeps, so that a
// batch allocates nothing.
func vectored(call uintptr, fd int, iov []unix.Iovec) (int, error) {
	for {
		n, _, e := unix.Syscall(call, uintptr(fd), uintptr(unsafe.Pointer(&iov[0])), uintptr(len(iov)))
		switch e {
		case 0:
			return int(n), nil
		case unix.EINTR:
		default:
			return -1, e
		}
	}
}

// aim points iovecs at whole slots. The lengths must be those of the frames: the
// kernel ends a batch at the first frame that does not fill its iovec.
func aim(iov []unix.Iovec, slots []*ring.Slot) []unix.Iovec {
	iov = iov[:len(slots)]
	for i, s := range slots {
		iov[i].Base = &s.Bytes()[0]
		iov[i].SetLen(ring.SlotSize)
	}
	return iov
}

// settle says how many messages are in what readv(2) put into slots, from the
// number of bytes it returned: whole slots, then at most one shorter frame, which
// is a send that timed out (88 bytes) or an RMPP message of a single segment (100
// and up). Behind a short frame the slot is cleared, so that nobody takes what was
// there before for data.
func settle(slots []*ring.Slot, bytes int) int {
	n, last := bytes/ring.SlotSize, bytes%ring.SlotSize
	if last < timedOutSize {
		return n
	}
	clear(slots[n].Bytes()[last:])
	return n + 1
}
