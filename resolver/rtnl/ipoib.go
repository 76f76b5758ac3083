// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package rtnl

import "acmd/mad"

// ARPInfiniBand is the ARP hardware type of IPoIB links (RFC 4391, 9.1.1), also of
// bonds of them.
const ARPInfiniBand = 32

// LinkAddr is the link-layer address of IPoIB (RFC 4391, 9.1.1), 20 bytes in wire
// order: flags, a QPN of 24 bits, the port's GID. It is zero for links of another
// kind.
type LinkAddr [20]byte

func linkAddr(v []byte) (a LinkAddr) {
	if len(v) == len(a) {
		copy(a[:], v)
	}
	return a
}

// GID returns the GID of the port behind a unicast address. It reports false where
// there is none: a link that has no GUID yet, a group, a link of another kind.
func (a *LinkAddr) GID() (g mad.GID, ok bool) {
	copy(g[:], a[4:])
	return g, g.GUID() != 0 && g[0] != 0xff
}

// PKey returns the partition of an IPoIB link, of which a is the broadcast
// address: it is part of the group's GID, ff1s:401b:PKEY:... (RFC 4391, 4). The
// membership bit is always set there. A bond has the broadcast address of the
// links in it. It reports false if a is no such address.
func (a *LinkAddr) PKey() (mad.PKey, bool) {
	k := mad.PKey(uint16(a[8])<<8 | uint16(a[9]))
	return k, a[4] == 0xff && a[6] == 0x40 && a[7] == 0x1b && k.IsValid()
}
