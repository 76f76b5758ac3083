// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package rtnl

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// bufferSize is more than the kernel puts into one datagram of a dump (32 KiB,
	// netlink_dump in af_netlink.c).
	bufferSize = 64 << 10
	// answerTime bounds the wait for the kernel's answer to a request. It comes with
	// the request itself, however long that waits for the kernel's own locks.
	answerTime = 10 * time.Second
	// dumpTries bounds how often a dump is begun again because what it lists changed
	// meanwhile.
	dumpTries = 3
)

var (
	// ErrChanging is returned with the result of a dump that was overtaken by
	// changes each time: entries may be missing or be there twice.
	ErrChanging = errors.New("rtnetlink: tables change while they are read")
	// ErrNotFound: the table has no such entry.
	ErrNotFound = errors.New("rtnetlink: no such entry")
)

// Conn asks the kernel. It is for one goroutine at a time.
type Conn struct {
	fd  int
	seq uint32
	req []byte
	buf []byte
}

// Dial opens a socket in the network namespace of the calling thread.
func Dial() (*Conn, error) {
	fd, err := socket(unix.SOCK_CLOEXEC)
	if err != nil {
		return nil, err
	}
	tv := unix.NsecToTimeval(int64(answerTime))
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv); err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("setsockopt", err)
	}
	return &Conn{fd: fd, buf: make([]byte, bufferSize)}, nil
}

func socket(flags int) (int, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|flags, unix.NETLINK_ROUTE)
	if err != nil {
		return -1, fmt.Errorf("rtnetlink: %w", os.NewSyscallError("socket", err))
	}
	// The port number is the kernel's to choose; without one of its own the socket
	// would be given one at its first send only.
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("rtnetlink: %w", os.NewSyscallError("bind", err))
	}
	return fd, nil
}

// Close ends the connection.
func (c *Conn) Close() error { return unix.Close(c.fd) }

// Links lists all interfaces whatever their state. The error may be ErrChanging,
// with a list.
func (c *Conn) Links() (list []Link, err error) {
	body := make([]byte, unix.SizeofIfInfomsg)
	// Counters of traffic are most of the kernel's answer and nobody's business here.
	body = appendAttr(body, unix.IFLA_EXT_MASK, order.AppendUint32(nil, rtextFilterSkipStats))
	err = c.dump(unix.RTM_GETLINK, body, func() { list = list[:0] }, func(m *Message) error {
		if m.Type != unix.RTM_NEWLINK || m.Family() != unix.AF_UNSPEC {
			return nil
		}
		l, err := DecodeLink(m.Body)
		list = append(list, l)
		return err
	})
	return list, err
}

// rtextFilterSkipStats is RTEXT_FILTER_SKIP_STATS of rtnetlink.h.
const rtextFilterSkipStats = 1 << 3

// Addrs lists the IPv4 and IPv6 addresses of all interfaces. The error may be
// ErrChanging, with a list.
func (c *Conn) Addrs() (list []Addr, err error) {
	err = c.dump(unix.RTM_GETADDR, make([]byte, unix.SizeofIfAddrmsg), func() { list = list[:0] }, func(m *Message) error {
		if m.Type != unix.RTM_NEWADDR {
			return nil
		}
		a, err := DecodeAddr(m.Body)
		if a.IP.IsValid() {
			list = append(list, a)
		}
		return err
	})
	return list, err
}

// Neighs lists the neighbour tables of IPv4 and IPv6. The error may be
// ErrChanging, with a list.
func (c *Conn) Neighs() (list []Neigh, err error) {
	err = c.dump(unix.RTM_GETNEIGH, make([]byte, unix.SizeofNdMsg), func() { list = list[:0] }, func(m *Message) error {
		if m.Type != unix.RTM_NEWNEIGH {
			return nil
		}
		n, err := DecodeNeigh(m.Body)
		if n.IP.IsValid() {
			list = append(list, n)
		}
		return err
	})
	return list, err
}

// Neigh returns the neighbour entry of an address on an interface, or ErrNotFound.
func (c *Conn) Neigh(index int, dst netip.Addr) (n Neigh, err error) {
	err = c.one(unix.RTM_GETNEIGH, 0, AppendNeigh(nil, &Neigh{Index: index, IP: dst}), unix.RTM_NEWNEIGH, func(m *Message) (err error) {
		n, err = DecodeNeigh(m.Body)
		return err
	})
	return n, err
}

