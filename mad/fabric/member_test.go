// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package fabric

import (
	"testing"

	"acmd/mad"
	"acmd/mad/sa"
)

// stockJoin is the mask and record with which ibacm joins.
const stockJoin sa.ComponentMask = 0x1b3f7

func joinRecord(f *Fabric, node int) (r sa.MCMemberRecord) {
	r.SetMGID(ACMGroup(mad.DefaultPKey))
	r.SetPortGID(f.GID(node, 1))
	r.SetQKey(mad.WellKnownQKey)
	r.SetMTU(sa.Exactly, 4)
	r.SetRate(sa.Exactly, 3)
	r.SetPKey(mad.DefaultPKey)
	r.SetScopeJoin(sa.ScopeSiteLocal, sa.JoinFull)
	return r
}

func (c *client) member(method uint8, mask sa.ComponentMask, r sa.MCMemberRecord) (sa.MCMemberRecord, mad.Status) {
	c.t.Helper()
	g := c.ask(func(p *mad.Packet) {
		sa.Init(p, method, sa.AttrMCMemberRecord, mask)
		*sa.Member(p) = r
	})
	if g == nil {
		c.t.Fatal("no answer")
	}
	if method == mad.MethodDelete && g.m.Method() != mad.MethodDeleteResp || method != mad.MethodDelete && g.m.Method() != mad.MethodGetResp {
		c.t.Errorf("method %#x answered with %#x", method, g.m.Method())
	}
	return *sa.Member(&g.m), g.m.Status()
}

// The join of the stock service, byte by byte; OpenSM's answer differs in the
// port GID only (field case 13).
func TestJoinGolden(t *testing.T) {
	f := build(t, Config{Nodes: 8})
	c := open(t, f, 4)
	got, status := c.member(mad.MethodSet, stockJoin, joinRecord(f, 4))
	gid := f.GID(4, 1)
	want := unhex(t, `ff154001ffff00030400000000000000`)
	want = append(want, gid[:]...)
	want = append(want, unhex(t, `80010000 c001 84 00 ffff 83 80 00000000 51 00 0000`)...)
	if status != 0 || string(got[:]) != string(want) {
		t.Errorf("status %#x\n%x, want\n%x", status, got, want)
	}
}

