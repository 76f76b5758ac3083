// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package kernelfake

import (
	"encoding/binary"
	"net/netip"

	"acmd/mad"
	"acmd/mad/sa"
)

// The kernel's view of the messages, written down a second time so that a mistake
// of the door's is not shared.
const (
	headerLen     = 16
	flagRequest   = 1
	flagErr       = 0x100
	typeError     = 2
	typeResolve   = 0x1000
	typeIPResolve = 0x1002
	mandatory     = 0x2000

	pathGMP, pathPrimary = 1, 2
)

// permissionDenied is the body of an error message with -EPERM, without the
// message that it is about.
var permissionDenied = binary.NativeEndian.AppendUint32(nil, 0xffffffff)

func frame(typ, flags uint16, seq uint32, body []byte) []byte {
	ne := binary.NativeEndian
	b := ne.AppendUint32(nil, uint32(headerLen+len(body)))
	b = ne.AppendUint16(b, typ)
	b = ne.AppendUint16(b, flags)
	b = ne.AppendUint32(b, seq)
	b = ne.AppendUint32(b, 0)
	return append(b, body...)
}

func attr(b []byte, typ uint16, data []byte) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(4+len(data)))
	b = binary.NativeEndian.AppendUint16(b, typ)
	b = append(b, data...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

// body has the attributes in the kernel's order.
func (q *Resolve) body() []byte {
	ne := binary.NativeEndian
	b := make([]byte, 68, 160)
	copy(b, q.Device)
	b[64], b[65] = q.Port, q.Use
	if q.Service != 0 {
		b = attr(b, 3|mandatory, ne.AppendUint64(nil, q.Service))
	}
	b = attr(b, 4|mandatory, q.DGID[:])
	if !q.SGID.IsZero() {
		b = attr(b, 5|mandatory, q.SGID[:])
	}
	b = attr(b, 6|mandatory, []byte{q.TClass})
	if q.PKey != 0 {
		b = attr(b, 7|mandatory, ne.AppendUint16(nil, uint16(q.PKey)))
	}
	if q.QoS != 0 {
		b = attr(b, 8|mandatory, ne.AppendUint16(nil, q.QoS))
	}
	return b
}

func ipBody(ifindex int32, ip netip.Addr) []byte {
	b := binary.NativeEndian.AppendUint32(nil, uint32(ifindex))
	if ip.Is4() {
		return attr(b, 9|mandatory, ip.AsSlice())
	}
	return attr(b, 10|mandatory, ip.AsSlice())
}

// judge is what the kernel makes of an answer, see the table of observations in
// the tests of resolver/kernelnl.
func (c *Call) judge(flags uint16, b []byte) Outcome {
	if flags&flagErr != 0 {
		return Refused
	}
	found := Broken
	for len(b) >= 4 {
		n, typ := int(binary.NativeEndian.Uint16(b)), binary.NativeEndian.Uint16(b[2:])
		if n < 4 || n > len(b) {
			return Broken
		}
		data := b[4:n]
		switch {
		case c.key.typ == typeResolve && typ == 1 && len(data) == 72:
			f := binary.NativeEndian.Uint32(data)
			c.Path = sa.PathRecord(data[8:72])
			if f&(pathGMP|pathPrimary) == pathGMP|pathPrimary && c.Path != (sa.PathRecord{}) {
				found = Answered
			}
		case c.key.typ == typeIPResolve && typ == 4 && len(data) == 16:
			c.GID, found = mad.GID(data), Answered
		}
		b = b[min((n+3)&^3, len(b)):]
	}
	return found
}