// Route returns the route to dst that the kernel's tables have for packets which
// leave through an interface. Where there is none IPv4 would take every address for
// a neighbour; it is the entry that is asked for, and not having one is an error.
func (c *Conn) Route(index int, dst netip.Addr) (r Route, err error) {
	body := make([]byte, unix.SizeofRtMsg)
	body[0], body[1] = family(dst), uint8(dst.BitLen())
	order.PutUint32(body[8:], unix.RTM_F_FIB_MATCH)
	body = appendAttr(body, unix.RTA_DST, dst.AsSlice())
	body = appendAttr(body, unix.RTA_OIF, order.AppendUint32(nil, uint32(index)))
	err = c.one(unix.RTM_GETROUTE, 0, body, unix.RTM_NEWROUTE, func(m *Message) (err error) {
		r, err = DecodeRoute(m.Body)
		return err
	})
	return r, err
}

func family(a netip.Addr) uint8 {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// dump asks for a table and calls each for every message of the answer, after
// begin. It begins anew while the kernel says that the table changed meanwhile.
func (c *Conn) dump(typ uint16, body []byte, begin func(), each func(*Message) error) (err error) {
	for range dumpTries {
		begin()
		if err = c.send(typ, unix.NLM_F_DUMP, body); err != nil {
			return err
		}
		if err = c.receive(true, each); !errors.Is(err, ErrChanging) {
			return err
		}
	}
	return err
}

// one asks for a single message of a type.
func (c *Conn) one(typ, flags uint16, body []byte, want uint16, f func(*Message) error) error {
	if err := c.send(typ, flags, body); err != nil {
		return err
	}
	return c.receive(false, func(m *Message) error {
		if m.Type != want {
			return fmt.Errorf("rtnetlink: answer of type %d to a question of type %d", m.Type, typ)
		}
		return f(m)
	})
}

func (c *Conn) send(typ, flags uint16, body []byte) error {
	c.seq++
	c.req = appendHeader(c.req[:0], typ, unix.NLM_F_REQUEST|flags, c.seq)
	c.req = seal(append(c.req, body...))
	for {
		err := unix.Sendto(c.fd, c.req, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
		if err != unix.EINTR {
			return os.NewSyscallError("rtnetlink: sendto", err)
		}
	}
}

// receive reads the answer to the last request: messages up to the one that says
// done, or the only one. What belongs to an earlier request is passed over.
func (c *Conn) receive(multi bool, each func(*Message) error) error {
	var bad error
	changing := false
	for {
		b, err := c.read()
		if err != nil {
			return err
		}
		for len(b) > 0 {
			var m Message
			if m, b, err = Next(b); err != nil {
				return err
			}
			if m.Seq != c.seq {
				continue
			}
			changing = changing || m.Flags&unix.NLM_F_DUMP_INTR != 0
			switch m.Type {
			case unix.NLMSG_NOOP:
				continue
			case unix.NLMSG_ERROR, unix.NLMSG_DONE:
				if err := errno(m.Body); err != nil {
					return err
				}
				if bad == nil && changing {
					return ErrChanging
				}
				return bad
			}
			if bad == nil {
				bad = each(&m)
			}
			if !multi {
				return bad
			}
		}
	}
}

// errno reads the error of NLMSG_ERROR and NLMSG_DONE: a negative number, 0 for
// none.
func errno(b []byte) error {
	if len(b) < 4 {
		return nil // old kernels end dumps with nothing
	}
	switch e := unix.Errno(-int32(order.Uint32(b))); e {
	case 0:
		return nil
	case unix.ENOENT:
		return ErrNotFound
	default:
		return fmt.Errorf("rtnetlink: %w", e)
	}
}

// read returns one datagram of the kernel.
func (c *Conn) read() ([]byte, error) {
	for {
		n, from, err := receiveFrom(c.fd, c.buf)
		switch {
		case err == unix.EINTR:
		case err == unix.EAGAIN:
			return nil, fmt.Errorf("rtnetlink: no answer within %v", answerTime)
		case err != nil:
			return nil, os.NewSyscallError("rtnetlink: recvmsg", err)
		case from == 0:
			return c.buf[:n], nil
		}
	}
}

// receiveFrom reads one datagram and the port that it came from, 0 for the kernel.
func receiveFrom(fd int, buf []byte) (n int, port uint32, err error) {
	n, _, flags, from, err := unix.Recvmsg(fd, buf, nil, 0)
	if err != nil {
		return 0, 0, err
	}
	if flags&unix.MSG_TRUNC != 0 {
		return 0, 0, fmt.Errorf("rtnetlink: a message is longer than %d bytes", len(buf))
	}
	sa, ok := from.(*unix.SockaddrNetlink)
	if !ok {
		return 0, 0, fmt.Errorf("rtnetlink: message from %T", from)
	}
	return n, sa.Pid, nil
}
