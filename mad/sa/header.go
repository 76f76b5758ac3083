// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package sa

import (
	"encoding/binary"

	"acmd/mad"
)

// Attribute identifiers (IBTA vol. 1, 15.2.3).
const (
	AttrClassPortInfo    uint16 = 0x0001
	AttrNotice           uint16 = 0x0002
	AttrInformInfo       uint16 = 0x0003
	AttrNodeRecord       uint16 = 0x0011
	AttrPortInfoRecord   uint16 = 0x0012
	AttrServiceRecord    uint16 = 0x0031
	AttrPathRecord       uint16 = 0x0035
	AttrMCMemberRecord   uint16 = 0x0038
	AttrMultiPathRecord  uint16 = 0x003a
	AttrInformInfoRecord uint16 = 0x00f3
)

// Class-specific status codes, the high byte of the MAD status (15.2.3).
const (
	StatusNoResources            uint8 = 1
	StatusRequestInvalid         uint8 = 2
	StatusNoRecords              uint8 = 3
	StatusTooManyRecords         uint8 = 4
	StatusInvalidGID             uint8 = 5
	StatusInsufficientComponents uint8 = 6
	StatusDenied                 uint8 = 7
	StatusPriority               uint8 = 8
)

// DataOffset is where an SA MAD's attribute begins, DataSize how much fits.
const (
	DataOffset = 56
	DataSize   = mad.PacketSize - DataOffset
)

// The SA header lies at offset 24 of the packet: RMPP header (12 bytes), SM_Key,
// attribute offset, component mask (15.2.1).

// Init writes the header of a request: base version, class, class version 2,
// method, attribute, component mask; everything else is cleared.
func Init(p *mad.Packet, method uint8, attr uint16, mask ComponentMask) {
	p.Init(mad.ClassSA, mad.SAClassVersion, method)
	p.SetAttrID(attr)
	binary.BigEndian.PutUint64(p[48:], uint64(mask))
}

// Mask returns the component mask.
func Mask(p *mad.Packet) ComponentMask { return ComponentMask(binary.BigEndian.Uint64(p[48:])) }

// SetMask sets what Mask returns.
func SetMask(p *mad.Packet, m ComponentMask) { binary.BigEndian.PutUint64(p[48:], uint64(m)) }

// SMKey returns the SM_Key, 0 from everyone whom the SM does not trust.
func SMKey(p *mad.Packet) uint64 { return binary.BigEndian.Uint64(p[36:]) }

// SetSMKey sets what SMKey returns.
func SetSMKey(p *mad.Packet, k uint64) { binary.BigEndian.PutUint64(p[36:], k) }

// AttrOffset returns the distance of two records of a table in units of 8 bytes.
func AttrOffset(p *mad.Packet) uint16 { return binary.BigEndian.Uint16(p[44:]) }

// SetAttrOffset sets what AttrOffset returns.
func SetAttrOffset(p *mad.Packet, v uint16) { binary.BigEndian.PutUint16(p[44:], v) }

// Path returns the PathRecord of an SA MAD in place.
func Path(p *mad.Packet) *PathRecord { return (*PathRecord)(p[DataOffset : DataOffset+64]) }
