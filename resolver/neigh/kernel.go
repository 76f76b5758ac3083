// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package neigh

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"acmd/resolver/rtnl"

	"golang.org/x/sys/unix"
)

// table is the kernel's neighbour table. It is for one goroutine at a time.
type table interface {
	// Neigh returns an entry, or rtnl.ErrNotFound.
	Neigh(index int, dst netip.Addr) (rtnl.Neigh, error)
	// Route returns the route to dst through an interface.
	Route(index int, dst netip.Addr) (rtnl.Route, error)
	// Solicit makes the kernel resolve or confirm an entry.
	Solicit(index int, dst netip.Addr) error
	// Neighs lists all entries. The error may be rtnl.ErrChanging, with a list.
	Neighs() ([]rtnl.Neigh, error)
	Close() error
}

// notifier is an [rtnl.Monitor], or a test's.
type notifier interface {
	Receive(deadline time.Time, each func(*rtnl.Message)) error
	Close() error
}

// kernel is the running system.
type kernel struct {
	*rtnl.Conn
	plain bool // NTF_USE is not permitted
}

func openKernel() (table, error) {
	c, err := rtnl.Dial()
	if err != nil {
		return nil, err
	}
	return &kernel{Conn: c}, nil
}

func (k *kernel) Solicit(index int, dst netip.Addr) error {
	if !k.plain {
		err := k.Use(index, dst)
		if !errors.Is(err, unix.EPERM) {
			return err
		}
		k.plain = true
	}
	return discard(index, dst)
}

// discardPort is where nobody listens (RFC 863).
const discardPort = 9

// discard sends an empty datagram to dst through an interface: the kernel resolves
// the neighbour to send it.
func discard(index int, dst netip.Addr) (err error) {
	family := unix.AF_INET6
	if dst.Is4() {
		family = unix.AF_INET
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("solicit %v: %w", dst, os.NewSyscallError("socket", err))
	}
	defer unix.Close(fd)
	if dst.Is4() {
		via := unix.PktInfo4(&unix.Inet4Pktinfo{Ifindex: int32(index)})
		err = unix.Sendmsg(fd, nil, via, &unix.SockaddrInet4{Port: discardPort, Addr: dst.As4()}, unix.MSG_DONTWAIT)
	} else {
		via := unix.PktInfo6(&unix.Inet6Pktinfo{Ifindex: uint32(index)})
		err = unix.Sendmsg(fd, nil, via, &unix.SockaddrInet6{Port: discardPort, Addr: dst.As16(), ZoneId: uint32(index)}, unix.MSG_DONTWAIT)
	}
	if err != nil {
		return fmt.Errorf("solicit %v: %w", dst, os.NewSyscallError("sendmsg", err))
	}
	return nil
}
