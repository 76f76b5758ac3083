// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package fabric

import (
	"time"

	"acmd/mad"
)

// stageSize is how many answers wait for the end of their Send's batch.
const stageSize = 64

// transmit takes one MAD from the port's owner.
func (p *port) transmit(w *world, h *mad.UserHeader, m *mad.Packet) error {
	tid := m.TID()
	if p.f.cfg.KernelTimers && !m.IsResponse() {
		// A queue pair of our own is nothing that the kernel changes TIDs of.
		if m.Class() != mad.ClassACM || !p.caps.Listens {
			tid = mad.TID(uint64(p.agent)<<32 | uint64(tid.Low()))
		}
		if h.TimeoutMS() != 0 {
			if err := p.in.expect(h, m, tid); err != nil {
				return err
			}
		}
	}
	p.route(w, h, m, tid, &p.stage)
	if len(p.stage) >= stageSize {
		p.flush()
	}
	return nil
}

// flush hands the answers of this Send to the receive queue.
func (p *port) flush() {
	if len(p.stage) > 0 {
		p.in.push(p.stage)
		clear(p.stage) // long answers must not be kept alive
		p.stage = p.stage[:0]
	}
}

// route brings one MAD to where it is addressed. Answers that are due at once
// are appended to now, all others go to the inbox by themselves. tid is the TID
// on the wire.
func (p *port) route(w *world, h *mad.UserHeader, m *mad.Packet, tid mad.TID, now *[]message) {
	f := p.f
	f.count.sent.Add(1)
	if ts := f.tracers.Load(); ts != nil {
		traceTo(*ts, p, Sent, 0, h, m)
	}
	self := &w.ports[p.index]
	if !self.up() {
		f.lostSend(p, h, m, LostPortDown)
		return
	}
	pkey := w.key(p.index, h.PKeyIndex())
	if pkey == 0 {
		f.lostSend(p, h, m, LostPKey)
		return
	}
	v := verdict{copies: 1}
	if rules := f.faults.Load(); rules != nil {
		v = f.judge(*rules, Requests, p, m)
		if v.drop {
			f.lostSend(p, h, m, LostRule)
			return
		}
	}
	for range v.copies {
		switch {
		case h.QPN() == mad.MulticastQPN || isMulticast(h.LID()):
			p.multicast(w, h, m, tid, pkey, v.delay)
		case m.Class() == mad.ClassSA && h.QPN() == mad.QP1:
			p.toSA(w, h, m, tid, v, now)
		default:
			p.unicast(w, h, m, tid, pkey, v.delay)
		}
	}
}

// toSA serves a MAD of the SA class that was sent to QP1 of some LID.
func (p *port) toSA(w *world, h *mad.UserHeader, m *mad.Packet, tid mad.TID, v verdict, now *[]message) {
	f := p.f
	if w.at(h.LID()) != w.sm {
		// A node without subnet manager, or the old one after a hand-over: SA
		// requests to a standby are ignored.
		f.lostSend(p, h, m, LostNoSA)
		return
	}
	if !m.IsResponse() {
		wait, ok := f.load.enter(f.cfg.SAMaxAge)
		if !ok {
			f.lostSend(p, h, m, LostSAQueue)
			return
		}
		v.delay += wait
	}
	*now = append(*now, message{})
	a := &(*now)[len(*now)-1]
	drop := func() { *now = (*now)[:len(*now)-1] }
	*a.mad() = *m
	a.mad().SetTID(tid)
	if !f.serve(w, p, a, v.status) {
		drop()
		return
	}
	p.fillHeader(a, w, w.sm, mad.QP1, h)
	rules := f.faults.Load()
	if rules == nil && v.delay == 0 {
		return
	}
	d := verdict{copies: 1}
	if rules != nil {
		if d = f.judge(*rules, Deliveries, p, m); d.drop {
			f.lost(p, a, LostRule)
			drop()
			return
		}
	}
	d.spoil(a.mad())
	d.delay += v.delay
	if d.delay == 0 {
		for range d.copies - 1 {
			*now = append(*now, *a)
		}
		return
	}
	for range d.copies {
		p.in.pushLater(a, d.delay)
	}
	drop()
}

// fillHeader writes the address part of a message that port from sends to p in
// answer to what p sent with header h.
func (p *port) fillHeader(a *message, w *world, from int32, qpn mad.QPN, h *mad.UserHeader) {
	u := a.header()
	*u = mad.UserHeader{}
	u.SetLength(uint32(mad.UserHeaderSize + max(mad.PacketSize, len(a.long))))
	u.SetQPN(qpn)
	u.SetLID(w.ports[from].lid)
	u.SetSL(h.SL())
	u.SetPathBits(h.PathBits())
	u.SetPKeyIndex(h.PKeyIndex())
	if h.HasGRH() {
		u.SetGID(p.f.gid(w, from))
		u.SetHopLimit(h.HopLimit())
	}
}

// arrive delivers a MAD that was not asked for by the Send in progress: through
// the rules for deliveries, then now or later.
func (p *port) arrive(a *message, delay time.Duration) {
	v := verdict{copies: 1}
	if rules := p.f.faults.Load(); rules != nil {
		if v = p.f.judge(*rules, Deliveries, p, a.mad()); v.drop {
			p.f.lost(p, a, LostRule)
			return
		}
	}
	v.spoil(a.mad())
	for range v.copies {
		p.in.pushLater(a, delay+v.delay)
	}
}
