// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acmp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"acmd/mad"
	"acmd/mad/acm"
	madsa "acmd/mad/sa"
	"acmd/resolver"
	"acmd/resolver/sa"
)

const (
	// rejoinSpread is over how long the nodes of a fabric spread their joins
	// when the SM tells all of them to register again.
	rejoinSpread = time.Second
	// joinPause bounds the pause between two joins. In between it is a fifth of
	// the time since joins fail: a short outage is made good within seconds, and
	// a long one does not end in a storm.
	minJoinPause = 200 * time.Millisecond
	maxJoinPause = 30 * time.Second
	// joinLogEvery bounds the log lines about the joins of a port: what befalls one
	// of its partitions befalls all, and there may be 126 (field case 67).
	joinLogEvery = time.Minute
)

// joinMask names what makes a group that does not exist yet, as the reference
// does, and what must hold for one that does.
const joinMask = madsa.MCMGID | madsa.MCPortGID | madsa.MCQKey | madsa.MCMTUSel | madsa.MCMTU | madsa.MCTClass |
	madsa.MCPKey | madsa.MCRateSel | madsa.MCRate | madsa.MCSL | madsa.MCFlowLabel | madsa.MCScope | madsa.MCJoinState

// group is one multicast group of a member.
type group struct {
	m    *member
	mgid mad.GID
	mtu  mad.MTU
	rate mad.Rate

	joined  bool
	joining bool      // a join is with the SA, or with the adapter
	again   bool      // another one is due when it is back
	kicked  bool      // the timer is for a join that was asked for
	since   time.Time // joins are tried since
	last    time.Time // when the last one was sent
	timer   sa.Timer  // the next join
	rec     madsa.MCMemberRecord
	err     error // of the last join
}

func newGroup(m *member, rate mad.Rate, mtu mad.MTU) *group {
	g := &group{m: m, rate: rate, mtu: mtu, mgid: acm.MGID(m.ep.PKey, 0, rate, mtu)}
	g.timer.Fire = g.join
	return g
}

// rejoin asks for a join soon, at a random time. Those that are asked for
// meanwhile are one.
func (g *group) rejoin() {
	if g.joining {
		g.again = true
		return
	}
	if g.kicked {
		return
	}
	g.kicked, g.since, g.err = true, time.Now(), nil
	wait := time.Duration(g.m.port.rnd.Int64N(int64(rejoinSpread)))
	if ago := g.since.Sub(g.last); ago+wait < rejoinSpread {
		wait += rejoinSpread - ago // events come in swarms
	}
	g.m.port.client.Start(&g.timer, wait)
}

// join asks the SA for membership. The flight is short, one try: pauses between
// tries are for us to choose.
func (g *group) join() {
	ep, c := g.m.ep, g.m.port.client
	if g.m.gone || g.joining {
		return
	}
	g.joining, g.kicked, g.last = true, false, time.Now()
	var r madsa.MCMemberRecord
	r.SetMGID(g.mgid)
	r.SetPortGID(ep.GID)
	r.SetQKey(mad.WellKnownQKey)
	r.SetMTU(madsa.Exactly, g.mtu)
	r.SetRate(madsa.Exactly, g.rate)
	r.SetPKey(ep.PKey)
	r.SetScopeJoin(madsa.ScopeSiteLocal, madsa.JoinFull)
	g.m.port.src.count.joins.Add(1)
	c.Do(&sa.Query{Method: mad.MethodSet, Attr: madsa.AttrMCMemberRecord, Mask: joinMask, Data: r[:], Tries: 1}, g.joinDone)
}

// joinDone takes the SA's answer, and attaches the queue pair to the common group.
func (g *group) joinDone(r *sa.Result) {
	if r.Err != nil {
		g.joinOver(nil, r.Err)
		return
	}
	p, rec := g.m.port, *madsa.Member(r.Packet)
	if err := g.accept(&rec); err != nil || g != g.m.groups[0] || g.m.gone {
		g.joinOver(&rec, err)
		return
	}
	mlid := rec.MLID()
	if g.joined && g.rec.MLID() != mlid {
		p.client.LeaveQP(g.mgid, g.rec.MLID()) // gone with the SM that gave it
	}
	p.client.JoinQP(g.mgid, mlid, g.m.ep.PKeyIndex, func(err error) {
		if err != nil {
			err = fmt.Errorf("attach to LID %d: %w", mlid, err)
		} else if g.m.gone && !p.wants(g.mgid) {
			p.client.LeaveQP(g.mgid, mlid) // left meanwhile
		}
		g.joinOver(&rec, err)
	})
}

