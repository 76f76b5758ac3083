// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acmsock

import (
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A client of a unix socket can send descriptors with its bytes (SCM_RIGHTS), unless it
// is refused, see refuseDescriptors. Whoever takes such bytes closes what came with
// them, and whoever closes a socket what is left in it. A last close takes as long as who
// passed the descriptor likes: that of a TCP socket may linger, that of a locked file
// waits for its FUSE server. So of a client that is not refused nothing is taken that was
// not looked at, and if its socket is not empty another thread closes it.

// errPassed is the error of a read that would take descriptors. No socket has it.
const errPassed = unix.EPERM

const (
	// maxDiscards bounds the threads that may be held up so.
	maxDiscards = 64
	// discardPatience is how long the end of a server waits for them.
	discardPatience = time.Second
)

// passes tells whether the client of a connection can pass descriptors: before Linux
// 6.16 each can, and later one that connected before it was refused.
func passes(fd int) bool {
	v, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PASSRIGHTS)
	return err != nil || v != 0
}

// peek reads what a client has sent into b and leaves it in the socket.
func (l *loop) peek(c *conn, b []byte) (int, syscall.Errno) {
	if !c.passes {
		return recv(c.fd, b, unix.MSG_PEEK)
	}
	// Without room for control messages the kernel says that there are some
	// (scm_recv in include/net/scm.h). The read ends behind the bytes they came with.
	l.iov = unix.Iovec{Base: &b[0]}
	l.iov.SetLen(len(b))
	l.msg = unix.Msghdr{Iov: &l.iov}
	l.msg.SetIovlen(1)
	n, errno := recvmsg(c.fd, &l.msg, unix.MSG_PEEK)
	if errno == 0 && l.msg.Flags&unix.MSG_CTRUNC != 0 {
		return 0, errPassed
	}
	return n, errno
}

// isEmpty reports that closing the socket closes nothing else. Nothing more can be sent
// to it after that.
func isEmpty(fd int) bool {
	if unix.Shutdown(fd, unix.SHUT_RD) != nil {
		return false
	}
	n, err := unix.IoctlGetInt(fd, unix.SIOCINQ)
	return err == nil && n == 0
}

// discarder runs what may be held up, in threads of its own.
type discarder struct {
	mu      sync.Mutex
	queue   []func() // as many as there are connections at most: they count until they are closed
	workers int
	all     sync.WaitGroup
}

func (d *discarder) add(f func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.queue = append(d.queue, f)
	if d.workers < maxDiscards {
		d.workers++
		d.all.Go(d.work)
	}
}

func (d *discarder) work() {
	for {
		d.mu.Lock()
		if len(d.queue) == 0 {
			d.workers--
			d.mu.Unlock()
			return
		}
		f := d.queue[0]
		d.queue = d.queue[1:]
		d.mu.Unlock()
		f()
	}
}

// wait waits until all is done, but not for long. Nothing is added any more.
func (d *discarder) wait() {
	done := make(chan struct{})
	go func() {
		d.all.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(discardPatience):
	}
}
