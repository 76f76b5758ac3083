// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package fabric

import (
	"encoding/binary"
	"maps"
	"slices"
	"sort"

	"acmd/mad"
	"acmd/mad/sa"
)

// maxGroups bounds the multicast groups of a fabric.
const maxGroups = 4096

// sendOnly are the join states that do not receive.
const sendOnly = sa.JoinSendOnly | sa.JoinSendOnlyFull

// The groups that every fabric begins with: IPoIB's broadcast group and the ACM
// group of each partition, in the form that the stock service makes them.
const (
	acmRate mad.Rate = 3 // 10 Gb/s
	acmMTU  mad.MTU  = 4 // 2048
	ipoibQK mad.QKey = 0x0b1b
)

// groupTable is an immutable snapshot of the multicast groups.
type groupTable struct {
	byMGID map[mad.GID]*group
	byMLID map[mad.LID]*group
}

// group is immutable; a change makes a new one.
type group struct {
	mgid mad.GID
	mlid mad.LID
	// rec has the parameters, selectors "exactly", no port and no join state.
	rec sa.MCMemberRecord
	// permanent: every simulated node of the partition is a member, the group
	// does not end.
	permanent bool
	members   []member // explicit ones, by port
}

type member struct {
	port  int32
	state uint8
	gid   mad.GID
}

// member returns the position of a port in members, or -1.
func (g *group) member(p int32) int {
	i := sort.Search(len(g.members), func(i int) bool { return g.members[i].port >= p })
	if i < len(g.members) && g.members[i].port == p {
		return i
	}
	return -1
}

// peer reports whether a port's simulated service is in the group.
func (g *group) peer(w *world, p int32) bool {
	return g.permanent && w.holds(p, g.rec.PKey()) != 0
}

// set returns a copy of the group in which a port has the given join state, 0 to
// remove it.
func (g *group) set(p int32, gid mad.GID, state uint8) *group {
	c := *g
	c.members = slices.Clone(g.members)
	i := sort.Search(len(c.members), func(i int) bool { return c.members[i].port >= p })
	there := i < len(c.members) && c.members[i].port == p
	switch {
	case state == 0 && there:
		c.members = slices.Delete(c.members, i, i+1)
	case there:
		c.members[i].state = state
	case state != 0:
		c.members = slices.Insert(c.members, i, member{p, state, gid})
	}
	return &c
}

// newGroups makes the groups that exist from the beginning.
func (f *Fabric) newGroups(w *world) *groupTable {
	t := &groupTable{byMGID: map[mad.GID]*group{}, byMLID: map[mad.LID]*group{}}
	broadcast := mad.GID{0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, 12: 0xff, 13: 0xff, 14: 0xff, 15: 0xff}
	t.begin(broadcast, mad.DefaultPKey, ipoibQK)
	for _, keys := range w.pkeys {
		t.addPeers(f, keys)
	}
	return t
}

// addPeers enters the ACM groups of some partitions, as far as they are missing,
// into a table that nobody else has yet.
func (t *groupTable) addPeers(f *Fabric, keys []mad.PKey) {
	if f.cfg.Silent >= f.cfg.Nodes-1 {
		return // nobody is there to make an ACM group
	}
	for _, k := range keys {
		mgid := ACMGroup(k)
		if k.IsValid() && t.byMGID[mgid] == nil && len(t.byMGID) < maxGroups {
			t.begin(mgid, k.Full(), mad.WellKnownQKey)
		}
	}
}

func (t *groupTable) clone() *groupTable {
	return &groupTable{byMGID: maps.Clone(t.byMGID), byMLID: maps.Clone(t.byMLID)}
}

// begin enters a permanent group into a table that nobody else has yet.
func (t *groupTable) begin(mgid mad.GID, key mad.PKey, qkey mad.QKey) {
	g := &group{mgid: mgid, mlid: t.freeMLID(), permanent: true}
	g.rec.SetMGID(mgid)
	g.rec.SetQKey(qkey)
	g.rec.SetMLID(g.mlid)
	g.rec.SetMTU(sa.Exactly, acmMTU)
	g.rec.SetPKey(key)
	g.rec.SetRate(sa.Exactly, acmRate)
	g.rec.SetLifetime(sa.Exactly, 0)
	g.rec.SetScopeJoin(mgid[1]&0xf, 0)
	t.byMGID[mgid], t.byMLID[g.mlid] = g, g
}

