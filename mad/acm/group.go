// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acm

import (
	"encoding/binary"

	"acmd/mad"
)

// Group is what an ACM multicast group stands for: everybody in it is in the
// partition and can send and receive at this rate and MTU.
type Group struct {
	PKey mad.PKey // membership bit set
	TOS  uint8    // always 0 so far
	Rate mad.Rate
	MTU  mad.MTU
}

// MGID returns the group's multicast GID: transient, site-local, signature
// 0x4001, then P_Key (as full member), TOS, rate and MTU.
func MGID(pkey mad.PKey, tos uint8, rate mad.Rate, mtu mad.MTU) mad.GID {
	g := mad.GID{0xff, 0x15, 0x40, 0x01, 6: tos, 7: uint8(rate), 8: uint8(mtu)}
	binary.BigEndian.PutUint16(g[4:], uint16(pkey.Full()))
	return g
}

// ParseMGID is the reverse of MGID; false if g is not the GID of an ACM group.
func ParseMGID(g mad.GID) (Group, bool) {
	gr := Group{
		PKey: mad.PKey(binary.BigEndian.Uint16(g[4:])),
		TOS:  g[6], Rate: mad.Rate(g[7]), MTU: mad.MTU(g[8]),
	}
	return gr, g == MGID(gr.PKey, gr.TOS, gr.Rate, gr.MTU)
}
