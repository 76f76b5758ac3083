// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package fabric

import (
	"encoding/binary"

	"acmd/mad"
	"acmd/mad/sa"
)

// classStatus makes a MAD status of an SA class status.
func classStatus(c uint8) mad.Status { return mad.Status(c) << 8 }

// SAPath returns what the SA answers to a PathRecord Get: the record, or the
// status with which it refuses. Equal questions get equal bytes as long as the
// fabric does not change. It takes no lock and does not allocate.
func (f *Fabric) SAPath(mask sa.ComponentMask, rec *sa.PathRecord) (sa.PathRecord, mad.Status) {
	return f.getPath(f.world.Load(), mask, rec)
}

func (f *Fabric) getPath(w *world, mask sa.ComponentMask, rec *sa.PathRecord) (sa.PathRecord, mad.Status) {
	if mask&sa.PathDGID != 0 && rec.DGID().IsMulticast() {
		return f.groupPath(w, mask, rec)
	}
	var b pathBuilder
	src, dst, status := b.begin(f, w, mask, rec)
	if status != 0 {
		return sa.PathRecord{}, status
	}
	if src < 0 || dst < 0 {
		return b.wild(src, dst)
	}
	var out sa.PathRecord
	if !b.from(src) || !b.to(&out, dst, 0) {
		return sa.PathRecord{}, classStatus(sa.StatusNoRecords)
	}
	return out, 0
}

// wild answers a Get that names only one end or none. The answer to a Get is
// one record, so it works out only where one port fits.
func (b *pathBuilder) wild(src, dst int32) (out sa.PathRecord, status mad.Status) {
	found := 0
	all := b.each(src, dst, func(d int32) bool {
		var r sa.PathRecord
		if b.to(&r, d, 0) {
			out = r
			found++
		}
		return found < 2
	})
	switch {
	case !all:
		return sa.PathRecord{}, classStatus(sa.StatusNoResources)
	case found == 0:
		return sa.PathRecord{}, classStatus(sa.StatusNoRecords)
	case found == 1:
		return out, 0
	}
	return sa.PathRecord{}, classStatus(sa.StatusTooManyRecords)
}

// begin checks a query as a whole and finds the ports that it names, -1 for an
// end that it leaves open.
func (b *pathBuilder) begin(f *Fabric, w *world, mask sa.ComponentMask, rec *sa.PathRecord) (src, dst int32, status mad.Status) {
	*b = pathBuilder{f: f, w: w, mask: mask, req: rec}
	if s := mask & sa.PathServiceID; s != 0 && s != sa.PathServiceID {
		return -1, -1, classStatus(sa.StatusInsufficientComponents)
	}
	if src, status = f.end(w, mask&sa.PathSGID != 0, rec.SGID(), mask&sa.PathSLID != 0, rec.SLID()); status != 0 {
		return -1, -1, status
	}
	far := int32(-1)
	if mask&sa.PathDGID != 0 {
		far = f.router(w, rec.DGID().Prefix())
	}
	if far >= 0 {
		// The path ends at the router, the record names the far port.
		b.remote, dst = true, far
		if mask&sa.PathDLID != 0 && w.at(rec.DLID()) != far {
			return -1, -1, classStatus(sa.StatusRequestInvalid)
		}
	} else if dst, status = f.end(w, mask&sa.PathDGID != 0, rec.DGID(), mask&sa.PathDLID != 0, rec.DLID()); status != 0 {
		return -1, -1, status
	}
	if mask&sa.PathSLID != 0 {
		b.slid = rec.SLID()
	}
	if mask&sa.PathDLID != 0 {
		b.dlid = rec.DLID()
	}
	return src, dst, 0
}

// end resolves one end of a path.
func (f *Fabric) end(w *world, hasGID bool, gid mad.GID, hasLID bool, lid mad.LID) (int32, mad.Status) {
	p := int32(-1)
	if hasGID {
		if p = f.byGID(w, gid); p < 0 || !w.ports[p].up() {
			return -1, classStatus(sa.StatusNoRecords)
		}
	}
	if hasLID {
		l := w.at(lid)
		if l < 0 || !w.ports[l].up() {
			return -1, classStatus(sa.StatusNoRecords)
		}
		if hasGID && l != p {
			return -1, classStatus(sa.StatusRequestInvalid)
		}
		p = l
	}
	return p, 0
}

// router returns the port that leads to another subnet, -1 for our own prefix
// and unknown ones.
func (f *Fabric) router(w *world, prefix uint64) int32 {
	if len(w.routes) == 0 || prefix == w.prefix {
		return -1
	}
	if p, ok := w.routes[prefix]; ok && w.ports[p].up() {
		return p
	}
	return -1
}

// pathBuilder makes the records of one query. What depends on the source alone
// is computed once, so a table costs little more than its memory.
type pathBuilder struct {
	f      *Fabric
	w      *world
	mask   sa.ComponentMask
	req    *sa.PathRecord
	slid   mad.LID // as asked, 0: the base LID
	dlid   mad.LID
	remote bool // the DGID lies behind a router

	src      int32
	srcNode  int
	srcPort  *portState
	template sa.PathRecord

	keyTable int32 // P_Key table that key belongs to, -1: none yet
	key      mad.PKey
}

