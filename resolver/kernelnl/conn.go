// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package kernelnl

import (
	"errors"
	"time"
)

var (
	// ErrEmpty is returned by Conn.Recv when there is nothing to read.
	ErrEmpty = errors.New("nothing to read")
	// ErrOverrun is returned by Conn.Recv once after the kernel had to drop
	// messages because nobody read them in time.
	ErrOverrun = errors.New("messages were lost, the receive buffer was full")
)

// Conn is a netlink socket in the group of the local service. Wait, Recv and Send
// are for one goroutine; Wake and SetWait are safe from any.
type Conn interface {
	// Wait returns when there may be something to read, after the deadline (zero:
	// none) and after Wake.
	Wait(deadline time.Time) error
	// Recv reads one datagram and tells the netlink port that sent it, 0 for the
	// kernel. It does not block. n may exceed len(b), then the rest is lost.
	Recv(b []byte) (n int, from uint32, err error)
	// Send sends one message to the kernel.
	Send(b []byte) error
	// Wake makes the Wait in progress, or the next one, return.
	Wake()
	// SetWait sets how long the kernel waits for an answer before it asks the SA.
	SetWait(d time.Duration) error
	// Close ends the socket. It must not be called during the other methods.
	Close() error
}
