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

// pollable is a port whose wrapped port is pollable, too: its descriptors are that
// one's, the completion channel's, and an eventfd that says to look again.
//
// The channel has two who may wait for it. While a goroutine waits in Recv, it is
// the goroutine that takes its events and wakes the other; a loop is woken by the
// channel itself, which saves a change of thread for each datagram.
type pollable struct{ *Port }

var _ transport.Pollable = pollable{}

// PollFDs implements [transport.Pollable].
func (p pollable) PollFDs() []int {
	return append(p.inner.(transport.Pollable).PollFDs(), p.channelFD(), p.kick)
}

// TrySend implements [transport.Pollable].
func (p pollable) TrySend(slots []*ring.Slot) (int, error) {
	return p.send(slots, p.inner.(transport.Pollable).TrySend, false)
}

// watchAll makes the descriptors of a pollable port.
func (p *Port) watchAll() (err error) {
	if p.kick, err = unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC); err != nil {
		return os.NewSyscallError("eventfd", err)
	}
	if p.idle, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return os.NewSyscallError("epoll_create1", err)
	}
	channel := p.channelFD()
	if err := unix.SetNonblock(channel, true); err != nil {
		return os.NewSyscallError("fcntl", err)
	}
	return os.NewSyscallError("epoll_ctl", unix.EpollCtl(p.idle, unix.EPOLL_CTL_ADD, channel, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(channel)}))
}

// channelFD is the descriptor of the completion channel, which is libibverbs'.
func (p *Port) channelFD() int { return int(p.dev.channel.fd) }

// Drive implements [transport.Pollable].
func (p pollable) Drive(loop bool) {
	if p.enter() != nil {
		return
	}
	defer p.gate.Leave()
	p.driven.Store(loop)
	ev := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(p.channelFD())}
	if loop {
		ev.Events = 0
	}
	// It is there: nothing to fail. When it is watched again it may not tell of what
	// came before: whoever has the port now looks by itself.
	_ = unix.EpollCtl(p.idle, unix.EPOLL_CTL_MOD, int(ev.Fd), &ev)
	p.fresh.Store(true)
	p.inner.(transport.Pollable).Drive(loop)
}

// signal makes the eventfd readable, unsignal undoes it. Neither blocks.
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
	for _, fd := range []int{p.kick, p.idle} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}
