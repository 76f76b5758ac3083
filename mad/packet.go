// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package mad

import "encoding/binary"

// PacketSize is the size of every management datagram.
const PacketSize = 256

// HeaderSize is the size of the common MAD header.
const HeaderSize = 24

// Management classes.
const (
	ClassSubnLID    uint8 = 0x01
	ClassSubnDir    uint8 = 0x81
	ClassSA         uint8 = 0x03
	ClassPerf       uint8 = 0x04
	ClassACM        uint8 = 0x2c
	BaseVersion     uint8 = 1
	SAClassVersion  uint8 = 2
	ACMClassVersion uint8 = 1
)

// Methods. A response has bit 7 set.
const (
	MethodGet         uint8 = 0x01
	MethodSet         uint8 = 0x02
	MethodSend        uint8 = 0x03
	MethodTrap        uint8 = 0x05
	MethodReport      uint8 = 0x06
	MethodTrapRepress uint8 = 0x07
	MethodGetTable    uint8 = 0x12
	MethodDelete      uint8 = 0x15
	MethodResponse    uint8 = 0x80
	MethodGetResp     uint8 = 0x81
	MethodReportResp  uint8 = 0x86
	MethodTableResp   uint8 = 0x92
	MethodDeleteResp  uint8 = 0x95
)

// Status is the 16-bit MAD status: the low byte is common to all classes, the
// high byte belongs to the class (IBTA vol. 1, 13.4.7).
type Status uint16

const (
	StatusBusy     Status = 0x0001
	StatusRedirect Status = 0x0002
)

// Class returns the class-specific byte.
func (s Status) Class() uint8 { return uint8(s >> 8) }

// InvalidField returns bits 4..2: 0 none, 1 bad version, 2 method unsupported,
// 3 method and attribute combination unsupported, 7 invalid field.
func (s Status) InvalidField() uint8 { return uint8(s>>2) & 7 }

// Packet is one 256-byte MAD in wire form. Accessors take and return values in
// host order. A *Packet may point into a transport's ring.
type Packet [PacketSize]byte

func (p *Packet) BaseVersion() uint8  { return p[0] }
func (p *Packet) Class() uint8        { return p[1] }
func (p *Packet) ClassVersion() uint8 { return p[2] }
func (p *Packet) Method() uint8       { return p[3] }
func (p *Packet) IsResponse() bool    { return p[3]&MethodResponse != 0 }
func (p *Packet) Status() Status      { return Status(binary.BigEndian.Uint16(p[4:])) }

// Specific returns the class-specific half-word at offset 6 (hop fields of a
// directed route SMP, the control field of the ACM class, 0 for the SA).
func (p *Packet) Specific() uint16 { return binary.BigEndian.Uint16(p[6:]) }
func (p *Packet) TID() TID         { return TID(binary.BigEndian.Uint64(p[8:])) }
func (p *Packet) AttrID() uint16   { return binary.BigEndian.Uint16(p[16:]) }
func (p *Packet) AttrMod() uint32  { return binary.BigEndian.Uint32(p[20:]) }

func (p *Packet) SetMethod(m uint8)    { p[3] = m }
func (p *Packet) SetStatus(s Status)   { binary.BigEndian.PutUint16(p[4:], uint16(s)) }
func (p *Packet) SetSpecific(v uint16) { binary.BigEndian.PutUint16(p[6:], v) }
func (p *Packet) SetTID(t TID)         { binary.BigEndian.PutUint64(p[8:], uint64(t)) }
func (p *Packet) SetAttrID(id uint16)  { binary.BigEndian.PutUint16(p[16:], id) }
func (p *Packet) SetAttrMod(v uint32)  { binary.BigEndian.PutUint32(p[20:], v) }

// Init clears the packet and writes base version, class, class version and
// method.
func (p *Packet) Init(class, classVersion, method uint8) {
	*p = Packet{BaseVersion, class, classVersion, method}
}
