// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package sa

import (
	"encoding/binary"

	"acmd/mad"
)

// PathRecord is the PathRecord attribute, 64 bytes in wire form (IBTA vol. 1,
// 15.2.5.16), the same bytes from the SA's answer to the client's reply. It is
// comparable. Accessors speak host order.
type PathRecord [64]byte

func (r *PathRecord) ServiceID() uint64 { return binary.BigEndian.Uint64(r[0:]) }
func (r *PathRecord) DGID() mad.GID     { return mad.GID(r[8:24]) }
func (r *PathRecord) SGID() mad.GID     { return mad.GID(r[24:40]) }
func (r *PathRecord) DLID() mad.LID     { return mad.LID(binary.BigEndian.Uint16(r[40:])) }
func (r *PathRecord) SLID() mad.LID     { return mad.LID(binary.BigEndian.Uint16(r[42:])) }
func (r *PathRecord) RawTraffic() bool  { return r[44]&0x80 != 0 }

// FlowLabel has 20 bits.
func (r *PathRecord) FlowLabel() uint32 { return binary.BigEndian.Uint32(r[44:]) >> 8 & 0xfffff }
func (r *PathRecord) HopLimit() uint8   { return r[47] }
func (r *PathRecord) TClass() uint8     { return r[48] }
func (r *PathRecord) Reversible() bool  { return r[49]&0x80 != 0 }
func (r *PathRecord) NumPath() uint8    { return r[49] & 0x7f }
func (r *PathRecord) PKey() mad.PKey    { return mad.PKey(binary.BigEndian.Uint16(r[50:])) }

// QoSClass has 12 bits.
func (r *PathRecord) QoSClass() uint16 { return binary.BigEndian.Uint16(r[52:]) >> 4 }
func (r *PathRecord) SL() uint8        { return r[53] & 0xf }

// Selector says how a requested MTU, rate or lifetime compares.
type Selector uint8

const (
	GreaterThan Selector = 0
	LessThan    Selector = 1
	Exactly     Selector = 2
	Largest     Selector = 3 // for a lifetime: smallest
)

func (r *PathRecord) MTU() (Selector, mad.MTU)    { return Selector(r[54] >> 6), mad.MTU(r[54] & 0x3f) }
func (r *PathRecord) Rate() (Selector, mad.Rate)  { return Selector(r[55] >> 6), mad.Rate(r[55] & 0x3f) }
func (r *PathRecord) Lifetime() (Selector, uint8) { return Selector(r[56] >> 6), r[56] & 0x3f }
func (r *PathRecord) Preference() uint8           { return r[57] }

func (r *PathRecord) SetServiceID(v uint64) { binary.BigEndian.PutUint64(r[0:], v) }
func (r *PathRecord) SetDGID(g mad.GID)     { copy(r[8:24], g[:]) }
func (r *PathRecord) SetSGID(g mad.GID)     { copy(r[24:40], g[:]) }
func (r *PathRecord) SetDLID(l mad.LID)     { binary.BigEndian.PutUint16(r[40:], uint16(l)) }
func (r *PathRecord) SetSLID(l mad.LID)     { binary.BigEndian.PutUint16(r[42:], uint16(l)) }

// SetFlowHop writes a 20-bit flow label and the hop limit and clears the raw
// traffic and reserved bits.
func (r *PathRecord) SetFlowHop(flow uint32, hop uint8) {
	binary.BigEndian.PutUint32(r[44:], flow&0xfffff<<8|uint32(hop))
}
func (r *PathRecord) SetTClass(v uint8) { r[48] = v }

// SetReversibleNumPath writes the reversible bit and a 7-bit number of paths.
func (r *PathRecord) SetReversibleNumPath(rev bool, n uint8) {
	r[49] = n & 0x7f
	if rev {
		r[49] |= 0x80
	}
}
func (r *PathRecord) SetPKey(k mad.PKey) { binary.BigEndian.PutUint16(r[50:], uint16(k)) }

// SetQoSClassSL writes a 12-bit QoS class and a 4-bit SL.
func (r *PathRecord) SetQoSClassSL(qos uint16, sl uint8) {
	binary.BigEndian.PutUint16(r[52:], qos<<4|uint16(sl&0xf))
}
func (r *PathRecord) SetMTU(s Selector, v mad.MTU)    { r[54] = uint8(s)<<6 | uint8(v)&0x3f }
func (r *PathRecord) SetRate(s Selector, v mad.Rate)  { r[55] = uint8(s)<<6 | uint8(v)&0x3f }
func (r *PathRecord) SetLifetime(s Selector, v uint8) { r[56] = uint8(s)<<6 | v&0x3f }
func (r *PathRecord) SetPreference(v uint8)           { r[57] = v }

// ComponentMask says which components of an attribute a query constrains.
type ComponentMask uint64

// Components of a PathRecord (IBTA vol. 1, 15.2.5.16).
const (
	PathServiceID   ComponentMask = 1<<0 | 1<<1 // both halves or neither
	PathDGID        ComponentMask = 1 << 2
	PathSGID        ComponentMask = 1 << 3
	PathDLID        ComponentMask = 1 << 4
	PathSLID        ComponentMask = 1 << 5
	PathRawTraffic  ComponentMask = 1 << 6
	PathFlowLabel   ComponentMask = 1 << 8
	PathHopLimit    ComponentMask = 1 << 9
	PathTClass      ComponentMask = 1 << 10
	PathReversible  ComponentMask = 1 << 11
	PathNumPath     ComponentMask = 1 << 12
	PathPKey        ComponentMask = 1 << 13
	PathQoSClass    ComponentMask = 1 << 14
	PathSL          ComponentMask = 1 << 15
	PathMTUSel      ComponentMask = 1 << 16
	PathMTU         ComponentMask = 1 << 17
	PathRateSel     ComponentMask = 1 << 18
	PathRate        ComponentMask = 1 << 19
	PathLifetimeSel ComponentMask = 1 << 20
	PathLifetime    ComponentMask = 1 << 21
	PathPreference  ComponentMask = 1 << 22
)
