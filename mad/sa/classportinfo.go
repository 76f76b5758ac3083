// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package sa

import (
	"encoding/binary"

	"acmd/mad"
)

// ClassPortInfo is the ClassPortInfo attribute, 72 bytes in wire form (IBTA
// vol. 1, 13.4.8.1): what a class manager can do and, after a redirect, where it
// is. Accessors speak host order.
type ClassPortInfo [72]byte

// Capability bits of the SA (IBTA vol. 1, 15.2.4), CapMask and CapMask2.
const (
	CapNotice          uint16 = 1 << 1 // Get and Set of Notice
	CapOptionalRecords uint16 = 1 << 8
	CapUDMulticast     uint16 = 1 << 9
	CapMultiPath       uint16 = 1 << 10
	CapReinit          uint16 = 1 << 11
	CapPortInfoMatch   uint16 = 1 << 13
	Cap2QoS            uint32 = 1 << 1
	Cap2ReversePKey    uint32 = 1 << 2
	Cap2AliasGUIDs     uint32 = 1 << 5
	Cap2ExtendedSpeeds uint32 = 1 << 7
	Cap2SendOnlyFull   uint32 = 1 << 12
	Cap2LinkWidth2X    uint32 = 1 << 13
	Cap2HDR            uint32 = 1 << 15
	Cap2NDR            uint32 = 1 << 17
)

// respTimeBits is the width of the response time below the second mask.
const respTimeBits = 5

// ClassInfo returns the ClassPortInfo of a MAD of the SA class in place.
func ClassInfo(p *mad.Packet) *ClassPortInfo {
	return (*ClassPortInfo)(p[DataOffset : DataOffset+len(ClassPortInfo{})])
}

func (r *ClassPortInfo) BaseVersion() uint8  { return r[0] }
func (r *ClassPortInfo) ClassVersion() uint8 { return r[1] }
func (r *ClassPortInfo) CapMask() uint16     { return binary.BigEndian.Uint16(r[2:]) }

// CapMask2 has 27 bits.
func (r *ClassPortInfo) CapMask2() uint32 {
	return binary.BigEndian.Uint32(r[4:]) >> respTimeBits
}

// ResponseTime is the time within which the class answers: 4.096 us x 2^n.
func (r *ClassPortInfo) ResponseTime() uint8 { return r[7] & 0x1f }

func (r *ClassPortInfo) RedirectGID() mad.GID      { return mad.GID(r[8:24]) }
func (r *ClassPortInfo) RedirectTClass() uint8     { return r[24] }
func (r *ClassPortInfo) RedirectSL() uint8         { return r[25] >> 4 }
func (r *ClassPortInfo) RedirectFlowLabel() uint32 { return binary.BigEndian.Uint32(r[24:]) & 0xfffff }
func (r *ClassPortInfo) RedirectLID() mad.LID      { return mad.LID(binary.BigEndian.Uint16(r[28:])) }
func (r *ClassPortInfo) RedirectPKey() mad.PKey    { return mad.PKey(binary.BigEndian.Uint16(r[30:])) }
func (r *ClassPortInfo) RedirectQPN() mad.QPN {
	return mad.QPN(binary.BigEndian.Uint32(r[32:]) & 0xffffff)
}
func (r *ClassPortInfo) RedirectQKey() mad.QKey { return mad.QKey(binary.BigEndian.Uint32(r[36:])) }

func (r *ClassPortInfo) TrapGID() mad.GID      { return mad.GID(r[40:56]) }
func (r *ClassPortInfo) TrapTClass() uint8     { return r[56] }
func (r *ClassPortInfo) TrapSL() uint8         { return r[57] >> 4 }
func (r *ClassPortInfo) TrapFlowLabel() uint32 { return binary.BigEndian.Uint32(r[56:]) & 0xfffff }
func (r *ClassPortInfo) TrapLID() mad.LID      { return mad.LID(binary.BigEndian.Uint16(r[60:])) }
func (r *ClassPortInfo) TrapPKey() mad.PKey    { return mad.PKey(binary.BigEndian.Uint16(r[62:])) }
func (r *ClassPortInfo) TrapHopLimit() uint8   { return r[64] }
func (r *ClassPortInfo) TrapQPN() mad.QPN      { return mad.QPN(binary.BigEndian.Uint32(r[64:]) & 0xffffff) }
func (r *ClassPortInfo) TrapQKey() mad.QKey    { return mad.QKey(binary.BigEndian.Uint32(r[68:])) }

func (r *ClassPortInfo) SetVersions(base, class uint8) { r[0], r[1] = base, class }
func (r *ClassPortInfo) SetCapMask(v uint16)           { binary.BigEndian.PutUint16(r[2:], v) }

// SetCapMask2Time writes the 27-bit second mask and the 5-bit response time.
func (r *ClassPortInfo) SetCapMask2Time(mask uint32, t uint8) {
	binary.BigEndian.PutUint32(r[4:], mask<<respTimeBits|uint32(t&0x1f))
}

// SetRedirect writes where the class is served. A zero GID means that no GRH is
// needed, then the LID counts.
func (r *ClassPortInfo) SetRedirect(gid mad.GID, lid mad.LID, pkey mad.PKey, qpn mad.QPN, qkey mad.QKey) {
	copy(r[8:24], gid[:])
	binary.BigEndian.PutUint16(r[28:], uint16(lid))
	binary.BigEndian.PutUint16(r[30:], uint16(pkey))
	binary.BigEndian.PutUint32(r[32:], uint32(qpn)&0xffffff)
	binary.BigEndian.PutUint32(r[36:], uint32(qkey))
}

// SetRedirectRoute writes traffic class, SL (4 bits) and flow label (20 bits).
func (r *ClassPortInfo) SetRedirectRoute(tclass, sl uint8, flow uint32) {
	binary.BigEndian.PutUint32(r[24:], uint32(tclass)<<24|uint32(sl&0xf)<<20|flow&0xfffff)
}

// SetTrap writes where the class sends its traps.
func (r *ClassPortInfo) SetTrap(gid mad.GID, lid mad.LID, pkey mad.PKey, hop uint8, qpn mad.QPN, qkey mad.QKey) {
	copy(r[40:56], gid[:])
	binary.BigEndian.PutUint16(r[60:], uint16(lid))
	binary.BigEndian.PutUint16(r[62:], uint16(pkey))
	binary.BigEndian.PutUint32(r[64:], uint32(hop)<<24|uint32(qpn)&0xffffff)
	binary.BigEndian.PutUint32(r[68:], uint32(qkey))
}

// SetTrapRoute writes traffic class, SL (4 bits) and flow label (20 bits).
func (r *ClassPortInfo) SetTrapRoute(tclass, sl uint8, flow uint32) {
	binary.BigEndian.PutUint32(r[56:], uint32(tclass)<<24|uint32(sl&0xf)<<20|flow&0xfffff)
}
