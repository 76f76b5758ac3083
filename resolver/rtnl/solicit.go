// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package rtnl

import (
	"net/netip"

	"golang.org/x/sys/unix"
)

// Use makes the kernel resolve a neighbour, or confirm what it has of it, as if a
// packet were waiting (NTF_USE, neighbour.h). The outcome is in the table and is
// told to RTNLGRP_NEIGH. It takes CAP_NET_ADMIN in the network namespace.
func (c *Conn) Use(index int, dst netip.Addr) error {
	if err := c.send(unix.RTM_NEWNEIGH, unix.NLM_F_CREATE|unix.NLM_F_ACK, useNeigh(index, dst)); err != nil {
		return err
	}
	return c.receive(true, func(*Message) error { return nil })
}

func useNeigh(index int, dst netip.Addr) []byte {
	b := AppendNeigh(nil, &Neigh{Index: index, IP: dst})
	b[10] = unix.NTF_USE
	return b
}
