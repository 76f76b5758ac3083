// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acmsock

import (
	"encoding/binary"

	"acmd/cache"
	"acmd/mad"
	"acmd/resolver"
)

// ParseRequest reads a framed RESOLVE request, header included, into q. It
// returns StatusSuccess, or the status that the client is told; the conditions
// are checked in ibacm's order and the first one wins. On failure only q.Kind is
// meaningful. It neither allocates nor keeps b.
//
// Whether the source is ours is left to the engine. A destination that is a GID
// or LID becomes a path request; if the client named a source with it, that is
// still in q.Src and must be turned into the path's source by whoever knows
// the endpoints.
func ParseRequest(b []byte, q *resolver.Query) resolver.Status {
	*q = resolver.Query{}
	if len(b) < HeaderSize {
		return resolver.StatusInvalid
	}
	// The first record alone decides which question it is. A truncated one
	// still does as long as its type is there.
	if len(b) >= HeaderSize+6 && binary.NativeEndian.Uint16(b[HeaderSize+4:]) == TypePath {
		return parsePath(b, q)
	}
	return parseAddresses(b, q)
}

func parsePath(b []byte, q *resolver.Query) resolver.Status {
	flags := binary.NativeEndian.Uint32(b[HeaderSize:])
	if flags&FlagQuerySA != 0 {
		q.Kind = resolver.AskSA
		if len(b) != HeaderSize+RecordSize {
			return resolver.StatusInvalid
		}
		copy(q.Path[:], b[HeaderSize+8:])
		return resolver.StatusSuccess
	}
	q.Kind = resolver.ByPath
	if len(b) < HeaderSize+RecordSize {
		return resolver.StatusInvalid
	}
	copy(q.Path[:], b[HeaderSize+8:HeaderSize+RecordSize])
	if q.Path.DLID() == 0 && q.Path.DGID().IsZero() {
		return resolver.StatusDestAddr
	}
	q.NoDelay = flags&FlagNoDelay != 0
	return resolver.StatusSuccess
}

func parseAddresses(b []byte, q *resolver.Query) resolver.Status {
	records := (len(b) - HeaderSize) / RecordSize
	for i := range records {
		r := b[HeaderSize+i*RecordSize:][:RecordSize]
		flags := binary.NativeEndian.Uint32(r)
		typ := binary.NativeEndian.Uint16(r[4:])
		if flags&FlagSource != 0 {
			if !q.Src.IsZero() {
				return resolver.StatusSrcAddr
			}
			if typ == 0 || typ >= firstReservedType {
				return resolver.StatusSrcType
			}
			normalise(&q.Src, typ, r[8:])
		}
		if flags&FlagDest != 0 {
			if !q.Dst.IsZero() {
				return resolver.StatusDestAddr
			}
			if typ == 0 || typ >= firstReservedType {
				return resolver.StatusDestType
			}
			normalise(&q.Dst, typ, r[8:])
			q.NoDelay = flags&FlagNoDelay != 0
		}
	}
	if q.Dst.IsZero() {
		return resolver.StatusDestType
	}
	// The reply to a request without source carries one more record than is
	// common; ibacm overran its buffer when there was no room for it.
	if q.Src.IsZero() && records == MaxRecords {
		return resolver.StatusInvalid
	}
	return checkEnds(q)
}

// checkEnds refuses addresses that cannot name anything, and turns destinations
// that are a GID or LID into path requests: there is no address to be found.
func checkEnds(q *resolver.Query) resolver.Status {
	if q.Src.Kind == cache.KindName && q.Src.Len == 0 {
		return resolver.StatusSrcAddr
	}
	switch q.Dst.Kind {
	case cache.KindName:
		if q.Src.IsZero() {
			return resolver.StatusDestType // routing cannot choose a source for it
		}
		if q.Dst.Len == 0 {
			return resolver.StatusDestAddr
		}
	case cache.KindGID:
		g := mad.GID(q.Dst.Data[:16])
		if g.IsZero() {
			return resolver.StatusDestAddr
		}
		q.Path.SetDGID(g)
		asPath(q)
	case cache.KindLID:
		l := mad.LID(binary.BigEndian.Uint16(q.Dst.Data[:2]))
		if l == 0 {
			return resolver.StatusDestAddr
		}
		q.Path.SetDLID(l)
		asPath(q)
	}
	return resolver.StatusSuccess
}

func asPath(q *resolver.Query) {
	q.Kind, q.Dst = resolver.ByPath, resolver.Addr{}
	q.Path.SetReversibleNumPath(true, 1)
}

// AppendResolve appends a RESOLVE request of up to [MaxRecords] records to b.
// More are cut off. The tid comes back unchanged; use distinct ones other than
// 0 when several requests are under way on one connection.
func AppendResolve(b []byte, tid uint64, records ...Record) []byte {
	records = records[:min(len(records), MaxRecords)]
	b = appendRequest(b, OpResolve, HeaderSize+len(records)*RecordSize, tid, 0, 0)
	for i := range records {
		b = records[i].append(b)
	}
	return b
}

// AppendPerf appends a PERF_QUERY. index 0 asks for the service's totals, n for
// the n-th endpoint; with src the endpoint that has that address is meant and
// index must be 0.
func AppendPerf(b []byte, tid uint64, index uint8, src *resolver.Addr) []byte {
	if src == nil {
		return appendRequest(b, OpPerf, HeaderSize, tid, 0, index)
	}
	b = appendRequest(b, OpPerf, HeaderSize+RecordSize, tid, 0, index)
	r := SourceRecord(*src)
	return r.append(b)
}

// AppendEndpoint appends an EP_QUERY for the index-th endpoint, from 1, among
// those on ports with that number (0: all).
func AppendEndpoint(b []byte, tid uint64, index, port uint8) []byte {
	return appendRequest(b, OpEndpoint, HeaderSize, tid, index, port)
}

func appendRequest(b []byte, op Op, length int, tid uint64, srcOut, srcIndex uint8) []byte {
	n := len(b)
	b = append(b, Version, byte(op), 0, srcOut, srcIndex, 0, 0, 0)
	putLength(b[n:], length)
	return binary.NativeEndian.AppendUint64(b, tid)
}
