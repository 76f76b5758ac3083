// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acm

import (
	"encoding/binary"

	"acmd/mad"
)

// MGID returns the multicast GID of the group of those who are in a partition and can
// send and receive at this rate and MTU: transient, site-local, signature 0x4001, then
// P_Key (as full member), TOS (always 0 so far), rate and MTU.
func MGID(pkey mad.PKey, tos uint8, rate mad.Rate, mtu mad.MTU) mad.GID {
	g := mad.GID{0xff, 0x15, 0x40, 0x01, 6: tos, 7: uint8(rate), 8: uint8(mtu)}
	binary.BigEndian.PutUint16(g[4:], uint16(pkey.Full()))
	return g
}

// KnownRate reports whether a rate code has a meaning in address handles as well as in
// records: the last one of enum ibv_rate is 24.
func KnownRate(r mad.Rate) bool { return 2 <= r && r <= 24 }