// OpenSM's rules for joining a group that exists: a stock join with one thing
// changed.
func TestJoinRules(t *testing.T) {
	f := build(t, Config{Nodes: 16, SlowEvery: 8, PKeys: func(n int) []mad.PKey {
		return [][]mad.PKey{{0xffff}, {0x7fff}, {0x8001}}[min(n, 2)]
	}})
	c := open(t, f, 0)
	for _, k := range []struct {
		name string
		mask sa.ComponentMask // bits to flip
		set  func(*sa.MCMemberRecord)
		want mad.Status
	}{
		{"stock", 0, nil, 0},
		{"limited member", 0, func(r *sa.MCMemberRecord) { r.SetPortGID(f.GID(1, 1)); r.SetPKey(0x7fff) }, 0},
		{"no MGID", sa.MCMGID, nil, 0x0600},
		{"no port GID", sa.MCPortGID, nil, 0x0600},
		{"no join state", sa.MCJoinState, nil, 0x0600},
		{"join state 0", 0, func(r *sa.MCMemberRecord) { r.SetScopeJoin(5, 0) }, 0x0200},
		{"prefix of no subnet", 0, func(r *sa.MCMemberRecord) { r.SetPortGID(mad.MakeGID(0xfec0<<48|9, f.PortGUID(0, 1))) }, 0x0500},
		{"unknown port", 0, func(r *sa.MCMemberRecord) { r.SetPortGID(mad.MakeGID(DefaultPrefix, 5)) }, 0x0200},
		{"port outside the partition", 0, func(r *sa.MCMemberRecord) { r.SetPortGID(f.GID(2, 1)) }, 0x0200},
		{"other Q_Key", 0, func(r *sa.MCMemberRecord) { r.SetQKey(1) }, 0x0200},
		{"other P_Key", 0, func(r *sa.MCMemberRecord) { r.SetPKey(0x8001) }, 0x0200},
		{"other traffic class", 0, func(r *sa.MCMemberRecord) { r.SetTClass(1) }, 0x0200},
		{"other SL", 0, func(r *sa.MCMemberRecord) { r.SetSLFlowHop(1, 0, 0) }, 0x0200},
		{"other flow label", 0, func(r *sa.MCMemberRecord) { r.SetSLFlowHop(0, 1, 0) }, 0x0200},
		{"MTU exactly 4096", 0, func(r *sa.MCMemberRecord) { r.SetMTU(sa.Exactly, 5) }, 0x0200},
		{"MTU above 1024", 0, func(r *sa.MCMemberRecord) { r.SetMTU(sa.GreaterThan, 3) }, 0},
		{"MTU above 2048", 0, func(r *sa.MCMemberRecord) { r.SetMTU(sa.GreaterThan, 4) }, 0x0200},
		{"MTU below 2048", 0, func(r *sa.MCMemberRecord) { r.SetMTU(sa.LessThan, 4) }, 0x0200},
		{"MTU below 4096", 0, func(r *sa.MCMemberRecord) { r.SetMTU(sa.LessThan, 5) }, 0},
		{"MTU without selector", sa.MCMTUSel, func(r *sa.MCMemberRecord) { r.SetMTU(sa.Exactly, 5) }, 0},
		{"rate exactly 40", 0, func(r *sa.MCMemberRecord) { r.SetRate(sa.Exactly, 7) }, 0x0200},
		{"rate above 5", 0, func(r *sa.MCMemberRecord) { r.SetRate(sa.GreaterThan, 5) }, 0},
		{"rate below 14", 0, func(r *sa.MCMemberRecord) { r.SetRate(sa.LessThan, 11) }, 0},
		{"MLID of another group", sa.MCMLID, func(r *sa.MCMemberRecord) { r.SetMLID(0xc777) }, 0x0200},
	} {
		r := joinRecord(f, 0)
		if k.set != nil {
			k.set(&r)
		}
		got, status := c.member(mad.MethodSet, stockJoin^k.mask, r)
		if status != k.want {
			t.Errorf("%s: status %#04x, want %#04x", k.name, status, k.want)
		}
		if status == 0 && (got.MLID() != 0xc001 || got.PKey() != mad.DefaultPKey || got[38] != 0x84 || got[42] != 0x83) {
			t.Errorf("%s: %x", k.name, got)
		}
		if status != 0 && got != r {
			t.Errorf("%s: a refusal must echo the request", k.name)
		}
	}
}

