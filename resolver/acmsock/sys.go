// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acmsock

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// recv and send never block: the sockets are non-blocking. RawSyscall6 spares
// the scheduler's bookkeeping around a system call, which costs about as much
// as the rest of a cached resolve. The pointers are converted inside the call
// expression, as package unsafe asks for; b is never empty.

func recv(fd int32, b []byte, flags uintptr) (int, syscall.Errno) {
	n, _, e := syscall.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd),
		uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), flags, 0, 0)
	return int(n), e
}

func recvmsg(fd int32, m *unix.Msghdr, flags uintptr) (int, syscall.Errno) {
	n, _, e := syscall.RawSyscall(unix.SYS_RECVMSG, uintptr(fd), uintptr(unsafe.Pointer(m)), flags)
	return int(n), e
}

func send(fd int32, b []byte) (int, syscall.Errno) {
	n, _, e := syscall.RawSyscall6(unix.SYS_SENDTO, uintptr(fd),
		uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), unix.MSG_NOSIGNAL, 0, 0)
	return int(n), e
}

// pollNow returns the number of events that are there, without waiting.
func pollNow(ep int, events []unix.EpollEvent) int {
	n, _, e := syscall.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(ep),
		uintptr(unsafe.Pointer(&events[0])), uintptr(len(events)), 0, 0, 0)
	if e != 0 {
		return 0
	}
	return int(n)
}

// schedYield gives way to others on this processor. The P is kept.
func schedYield() { syscall.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }

// accept takes a connection from a non-blocking listener; the peer's address is
// of no use.
func accept(fd int) (int, syscall.Errno) {
	n, _, e := syscall.RawSyscall6(unix.SYS_ACCEPT4, uintptr(fd), 0, 0,
		unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0, 0)
	return int(n), e
}

// openSpare opens the descriptor that is given up to reject a client when no
// other is left; -1 if there is none.
func openSpare() int {
	fd, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1
	}
	return fd
}
