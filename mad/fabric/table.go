// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package fabric

import (
	"acmd/mad"
	"acmd/mad/sa"
)

// maxTable bounds the records of a table, 16 MB of paths; for more the SA has no
// resources.
const maxTable = 1 << 18

// maxPairs bounds the pairs of ports that one query looks at. The SA answers inside
// Send, and a query that leaves both ends open and that no path fits would look at 1.6
// billion of them.
const maxPairs = 1 << 22

// each calls yield for every destination that a query with open ends fits, after
// setting the source, until yield returns false. It returns false when it gives up.
func (b *pathBuilder) each(src, dst int32, yield func(dst int32) bool) bool {
	first, last := span(src, len(b.w.ports))
	from, end := span(dst, len(b.w.ports))
	for s, pairs := first, 0; s < last; s++ {
		if !b.from(s) {
			continue
		}
		if pairs += int(end - from); pairs > maxPairs {
			return false
		}
		for d := from; d < end; d++ {
			if !yield(d) {
				return true
			}
		}
	}
	return true
}

// span is the range of ports that an end stands for.
func span(p int32, all int) (first, last int32) {
	if p < 0 {
		return 0, int32(all)
	}
	return p, p + 1
}

// servePathTable answers a GetTable with all paths that fit: one source to all
// destinations is the half-world query that a node makes at start.
func (f *Fabric) servePathTable(w *world, a *message) {
	m := a.mad()
	mask, rec := sa.Mask(m), *sa.Path(m)
	if mask&sa.PathDGID != 0 && rec.DGID().IsMulticast() {
		out, status := f.groupPath(w, mask, &rec)
		if status != 0 {
			refuse(m, status)
			return
		}
		f.sendTable(a, append(newTable(1, len(out)), out[:]...), len(out))
		return
	}
	var b pathBuilder
	src, dst, status := b.begin(f, w, mask, &rec)
	if status != 0 {
		refuse(m, status)
		return
	}
	per := b.perPair()
	n := 1
	if src < 0 {
		n *= len(w.ports)
	}
	if dst < 0 {
		n *= len(w.ports)
	}
	out := newTable(min(n*per, maxTable), len(rec))
	full := false
	all := b.each(src, dst, func(d int32) bool {
		for k := range per {
			if full = len(out) >= sa.DataOffset+maxTable*len(rec); full {
				return false
			}
			end := len(out)
			if cap(out) < end+len(rec) {
				out = append(out, make([]byte, len(rec))...)
			} else {
				out = out[:end+len(rec)]
			}
			if !b.to((*sa.PathRecord)(out[end:]), d, k) {
				out = out[:end]
				break
			}
		}
		return true
	})
	if full || !all {
		refuse(m, classStatus(sa.StatusNoResources))
		return
	}
	f.sendTable(a, out, len(rec))
}

// perPair is how many paths two ports have: one for each LID that both have, as
// far as the query wants them.
func (b *pathBuilder) perPair() int {
	n := 1 << b.f.cfg.LMC
	if b.slid != 0 || b.dlid != 0 {
		n = 1
	}
	if b.mask&sa.PathNumPath != 0 && b.req.NumPath() > 0 {
		n = min(n, int(b.req.NumPath()))
	}
	return n
}

// newTable returns the beginning of a long answer: room for the header.
func newTable(records, size int) []byte {
	return make([]byte, sa.DataOffset, sa.DataOffset+records*size)
}

// sendTable makes a the answer with the records in long, in the form that the
// kernel hands out after it has put the segments together: the header of the
// first segment, then all data.
func (f *Fabric) sendTable(a *message, long []byte, size int) {
	m := a.mad()
	m.SetMethod(mad.MethodTableResp)
	m.SetStatus(0)
	clear(m[smKeyOffset : smKeyOffset+8])
	sa.SetAttrOffset(m, uint16((size+7)/8))
	data := len(long) - sa.DataOffset
	f.count.records.Add(uint64(data / size))
	segments := max(1, (data+sa.DataSize-1)/sa.DataSize)
	h := sa.RMPPHeader(m)
	h.SetVersion(sa.RMPPVersion)
	h.SetType(sa.RMPPData)
	flags := sa.RMPPActive | sa.RMPPFirst
	if segments == 1 {
		flags |= sa.RMPPLast
	}
	h.SetFlags(0, flags)
	h.SetStatus(0)
	h.SetSegment(1)
	h.SetPayloadLength(uint32(data + segments*sa.RMPPHeaderInPayload))
	copy(long, m[:sa.DataOffset])
	n := copy(m[sa.DataOffset:], long[sa.DataOffset:])
	copy(m[sa.DataOffset+n:], garbageBytes[:])
	a.long = nil
	if segments > 1 {
		a.long = long
	}
}
