// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package sa

import (
	"encoding/binary"

	"acmd/mad"
)

// Notice is the Notice attribute, 80 bytes in wire form (IBTA vol. 1, 13.4.8.2),
// the content of a Report. What the details mean depends on the trap number;
// bytes that a trap does not define are garbage on real fabrics. Accessors speak
// host order.
type Notice [80]byte

// Traps that concern paths (IBTA vol. 1, 14.2.5.1 and 15.2.5.20).
const (
	TrapGIDInService    uint16 = 64  // Notice.GID came
	TrapGIDOutOfService uint16 = 65  // Notice.GID went
	TrapGroupCreated    uint16 = 66  // Notice.GID is the MGID
	TrapGroupDeleted    uint16 = 67  // Notice.GID is the MGID
	TrapLinkStateChange uint16 = 128 // a port of Notice.SwitchLID changed state
	TrapLocalChanges    uint16 = 144 // see the Change constants
)

// Notice types.
const (
	NoticeFatal         uint8 = 0
	NoticeUrgent        uint8 = 1
	NoticeSecurity      uint8 = 2
	NoticeSubnetMgmt    uint8 = 3
	NoticeInformational uint8 = 4
)

// Change flags of trap 144.
const (
	ChangeNodeDescription uint16 = 0x01
	ChangeLinkWidth       uint16 = 0x02
	ChangeLinkSpeed       uint16 = 0x04
	ChangeSMPriority      uint16 = 0x08
	ChangeHierarchy       uint16 = 0x10
	ChangeCapMask2        uint16 = 0x20
)

// Event returns the Notice of a Report in place.
func Event(p *mad.Packet) *Notice { return (*Notice)(p[DataOffset : DataOffset+len(Notice{})]) }

func (n *Notice) IsGeneric() bool    { return n[0]&0x80 != 0 }
func (n *Notice) Type() uint8        { return n[0] & 0x7f }
func (n *Notice) Producer() uint32   { return binary.BigEndian.Uint32(n[0:]) & 0xffffff }
func (n *Notice) Trap() uint16       { return binary.BigEndian.Uint16(n[4:]) }
func (n *Notice) IssuerLID() mad.LID { return mad.LID(binary.BigEndian.Uint16(n[6:])) }
func (n *Notice) Toggle() bool       { return n[8]&0x80 != 0 }
func (n *Notice) Count() uint16      { return binary.BigEndian.Uint16(n[8:]) & 0x7fff }
func (n *Notice) IssuerGID() mad.GID { return mad.GID(n[64:80]) }

// GID is the subject of traps 64 to 67.
func (n *Notice) GID() mad.GID { return mad.GID(n[16:32]) }

// SwitchLID is the subject of trap 128.
func (n *Notice) SwitchLID() mad.LID { return mad.LID(binary.BigEndian.Uint16(n[10:])) }

// LID is the subject of trap 144.
func (n *Notice) LID() mad.LID { return mad.LID(binary.BigEndian.Uint16(n[12:])) }

// OtherChanges tells that Changes is valid in trap 144; without it only the
// capability mask changed.
func (n *Notice) OtherChanges() bool { return n[15]&1 != 0 }

// CapMask is the new capability mask of trap 144, CapMask2 the new second one.
func (n *Notice) CapMask() uint32  { return binary.BigEndian.Uint32(n[16:]) }
func (n *Notice) Changes() uint16  { return binary.BigEndian.Uint16(n[20:]) }
func (n *Notice) CapMask2() uint16 { return binary.BigEndian.Uint16(n[22:]) }

// SetGeneric writes the first four bytes of a generic notice: type (7 bits) and
// producer (24 bits).
func (n *Notice) SetGeneric(typ uint8, producer uint32) {
	binary.BigEndian.PutUint32(n[0:], producer&0xffffff)
	n[0] = 0x80 | typ&0x7f
}
func (n *Notice) SetTrap(v uint16)       { binary.BigEndian.PutUint16(n[4:], v) }
func (n *Notice) SetIssuerLID(l mad.LID) { binary.BigEndian.PutUint16(n[6:], uint16(l)) }

// SetToggleCount writes the toggle bit and a 15-bit count.
func (n *Notice) SetToggleCount(toggle bool, count uint16) {
	binary.BigEndian.PutUint16(n[8:], uint16(bit(toggle))<<15|count&0x7fff)
}
func (n *Notice) SetIssuerGID(g mad.GID)  { copy(n[64:80], g[:]) }
func (n *Notice) SetGID(g mad.GID)        { copy(n[16:32], g[:]) }
func (n *Notice) SetSwitchLID(l mad.LID)  { binary.BigEndian.PutUint16(n[10:], uint16(l)) }
func (n *Notice) SetLID(l mad.LID)        { binary.BigEndian.PutUint16(n[12:], uint16(l)) }
func (n *Notice) SetOtherChanges(v bool)  { n[15] = bit(v) }
func (n *Notice) SetCapMask(v uint32)     { binary.BigEndian.PutUint32(n[16:], v) }
func (n *Notice) SetChanges(flags uint16) { binary.BigEndian.PutUint16(n[20:], flags) }
func (n *Notice) SetCapMask2(v uint16)    { binary.BigEndian.PutUint16(n[22:], v) }
