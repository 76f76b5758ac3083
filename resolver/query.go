// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package resolver

import (
	"net/netip"

	"acmd/cache"
	"acmd/mad"
	"acmd/mad/sa"
)

// Status is the result of a request as clients see it: the status byte of the
// ACM client protocol.
type Status uint8

const (
	StatusSuccess  Status = 0
	StatusNoMemory Status = 1
	StatusInvalid  Status = 2
	StatusNoData   Status = 3
	StatusNotConn  Status = 5
	StatusTimedOut Status = 6
	StatusSrcAddr  Status = 7
	StatusSrcType  Status = 8
	StatusDestAddr Status = 9
	StatusDestType Status = 10
)

// Addr is a normalised address: a name folded to lower case, an IPv4 or IPv6
// address, a GID or a LID (big endian), with every byte past Len zero. It is
// comparable, so that two spellings of one address are one map key.
type Addr struct {
	Kind cache.Kind // KindName ... KindLID, 0 for "none"
	Len  uint8
	Data [cache.MaxKeyData]byte
}

// IsZero reports whether no address was given.
func (a *Addr) IsZero() bool { return a.Kind == 0 }

// Bytes returns the meaningful bytes, in place.
func (a *Addr) Bytes() []byte { return a.Data[:a.Len] }

// NameAddr folds a name to lower case (ASCII). Bytes from the first NUL and past
// 64 are cut off.
func NameAddr(name string) (a Addr) {
	a.Kind = cache.KindName
	for i := 0; i < len(name) && i < len(a.Data) && name[i] != 0; i++ {
		c := name[i]
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		a.Data[i] = c
		a.Len++
	}
	return a
}

// IPAddr makes an address of an IP; a mapped IPv4 address becomes IPv4, a zone
// is dropped.
func IPAddr(ip netip.Addr) (a Addr) {
	ip = ip.Unmap()
	if ip.Is4() {
		b := ip.As4()
		a.Kind, a.Len = cache.KindIPv4, 4
		copy(a.Data[:], b[:])
		return a
	}
	b := ip.As16()
	a.Kind, a.Len = cache.KindIPv6, 16
	copy(a.Data[:], b[:])
	return a
}

// GIDAddr and LIDAddr make the addresses that path requests name.
func GIDAddr(g mad.GID) (a Addr) {
	a.Kind, a.Len = cache.KindGID, 16
	copy(a.Data[:], g[:])
	return a
}

func LIDAddr(l mad.LID) (a Addr) {
	a.Kind, a.Len = cache.KindLID, 2
	a.Data[0], a.Data[1] = byte(l>>8), byte(l)
	return a
}

// LID returns the address as a LID; it is meant for KindLID.
func (a *Addr) LID() mad.LID { return mad.LID(a.Data[0])<<8 | mad.LID(a.Data[1]) }

// IP returns the address as an IP, or an invalid one.
func (a *Addr) IP() netip.Addr {
	switch a.Kind {
	case cache.KindIPv4:
		return netip.AddrFrom4([4]byte(a.Data[:4]))
	case cache.KindIPv6:
		return netip.AddrFrom16([16]byte(a.Data[:16]))
	}
	return netip.Addr{}
}

// QueryKind says which of the three questions of the client protocol is asked.
type QueryKind uint8

const (
	ByAddress QueryKind = iota // Src, Dst
	ByPath                     // Path: destination LID or GID, and constraints
	AskSA                      // Path: does the SA have a path with these values
)

// Query is one question, framed and validated by a door: types and counts of
// records are right, addresses normalised. Whether the source is ours is the
// engine's to say.
type Query struct {
	Kind    QueryKind
	NoDelay bool // answer from the cache or StatusNoData; look it up behind
	// OwnDeadline: the asker ends its wait by itself and is told only how the
	// lookup ends, however long after RequestTimeout that is.
	OwnDeadline bool
	Src         Addr // zero: the engine chooses
	Dst         Addr
	Path        sa.PathRecord
}

// Answer is the outcome of a query.
type Answer struct {
	Status Status
	// Core tells that the failure was found before any provider was asked; the
	// client protocol marks such replies (opcode 0x81).
	Core bool
	// Asked: an AskSA query was answered by the SA; Path has the first 64 bytes
	// of its answer whatever the status.
	Asked  bool
	Path   sa.PathRecord
	Src    Addr  // the source that the engine chose; zero when the query named one
	Err    error // which step failed and why, for logs and acmctl; nil on success
	Origin Origin
}

// Origin says where an answer came from.
type Origin uint8

const (
	OriginNone     Origin = iota
	OriginSA              // the SA's record
	OriginPreload         // a route file
	OriginGroup           // multicast group parameters (route_prot acm)
	OriginLoopback        // our own address
)

// Waiter is told the outcome of a query that could not be answered at once.
type Waiter interface {
	// Answered is called exactly once for each call of Engine.Resolve, from any
	// goroutine, possibly before Resolve returns. a is valid during the call and is
	// not to be changed. It must not block.
	Answered(tag uint64, a *Answer)
}
