// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
)

// The client protocol of ibacm. Resolve messages are in host byte order apart
// from the addresses and path records inside them; perf and endpoint messages
// are in network byte order, their length field included.
const (
	hdrLen   = 16
	epLen    = 72
	addrLen  = 64
	maxMsg   = hdrLen + 8*epLen
	acmVer   = 1
	opResolv = 1
	opPerf   = 2
	opEP     = 3
	opAck    = 0x80

	typeName = 1
	typeIP   = 2
	typeIP6  = 3
	typePath = 0x10

	flagSource  = 1 << 0
	flagDest    = 1 << 1
	flagNoDelay = 1 << 30
	flagQuerySA = 1 << 31
)

var native = binary.NativeEndian

// endpoint is one 72-byte entry of a resolve message.
type endpoint struct {
	flags uint32
	typ   uint16
	info  [addrLen]byte
}

// target is a destination with the path that a correct answer must name.
type target struct {
	text string
	ep   endpoint
	src  *endpoint
	dgid [16]byte
	dlid uint16
}

// parseEndpoint reads "name:x", "ip:x", "lid:n" or "gid:x"; lid and gid give a
// path-record query in which dst selects the destination or source fields.
func parseEndpoint(s string, dst bool) (endpoint, error) {
	var e endpoint
	kind, val, ok := strings.Cut(s, ":")
	if !ok {
		return e, fmt.Errorf("%q: want kind:value", s)
	}
	e.flags = flagSource
	if dst {
		e.flags = flagDest
	}
	switch kind {
	case "name":
		e.typ = typeName
		if copy(e.info[:], val) != len(val) {
			return e, fmt.Errorf("%q is too long", val)
		}
	case "ip":
		ip := net.ParseIP(val)
		if ip == nil {
			return e, fmt.Errorf("%q is not an IP address", val)
		}
		if v4 := ip.To4(); v4 != nil {
			e.typ = typeIP
			copy(e.info[:], v4)
		} else {
			e.typ = typeIP6
			copy(e.info[:], ip)
		}
	case "gid":
		gid := net.ParseIP(val)
		if gid == nil {
			return e, fmt.Errorf("%q is not a GID", val)
		}
		e.typ, e.flags = typePath, 0
		off := 24
		if dst {
			off = 8
		}
		copy(e.info[off:], gid.To16())
	case "lid":
		n, err := strconv.ParseUint(val, 0, 16)
		if err != nil {
			return e, err
		}
		e.typ, e.flags = typePath, 0
		off := 42
		if dst {
			off = 40
		}
		binary.BigEndian.PutUint16(e.info[off:], uint16(n))
	default:
		return e, fmt.Errorf("unknown address kind %q", kind)
	}
	if e.typ == typePath {
		e.info[49] = 0x80 | 1 // reversible, one path
	}
	return e, nil
}

func (e *endpoint) put(b []byte) {
	native.PutUint32(b[0:], e.flags)
	native.PutUint16(b[4:], e.typ)
	native.PutUint16(b[6:], 0)
	copy(b[8:epLen], e.info[:])
}

func putHeader(b []byte, op byte, length uint16, tid uint64) {
	clear(b[:hdrLen])
	b[0] = acmVer
	b[1] = op
	native.PutUint16(b[6:], length)
	native.PutUint64(b[8:], tid)
}

// request encodes a resolve for t into b and returns its length. A pad larger
// than the natural size yields trailing empty entries.
func (t *target) request(b []byte, tid uint64, nodelay bool, pad int) int {
	n := hdrLen
	if t.src != nil {
		if t.ep.typ == typePath { // one entry carries both ends
			e := t.ep
			for i := range e.info {
				e.info[i] |= t.src.info[i]
			}
			e.put(b[n:])
		} else {
			t.src.put(b[n:])
			n += epLen
			t.ep.put(b[n:])
		}
	} else {
		t.ep.put(b[n:])
	}
	if nodelay {
		native.PutUint32(b[n:], native.Uint32(b[n:])|flagNoDelay)
	}
	n += epLen
	if pad > n {
		clear(b[n:pad])
		n = pad
	}
	putHeader(b, opResolv, uint16(n), tid)
	return n
}

var errStatus = errors.New("status")

// check verifies a complete resolve response.
func (t *target) check(b []byte, tid uint64) error {
	if b[0] != acmVer || b[1]&0x0f != opResolv {
		return fmt.Errorf("bad version %d or opcode %#x", b[0], b[1])
	}
	if got := native.Uint64(b[8:]); got != tid {
		return fmt.Errorf("tid %#x, want %#x", got, tid)
	}
	if b[2] != 0 {
		return fmt.Errorf("%w %d", errStatus, b[2])
	}
	want := hdrLen + epLen
	if t.src == nil && t.ep.typ != typePath {
		want += epLen // the source that the service chose
	}
	if len(b) != want {
		return fmt.Errorf("length %d, want %d", len(b), want)
	}
	e := b[hdrLen:]
	if typ := native.Uint16(e[4:]); typ != typePath {
		return fmt.Errorf("entry type %#x, want a path record", typ)
	}
	rec := e[8:epLen]
	if [16]byte(rec[8:24]) != t.dgid {
		return fmt.Errorf("dgid %v, want %v", net.IP(rec[8:24]), net.IP(t.dgid[:]))
	}
	if lid := binary.BigEndian.Uint16(rec[40:]); lid != t.dlid {
		return fmt.Errorf("dlid %d, want %d", lid, t.dlid)
	}
	return nil
}