// Who may create a group, with what, and what becomes of it.
func TestCreateRules(t *testing.T) {
	f := build(t, Config{Nodes: 16, SlowEvery: 8}) // 7 is slow
	c := open(t, f, 0)
	const bare = joinMask | createMask
	group := func(i byte) mad.GID { return mad.GID{0xff, 0x12, 0xa0, 0x1b, 15: i} }
	next := byte(0)
	for _, k := range []struct {
		name string
		mask sa.ComponentMask
		set  func(*sa.MCMemberRecord)
		want mad.Status
		tail string // MTU, rate, lifetime of the answer
	}{
		{"bare", bare, nil, 0, "84 83 80"},
		{"send-only full member", bare, func(r *sa.MCMemberRecord) { r.SetScopeJoin(2, sa.JoinSendOnlyFull) }, 0, "84 83 80"},
		{"non-member", bare, func(r *sa.MCMemberRecord) { r.SetScopeJoin(2, sa.JoinNonMember) }, 0x0600, ""},
		{"no Q_Key", bare &^ sa.MCQKey, nil, 0x0600, ""},
		{"no traffic class", bare &^ sa.MCTClass, nil, 0x0600, ""},
		{"no P_Key", bare &^ sa.MCPKey, nil, 0x0600, ""},
		{"no SL", bare &^ sa.MCSL, nil, 0x0600, ""},
		{"no flow label", bare &^ sa.MCFlowLabel, nil, 0x0600, ""},
		{"foreign P_Key", bare, func(r *sa.MCMemberRecord) { r.SetPKey(0x8001) }, 0x0200, ""},
		{"no multicast GID", bare, func(r *sa.MCMemberRecord) { r.SetMGID(f.GID(3, 1)) }, 0x0200, ""},
		{"4096 and 100 Gb/s", bare | 0x330, func(r *sa.MCMemberRecord) { r.SetMTU(sa.Exactly, 5); r.SetRate(sa.Exactly, 16) }, 0, "85 90 80"},
		{"more than the port can", bare | 0x330, func(r *sa.MCMemberRecord) { r.SetMTU(sa.Exactly, 5); r.SetRate(sa.Exactly, 17) }, 0x0200, ""},
		{"slow port", bare | 0x330, func(r *sa.MCMemberRecord) {
			r.SetPortGID(f.GID(7, 1))
			r.SetMTU(sa.Exactly, 5)
			r.SetRate(sa.Exactly, 3)
		}, 0x0200, ""},
		{"below", bare | 0x330, func(r *sa.MCMemberRecord) { r.SetMTU(sa.LessThan, 5); r.SetRate(sa.LessThan, 16) }, 0, "84 89 80"},
		{"above", bare | 0x330, func(r *sa.MCMemberRecord) { r.SetMTU(sa.GreaterThan, 3); r.SetRate(sa.GreaterThan, 7) }, 0, "85 90 80"},
		{"largest", bare | 0x330, func(r *sa.MCMemberRecord) { r.SetMTU(sa.Largest, 0); r.SetRate(sa.Largest, 0) }, 0, "85 90 80"},
		{"lifetime", bare | 0xc00, func(r *sa.MCMemberRecord) { r.SetLifetime(sa.Exactly, 18) }, 0, "84 83 92"},
	} {
		r := joinRecord(f, 0)
		next++
		r.SetMGID(group(next))
		if k.set != nil {
			k.set(&r)
		}
		got, status := c.member(mad.MethodSet, k.mask, r)
		if status != k.want {
			t.Errorf("%s: status %#04x, want %#04x", k.name, status, k.want)
			continue
		}
		if status != 0 {
			continue
		}
		tail := unhex(t, k.tail)
		if got[38] != tail[0] || got[42] != tail[1] || got[43] != tail[2] || !isMulticast(got.MLID()) || got.MGID() != r.MGID() {
			t.Errorf("%s: %x", k.name, got)
		}
	}
	// A port that can do less than a group cannot join it.
	for name, set := range map[string]func(*sa.MCMemberRecord){
		"MTU":  func(r *sa.MCMemberRecord) { r.SetMTU(sa.Exactly, 5); r.SetRate(sa.Exactly, 3) },
		"rate": func(r *sa.MCMemberRecord) { r.SetMTU(sa.Exactly, 4); r.SetRate(sa.Exactly, 16) },
	} {
		r := joinRecord(f, 0)
		next++
		r.SetMGID(group(next))
		set(&r)
		if _, status := c.member(mad.MethodSet, bare|0x330, r); status != 0 {
			t.Fatalf("%s: create: %#x", name, status)
		}
		r.SetPortGID(f.GID(7, 1))
		if _, status := c.member(mad.MethodSet, joinMask, r); status != 0x0200 {
			t.Errorf("slow port joins a group of higher %s: %#x", name, status)
		}
	}
	// A group without a name gets one.
	r := joinRecord(f, 0)
	r.SetMGID(mad.GID{})
	if got, status := c.member(mad.MethodSet, bare, r); status != 0 || !got.MGID().IsMulticast() {
		t.Errorf("MGID zero: status %#x %x", status, got)
	}
}

