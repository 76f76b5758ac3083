// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package rtnl

import (
	"bytes"
	"errors"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Link is a network interface (struct ifinfomsg and attributes, if_link.h).
type Link struct {
	Index     int
	Name      string
	Type      uint16 // ARP hardware type
	Flags     uint32 // unix.IFF_UP ...
	Hardware  LinkAddr
	Broadcast LinkAddr
}

// Addr is an address of an interface (struct ifaddrmsg, if_addr.h): the local end
// where the link is point to point.
type Addr struct {
	Index int
	IP    netip.Addr // without a zone
}

// Neigh is an entry of the neighbour table (struct ndmsg, neighbour.h).
type Neigh struct {
	Index    int
	IP       netip.Addr // without a zone
	State    uint16     // unix.NUD_REACHABLE ...
	Hardware LinkAddr
}

// Resolved tells whether the kernel would send to the hardware address: it is
// confirmed, or was and is being confirmed again.
func (n *Neigh) Resolved() bool {
	const valid = unix.NUD_PERMANENT | unix.NUD_NOARP | unix.NUD_REACHABLE | unix.NUD_PROBE | unix.NUD_STALE | unix.NUD_DELAY
	return n.State&valid != 0
}

// Route is an entry of the kernel's routing tables (struct rtmsg).
type Route struct {
	Type uint8 // unix.RTN_UNICAST ...
	Hops []Hop // where it leads: one, or several to choose from
}

// Hop is a way on.
type Hop struct {
	Index   int  // of the interface
	Gateway bool // through a router; else the destination is a neighbour
}

// DecodeLink reads the body of RTM_NEWLINK and RTM_DELLINK. Those of the bridge's
// family speak of something else and are for the caller to leave out, see
// [Family].
func DecodeLink(b []byte) (l Link, err error) {
	if len(b) < unix.SizeofIfInfomsg {
		return l, errShort
	}
	l.Type, l.Index, l.Flags = order.Uint16(b[2:]), int(int32(order.Uint32(b[4:]))), order.Uint32(b[8:])
	err = eachAttr(b[unix.SizeofIfInfomsg:], func(typ uint16, v []byte) {
		switch typ {
		case unix.IFLA_IFNAME:
			name, _, _ := bytes.Cut(v, []byte{0})
			l.Name = string(name)
		case unix.IFLA_ADDRESS:
			l.Hardware = linkAddr(v)
		case unix.IFLA_BROADCAST:
			l.Broadcast = linkAddr(v)
		}
	})
	return l, err
}

// DecodeAddr reads the body of RTM_NEWADDR and RTM_DELADDR. IP is invalid when the
// family is neither IPv4 nor IPv6.
func DecodeAddr(b []byte) (a Addr, err error) {
	if len(b) < unix.SizeofIfAddrmsg {
		return a, errShort
	}
	a.Index = int(order.Uint32(b[4:]))
	var local netip.Addr
	err = eachAttr(b[unix.SizeofIfAddrmsg:], func(typ uint16, v []byte) {
		switch typ {
		case unix.IFA_ADDRESS:
			a.IP = ip(b[0], v)
		case unix.IFA_LOCAL:
			local = ip(b[0], v)
		}
	})
	if local.IsValid() {
		a.IP = local
	}
	return a, err
}

// DecodeNeigh reads the body of RTM_NEWNEIGH and RTM_DELNEIGH. IP is invalid for
// entries that are not of IPv4 or IPv6.
func DecodeNeigh(b []byte) (n Neigh, err error) {
	if len(b) < unix.SizeofNdMsg {
		return n, errShort
	}
	n.Index, n.State = int(int32(order.Uint32(b[4:]))), order.Uint16(b[8:])
	err = eachAttr(b[unix.SizeofNdMsg:], func(typ uint16, v []byte) {
		switch typ {
		case unix.NDA_DST:
			n.IP = ip(b[0], v)
		case unix.NDA_LLADDR:
			n.Hardware = linkAddr(v)
		}
	})
	return n, err
}

// DecodeRoute reads the body of RTM_NEWROUTE.
func DecodeRoute(b []byte) (r Route, err error) {
	if len(b) < unix.SizeofRtMsg {
		return r, errShort
	}
	r.Type = b[7]
	var one Hop
	var many error
	err = eachAttr(b[unix.SizeofRtMsg:], func(typ uint16, v []byte) {
		switch typ {
		case unix.RTA_OIF:
			if len(v) >= 4 {
				one.Index = int(int32(order.Uint32(v)))
			}
		case unix.RTA_GATEWAY, unix.RTA_VIA:
			one.Gateway = true
		case unix.RTA_MULTIPATH:
			r.Hops, many = decodeHops(v)
		}
	})
	if len(r.Hops) == 0 && one != (Hop{}) {
		r.Hops = []Hop{one}
	}
	return r, errors.Join(err, many)
}

// decodeHops reads a list of struct rtnexthop, each with attributes of its own.
func decodeHops(b []byte) (hops []Hop, err error) {
	for len(b) >= unix.SizeofRtNexthop {
		n := int(order.Uint16(b))
		if n < unix.SizeofRtNexthop || n > len(b) {
			return hops, errShort
		}
		h := Hop{Index: int(int32(order.Uint32(b[4:])))}
		if err := eachAttr(b[unix.SizeofRtNexthop:n], func(typ uint16, _ []byte) {
			h.Gateway = h.Gateway || typ == unix.RTA_GATEWAY || typ == unix.RTA_VIA
		}); err != nil {
			return hops, err
		}
		hops = append(hops, h)
		b = b[min(align(n), len(b)):]
	}
	return hops, nil
}

// Family returns the address family of a message: the first byte of every body of
// rtnetlink. unix.AF_UNSPEC when there is none.
func (m *Message) Family() uint8 {
	if len(m.Body) == 0 {
		return unix.AF_UNSPEC
	}
	return m.Body[0]
}

// ip makes an address of an attribute, an invalid one where family and length do
// not go together.
func ip(family uint8, v []byte) netip.Addr {
	switch {
	case family == unix.AF_INET && len(v) == 4, family == unix.AF_INET6 && len(v) == 16:
		a, _ := netip.AddrFromSlice(v)
		return a
	}
	return netip.Addr{}
}
