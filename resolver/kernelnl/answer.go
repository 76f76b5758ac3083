// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package kernelnl

import (
	"encoding/binary"
	"time"

	"acmd/mad"
	"acmd/mad/sa"
)

// AnswerLen is the length of the longest answer.
const AnswerLen = headerLen + attrHdrLen + 8 + len(sa.PathRecord{})

// appendHeader begins a message of n bytes in all. The sender's port is left 0,
// the kernel does not look at it.
func appendHeader(b []byte, n int, typ, flags uint16, seq uint32) []byte {
	ne := binary.NativeEndian
	b = ne.AppendUint32(b, uint32(n))
	b = ne.AppendUint16(b, typ)
	b = ne.AppendUint16(b, flags)
	b = ne.AppendUint32(b, seq)
	return ne.AppendUint32(b, 0)
}

func appendAttrHeader(b []byte, n int, typ uint16) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(attrHdrLen+n))
	return binary.NativeEndian.AppendUint16(b, typ)
}

// AppendPath appends the answer to the RESOLVE with this header: one record, 92
// bytes. There is no family header, no flag, and the attribute is not marked as
// mandatory: with any of these the kernel fails the request.
func AppendPath(b []byte, h *Header, p *sa.PathRecord) []byte {
	const n = 8 + len(p)
	b = appendHeader(b, headerLen+attrHdrLen+n, h.Type, 0, h.Seq)
	b = appendAttrHeader(b, n, attrPathRecord)
	b = binary.NativeEndian.AppendUint32(b, recordFlags)
	b = binary.NativeEndian.AppendUint32(b, 0) // reserved
	return append(b, p[:]...)
}

// AppendGID appends the answer to the IP_RESOLVE with this header, 36 bytes.
func AppendGID(b []byte, h *Header, g mad.GID) []byte {
	b = appendHeader(b, headerLen+attrHdrLen+len(g), h.Type, 0, h.Seq)
	b = appendAttrHeader(b, len(g), attrDGID)
	return append(b, g[:]...)
}

// AppendFailure appends the error answer to a request with this header, 16 bytes.
// It is the only answer that sends the kernel to the SA.
func AppendFailure(b []byte, h *Header) []byte {
	return appendHeader(b, headerLen, h.Type, flagErr, h.Seq)
}

// isFailure tells the error answer from the others.
func isFailure(b []byte) bool { return binary.NativeEndian.Uint16(b[6:])&flagErr != 0 }

// appendSetTimeout appends the request that sets how long the kernel waits for
// answers, in ms.
func appendSetTimeout(b []byte, seq uint32, wait time.Duration) []byte {
	b = appendHeader(b, headerLen+attrHdrLen+4, typeSetTimeout, flagRequest|flagAck, seq)
	b = appendAttrHeader(b, 4, attrTimeout)
	return binary.NativeEndian.AppendUint32(b, uint32(wait.Milliseconds()))
}
