// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package mad

import "encoding/binary"

// UserHeaderSize is the size of [UserHeader].
const UserHeaderSize = 64

// UserHeader is struct ib_user_mad_hdr of include/uapi/rdma/ib_user_mad.h in
// its 64-byte form: where a MAD goes to or came from, and what became of it.
// Every transport uses it, so that umad can read and write it in place. Status,
// time-out, retries, length and agent are in host order in memory, the address
// in network order; accessors speak host order throughout.
type UserHeader [UserHeaderSize]byte

// StatusTimeout is the status of a send that got no answer (ETIMEDOUT). Such a
// message has only the 24 bytes of the MAD header that was sent.
const StatusTimeout = 110

var he = binary.NativeEndian

func (h *UserHeader) Agent() uint32 { return he.Uint32(h[0:]) }

// Status is 0 or an errno; [StatusTimeout] marks a send that came back.
func (h *UserHeader) Status() uint32 { return he.Uint32(h[4:]) }

// TimeoutMS is how long to wait for the answer of a send; 0 when none is
// expected.
func (h *UserHeader) TimeoutMS() uint32 { return he.Uint32(h[8:]) }
func (h *UserHeader) Retries() uint32   { return he.Uint32(h[12:]) }

// Length is, for a received message, the bytes of header and MAD together, more
// than 320 for a reassembled RMPP message.
func (h *UserHeader) Length() uint32      { return he.Uint32(h[16:]) }
func (h *UserHeader) QPN() QPN            { return QPN(binary.BigEndian.Uint32(h[20:])) }
func (h *UserHeader) QKey() QKey          { return QKey(binary.BigEndian.Uint32(h[24:])) }
func (h *UserHeader) LID() LID            { return LID(binary.BigEndian.Uint16(h[28:])) }
func (h *UserHeader) SL() uint8           { return h[30] }
func (h *UserHeader) PathBits() uint8     { return h[31] }
func (h *UserHeader) HasGRH() bool        { return h[32] != 0 }
func (h *UserHeader) GIDIndex() uint8     { return h[33] }
func (h *UserHeader) HopLimit() uint8     { return h[34] }
func (h *UserHeader) TrafficClass() uint8 { return h[35] }

// GID is the destination's GID of a send and the sender's GID of a receive;
// valid with [UserHeader.HasGRH].
func (h *UserHeader) GID() GID          { return GID(h[36:52]) }
func (h *UserHeader) FlowLabel() uint32 { return binary.BigEndian.Uint32(h[52:]) }
func (h *UserHeader) PKeyIndex() uint16 { return he.Uint16(h[56:]) }

// StaticRate is the most that a send may be sent with, 0 for the port's own rate.
// It is ours, in a byte that the kernel reserves and passes over: only queue pairs
// of our own have such a limit (IBTA vol. 1, 9.11).
func (h *UserHeader) StaticRate() Rate { return Rate(h[58]) }

func (h *UserHeader) SetAgent(v uint32)       { he.PutUint32(h[0:], v) }
func (h *UserHeader) SetStatus(v uint32)      { he.PutUint32(h[4:], v) }
func (h *UserHeader) SetTimeoutMS(v uint32)   { he.PutUint32(h[8:], v) }
func (h *UserHeader) SetRetries(v uint32)     { he.PutUint32(h[12:], v) }
func (h *UserHeader) SetLength(v uint32)      { he.PutUint32(h[16:], v) }
func (h *UserHeader) SetQPN(v QPN)            { binary.BigEndian.PutUint32(h[20:], uint32(v)) }
func (h *UserHeader) SetQKey(v QKey)          { binary.BigEndian.PutUint32(h[24:], uint32(v)) }
func (h *UserHeader) SetLID(v LID)            { binary.BigEndian.PutUint16(h[28:], uint16(v)) }
func (h *UserHeader) SetSL(v uint8)           { h[30] = v }
func (h *UserHeader) SetPathBits(v uint8)     { h[31] = v }
func (h *UserHeader) SetGIDIndex(v uint8)     { h[33] = v }
func (h *UserHeader) SetPKeyIndex(v uint16)   { he.PutUint16(h[56:], v) }
func (h *UserHeader) SetStaticRate(v Rate)    { h[58] = uint8(v) }
func (h *UserHeader) SetHopLimit(v uint8)     { h[34] = v }
func (h *UserHeader) SetTrafficClass(v uint8) { h[35] = v }
func (h *UserHeader) SetFlowLabel(v uint32)   { binary.BigEndian.PutUint32(h[52:], v) }

// SetGID sets the GID and marks a GRH as present.
func (h *UserHeader) SetGID(g GID) {
	h[32] = 1
	copy(h[36:52], g[:])
}
