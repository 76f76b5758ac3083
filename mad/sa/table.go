// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package sa

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"

	"acmd/mad"
)

var (
	// ErrShort is returned for a message that ends inside the SA header.
	ErrShort = errors.New("message is shorter than the SA header")
	// ErrStride is returned for a table whose records lie closer together than
	// the records are long.
	ErrStride = errors.New("attribute offset is smaller than the attribute")
)

// Message returns the bytes of a received SA message that were really sent: long
// where the transport reassembled one, else the packet, cut to the length that h
// tells and to the payload length when it is a whole RMPP message by itself. What
// lies behind is stale memory of the SA and must not be taken for records.
//
// The result lies in p or in long; at least the SA header is there.
func Message(h *mad.UserHeader, p *mad.Packet, long []byte) []byte {
	if long != nil {
		return long
	}
	n := mad.PacketSize
	// Lengths that cannot be are passed over: the bounds of the packet hold.
	if l := int64(h.Length()) - mad.UserHeaderSize; l >= DataOffset && l < int64(n) {
		n = int(l)
	}
	r := RMPPHeader(p)
	if r.IsActive() && r.Type() == RMPPData && r.Flags()&RMPPLast != 0 {
		l := int64(r.PayloadLength()) - RMPPHeaderInPayload + DataOffset
		if l >= DataOffset && l < int64(n) {
			n = int(l)
		}
	}
	return p[:n]
}

// CheckTable says how many records of size bytes Records yields for message, or
// why none: ErrShort, ErrStride. A table without records is no error.
func CheckTable(message []byte, size int) (int, error) {
	if len(message) < DataOffset {
		return 0, fmt.Errorf("%d bytes: %w", len(message), ErrShort)
	}
	stride, n := stride(message), len(message)-DataOffset
	if n == 0 {
		return 0, nil
	}
	if size <= 0 || stride < size {
		return 0, fmt.Errorf("%d bytes for a record of %d: %w", stride, size, ErrStride)
	}
	if n < size {
		return 0, nil
	}
	return (n-size)/stride + 1, nil
}

// Records yields the records of a GetTable reply in place, each size bytes long
// and capped. message is what [Message] returned: 56 bytes of SA header, then
// the records at the distance that the header tells. It yields nothing for what
// [CheckTable] refuses, and no record that is cut off. Look at the MAD status
// first: a refusal carries the request's data.
func Records(message []byte, size int) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		n, err := CheckTable(message, size)
		if err != nil {
			return
		}
		step := stride(message)
		for off := DataOffset; n > 0; n, off = n-1, off+step {
			if !yield(message[off : off+size : off+size]) {
				return
			}
		}
	}
}

// stride is the distance of two records in bytes; message has the SA header.
func stride(message []byte) int { return int(binary.BigEndian.Uint16(message[44:])) * 8 }
