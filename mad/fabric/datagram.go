// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package fabric

import (
	"slices"
	"time"

	"acmd/mad"
	"acmd/mad/acm"
)

// peerQPN is the queue pair of a port's simulated ACM service.
func peerQPN(p int32) mad.QPN { return 0x400 + mad.QPN(p) }

// datagram is a MAD on its way that is no SA request.
type datagram struct {
	src   int32 // port index
	qpn   mad.QPN
	key   mad.PKey // P_Key of the packet
	tid   mad.TID
	h     *mad.UserHeader // as sent
	m     *mad.Packet     // as sent
	delay time.Duration
}

// multicast sends to all members of a group but the sender.
func (p *port) multicast(w *world, h *mad.UserHeader, m *mad.Packet, tid mad.TID, key mad.PKey, delay time.Duration) {
	f := p.f
	g := f.groups.Load().byMLID[h.LID()]
	switch {
	case g == nil || !h.HasGRH() || h.GID() != g.mgid || h.QPN() != mad.MulticastQPN:
		f.lostSend(p, h, m, LostNoGroup)
		return
	case !key.Matches(g.rec.PKey()):
		f.lostSend(p, h, m, LostPKey)
		return
	case h.QKey() != g.rec.QKey():
		f.lostSend(p, h, m, LostQKey)
		return
	case g.member(p.index) < 0:
		f.lostSend(p, h, m, LostNotMember)
		return
	}
	f.count.multicasts.Add(1)
	d := datagram{src: p.index, qpn: p.caps.QPN, key: key, tid: tid, h: h, m: m, delay: delay}
	f.flood(w, g, &d)
	if m.Class() == mad.ClassACM && g.permanent {
		if dst, group := f.asked(w, m); dst >= 0 && dst != p.index {
			f.peerAnswers(w, p, dst, group, &d)
		}
	}
}

// flood hands a multicast to the attached queue pairs of all members.
func (f *Fabric) flood(w *world, g *group, d *datagram) {
	open := *f.open.Load()
	for _, mb := range g.members {
		if mb.port == d.src || mb.state&^sendOnly == 0 {
			continue
		}
		for _, o := range open[mb.port] {
			if slices.Contains(*o.attached.Load(), g.mgid) {
				f.hand(w, o, d)
			}
		}
	}
}

// hand delivers a datagram to one open port, if the partition allows it.
func (f *Fabric) hand(w *world, o *port, d *datagram) {
	a := message{}
	*a.mad() = *d.m
	a.mad().SetTID(d.tid)
	src, u := &w.ports[d.src], a.header()
	index, ok := w.keyIndex(o.index, d.key)
	u.SetLength(mad.UserHeaderSize + mad.PacketSize)
	u.SetQPN(d.qpn)
	u.SetLID(src.lid + mad.LID(d.h.PathBits()&(1<<f.cfg.LMC-1)))
	u.SetSL(d.h.SL())
	u.SetPKeyIndex(index)
	if !isMulticast(d.h.LID()) {
		u.SetPathBits(uint8(d.h.LID()) & (1<<f.cfg.LMC - 1))
	}
	if d.h.HasGRH() {
		u.SetGID(f.gid(w, d.src))
		u.SetHopLimit(d.h.HopLimit())
		u.SetTrafficClass(d.h.TrafficClass())
		u.SetFlowLabel(d.h.FlowLabel())
	}
	switch {
	case !ok:
		f.lost(o, &a, LostPKey)
	case !w.ports[o.index].up():
		f.lost(o, &a, LostPortDown)
	default:
		o.arrive(&a, d.delay)
	}
}

// keyIndex finds the table index with which a port receives packets of a P_Key:
// one of the two ends has to be a full member.
func (w *world) keyIndex(p int32, k mad.PKey) (uint16, bool) {
	for i, e := range w.pkeys[w.ports[p].table] {
		if e.IsValid() && e.Matches(k) && (e.IsFull() || k.IsFull()) {
			return uint16(i), true
		}
	}
	return 0, false
}

// unicast sends to one queue pair.
func (p *port) unicast(w *world, h *mad.UserHeader, m *mad.Packet, tid mad.TID, key mad.PKey, delay time.Duration) {
	f := p.f
	dst := w.at(h.LID())
	if dst < 0 || !w.ports[dst].up() {
		f.lostSend(p, h, m, LostNoDest)
		return
	}
	if h.QPN() != mad.QP1 && h.QKey() != mad.WellKnownQKey {
		f.lostSend(p, h, m, LostQKey)
		return
	}
	d := datagram{src: p.index, qpn: p.caps.QPN, key: key, tid: tid, h: h, m: m, delay: delay}
	for _, o := range (*f.open.Load())[dst] {
		// QP1 hands the ACM class to its one agent, the first port opened.
		if o.caps.QPN == h.QPN() || h.QPN() == mad.QP1 && m.Class() == mad.ClassACM {
			f.count.unicasts.Add(1)
			f.hand(w, o, &d)
			return
		}
	}
	if h.QPN() != peerQPN(dst) || w.ports[dst].silent {
		f.lostSend(p, h, m, LostNoDest)
		return
	}
	if _, ok := w.keyIndex(dst, key); !ok {
		f.lostSend(p, h, m, LostPKey)
		return
	}
	f.count.unicasts.Add(1)
	if to, group := f.asked(w, m); to == dst {
		f.peerAnswers(w, p, dst, group, &d)
	}
}

// asked finds the simulated service that an ACM request is for, and the group
// it would answer with: the last of the list that it is in. -1 if none.
func (f *Fabric) asked(w *world, m *mad.Packet) (int32, mad.GID) {
	if m.Class() != mad.ClassACM || m.Method() != mad.MethodGet || acm.Validate(m, len(m)) != nil {
		return -1, mad.GID{}
	}
	f.count.acmRequests.Add(1)
	r := acm.View(m)
	dst := f.byAddress(r.DestType(), r.Dest())
	if dst < 0 || w.ports[dst].silent || !w.ports[dst].up() {
		return -1, mad.GID{}
	}
	groups := f.groups.Load()
	for i := r.GIDCount() - 1; i >= 0; i-- {
		if g := groups.byMGID[r.GID(i)]; g != nil && g.peer(w, dst) {
			return dst, g.mgid
		}
	}
	return -1, mad.GID{}
}

// peerAnswers sends the answer of a simulated service, unicast and with GRH, to
// the queue pair that asked.
func (f *Fabric) peerAnswers(w *world, p *port, dst int32, group mad.GID, d *datagram) {
	var a message
	acm.InitResponse(a.mad(), d.tid, group)
	p.fillHeader(&a, w, dst, peerQPN(dst), d.h)
	a.header().SetGID(f.gid(w, dst))
	a.header().SetHopLimit(d.h.HopLimit())
	f.count.acmAnswers.Add(1)
	p.arrive(&a, d.delay)
}
