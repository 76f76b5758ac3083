// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acm

import (
	"errors"
	"fmt"

	"acmd/mad"
)

// Values of the control field at offset 6 of the packet (mad.Packet.Specific).
const (
	ControlResolve uint16 = 0x0001
	ControlAck     uint16 = 0x8000 // defined, never used
)

// Address types, the same as in the client protocol.
const (
	TypeInvalid uint8 = 0
	TypeName    uint8 = 1 // up to 64 bytes, padded with zeros
	TypeIPv4    uint8 = 2 // 4 bytes
	TypeIPv6    uint8 = 3 // 16 bytes
	TypeGID     uint8 = 4 // 16 bytes
	TypeLID     uint8 = 5 // 2 bytes, big endian
)

const (
	// DataOffset is where the resolve record begins in the packet.
	DataOffset = 16
	// AddrSize is the size of an address field, and the value of both length
	// fields whatever the type.
	AddrSize = 64
	// MaxGIDs is how many groups fit into a packet.
	MaxGIDs = 6
)

// Resolve is the resolve record, 240 bytes in wire form.
type Resolve [mad.PacketSize - DataOffset]byte

// View returns the resolve record of a packet in place.
func View(p *mad.Packet) *Resolve { return (*Resolve)(p[DataOffset:]) }

func (r *Resolve) DestType() uint8   { return r[0] }
func (r *Resolve) DestLength() uint8 { return r[1] }
func (r *Resolve) SrcType() uint8    { return r[2] }
func (r *Resolve) SrcLength() uint8  { return r[3] }

// GIDCount is the number of groups, at most MaxGIDs whatever the packet claims.
func (r *Resolve) GIDCount() int { return min(int(r[4]), MaxGIDs) }

// Dest and Src return the address fields in place, 64 bytes with padding.
func (r *Resolve) Dest() *[AddrSize]byte { return (*[AddrSize]byte)(r[8:72]) }
func (r *Resolve) Src() *[AddrSize]byte  { return (*[AddrSize]byte)(r[72:136]) }

// GID returns group i, 0 <= i < MaxGIDs; the last of GIDCount is the most wanted.
func (r *Resolve) GID(i int) mad.GID { return mad.GID(r[136+16*i : 152+16*i]) }

// ErrArgument is wrapped by InitRequest for what does not fit into a packet.
var ErrArgument = errors.New("does not fit into an ACM request")

// InitRequest writes a complete request. Addresses are 1 to 64 bytes and are
// padded with zeros; groups are 1 to MaxGIDs, the least wanted first. On error p
// is unchanged.
func InitRequest(p *mad.Packet, tid mad.TID, destType uint8, dest []byte, srcType uint8, src []byte, groups ...mad.GID) error {
	switch {
	case !validType(destType) || !validType(srcType):
		return fmt.Errorf("address types %d and %d: %w", destType, srcType, ErrArgument)
	case !validLen(dest) || !validLen(src):
		return fmt.Errorf("addresses of %d and %d bytes: %w", len(dest), len(src), ErrArgument)
	case len(groups) < 1 || len(groups) > MaxGIDs:
		return fmt.Errorf("%d groups: %w", len(groups), ErrArgument)
	}
	p.Init(mad.ClassACM, mad.ACMClassVersion, mad.MethodGet)
	p.SetSpecific(ControlResolve)
	p.SetTID(tid)
	r := View(p)
	r[0], r[1], r[2], r[3] = destType, AddrSize, srcType, AddrSize
	r[4] = uint8(len(groups))
	copy(r[8:72], dest)
	copy(r[72:136], src)
	for i := range groups {
		copy(r[136+16*i:], groups[i][:])
	}
	return nil
}

// InitResponse writes a complete answer to the request tid: the chosen group and
// nothing else.
func InitResponse(p *mad.Packet, tid mad.TID, group mad.GID) {
	p.Init(mad.ClassACM, mad.ACMClassVersion, mad.MethodGetResp)
	p.SetSpecific(ControlResolve)
	p.SetTID(tid)
	r := View(p)
	r[4] = 1
	copy(r[136:], group[:])
}

func validType(t uint8) bool { return t >= TypeName && t <= TypeLID }

func validLen(a []byte) bool { return len(a) >= 1 && len(a) <= AddrSize }
