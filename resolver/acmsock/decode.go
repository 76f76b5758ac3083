// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acmsock

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"acmd/mad"
	"acmd/mad/sa"
	"acmd/resolver"
)

// ErrProtocol is wrapped by errors about a reply that does not follow the
// protocol; the connection is of no further use.
var ErrProtocol = errors.New("protocol violation")

// StatusError is a reply whose status is not success.
type StatusError struct {
	Op     Op
	Status resolver.Status
	// Core tells that the service found the failure before it asked a provider
	// (ACK bit of a RESOLVE reply).
	Core bool
}

func (e *StatusError) Error() string {
	return fmt.Sprintf("%s (status %d)", Text(e.Status), e.Status)
}

// Path is one path of a reply with its IBV_PATH_FLAG_* flags.
type Path struct {
	Flags  uint32
	Record sa.PathRecord
}

// Resolved is the decoded reply to a successful RESOLVE.
type Resolved struct {
	Paths  []Path        // at least one, the primary first
	Source resolver.Addr // the source that the service chose, zero if none
}

// EndpointInfo is the decoded reply to a successful EP_QUERY.
type EndpointInfo struct {
	NodeGUID  mad.GUID
	Port      uint8
	PhysPorts uint8 // ports of the device
	PKey      mad.PKey
	Provider  string
	Addrs     []string
}

// checkReply checks header and length of a whole reply to an operation. The ACK
// bit is not looked at: services set it unevenly.
func checkReply(b []byte, op Op) error {
	switch {
	case len(b) < HeaderSize:
		return fmt.Errorf("%w: reply of %d bytes", ErrProtocol, len(b))
	case b[0] != Version:
		return fmt.Errorf("%w: version %d", ErrProtocol, b[0])
	case opOf(b) != op:
		return fmt.Errorf("%w: opcode 0x%02x in reply to operation %d", ErrProtocol, b[offOpcode], op)
	case lengthOf(b) != len(b):
		return fmt.Errorf("%w: length field %d in a reply of %d bytes", ErrProtocol, lengthOf(b), len(b))
	}
	return nil
}

func statusError(b []byte, op Op) error {
	if b[offStatus] == 0 {
		return nil
	}
	return &StatusError{Op: op, Status: resolver.Status(b[offStatus]), Core: b[offOpcode]&ackBit != 0}
}

// DecodeResolve reads a reply to a RESOLVE. Records of unknown type are skipped,
// so that a service may add some.
func DecodeResolve(b []byte) (Resolved, error) {
	var out Resolved
	if err := checkReply(b, OpResolve); err != nil {
		return out, err
	}
	if err := statusError(b, OpResolve); err != nil {
		return out, err
	}
	if (len(b)-HeaderSize)%RecordSize != 0 || len(b) > MaxRequest {
		return out, fmt.Errorf("%w: reply of %d bytes is no number of records", ErrProtocol, len(b))
	}
	for p := b[HeaderSize:]; len(p) > 0; p = p[RecordSize:] {
		r := decodeRecord(p)
		switch kind := kindOf(r.Type); {
		case r.Type == TypePath:
			out.Paths = append(out.Paths, Path{r.Flags, r.Info})
		case kind != 0 && r.Flags&FlagSource != 0:
			out.Source = resolver.Addr{}
			normalise(&out.Source, r.Type, r.Info[:])
		}
	}
	if len(out.Paths) == 0 {
		return out, fmt.Errorf("%w: success without a path", ErrProtocol)
	}
	return out, nil
}

// DecodeSA reads a reply to an SA query. The record is valid also with a
// *[StatusError]: it is then what the SA returned, or the one asked for.
func DecodeSA(b []byte) (sa.PathRecord, error) {
	var p sa.PathRecord
	if err := checkReply(b, OpResolve); err != nil {
		return p, err
	}
	if len(b) >= HeaderSize+RecordSize {
		p = sa.PathRecord(b[HeaderSize+8 : HeaderSize+RecordSize])
	}
	if err := statusError(b, OpResolve); err != nil {
		return p, err
	}
	if len(b) != HeaderSize+RecordSize {
		return p, fmt.Errorf("%w: SA reply of %d bytes", ErrProtocol, len(b))
	}
	return p, nil
}

// DecodePerf reads a reply to a PERF_QUERY. A service may have other counters
// behind the seven that are defined.
func DecodePerf(b []byte) ([]uint64, error) {
	if err := checkReply(b, OpPerf); err != nil {
		return nil, err
	}
	if err := statusError(b, OpPerf); err != nil {
		return nil, err
	}
	n := int(b[offSrcOut])
	if len(b) != HeaderSize+8*n {
		return nil, fmt.Errorf("%w: %d counters in %d bytes", ErrProtocol, n, len(b))
	}
	c := make([]uint64, n)
	for i := range c {
		c[i] = binary.BigEndian.Uint64(b[HeaderSize+8*i:])
	}
	return c, nil
}

// DecodeEndpoint reads a reply to an EP_QUERY.
func DecodeEndpoint(b []byte) (EndpointInfo, error) {
	var e EndpointInfo
	if err := checkReply(b, OpEndpoint); err != nil {
		return e, err
	}
	if err := statusError(b, OpEndpoint); err != nil {
		return e, err
	}
	if len(b) < HeaderSize+endpointBody {
		return e, fmt.Errorf("%w: endpoint reply of %d bytes", ErrProtocol, len(b))
	}
	p := b[HeaderSize:]
	n := int(binary.BigEndian.Uint16(p[14:]))
	if len(p) != endpointBody+n*endpointAddr {
		return e, fmt.Errorf("%w: %d addresses in %d bytes", ErrProtocol, n, len(b))
	}
	e.NodeGUID = mad.GUID(binary.BigEndian.Uint64(p))
	e.Port, e.PhysPorts = p[8], p[9]
	e.PKey = mad.PKey(binary.BigEndian.Uint16(p[12:]))
	e.Provider = text(p[16:endpointBody])
	for p = p[endpointBody:]; len(p) > 0; p = p[endpointAddr:] {
		e.Addrs = append(e.Addrs, text(p[:endpointAddr]))
	}
	return e, nil
}

// text cuts NUL padding off.
func text(b []byte) string {
	if i := bytes.IndexByte(b, 0); i >= 0 {
		b = b[:i]
	}
	return string(b)
}
