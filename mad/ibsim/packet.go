// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package ibsim

import (
	"encoding/binary"

	"acmd/mad"
	"acmd/mad/ring"
)

// A packet is 288 bytes: 32 bytes of header and the MAD. The header is big
// endian; a LID is in the first two bytes of its 32-bit field.
//
//	0 dlid   4 slid   8 dqp   12 sqp   16 status   20 pad   24 length (64 bits)
const (
	packetHeaderSize = 32
	packetSize       = packetHeaderSize + mad.PacketSize

	// packetOffset is where a packet begins in a slot so that its MAD lies in the
	// MAD's place. It begins in the second half of the 64-byte user header, which
	// is written when the packet header has been read.
	packetOffset = mad.UserHeaderSize - packetHeaderSize

	permissiveLID mad.LID = 0xffff
)

type packetHeader [packetHeaderSize]byte

// outgoing writes the header of a packet to where h says, from queue pair sqp.
// The simulator fills in the source LID except for directed route MADs.
func (p *packetHeader) outgoing(h *mad.UserHeader, sqp mad.QPN) {
	be := binary.BigEndian
	*p = packetHeader{}
	be.PutUint16(p[0:], uint16(h.LID()))
	if h.LID() == permissiveLID {
		be.PutUint16(p[4:], uint16(permissiveLID))
	}
	dqp := h.QPN()
	if dqp == 0 {
		sqp = 0 // subnet management goes from QP0 to QP0
	}
	be.PutUint32(p[8:], uint32(dqp))
	be.PutUint32(p[12:], uint32(sqp))
	be.PutUint64(p[24:], mad.PacketSize)
}

// accept turns the packet that lies in a slot into header and MAD, in place. It
// reports false for what is to be dropped: a response of ours that came back,
// which nobody waits for.
func accept(slot *[ring.SlotSize]byte) bool {
	be := binary.BigEndian
	p := packetHeader(slot[packetOffset : packetOffset+packetHeaderSize]) // the user header overlaps it
	m := (*mad.Packet)(slot[mad.UserHeaderSize:])
	h := (*mad.UserHeader)(slot[:mad.UserHeaderSize])

	status := be.Uint32(p[16:])
	if status != 0 && m.IsResponse() {
		return false
	}
	*h = mad.UserHeader{}
	h.SetStatus(status)
	if status != 0 {
		// Like umad: the address that was sent to, and only the MAD header counts.
		h.SetLID(mad.LID(be.Uint16(p[0:])))
		h.SetQPN(mad.QPN(be.Uint32(p[8:]) & 0xffffff))
		h.SetLength(mad.UserHeaderSize + mad.HeaderSize)
		return true
	}
	h.SetLID(mad.LID(be.Uint16(p[4:])))
	h.SetQPN(mad.QPN(be.Uint32(p[12:]) & 0xffffff))
	h.SetQKey(mad.WellKnownQKey) // not carried; that of QP1, so that an answer can turn the header round
	length := be.Uint64(p[24:])
	if length < mad.HeaderSize || length > mad.PacketSize {
		length = mad.PacketSize
	}
	h.SetLength(uint32(mad.UserHeaderSize + length))
	return true
}