// freeMLID returns the lowest multicast LID that no group has.
func (t *groupTable) freeMLID() mad.LID {
	l := mad.LID(maxUnicast)
	for t.byMLID[l] != nil {
		l++
	}
	return l
}

// putGroup replaces or, with g nil, removes a group. The caller holds f.mu.
func (f *Fabric) putGroup(mgid mad.GID, g *group) {
	t := f.groups.Load().clone()
	if was := t.byMGID[mgid]; was != nil {
		delete(t.byMGID, mgid)
		delete(t.byMLID, was.mlid)
	}
	if g != nil {
		t.byMGID[mgid], t.byMLID[g.mlid] = g, g
	}
	f.groups.Store(t)
}

// leaveAll takes a port out of all groups, as the subnet manager does when the
// port is gone, and returns the groups that ended. The caller holds f.mu.
func (f *Fabric) leaveAll(p int32) (ended []*group) {
	for mgid, g := range f.groups.Load().byMGID {
		if g.member(p) < 0 {
			continue
		}
		next := g.set(p, mad.GID{}, 0)
		if len(next.members) == 0 && !g.permanent {
			next = nil
			ended = append(ended, g)
		}
		f.putGroup(mgid, next)
	}
	slices.SortFunc(ended, func(a, b *group) int { return int(a.mlid) - int(b.mlid) })
	return ended
}

// groupPath answers a path query for a multicast GID with the parameters of the
// group.
func (f *Fabric) groupPath(w *world, mask sa.ComponentMask, rec *sa.PathRecord) (out sa.PathRecord, status mad.Status) {
	g := f.groups.Load().byMGID[rec.DGID()]
	if g == nil {
		return out, classStatus(sa.StatusNoRecords)
	}
	src, status := f.end(w, mask&sa.PathSGID != 0, rec.SGID(), mask&sa.PathSLID != 0, rec.SLID())
	if status != 0 {
		return out, status
	}
	if mask&sa.PathDLID != 0 && rec.DLID() != g.mlid ||
		mask&sa.PathPKey != 0 && !rec.PKey().Matches(g.rec.PKey()) ||
		mask&sa.PathSL != 0 && rec.SL() != g.rec.SL() ||
		!g.meets(mask, rec) {
		return out, classStatus(sa.StatusNoRecords)
	}
	out.SetDGID(g.mgid)
	out.SetDLID(g.mlid)
	if src >= 0 {
		out.SetSGID(f.gid(w, src))
		out.SetSLID(w.ports[src].lid)
		if mask&sa.PathSLID != 0 {
			out.SetSLID(rec.SLID())
		}
	}
	out.SetFlowHop(g.rec.FlowLabel(), g.rec.HopLimit())
	out.SetTClass(g.rec.TClass())
	out.SetReversibleNumPath(true, 0)
	out.SetPKey(g.rec.PKey())
	out.SetQoSClassSL(0, g.rec.SL())
	out[54], out[55], out[56] = g.rec[38], g.rec[42], g.rec[43]
	return out, 0
}

// meets checks MTU, rate and lifetime of the group against a path query.
func (g *group) meets(mask sa.ComponentMask, rec *sa.PathRecord) bool {
	const mtus, rates, lifes = sa.PathMTUSel | sa.PathMTU, sa.PathRateSel | sa.PathRate, sa.PathLifetimeSel | sa.PathLifetime
	_, mtu := g.rec.MTU()
	_, rate := g.rec.Rate()
	_, life := g.rec.Lifetime()
	if sel, v := rec.MTU(); mask&mtus == mtus && !fits(sel, int(mtu), int(v)) {
		return false
	}
	if sel, v := rec.Rate(); mask&rates == rates && !fits(sel, rate.Speed(), v.Speed()) {
		return false
	}
	sel, v := rec.Lifetime()
	return mask&lifes != lifes || fits(sel, int(life), int(v))
}

// fits compares a value that is fixed with what a selector asks for.
func fits(sel sa.Selector, have, want int) bool {
	switch sel {
	case sa.GreaterThan:
		return have > want
	case sa.LessThan:
		return have < want
	case sa.Exactly:
		return have == want
	}
	return true
}

// newMGID makes the GID of a group whose creator left it to the SA.
func newMGID(rec *sa.MCMemberRecord, mlid mad.LID) mad.GID {
	g := mad.GID{0xff, 0x10 | rec.Scope(), 0xa0, 0x1b}
	binary.BigEndian.PutUint16(g[4:], uint16(rec.PKey()))
	binary.BigEndian.PutUint16(g[14:], uint16(mlid))
	return g
}
