// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package sa

import (
	"encoding/binary"

	"acmd/mad"
)

// MCMemberRecord is the MCMemberRecord attribute, 52 bytes in wire form (IBTA
// vol. 1, 15.2.5.17); tables pad it to 56. It is comparable. Accessors speak host
// order.
type MCMemberRecord [52]byte

// Join state bits of an MCMemberRecord.
const (
	JoinFull         uint8 = 1
	JoinNonMember    uint8 = 2
	JoinSendOnly     uint8 = 4 // send-only non-member
	JoinSendOnlyFull uint8 = 8 // send-only full member
)

// Scopes of an MCMemberRecord, as in the MGID.
const (
	ScopeLinkLocal    uint8 = 0x2
	ScopeSiteLocal    uint8 = 0x5
	ScopeOrganisation uint8 = 0x8
	ScopeGlobal       uint8 = 0xe
)

// Components of an MCMemberRecord (IBTA vol. 1, 15.2.5.17).
const (
	MCMGID        ComponentMask = 1 << 0
	MCPortGID     ComponentMask = 1 << 1
	MCQKey        ComponentMask = 1 << 2
	MCMLID        ComponentMask = 1 << 3
	MCMTUSel      ComponentMask = 1 << 4
	MCMTU         ComponentMask = 1 << 5
	MCTClass      ComponentMask = 1 << 6
	MCPKey        ComponentMask = 1 << 7
	MCRateSel     ComponentMask = 1 << 8
	MCRate        ComponentMask = 1 << 9
	MCLifetimeSel ComponentMask = 1 << 10
	MCLifetime    ComponentMask = 1 << 11
	MCSL          ComponentMask = 1 << 12
	MCFlowLabel   ComponentMask = 1 << 13
	MCHopLimit    ComponentMask = 1 << 14
	MCScope       ComponentMask = 1 << 15
	MCJoinState   ComponentMask = 1 << 16
	MCProxyJoin   ComponentMask = 1 << 17
)

// MCLeave is the mask of a Delete: which group, which port, which memberships.
const MCLeave = MCMGID | MCPortGID | MCJoinState

// Member returns the MCMemberRecord of an SA MAD in place.
func Member(p *mad.Packet) *MCMemberRecord {
	return (*MCMemberRecord)(p[DataOffset : DataOffset+len(MCMemberRecord{})])
}

func (r *MCMemberRecord) MGID() mad.GID    { return mad.GID(r[0:16]) }
func (r *MCMemberRecord) PortGID() mad.GID { return mad.GID(r[16:32]) }
func (r *MCMemberRecord) QKey() mad.QKey   { return mad.QKey(binary.BigEndian.Uint32(r[32:])) }
func (r *MCMemberRecord) MLID() mad.LID    { return mad.LID(binary.BigEndian.Uint16(r[36:])) }
func (r *MCMemberRecord) MTU() (Selector, mad.MTU) {
	return Selector(r[38] >> 6), mad.MTU(r[38] & 0x3f)
}
func (r *MCMemberRecord) TClass() uint8  { return r[39] }
func (r *MCMemberRecord) PKey() mad.PKey { return mad.PKey(binary.BigEndian.Uint16(r[40:])) }
func (r *MCMemberRecord) Rate() (Selector, mad.Rate) {
	return Selector(r[42] >> 6), mad.Rate(r[42] & 0x3f)
}
func (r *MCMemberRecord) Lifetime() (Selector, uint8)  { return Selector(r[43] >> 6), r[43] & 0x3f }
func (r *MCMemberRecord) SL() uint8                    { return r[44] >> 4 }
func (r *MCMemberRecord) FlowLabel() uint32            { return binary.BigEndian.Uint32(r[44:]) >> 8 & 0xfffff }
func (r *MCMemberRecord) HopLimit() uint8              { return r[47] }
func (r *MCMemberRecord) Scope() uint8                 { return r[48] >> 4 }
func (r *MCMemberRecord) JoinState() uint8             { return r[48] & 0xf }
func (r *MCMemberRecord) ProxyJoin() bool              { return r[49]&0x80 != 0 }
func (r *MCMemberRecord) SetMGID(g mad.GID)            { copy(r[0:16], g[:]) }
func (r *MCMemberRecord) SetPortGID(g mad.GID)         { copy(r[16:32], g[:]) }
func (r *MCMemberRecord) SetQKey(k mad.QKey)           { binary.BigEndian.PutUint32(r[32:], uint32(k)) }
func (r *MCMemberRecord) SetMLID(l mad.LID)            { binary.BigEndian.PutUint16(r[36:], uint16(l)) }
func (r *MCMemberRecord) SetMTU(s Selector, v mad.MTU) { r[38] = uint8(s)<<6 | uint8(v)&0x3f }
func (r *MCMemberRecord) SetTClass(v uint8)            { r[39] = v }
func (r *MCMemberRecord) SetPKey(k mad.PKey)           { binary.BigEndian.PutUint16(r[40:], uint16(k)) }
func (r *MCMemberRecord) SetRate(s Selector, v mad.Rate) {
	r[42] = uint8(s)<<6 | uint8(v)&0x3f
}
func (r *MCMemberRecord) SetLifetime(s Selector, v uint8) { r[43] = uint8(s)<<6 | v&0x3f }

// SetSLFlowHop writes a 4-bit SL, a 20-bit flow label and the hop limit.
func (r *MCMemberRecord) SetSLFlowHop(sl uint8, flow uint32, hop uint8) {
	binary.BigEndian.PutUint32(r[44:], uint32(sl)<<28|flow&0xfffff<<8|uint32(hop))
}

// SetScopeJoin writes the 4-bit scope and the 4 join state bits.
func (r *MCMemberRecord) SetScopeJoin(scope, join uint8) { r[48] = scope<<4 | join&0xf }

// SetProxyJoin writes the proxy bit and clears the reserved bits beside it.
func (r *MCMemberRecord) SetProxyJoin(v bool) {
	r[49] = 0
	if v {
		r[49] = 0x80
	}
}