// accept looks at the SA's record of the group.
func (g *group) accept(r *madsa.MCMemberRecord) error {
	if mlid := r.MLID(); r.MGID() != g.mgid || mlid.IsUnicast() || mlid == 0 || mlid == 0xffff {
		return fmt.Errorf("SA answered with group %v, LID %d", r.MGID(), mlid)
	}
	return nil
}

// wants reports whether any endpoint of the port is to be in a group.
func (p *port) wants(mgid mad.GID) bool {
	return slices.ContainsFunc(p.members, func(m *member) bool { return m.groups[0].mgid == mgid })
}

// joinOver ends a join with the SA's record of the group, or with an error.
func (g *group) joinOver(rec *madsa.MCMemberRecord, err error) {
	g.joining = false
	p := g.m.port
	if g.m.gone || p.ended != nil || errors.Is(err, sa.ErrClosed) {
		return
	}
	if err != nil {
		g.failed(err)
		return
	}
	first := !g.joined
	g.rec, g.joined = *rec, true
	if first {
		g.saysJoined()
	}
	g.since, g.err = time.Now(), nil
	p.client.Stop(&g.timer)
	if g.again {
		g.again = false
		g.rejoin()
	}
	p.publish()
	g.m.pump()
}

// saysJoined logs the last group of a port that was missing; those before it are
// details.
func (g *group) saysJoined() {
	p := g.m.port
	level := slog.LevelDebug
	joined, wanted := p.tally()
	if joined == wanted {
		level = slog.LevelInfo
	}
	p.src.log.Log(context.Background(), level, "acm: joined", "device", p.key.device, "port", p.key.num, "pkey", g.m.ep.PKey,
		"group", g.mgid, "mlid", g.rec.MLID(), "joined", joined, "groups", wanted)
}

// failed plans the next join. A membership from before stays in use: if the SM
// only was slow, it still holds.
func (g *group) failed(err error) {
	p := g.m.port
	p.src.count.joinErrors.Add(1)
	g.err, g.again = err, false
	elapsed := time.Since(g.since)
	pause := min(max(elapsed/5, minJoinPause), maxJoinPause)
	pause = pause/2 + time.Duration(p.rnd.Int64N(int64(pause/2)+1))
	p.client.Start(&g.timer, pause)
	if now := time.Now(); now.Sub(p.joinLogged) >= joinLogEvery {
		p.joinLogged = now
		ep := g.m.ep
		joined, wanted := p.tally()
		p.src.log.Warn("acm: join", "device", p.key.device, "port", p.key.num, "pkey", ep.PKey, "group", g.mgid, "err", err,
			"mtu_code", g.mtu, "port_mtu_code", ep.Port.MTU, "rate_code", g.rate, "port_rate_code", ep.Port.Rate,
			"joined", joined, "groups", wanted)
	}
	if g == g.m.groups[0] && !g.joined {
		g.m.fail(g.notJoined())
	}
	p.publish()
}

func (g *group) notJoined() error {
	return fmt.Errorf("%w: %w: %w", ErrNotJoined, resolver.ErrDown, g.err)
}

// leave ends the membership, as far as anybody is there to be told.
func (g *group) leave() {
	p := g.m.port
	p.client.Stop(&g.timer)
	if !g.joined {
		return
	}
	g.joined = false
	for _, o := range p.members {
		// Limited and full member entries of one partition share the group, and
		// membership is the port's.
		if o != g.m && o.group(g.mgid) != nil {
			return
		}
	}
	if g == g.m.groups[0] {
		p.client.LeaveQP(g.mgid, g.rec.MLID())
	}
	if p.client.Info().State != mad.PortActive {
		return
	}
	r := g.rec
	r.SetScopeJoin(madsa.ScopeSiteLocal, madsa.JoinFull)
	p.client.Do(&sa.Query{Method: mad.MethodDelete, Attr: madsa.AttrMCMemberRecord, Mask: madsa.MCLeave, Data: r[:], Tries: 1},
		func(*sa.Result) {}) // the SM drops the port's memberships with the port anyway
}

// path is the record that stands for all paths inside the group, without
// destination.
func (g *group) path(slid mad.LID) (r madsa.PathRecord) {
	r.SetSGID(g.rec.PortGID())
	r.SetSLID(slid)
	r.SetFlowHop(g.rec.FlowLabel(), g.rec.HopLimit())
	r.SetTClass(g.rec.TClass())
	r.SetReversibleNumPath(true, 1)
	r.SetPKey(g.rec.PKey())
	r.SetQoSClassSL(0, g.rec.SL())
	r.SetMTU(g.rec.MTU())
	r.SetRate(g.rec.Rate())
	r.SetLifetime(g.rec.Lifetime())
	return r
}
