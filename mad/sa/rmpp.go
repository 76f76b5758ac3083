// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package sa

import (
	"encoding/binary"

	"acmd/mad"
)

// RMPPVersion is the only version of the reliable multi-packet protocol.
const RMPPVersion uint8 = 1

// RMPP packet types (IBTA vol. 1, 13.6.2.1).
const (
	RMPPData  uint8 = 1
	RMPPAck   uint8 = 2
	RMPPStop  uint8 = 3
	RMPPAbort uint8 = 4
)

// RMPP flags, bits 2..0 of the byte they share with the response time.
const (
	RMPPActive uint8 = 1
	RMPPFirst  uint8 = 2
	RMPPLast   uint8 = 4
)

// RMPPNoTime is the response time that means "none given".
const RMPPNoTime uint8 = 0x1f

// RMPPHeaderInPayload is what the payload length of a segment counts beside its
// data: the 20 bytes from SM_Key to component mask.
const RMPPHeaderInPayload = DataOffset - 36

// RMPP is the 12-byte RMPP header at offset 24 of an SA MAD in wire form (IBTA
// vol. 1, 13.6.2). Accessors speak host order.
type RMPP [12]byte

// RMPPHeader returns the RMPP header of an SA MAD in place.
func RMPPHeader(p *mad.Packet) *RMPP { return (*RMPP)(p[24:36]) }

func (h *RMPP) Version() uint8 { return h[0] }
func (h *RMPP) Type() uint8    { return h[1] }

// Flags returns bits 2..0; IsActive tells whether the rest of the header means
// anything.
func (h *RMPP) Flags() uint8        { return h[2] & 7 }
func (h *RMPP) IsActive() bool      { return h[2]&RMPPActive != 0 }
func (h *RMPP) ResponseTime() uint8 { return h[2] >> 3 }
func (h *RMPP) Status() uint8       { return h[3] }

// Segment counts from 1; in an ACK it is the last segment received.
func (h *RMPP) Segment() uint32 { return binary.BigEndian.Uint32(h[4:]) }

// PayloadLength is meaningful in the first and in the last DATA segment: 20 bytes
// of header per segment are counted in (all segments in the first, its own in
// the last). The same four bytes are NewWindow in an ACK.
func (h *RMPP) PayloadLength() uint32 { return binary.BigEndian.Uint32(h[8:]) }

// NewWindow is the last segment that the receiver takes before its next ACK.
func (h *RMPP) NewWindow() uint32 { return binary.BigEndian.Uint32(h[8:]) }

func (h *RMPP) SetVersion(v uint8) { h[0] = v }
func (h *RMPP) SetType(v uint8)    { h[1] = v }

// SetFlags writes the response time (5 bits) and the flags (3 bits).
func (h *RMPP) SetFlags(respTime, flags uint8)  { h[2] = respTime<<3 | flags&7 }
func (h *RMPP) SetStatus(v uint8)               { h[3] = v }
func (h *RMPP) SetSegment(v uint32)             { binary.BigEndian.PutUint32(h[4:], v) }
func (h *RMPP) SetPayloadLength(v uint32)       { binary.BigEndian.PutUint32(h[8:], v) }
func (h *RMPP) SetNewWindow(lastSegment uint32) { binary.BigEndian.PutUint32(h[8:], lastSegment) }
