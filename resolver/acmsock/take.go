// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acmsock

import (
	"syscall"

	"acmd/bpf"

	"golang.org/x/sys/unix"
)

// mostLeft is how much of what was handled may stay in a socket: an ordinary
// request, of a source and a destination. The smallest send buffer that a client can
// have takes several (SOCK_MIN_SNDBUF, include/net/sock.h).
const mostLeft = HeaderSize + 2*RecordSize

// receive reads what a client has sent into b, as [recv].
//
// A client of a unix socket that waits in recv for its reply is woken by the kernel
// when its request is taken, since it could send again (unix_write_space in
// net/unix/af_unix.c); it finds nothing and sleeps once more. So where a client would
// run before its reply is there, the request is left in the socket until the reply is
// written: if nobody else has sent anything, or if its last question had to be
// resolved. In a crowd it waits for a processor in any case, and a second system call
// costs more than that saves. What a client sends that can pass descriptors is looked at
// before it is taken.
func (l *loop) receive(c *conn, b []byte) (int, syscall.Errno) {
	if !l.take(c) {
		return 0, unix.EIO
	}
	if c.door != bpf.DoorUnix || !l.alone && !c.missed && !c.passes {
		return recv(c.fd, b, 0)
	}
	n, errno := l.peek(c, b)
	if errno == 0 {
		c.left = n
	}
	return n, errno
}

// take takes what was left in the socket. It fails if the socket has less.
func (l *loop) take(c *conn) bool {
	for c.left > 0 {
		n, errno := recv(c.fd, l.dropped[:min(c.left, len(l.dropped))], 0)
		if errno != 0 || n == 0 {
			return false
		}
		c.left -= n
	}
	return true
}

// mayLeave tells whether what was left in the socket may stay there: a whole question
// that is not answered yet.
func (c *conn) mayLeave() bool { return !c.idle() && len(c.in) == 0 && c.left <= mostLeft }
