// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package mad

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strconv"
)

// GID is a global identifier, 16 bytes in network order: subnet prefix, then
// interface identifier (IBTA vol. 1, 4.1.1). It is comparable.
type GID [16]byte

// MakeGID joins a subnet prefix and a port GUID.
func MakeGID(prefix uint64, guid GUID) (g GID) {
	binary.BigEndian.PutUint64(g[0:], prefix)
	binary.BigEndian.PutUint64(g[8:], uint64(guid))
	return g
}

// ParseGID reads the IPv6 text form, the only form that tools print. A zone is
// refused.
func ParseGID(s string) (GID, error) {
	a, err := netip.ParseAddr(s)
	if err != nil || !a.Is6() || a.Zone() != "" {
		return GID{}, fmt.Errorf("%q is not a GID", s)
	}
	return a.As16(), nil
}

// Prefix returns the subnet prefix.
func (g GID) Prefix() uint64 { return binary.BigEndian.Uint64(g[0:]) }

// GUID returns the interface identifier.
func (g GID) GUID() GUID { return GUID(binary.BigEndian.Uint64(g[8:])) }

// IsZero reports whether all 16 bytes are zero, which means "not given".
func (g GID) IsZero() bool { return g == GID{} }

// DefaultPrefix is the subnet prefix that every port has before a subnet manager
// gives it another, and that stays valid beside that one (IBTA vol. 1, 4.1.1).
const DefaultPrefix uint64 = 0xfe80000000000000

// IsMulticast reports whether the GID names a multicast group.
func (g GID) IsMulticast() bool { return g[0] == 0xff }

func (g GID) String() string { return netip.AddrFrom16(g).String() }

// GUID is an EUI-64 in host order.
type GUID uint64

func (g GUID) String() string { return fmt.Sprintf("0x%016x", uint64(g)) }

// LID is a local identifier in host order. 0 means "none", from 0xC000 on it is
// a multicast LID, 0xFFFF is permissive (IBTA vol. 1, 4.1.3).
type LID uint16

// IsUnicast reports whether the LID can name a port.
func (l LID) IsUnicast() bool { return l != 0 && l < 0xc000 }

func (l LID) String() string { return strconv.Itoa(int(l)) }

// PKey is a partition key in host order. Bit 15 is the membership: set for full,
// clear for limited (IBTA vol. 1, 10.9.1).
type PKey uint16

// DefaultPKey is the full default partition key.
const DefaultPKey PKey = 0xffff

// Number returns the 15 bits that name the partition.
func (k PKey) Number() uint16 { return uint16(k) & 0x7fff }

// Full returns the key with the full-membership bit set.
func (k PKey) Full() PKey { return k | 0x8000 }

// IsFull reports full membership.
func (k PKey) IsFull() bool { return k&0x8000 != 0 }

// IsValid reports whether the low 15 bits are not zero. 0x0000 and 0x8000 mark
// an empty table entry.
func (k PKey) IsValid() bool { return k.Number() != 0 }

// Matches reports whether both keys name the same partition, membership aside.
func (k PKey) Matches(o PKey) bool { return k.Number() == o.Number() }

func (k PKey) String() string { return fmt.Sprintf("0x%04x", uint16(k)) }

// QKey is a queue key in host order.
type QKey uint32

// WellKnownQKey is the Q_Key of QP1 and of the ACM class.
const WellKnownQKey QKey = 0x80010000

// QPN is a queue pair number, 24 bits, in host order.
type QPN uint32

const (
	QP1          QPN = 1        // general services interface
	MulticastQPN QPN = 0xffffff // destination of every multicast datagram
)

// TID is a transaction identifier in host order. Over umad the kernel owns the
// upper 32 bits of a request's TID; match answers with [TID.Low].
type TID uint64

// Low returns the 32 bits that identify a transaction on its port.
func (t TID) Low() uint32 { return uint32(t) }

func (t TID) String() string { return fmt.Sprintf("0x%016x", uint64(t)) }

// MTU is an MTU code (IBTA vol. 1, PathRecord): 1 = 256 ... 5 = 4096 bytes.
// Unknown codes pass through.
type MTU uint8

// State is a logical port state (IBTA vol. 1, PortInfo).
type State uint8

const (
	PortDown   State = 1
	PortInit   State = 2
	PortArmed  State = 3
	PortActive State = 4
)

func (s State) String() string {
	switch s {
	case PortDown:
		return "DOWN"
	case PortInit:
		return "INIT"
	case PortArmed:
		return "ARMED"
	case PortActive:
		return "ACTIVE"
	}
	return "state " + strconv.Itoa(int(s))
}
