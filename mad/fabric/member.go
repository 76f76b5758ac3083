// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package fabric

import (
	"cmp"
	"maps"
	"slices"

	"acmd/mad"
	"acmd/mad/sa"
)

// What a join needs, and what it needs beside that to create the group.
const (
	joinMask   = sa.MCMGID | sa.MCPortGID | sa.MCJoinState
	createMask = sa.MCQKey | sa.MCTClass | sa.MCPKey | sa.MCFlowLabel | sa.MCSL
)

// serveJoin makes a port a member of a group, and the group if need be, by
// OpenSM's rules.
func (f *Fabric) serveJoin(p *port, m *mad.Packet) {
	mask, req := sa.Mask(m), *sa.Member(m)
	f.mu.Lock()
	g, created, status := f.join(f.world.Load(), p, mask, &req)
	f.mu.Unlock()
	if status != 0 {
		refuse(m, status)
		return
	}
	if created {
		f.informer.notify(sa.TrapGroupCreated, g.mgid, g.rec.PKey())
	}
	out := g.rec
	out.SetPortGID(req.PortGID())
	state := req.JoinState()
	if i := g.member(f.byGID(f.world.Load(), req.PortGID())); i >= 0 {
		state = g.members[i].state
	}
	out.SetScopeJoin(g.rec.Scope(), state)
	out.SetProxyJoin(req.ProxyJoin())
	*sa.Member(m) = out
	answer(m, len(out))
}

// join does the work; the caller holds f.mu.
func (f *Fabric) join(w *world, p *port, mask sa.ComponentMask, req *sa.MCMemberRecord) (g *group, created bool, status mad.Status) {
	invalid := classStatus(sa.StatusRequestInvalid)
	if mask&joinMask != joinMask {
		return nil, false, classStatus(sa.StatusInsufficientComponents)
	}
	if gid := req.PortGID(); gid.Prefix() != w.prefix && gid.Prefix() != DefaultPrefix {
		return nil, false, classStatus(sa.StatusInvalidGID)
	}
	who := f.byGID(w, req.PortGID())
	if who < 0 || !w.ports[who].up() || req.JoinState() == 0 {
		return nil, false, invalid
	}
	g = f.groups.Load().byMGID[req.MGID()]
	if g == nil || req.MGID().IsZero() {
		if g, status = f.create(w, who, mask, req); status != 0 {
			return nil, false, status
		}
		created = true
	} else if !g.admits(w, who, mask, req) {
		return nil, false, invalid
	}
	// A member's states add up.
	state := req.JoinState()
	if i := g.member(who); i >= 0 {
		state |= g.members[i].state
	}
	g = g.set(who, req.PortGID(), state)
	f.putGroup(g.mgid, g)
	return g, created, 0
}

// admits checks a join against an existing group: the partition, what the port
// can do, and every parameter that the request gives.
func (g *group) admits(w *world, who int32, mask sa.ComponentMask, req *sa.MCMemberRecord) bool {
	_, mtu := g.rec.MTU()
	_, rate := g.rec.Rate()
	_, life := g.rec.Lifetime()
	port := &w.ports[who]
	if w.holds(who, g.rec.PKey()) == 0 || port.mtu < mtu || port.rate.Speed() < rate.Speed() {
		return false
	}
	if sel, v := req.MTU(); both(mask, sa.MCMTUSel, sa.MCMTU) && !fits(sel, int(mtu), int(v)) {
		return false
	}
	if sel, v := req.Rate(); both(mask, sa.MCRateSel, sa.MCRate) && !fits(sel, rate.Speed(), v.Speed()) {
		return false
	}
	if sel, v := req.Lifetime(); both(mask, sa.MCLifetimeSel, sa.MCLifetime) && !fits(sel, int(life), int(v)) {
		return false
	}
	return (mask&sa.MCQKey == 0 || req.QKey() == g.rec.QKey()) &&
		(mask&sa.MCPKey == 0 || req.PKey().Matches(g.rec.PKey())) &&
		(mask&sa.MCTClass == 0 || req.TClass() == g.rec.TClass()) &&
		(mask&sa.MCSL == 0 || req.SL() == g.rec.SL()) &&
		(mask&sa.MCFlowLabel == 0 || req.FlowLabel() == g.rec.FlowLabel()) &&
		(mask&sa.MCMLID == 0 || req.MLID() == g.mlid)
}

// both tells whether a selector and its value are given; one alone means nothing.
func both(mask, sel, value sa.ComponentMask) bool { return mask&sel != 0 && mask&value != 0 }

