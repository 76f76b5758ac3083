// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package rtnl

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ErrOverrun: the kernel had more to tell than the socket's buffer takes. What was
// lost is not known; look at everything anew. The monitor stays usable.
var ErrOverrun = errors.New("rtnetlink: notifications were lost")

// ErrDeadline is returned by Monitor.Receive when its deadline is over.
var ErrDeadline = os.ErrDeadlineExceeded

// receiveBuffer is what a Monitor asks for its socket, in bytes: a few thousand
// notifications. Without privilege the kernel gives less.
const receiveBuffer = 1 << 20

// maxBatch bounds the datagrams of one Receive, so that whoever reads gets to act
// while the kernel keeps telling.
const maxBatch = 256

// Monitor is told of changes. Receive is for one goroutine at a time, Close for
// any.
type Monitor struct {
	file   *os.File
	conn   syscall.RawConn
	buf    []byte
	closed atomic.Bool
}

// Listen opens a socket in the network namespace of the calling thread that is
// told of what happens in the groups, unix.RTNLGRP_LINK and so on. A group that
// the kernel does not have is left out.
func Listen(groups ...int) (*Monitor, error) {
	fd, err := socket(unix.SOCK_CLOEXEC | unix.SOCK_NONBLOCK)
	if err != nil {
		return nil, err
	}
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, receiveBuffer) // what it gives is enough: see ErrOverrun
	}
	for _, g := range groups {
		err := unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, g)
		if err != nil && err != unix.EINVAL {
			unix.Close(fd)
			return nil, fmt.Errorf("rtnetlink: join group %d: %w", g, err)
		}
	}
	f := os.NewFile(uintptr(fd), "rtnetlink")
	conn, err := f.SyscallConn()
	if err != nil {
		f.Close()
		return nil, err
	}
	return &Monitor{file: f, conn: conn, buf: make([]byte, bufferSize)}, nil
}

// Receive waits for notifications and calls each for every one that is there, in
// order; m is valid during the call. It returns ErrOverrun after something was
// lost, ErrDeadline when the deadline (zero: none) passed with nothing to tell,
// os.ErrClosed after Close.
func (m *Monitor) Receive(deadline time.Time, each func(m *Message)) error {
	if err := m.file.SetReadDeadline(deadline); err != nil && !m.closed.Load() {
		return err
	}
	var failed error
	err := m.conn.Read(func(fd uintptr) bool {
		for n := 0; n < maxBatch; n++ {
			switch err := m.read(int(fd), each); err {
			case nil:
			case unix.EINTR:
			case unix.EAGAIN:
				return n > 0
			case unix.ENOBUFS:
				failed = ErrOverrun
				return true
			default:
				failed = err
				return true
			}
		}
		return true
	})
	if m.closed.Load() {
		return os.ErrClosed
	}
	return errors.Join(err, failed)
}

// read takes one datagram.
func (m *Monitor) read(fd int, each func(m *Message)) error {
	n, from, err := receiveFrom(fd, m.buf)
	if err != nil {
		return err
	}
	if from != 0 {
		return nil // not the kernel
	}
	for b := m.buf[:n]; len(b) > 0; {
		var msg Message
		if msg, b, err = Next(b); err != nil {
			return err
		}
		each(&msg)
	}
	return nil
}

// Close ends the monitor; a Receive in progress returns.
func (m *Monitor) Close() error {
	m.closed.Store(true)
	return m.file.Close()
}