func TestLeave(t *testing.T) {
	f := build(t, Config{Nodes: 8})
	a, b := open(t, f, 0), open(t, f, 1)
	r := joinRecord(f, 0)
	r.SetMGID(mad.GID{0xff, 0x12, 15: 1})
	rb := r
	rb.SetPortGID(f.GID(1, 1))
	if _, status := a.member(mad.MethodSet, stockJoin, r); status != 0 {
		t.Fatalf("create: %#x", status)
	}
	r.SetScopeJoin(2, sa.JoinNonMember)
	if got, status := a.member(mad.MethodSet, stockJoin, r); status != 0 || got.JoinState() != 3 {
		t.Fatalf("full member joins as non-member, too: %#x %x", status, got)
	}
	r.SetScopeJoin(2, sa.JoinFull|sa.JoinNonMember)
	if _, status := b.member(mad.MethodSet, stockJoin, rb); status != 0 {
		t.Fatalf("join: %#x", status)
	}
	if got, status := a.member(mad.MethodGet, sa.MCMGID|sa.MCPortGID, r); status != 0 || got.JoinState() != 3 || got.PortGID() != f.GID(0, 1) {
		t.Errorf("get: %#x %x", status, got)
	}
	if _, status := a.member(mad.MethodDelete, sa.MCMGID|sa.MCPortGID, r); status != 0x0600 {
		t.Errorf("leave without join state: %#x", status)
	}
	bad := r
	bad.SetScopeJoin(2, sa.JoinSendOnly)
	if _, status := a.member(mad.MethodDelete, sa.MCLeave, bad); status != 0x0200 {
		t.Errorf("leave with a state that is not held: %#x", status)
	}
	bad = r
	bad.SetPortGID(f.GID(3, 1))
	if _, status := a.member(mad.MethodDelete, sa.MCLeave, bad); status != 0x0200 {
		t.Errorf("leave of no member: %#x", status)
	}
	one := r
	one.SetScopeJoin(2, sa.JoinNonMember)
	if got, status := a.member(mad.MethodDelete, sa.MCLeave, one); status != 0 || got.JoinState() != 1 {
		t.Errorf("leave in part: %#x %x", status, got)
	}
	one.SetScopeJoin(2, sa.JoinFull)
	if got, status := a.member(mad.MethodDelete, sa.MCLeave, one); status != 0 || got.JoinState() != 0 {
		t.Errorf("leave: %#x %x", status, got)
	}
	if _, status := a.member(mad.MethodGet, sa.MCMGID|sa.MCPortGID, r); status != 0x0300 {
		t.Errorf("still a member: %#x", status)
	}
	if _, status := b.member(mad.MethodDelete, sa.MCLeave, rb); status != 0 {
		t.Errorf("last leave: %#x", status)
	}
	if _, status := b.member(mad.MethodDelete, sa.MCLeave, rb); status != 0x0200 {
		t.Errorf("leave of a group that ended: %#x", status)
	}
	if _, status := a.member(mad.MethodGet, sa.MCMGID, r); status != 0x0300 {
		t.Errorf("get of a group that ended: %#x", status)
	}
	// Permanent groups stay, and their MLID is not given away.
	p := joinRecord(f, 0)
	a.member(mad.MethodSet, stockJoin, p)
	a.member(mad.MethodDelete, sa.MCLeave, p)
	if got, status := a.member(mad.MethodGet, sa.MCMGID, p); status != 0 || got.MLID() != 0xc001 {
		t.Errorf("permanent group: %#x %x", status, got)
	}
}

func TestMemberTable(t *testing.T) {
	f := build(t, Config{Nodes: 8})
	c := open(t, f, 0)
	c.member(mad.MethodSet, stockJoin, joinRecord(f, 0))
	ask := func(mask sa.ComponentMask, r sa.MCMemberRecord) (list []sa.MCMemberRecord) {
		g := c.ask(func(p *mad.Packet) {
			sa.Init(p, mad.MethodGetTable, sa.AttrMCMemberRecord, mask)
			*sa.Member(p) = r
		})
		if g.m.Status() != 0 || sa.AttrOffset(&g.m) != 7 {
			t.Fatalf("header %x", g.m[:sa.DataOffset])
		}
		for b := range sa.Records(sa.Message(&g.h, &g.m, g.long), 52) {
			list = append(list, sa.MCMemberRecord(b))
		}
		return list
	}
	if all := ask(0, sa.MCMemberRecord{}); len(all) != 2 || all[0].MLID() != 0xc000 || all[1].MLID() != 0xc001 || !all[1].PortGID().IsZero() {
		t.Errorf("all groups: %x", all)
	}
	r := joinRecord(f, 0)
	if mine := ask(sa.MCPortGID, r); len(mine) != 1 || mine[0].PortGID() != f.GID(0, 1) || mine[0].JoinState() != 1 {
		t.Errorf("own memberships: %x", mine)
	}
	if _, status := c.member(mad.MethodGet, 0, r); status != 0x0400 {
		t.Errorf("Get of two groups: %#x", status)
	}
}

// The number of groups is bounded.
func TestGroupBound(t *testing.T) {
	f := build(t, Config{Nodes: 2})
	for i := range maxGroups + 10 {
		g := &group{mgid: mad.GID{0xff, 0x12, 14: byte(i >> 8), 15: byte(i)}, mlid: mad.LID(0xc010 + i)}
		if i < maxGroups-2 {
			tab := f.groups.Load()
			tab.byMGID[g.mgid], tab.byMLID[g.mlid] = g, g
		}
	}
	c := open(t, f, 0)
	r := joinRecord(f, 0)
	r.SetMGID(mad.GID{0xff, 0x15, 15: 0xee})
	if _, status := c.member(mad.MethodSet, stockJoin, r); status != 0x0100 {
		t.Errorf("group %d: status %#x", maxGroups+1, status)
	}
}