// from sets the source.
func (b *pathBuilder) from(src int32) bool {
	b.src, b.srcPort = src, &b.w.ports[src]
	if !b.srcPort.up() {
		return false
	}
	b.srcNode, _ = b.f.owner(src)
	b.keyTable = -1
	t := &b.template
	*t = sa.PathRecord{}
	binary.BigEndian.PutUint64(t[8:], b.w.prefix)
	t.SetSGID(b.f.gid(b.w, src))
	t.SetReversibleNumPath(true, 0)
	if b.mask&sa.PathQoSClass != 0 {
		t.SetQoSClassSL(b.req.QoSClass(), 0)
	}
	return true
}

// to writes the path to dst, of which offset numbers the pairs of LIDs. It
// returns false if there is none that fits the query.
func (b *pathBuilder) to(out *sa.PathRecord, dst int32, offset int) bool {
	p := &b.w.ports[dst]
	if !p.up() {
		return false
	}
	if int32(p.table) != b.keyTable {
		b.keyTable = int32(p.table)
		var want mad.PKey
		if b.mask&sa.PathPKey != 0 {
			if want = b.req.PKey(); !want.IsValid() {
				return false
			}
		}
		b.key = b.w.common(b.srcPort.table, p.table, want)
	}
	if b.key == 0 {
		return false
	}
	node, num := b.f.owner(dst)
	hops, sl := b.f.shape.route(b.srcNode, node)
	life := lifetime(hops)
	if b.src == dst {
		life = 0 // as OpenSM has it for a port to itself
	}
	mtu, rate := min(b.srcPort.mtu, p.mtu), slower(b.srcPort.rate, p.rate)
	if b.mask&constraints != 0 && !b.constrain(&mtu, &rate, &life, &sl) {
		return false
	}
	*out = b.template
	out.SetDLID(lidAt(b.dlid, p.lid, offset))
	out.SetSLID(lidAt(b.slid, b.srcPort.lid, offset))
	binary.BigEndian.PutUint64(out[16:], uint64(b.f.nodeGUID(node))+uint64(num))
	if b.remote {
		out.SetDGID(b.req.DGID())
		out.SetFlowHop(0, 0xff)
	}
	out.SetPKey(b.key)
	out[53] |= sl
	out.SetMTU(sa.Exactly, mtu)
	out.SetRate(sa.Exactly, rate)
	out.SetLifetime(sa.Exactly, life)
	return true
}

// lidAt is the LID as asked, else one of those that the port has.
func lidAt(asked, base mad.LID, offset int) mad.LID {
	if asked != 0 {
		return asked
	}
	return base + mad.LID(offset)
}

// constraints are the components that the routed values have to meet.
const constraints = sa.PathSL | sa.PathMTUSel | sa.PathMTU | sa.PathRateSel | sa.PathRate |
	sa.PathLifetimeSel | sa.PathLifetime | sa.PathReversible

// constrain fits the values of a path to the selectors of the query as OpenSM
// does: what a path can do less than it is able to, it is made to do. It returns
// false if the path cannot meet them. A selector counts only together with its
// value.
func (b *pathBuilder) constrain(mtu *mad.MTU, rate *mad.Rate, life, sl *uint8) bool {
	if b.mask&sa.PathSL != 0 {
		// Only the torus routes by SL, elsewhere every SL gets through.
		if b.f.shape.kind == Torus && b.req.SL() != *sl {
			return false
		}
		*sl = b.req.SL()
	}
	const mtus, rates, lifes = sa.PathMTUSel | sa.PathMTU, sa.PathRateSel | sa.PathRate, sa.PathLifetimeSel | sa.PathLifetime
	if b.mask&mtus == mtus {
		sel, v := b.req.MTU()
		got, ok := selectOrdered(sel, int(*mtu), int(v), 1)
		if !ok {
			return false
		}
		*mtu = mad.MTU(got)
	}
	if b.mask&rates == rates {
		sel, v := b.req.Rate()
		got, ok := selectRate(sel, *rate, v)
		if !ok {
			return false
		}
		*rate = got
	}
	if b.mask&lifes == lifes {
		sel, v := b.req.Lifetime()
		if sel == sa.Largest {
			return true // smallest: any path has one
		}
		got, ok := selectOrdered(sel, int(*life), int(v), 0)
		if !ok {
			return false
		}
		*life = uint8(got)
	}
	return true
}

// selectOrdered fits have to a selector and a value; least is the lowest value
// there is.
func selectOrdered(sel sa.Selector, have, want, least int) (int, bool) {
	switch sel {
	case sa.GreaterThan:
		return have, have > want
	case sa.LessThan:
		if have >= want {
			have = want - 1
		}
		return have, have >= least
	case sa.Exactly:
		return want, have >= want && want >= least
	}
	return have, true
}

// selectRate is selectOrdered for rates, whose codes are not in order. An
// unknown code fits nothing.
func selectRate(sel sa.Selector, have, want mad.Rate) (mad.Rate, bool) {
	if sel == sa.Largest {
		return have, true
	}
	speed := want.Speed()
	if speed == 0 {
		return 0, false
	}
	switch sel {
	case sa.GreaterThan:
		return have, have.Speed() > speed
	case sa.LessThan:
		if have.Speed() >= speed {
			have = rateBelow(want)
		}
		return have, have != 0
	}
	return want, have.Speed() >= speed
}
