// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//go:build verbs && cgo

package verbs

import (
	"os"
	"unsafe"

	"acmd/mad/ring"
	"acmd/mad/transport"

	"golang.org/x/sys/unix"
)

// pollable is a port whose wrapped port is pollable, too: its descriptor is an
// epoll descriptor that watches that one's and an eventfd for completions.
type pollable struct{ *Port }

var _ transport.Pollable = pollable{}

// PollFD implements [transport.Pollable].
func (p pollable) PollFD() int { return p.poll }

// TrySend implements [transport.Pollable].
func (p pollable) TrySend(slots []*ring.Slot) (int, error) {
	return p.send(slots, p.inner.(transport.Pollable).TrySend, false)
}

// watchAll makes the descriptors of a pollable port.
func (p *Port) watchAll(inner transport.Pollable) (err error) {
	if p.kick, err = unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC); err != nil {
		return os.NewSyscallError("eventfd", err)
	}
	if p.poll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return os.NewSyscallError("epoll_create1", err)
	}
	for _, fd := range []int{inner.PollFD(), p.kick} {
		if err := unix.EpollCtl(p.poll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)}); err != nil {
			return os.NewSyscallError("epoll_ctl", err)
		}
	}
	return nil
}

// signal makes the descriptor readable, unsignal undoes it. Neither blocks.
func (p *Port) signal() {
	if p.kick >= 0 {
		one := [8]byte{1, 1, 1, 1, 1, 1, 1, 1} // any number but 0, in either byte order
		unix.RawSyscall(unix.SYS_WRITE, uintptr(p.kick), uintptr(unsafe.Pointer(&one)), uintptr(len(one)))
	}
}

func (p *Port) unsignal() {
	if p.kick >= 0 {
		var b [8]byte
		unix.RawSyscall(unix.SYS_READ, uintptr(p.kick), uintptr(unsafe.Pointer(&b)), uintptr(len(b)))
	}
}

func (p *Port) unwatch() {
	for _, fd := range []int{p.poll, p.kick} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}
