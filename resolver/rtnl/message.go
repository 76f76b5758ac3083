// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package rtnl

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Message is one netlink message (struct nlmsghdr and what follows). Body lies in
// the buffer that was read.
type Message struct {
	Type  uint16 // unix.RTM_NEWLINK ...
	Flags uint16 // unix.NLM_F_MULTI ...
	Seq   uint32
	Body  []byte // from behind the header
}

var (
	errShort = errors.New("rtnetlink: message is cut short")
	order    = binary.NativeEndian
)

func align(n int) int { return (n + unix.NLMSG_ALIGNTO - 1) &^ (unix.NLMSG_ALIGNTO - 1) }

// Next takes the first message off b.
func Next(b []byte) (m Message, rest []byte, err error) {
	if len(b) < unix.SizeofNlMsghdr {
		return m, nil, errShort
	}
	n := int(order.Uint32(b))
	if n < unix.SizeofNlMsghdr || n > len(b) {
		return m, nil, errShort
	}
	m = Message{Type: order.Uint16(b[4:]), Flags: order.Uint16(b[6:]), Seq: order.Uint32(b[8:]), Body: b[unix.SizeofNlMsghdr:n]}
	return m, b[min(align(n), len(b)):], nil
}

// eachAttr calls f for each attribute (struct rtattr) in b, with the number of its
// type without the flags. What follows the last whole attribute and is too short
// for one is padding; an attribute that claims more than there is is an error.
func eachAttr(b []byte, f func(typ uint16, v []byte)) error {
	for len(b) >= unix.SizeofRtAttr {
		n := int(order.Uint16(b))
		if n < unix.SizeofRtAttr || n > len(b) {
			return fmt.Errorf("%w: attribute of %d bytes, %d are left", errShort, n, len(b))
		}
		f(order.Uint16(b[2:])&^(unix.NLA_F_NESTED|unix.NLA_F_NET_BYTEORDER), b[unix.SizeofRtAttr:n])
		b = b[min(align(n), len(b)):]
	}
	return nil
}

// appendAttr appends an attribute, padded.
func appendAttr(b []byte, typ uint16, v []byte) []byte {
	b = order.AppendUint16(b, uint16(unix.SizeofRtAttr+len(v)))
	b = order.AppendUint16(b, typ)
	b = append(b, v...)
	return append(b, make([]byte, align(len(v))-len(v))...)
}

// AppendNeigh appends the body of a message about n, which DecodeNeigh reads. A
// hardware address that is zero is left out.
func AppendNeigh(b []byte, n *Neigh) []byte {
	b = append(b, family(n.IP), 0, 0, 0)
	b = order.AppendUint32(b, uint32(n.Index))
	b = order.AppendUint16(b, n.State)
	b = append(b, 0, 0)
	b = appendAttr(b, unix.NDA_DST, n.IP.AsSlice())
	if n.Hardware != (LinkAddr{}) {
		b = appendAttr(b, unix.NDA_LLADDR, n.Hardware[:])
	}
	return b
}

// appendHeader appends the header of a request; seal writes the length into it.
func appendHeader(b []byte, typ, flags uint16, seq uint32) []byte {
	b = append(b, 0, 0, 0, 0)
	b = order.AppendUint16(b, typ)
	b = order.AppendUint16(b, flags)
	b = order.AppendUint32(b, seq)
	return append(b, 0, 0, 0, 0)
}

func seal(b []byte) []byte {
	order.PutUint32(b, uint32(len(b)))
	return b
}
