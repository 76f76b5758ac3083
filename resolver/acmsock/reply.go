// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acmsock

import (
	"encoding/binary"

	"acmd/cache"
	"acmd/resolver"
)

// maxResolveReply is the longest reply to a RESOLVE that is no failed SA query:
// the path and the chosen source.
const maxResolveReply = HeaderSize + 2*RecordSize

// endpointBody is the fixed part of an EP_QUERY reply's body, endpointAddr each
// address behind it. maxEndpointAddrs is what the 16-bit length has room for.
const (
	endpointBody     = 80
	endpointAddr     = 64
	maxEndpointAddrs = (MaxReply - HeaderSize - endpointBody) / endpointAddr
)

// AppendAnswer appends the reply to a resolve by address or by path. req is the
// request or at least its header. ibacm sets the ACK bit only on failures found
// before a provider was asked.
func AppendAnswer(b, req []byte, a *resolver.Answer) []byte {
	if a.Status != resolver.StatusSuccess {
		op := uint8(OpResolve)
		if a.Core {
			op |= ackBit
		}
		return appendHeader(b, op, a.Status, HeaderSize, req)
	}
	length := HeaderSize + RecordSize
	if !a.Src.IsZero() {
		length += RecordSize
	}
	b = appendHeader(b, uint8(OpResolve), a.Status, length, req)
	b = binary.NativeEndian.AppendUint32(b, PathUsual)
	b = binary.NativeEndian.AppendUint16(b, TypePath)
	b = append(b, 0, 0)
	b = append(b, a.Path[:]...)
	if !a.Src.IsZero() {
		r := SourceRecord(a.Src)
		b = r.append(b)
	}
	return b
}

// appendError appends a 16-byte reply for a request that failed at the door.
func appendError(b, req []byte, st resolver.Status) []byte {
	return appendHeader(b, req[offOpcode]|ackBit, st, HeaderSize, req)
}

// appendSAReply appends the reply to an SA query: the request comes back with
// its own length, and with the SA's record where there is one.
func appendSAReply(b, req []byte, st resolver.Status, a *resolver.Answer) []byte {
	b = appendHeader(b, uint8(OpResolve)|ackBit, st, len(req), req)
	n := len(b)
	b = append(b, req[HeaderSize:]...)
	if a != nil && a.Asked {
		copy(b[n+8:], a.Path[:])
	}
	return b
}

// appendPerf appends the reply to a PERF_QUERY.
func appendPerf(b, req []byte, r resolver.Resolver) []byte {
	c, ok := counters(req, r)
	n := len(b)
	if !ok {
		b = appendHeader(b, uint8(OpPerf)|ackBit, resolver.StatusSrcAddr, HeaderSize, req)
		b[n+offSrcOut] = req[offSrcOut]
		b[n+offSrcIndex] = req[offSrcIndex]
		return b
	}
	b = appendHeader(b, uint8(OpPerf)|ackBit, resolver.StatusSuccess, HeaderSize+8*len(c), req)
	b[n+offSrcOut] = byte(len(c))
	b[n+offSrcIndex] = req[offSrcIndex]
	for _, v := range c {
		b = binary.BigEndian.AppendUint64(b, v)
	}
	return b
}

// counters selects the row that a PERF_QUERY asks for.
func counters(req []byte, r resolver.Resolver) (c resolver.Counters, ok bool) {
	index := int(req[offSrcIndex])
	record := len(req) >= HeaderSize+RecordSize
	source := record && binary.NativeEndian.Uint32(req[HeaderSize:])&FlagSource != 0
	switch {
	case record && !source, !record && index == 0:
		return r.Totals(), true
	case index >= 1:
		eps := r.Endpoints()
		if index > len(eps) {
			return c, false
		}
		return r.EndpointCounters(eps[index-1]), true
	}
	typ := binary.NativeEndian.Uint16(req[HeaderSize+4:])
	if typ == 0 || typ >= firstReservedType {
		return c, false
	}
	var src resolver.Addr
	normalise(&src, typ, req[HeaderSize+8:])
	ep := r.BySource(&src)
	if ep == nil {
		return c, false
	}
	return r.EndpointCounters(ep), true
}

// appendEndpoint appends the reply to an EP_QUERY. Addresses beyond what the
// 16-bit length can tell are left out; those that clients bind to come first.
func appendEndpoint(b, req []byte, r resolver.Resolver) []byte {
	n := len(b)
	ep := endpointAt(r.Endpoints(), int(req[offSrcOut]), req[offSrcIndex])
	if ep == nil {
		b = appendHeader(b, uint8(OpEndpoint)|ackBit, resolver.StatusInvalid, HeaderSize, req)
		b[n+offSrcOut] = req[offSrcOut]
		return b
	}
	addrs := ep.Addrs[:min(len(ep.Addrs), maxEndpointAddrs)]
	b = appendHeader(b, uint8(OpEndpoint)|ackBit, resolver.StatusSuccess,
		HeaderSize+endpointBody+len(addrs)*endpointAddr, req)
	b[n+offSrcOut] = req[offSrcOut]
	b = binary.BigEndian.AppendUint64(b, uint64(ep.NodeGUID))
	b = append(b, ep.Port.Num, ep.PhysPorts, 0, 0)
	b = binary.BigEndian.AppendUint16(b, uint16(ep.PKey))
	b = binary.BigEndian.AppendUint16(b, uint16(len(addrs)))
	b = appendText(b, ep.Provider)
	for i := range addrs {
		b = appendText(b, addrs[i].Text)
	}
	return b
}

// endpointAt finds the index-th endpoint, from 1, on ports with that number
// (0: all ports).
func endpointAt(eps []*resolver.Endpoint, index int, port uint8) *resolver.Endpoint {
	for _, ep := range eps {
		if port != 0 && ep.Port.Num != port {
			continue
		}
		if index--; index == 0 {
			return ep
		}
	}
	return nil
}

// appendText appends 64 bytes of NUL padded text.
func appendText(b []byte, s string) []byte {
	var t [endpointAddr]byte
	copy(t[:], s)
	return append(b, t[:]...)
}

// Text tells what a status means, in the words of the protocol.
func Text(st resolver.Status) string {
	switch st {
	case resolver.StatusSuccess:
		return "success"
	case resolver.StatusNoMemory:
		return "out of memory"
	case resolver.StatusInvalid:
		return "invalid request"
	case resolver.StatusNoData:
		return "no data"
	case resolver.StatusNotConn:
		return "not connected"
	case resolver.StatusTimedOut:
		return "timed out"
	case resolver.StatusSrcAddr:
		return "source address not available"
	case resolver.StatusSrcType:
		return "source type not supported"
	case resolver.StatusDestAddr:
		return "destination address not available"
	case resolver.StatusDestType:
		return "destination type not supported"
	}
	return "unassigned status"
}

// kindOf is the type of a record as an address kind, 0 if it is none.
func kindOf(typ uint16) cache.Kind {
	if typ == 0 || typ >= firstReservedType {
		return 0
	}
	return cache.Kind(typ)
}