// create makes a group for its first member.
func (f *Fabric) create(w *world, who int32, mask sa.ComponentMask, req *sa.MCMemberRecord) (*group, mad.Status) {
	invalid := classStatus(sa.StatusRequestInvalid)
	if mask&createMask != createMask || req.JoinState()&(sa.JoinFull|sa.JoinSendOnlyFull) == 0 {
		return nil, classStatus(sa.StatusInsufficientComponents)
	}
	if w.holds(who, req.PKey()) == 0 {
		return nil, invalid
	}
	port := &w.ports[who]
	mtu, rate, life := min(acmMTU, port.mtu), slower(acmRate, port.rate), 0
	ok := true
	if sel, v := req.MTU(); both(mask, sa.MCMTUSel, sa.MCMTU) {
		var got int
		got, ok = selectOrdered(sel, int(port.mtu), int(v), 1)
		mtu = mad.MTU(got)
	}
	if sel, v := req.Rate(); ok && both(mask, sa.MCRateSel, sa.MCRate) {
		rate, ok = selectRate(sel, port.rate, v)
	}
	if sel, v := req.Lifetime(); ok && both(mask, sa.MCLifetimeSel, sa.MCLifetime) && sel == sa.Exactly {
		life = int(v)
	}
	groups := f.groups.Load()
	if !ok || !req.MGID().IsZero() && !req.MGID().IsMulticast() {
		return nil, invalid
	}
	if len(groups.byMGID) >= maxGroups {
		return nil, classStatus(sa.StatusNoResources)
	}
	g := &group{mgid: req.MGID(), mlid: groups.freeMLID()}
	if g.mgid.IsZero() {
		g.mgid = newMGID(req, g.mlid)
	}
	g.rec = *req
	g.rec.SetMGID(g.mgid)
	g.rec.SetPortGID(mad.GID{})
	g.rec.SetMLID(g.mlid)
	g.rec.SetMTU(sa.Exactly, mtu)
	g.rec.SetRate(sa.Exactly, rate)
	g.rec.SetLifetime(sa.Exactly, uint8(life))
	if mask&sa.MCHopLimit == 0 {
		g.rec.SetSLFlowHop(req.SL(), req.FlowLabel(), 0)
	}
	g.rec.SetScopeJoin(g.mgid[1]&0xf, 0)
	g.rec[49], g.rec[50], g.rec[51] = 0, 0, 0
	return g, 0
}

// serveLeave takes join states away from a member. The last member's leaving
// ends the group.
func (f *Fabric) serveLeave(p *port, m *mad.Packet) {
	mask, req := sa.Mask(m), *sa.Member(m)
	f.mu.Lock()
	g, left, status := f.leave(f.world.Load(), mask, &req)
	f.mu.Unlock()
	if status != 0 {
		refuse(m, status)
		return
	}
	if len(g.members) == 0 && !g.permanent {
		f.informer.notify(sa.TrapGroupDeleted, g.mgid, g.rec.PKey())
	}
	out := g.rec
	out.SetPortGID(req.PortGID())
	out.SetScopeJoin(g.rec.Scope(), left)
	*sa.Member(m) = out
	answer(m, len(out))
}

// leave does the work; the caller holds f.mu. left is what remains of the join
// state.
func (f *Fabric) leave(w *world, mask sa.ComponentMask, req *sa.MCMemberRecord) (g *group, left uint8, status mad.Status) {
	if mask&sa.MCLeave != sa.MCLeave {
		return nil, 0, classStatus(sa.StatusInsufficientComponents)
	}
	invalid := classStatus(sa.StatusRequestInvalid)
	g = f.groups.Load().byMGID[req.MGID()]
	who := f.byGID(w, req.PortGID())
	if g == nil || who < 0 {
		return nil, 0, invalid
	}
	i := g.member(who)
	if i < 0 || req.JoinState() == 0 || req.JoinState()&^g.members[i].state != 0 {
		return nil, 0, invalid
	}
	left = g.members[i].state &^ req.JoinState()
	g = g.set(who, g.members[i].gid, left)
	if len(g.members) == 0 && !g.permanent {
		f.putGroup(g.mgid, nil)
	} else {
		f.putGroup(g.mgid, g)
	}
	return g, left, 0
}

// tableRecord is the size of an MCMemberRecord in a table.
const tableRecord = 56

// serveMembers answers Get and GetTable. A query with a port GID is for that
// port's membership, any other for the groups; ports are not told then.
func (f *Fabric) serveMembers(a *message) {
	m := a.mad()
	mask, req := sa.Mask(m), *sa.Member(m)
	var found []sa.MCMemberRecord
	w := f.world.Load()
	t := f.groups.Load()
	lids := slices.SortedFunc(maps.Keys(t.byMLID), cmp.Compare[mad.LID])
	for _, l := range lids {
		if rec, ok := f.matchMember(w, t.byMLID[l], mask, &req); ok {
			found = append(found, rec)
		}
	}
	if m.Method() == mad.MethodGetTable {
		long := newTable(len(found), tableRecord)
		for i := range found {
			long = append(long, found[i][:]...)
			long = append(long, make([]byte, tableRecord-len(found[i]))...)
		}
		f.sendTable(a, long, tableRecord)
		return
	}
	switch len(found) {
	case 0:
		refuse(m, classStatus(sa.StatusNoRecords))
	case 1:
		*sa.Member(m) = found[0]
		answer(m, len(found[0]))
	default:
		refuse(m, classStatus(sa.StatusTooManyRecords))
	}
}

// matchMember returns what a query sees of a group.
func (f *Fabric) matchMember(w *world, g *group, mask sa.ComponentMask, req *sa.MCMemberRecord) (sa.MCMemberRecord, bool) {
	out := g.rec
	if mask&sa.MCMGID != 0 && req.MGID() != g.mgid || mask&sa.MCMLID != 0 && req.MLID() != g.mlid ||
		mask&sa.MCPKey != 0 && !req.PKey().Matches(g.rec.PKey()) || mask&sa.MCQKey != 0 && req.QKey() != g.rec.QKey() {
		return out, false
	}
	if mask&sa.MCPortGID == 0 {
		return out, true
	}
	i := -1
	if who := f.byGID(w, req.PortGID()); who >= 0 {
		i = g.member(who)
	}
	if i < 0 {
		return out, false
	}
	out.SetPortGID(g.members[i].gid)
	out.SetScopeJoin(g.rec.Scope(), g.members[i].state)
	return out, true
}
