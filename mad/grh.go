// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package mad

import "encoding/binary"

// GRHSize is the size of [GRH].
const GRHSize = 40

// GRH is a global routing header in wire form (IBTA vol. 1, 8.3), as an adapter
// puts it before the data of a received datagram. Accessors return host order.
type GRH [GRHSize]byte

// TrafficClass and FlowLabel (20 bits) share a word with the version.
func (g *GRH) TrafficClass() uint8 { return uint8(binary.BigEndian.Uint32(g[0:]) >> 20) }
func (g *GRH) FlowLabel() uint32   { return binary.BigEndian.Uint32(g[0:]) & 0xfffff }
func (g *GRH) HopLimit() uint8     { return g[7] }

// SGID is the sender, DGID the group or port that it was sent to.
func (g *GRH) SGID() GID { return GID(g[8:24]) }
func (g *GRH) DGID() GID { return GID(g[24:40]) }
