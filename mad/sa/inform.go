// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package sa

import (
	"encoding/binary"

	"acmd/mad"
)

// InformInfo is the InformInfo attribute, 36 bytes in wire form (IBTA vol. 1,
// 13.4.8.3): a subscription to notices. Set carries it with component mask 0. To
// end a subscription, repeat every field of it. Accessors speak host order.
type InformInfo [36]byte

// Wildcards of an InformInfo.
const (
	AnyLID      mad.LID = 0xffff
	AnyType     uint16  = 0xffff
	AnyTrap     uint16  = 0xffff
	AnyProducer uint32  = 0xffffff
)

// Producer types of a notice: the node type of the issuer.
const (
	ProducerCA           uint32 = 1
	ProducerSwitch       uint32 = 2
	ProducerRouter       uint32 = 3
	ProducerClassManager uint32 = 4 // the SA itself: traps 64 to 67
)

// Inform returns the InformInfo of an SA MAD in place.
func Inform(p *mad.Packet) *InformInfo {
	return (*InformInfo)(p[DataOffset : DataOffset+len(InformInfo{})])
}

// GID restricts the issuer; zero leaves it to the LID range.
func (r *InformInfo) GID() mad.GID        { return mad.GID(r[0:16]) }
func (r *InformInfo) LIDBegin() mad.LID   { return mad.LID(binary.BigEndian.Uint16(r[16:])) }
func (r *InformInfo) LIDEnd() mad.LID     { return mad.LID(binary.BigEndian.Uint16(r[18:])) }
func (r *InformInfo) IsGeneric() bool     { return r[22] != 0 }
func (r *InformInfo) Subscribe() uint8    { return r[23] }
func (r *InformInfo) Type() uint16        { return binary.BigEndian.Uint16(r[24:]) }
func (r *InformInfo) Trap() uint16        { return binary.BigEndian.Uint16(r[26:]) }
func (r *InformInfo) QPN() mad.QPN        { return mad.QPN(binary.BigEndian.Uint32(r[28:]) >> 8) }
func (r *InformInfo) ResponseTime() uint8 { return r[31] & 0x1f }
func (r *InformInfo) Producer() uint32    { return binary.BigEndian.Uint32(r[32:]) & 0xffffff }

func (r *InformInfo) SetGID(g mad.GID) { copy(r[0:16], g[:]) }

// SetLIDRange restricts the issuer to begin..end; begin [AnyLID] means all.
func (r *InformInfo) SetLIDRange(begin, end mad.LID) {
	binary.BigEndian.PutUint16(r[16:], uint16(begin))
	binary.BigEndian.PutUint16(r[18:], uint16(end))
}

// SetGeneric says that type, trap and producer are the standard's, not a
// vendor's.
func (r *InformInfo) SetGeneric(v bool) { r[22] = bit(v) }

// SetSubscribe subscribes (true) or ends the subscription (false).
func (r *InformInfo) SetSubscribe(v bool) { r[23] = bit(v) }
func (r *InformInfo) SetType(v uint16)    { binary.BigEndian.PutUint16(r[24:], v) }
func (r *InformInfo) SetTrap(v uint16)    { binary.BigEndian.PutUint16(r[26:], v) }

// SetQPNTime writes the 24-bit queue pair that reports go to and the 5-bit
// response time (4.096 us x 2^n).
func (r *InformInfo) SetQPNTime(q mad.QPN, t uint8) {
	binary.BigEndian.PutUint32(r[28:], uint32(q)<<8|uint32(t&0x1f))
}

// SetProducer writes the 24-bit producer type.
func (r *InformInfo) SetProducer(v uint32) { binary.BigEndian.PutUint32(r[32:], v&0xffffff) }

func bit(v bool) uint8 {
	if v {
		return 1
	}
	return 0
}
