// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acmsock

import (
	"encoding/binary"

	"acmd/cache"
	"acmd/mad/sa"
	"acmd/resolver"
)

// Sizes in bytes (librdmacm/acm.h).
const (
	HeaderSize = 16
	RecordSize = 72
	InfoSize   = 64
	MaxRecords = 8
	// MaxRequest is the longest request, and the longest RESOLVE reply.
	MaxRequest = HeaderSize + MaxRecords*RecordSize
	// MaxReply is the longest reply: an EP_QUERY with many addresses.
	MaxReply = 1<<16 - 1
)

// Version is the only protocol version.
const Version = 1

// Op is the operation, the low four bits of the opcode byte.
type Op uint8

const (
	OpResolve  Op = 1
	OpPerf     Op = 2
	OpEndpoint Op = 3

	opMask Op    = 0x0f
	ackBit uint8 = 0x80
)

// Record flags of requests.
const (
	FlagSource  uint32 = 1 << 0
	FlagDest    uint32 = 1 << 1
	FlagNoDelay uint32 = 1 << 30
	FlagQuerySA uint32 = 1 << 31
)

// Path flags of replies (libibverbs/sa.h, IBV_PATH_FLAG_*).
const (
	PathGMP            uint32 = 0x01
	PathPrimary        uint32 = 0x02
	PathAlternate      uint32 = 0x04
	PathOutbound       uint32 = 0x08
	PathInbound        uint32 = 0x10
	PathInboundReverse uint32 = 0x20
	// PathUsual is what a single reversible path carries.
	PathUsual = PathGMP | PathPrimary | PathOutbound | PathInboundReverse
)

// Record types. 1 to 5 are those of [cache.Kind].
const (
	TypeName uint16 = 1
	TypeIPv4 uint16 = 2
	TypeIPv6 uint16 = 3
	TypeGID  uint16 = 4
	TypeLID  uint16 = 5
	TypePath uint16 = 0x10

	firstReservedType uint16 = 6
)

// Offsets inside the header. Bytes 3 to 5 are operation specific.
const (
	offOpcode   = 1
	offStatus   = 2
	offSrcOut   = 3
	offSrcIndex = 4
	offDstIndex = 5
	offLength   = 6
	offTID      = 8
)

// Record is one 72-byte record of a RESOLVE message in decoded form. Flags and
// Type are in host order on the wire, Info is bytes.
type Record struct {
	Flags uint32
	Type  uint16
	Info  [InfoSize]byte
}

// SourceRecord and DestRecord name the two ends of a resolve by address.
func SourceRecord(a resolver.Addr) Record {
	return Record{Flags: FlagSource, Type: uint16(a.Kind), Info: a.Data}
}

// DestRecord names the destination; noDelay asks for cached answers only.
func DestRecord(a resolver.Addr, noDelay bool) Record {
	r := Record{Flags: FlagDest, Type: uint16(a.Kind), Info: a.Data}
	if noDelay {
		r.Flags |= FlagNoDelay
	}
	return r
}

// PathQuery asks for a path by its LIDs or GIDs; flags is 0, [FlagNoDelay] or
// [FlagQuerySA].
func PathQuery(p sa.PathRecord, flags uint32) Record {
	return Record{Flags: flags, Type: TypePath, Info: p}
}

// append encodes r behind b.
func (r *Record) append(b []byte) []byte {
	b = binary.NativeEndian.AppendUint32(b, r.Flags)
	b = binary.NativeEndian.AppendUint16(b, r.Type)
	b = append(b, 0, 0)
	return append(b, r.Info[:]...)
}

// decodeRecord reads a record from the first 72 bytes of b.
func decodeRecord(b []byte) Record {
	return Record{
		Flags: binary.NativeEndian.Uint32(b),
		Type:  binary.NativeEndian.Uint16(b[4:]),
		Info:  [InfoSize]byte(b[8:RecordSize]),
	}
}

// opOf returns the operation of a message whose header is in b. It decides the
// byte order of the length, whatever the other opcode bits say.
func opOf(b []byte) Op { return Op(b[offOpcode]) & opMask }

// lengthOf reads the length field of the header in b.
func lengthOf(b []byte) int {
	if opOf(b) == OpResolve {
		return int(binary.NativeEndian.Uint16(b[offLength:]))
	}
	return int(binary.BigEndian.Uint16(b[offLength:]))
}

// putLength writes the length field in the order of the opcode already in b.
func putLength(b []byte, n int) {
	if opOf(b) == OpResolve {
		binary.NativeEndian.PutUint16(b[offLength:], uint16(n))
	} else {
		binary.BigEndian.PutUint16(b[offLength:], uint16(n))
	}
}

// tidZero tells whether the message carries the transaction id 0.
func tidZero(b []byte) bool { return binary.NativeEndian.Uint64(b[offTID:]) == 0 }

// appendHeader appends a header of an operation with the tid of the message
// that req begins with; the operation specific bytes are zero.
func appendHeader(b []byte, opcode uint8, st resolver.Status, length int, req []byte) []byte {
	n := len(b)
	b = append(b, Version, opcode, byte(st), 0, 0, 0, 0, 0)
	putLength(b[n:], length)
	return append(b, req[offTID:HeaderSize]...)
}

// Fault says why a header does not frame a request.
type Fault uint8

const (
	FaultNone    Fault = iota
	FaultVersion       // version is not 1
	FaultOpcode        // ACK or unknown bits set, or no known operation
	FaultLength        // below 16 or above 592
	numFaults
)

func (f Fault) String() string {
	switch f {
	case FaultNone:
		return "none"
	case FaultVersion:
		return "version"
	case FaultOpcode:
		return "opcode"
	}
	return "length"
}

// Frame checks the header of a request, the first 16 bytes of b, and returns
// the length of the whole message. With a fault the stream cannot be followed
// any further: the length is meaningless.
func Frame(b []byte) (int, Fault) {
	if b[0] != Version {
		return 0, FaultVersion
	}
	if op := Op(b[offOpcode]); op < OpResolve || op > OpEndpoint {
		return 0, FaultOpcode
	}
	n := lengthOf(b)
	if n < HeaderSize || n > MaxRequest {
		return 0, FaultLength
	}
	return n, FaultNone
}

// normalise makes an address of a record's info bytes: what lies past the
// meaningful bytes is dropped, names are folded to lower case and end at the
// first NUL. typ is 1 to 5. An IPv4-mapped IPv6 address stays IPv6: it must not
// be answered with an IPv4 source.
func normalise(a *resolver.Addr, typ uint16, info []byte) {
	a.Kind, a.Len = cache.Kind(typ), 0
	switch typ {
	case TypeIPv4:
		a.Len = 4
	case TypeIPv6, TypeGID:
		a.Len = 16
	case TypeLID:
		a.Len = 2
	default:
		for i, c := range info[:InfoSize] {
			if c == 0 {
				break
			}
			if 'A' <= c && c <= 'Z' {
				c += 'a' - 'A'
			}
			a.Data[i] = c
			a.Len++
		}
		return
	}
	copy(a.Data[:a.Len], info)
}
