// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package ibsim

import (
	"fmt"
	"unsafe"

	"acmd/mad"
	"acmd/mad/ring"

	"golang.org/x/sys/unix"
)

// batch is how many packets one system call moves: no more than what one wake-up
// finds, and short enough for a call that the scheduler does not know of.
const batch = 32

// mmsghdr is struct mmsghdr of the kernel; Go pads it as C does.
type mmsghdr struct {
	hdr unix.Msghdr
	n   uint32
}

// recvBatch is the argument of recvmmsg(2). It lives on the heap with the port,
// so the addresses in it stay valid.
type recvBatch struct {
	msgs [batch]mmsghdr
	iovs [batch]unix.Iovec
}

func (b *recvBatch) init() {
	for i := range b.msgs {
		b.msgs[i].hdr.Iov = &b.iovs[i]
		b.msgs[i].hdr.SetIovlen(1)
	}
}

// recv reads what is there, without waiting, each packet so that its MAD lies in
// the slot's place for it. It may return 0 and no error when all that came was
// dropped.
func (b *recvBatch) recv(fd int, slots []*ring.Slot, c *counters) (int, error) {
	n := min(len(slots), batch)
	for i, s := range slots[:n] {
		b.iovs[i].Base = &s.Bytes()[packetOffset]
		b.iovs[i].SetLen(packetSize)
	}
	// The call does not block and copies at most 9 KiB: the scheduler need not know.
	r, _, errno := unix.RawSyscall6(unix.SYS_RECVMMSG, uintptr(fd), uintptr(unsafe.Pointer(&b.msgs[0])),
		uintptr(n), unix.MSG_DONTWAIT, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	kept := 0
	for i := range int(r) {
		m := &b.msgs[i]
		slot := (*[ring.SlotSize]byte)(slots[i].Bytes())
		if m.n != packetSize || m.hdr.Flags&unix.MSG_TRUNC != 0 || !accept(slot) {
			c.dropped.Add(1)
			continue
		}
		if slots[i].Header().Status() != 0 {
			c.undelivered.Add(1)
		}
		if kept != i { // close the gap; only after a drop
			copy(slots[kept].Bytes(), slot[:])
		}
		kept++
	}
	c.received.Add(uint64(kept))
	return kept, nil
}

// sendBatch is the argument of sendmmsg(2): per packet a header of ours and the
// MAD where it lies.
type sendBatch struct {
	msgs [batch]mmsghdr
	iovs [batch][2]unix.Iovec
	hdrs [batch]packetHeader
}

func (b *sendBatch) init() {
	for i := range b.msgs {
		b.iovs[i][0].Base = &b.hdrs[i][0]
		b.iovs[i][0].SetLen(packetHeaderSize)
		b.msgs[i].hdr.Iov = &b.iovs[i][0]
		b.msgs[i].hdr.SetIovlen(2)
	}
}

// send hands over what the simulator's queue has room for, one packet at least
// or an error. A MAD that the simulator would silently discard is refused when
// its turn comes.
func (b *sendBatch) send(fd int, slots []*ring.Slot, sqp mad.QPN) (int, error) {
	n := 0
	for _, s := range slots[:min(len(slots), batch)] {
		m := s.MAD()
		if m.BaseVersion() != mad.BaseVersion || m.ClassVersion() > 2 {
			if n > 0 {
				break
			}
			return 0, fmt.Errorf("base version %d, class version %d are not carried", m.BaseVersion(), m.ClassVersion())
		}
		b.hdrs[n].outgoing(s.Header(), sqp)
		b.iovs[n][1].Base = &m[0]
		b.iovs[n][1].SetLen(mad.PacketSize)
		n++
	}
	for {
		// Does not block either.
		r, _, errno := unix.RawSyscall6(unix.SYS_SENDMMSG, uintptr(fd), uintptr(unsafe.Pointer(&b.msgs[0])),
			uintptr(n), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
		switch errno {
		case 0:
			return int(r), nil
		case unix.EINTR:
		default:
			return 0, errno
		}
	}
}
