// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acmp

import (
	"fmt"
	"time"

	"acmd/mad"
	"acmd/mad/acm"
	"acmd/resolver"
	"acmd/resolver/sa"
)

// waiter is told the outcome of a lookup, at its deadline at the latest.
type waiter struct {
	deadline time.Time // zero: none
	done     func(resolver.Location, error)
}

// ask is one call of Locate.
type ask struct {
	ep       *resolver.Endpoint
	src, dst resolver.Addr
	waiter
}

// lookup is one request under way on a member.
type lookup struct {
	m       *member
	dst     resolver.Addr
	src     resolver.Addr
	waiters []waiter
	timer   sa.Timer
	tid     mad.TID
	next    time.Time // next try, or the end after the last one
	again   time.Time // another copy of the last try, zero: none
	sent    time.Time // when the last copy was sent
	tries   int
	quick   int   // copies that were sent early
	seat    int   // place among the member's seats, from 1; 0: none
	err     error // why the last try was not sent
}

// locate joins the lookup of q.dst, or starts it.
func (m *member) locate(q *ask) {
	count := &m.port.src.count
	if !q.deadline.IsZero() && !time.Now().Before(q.deadline) {
		q.done(resolver.Location{}, fmt.Errorf("acm: no time left to ask: %w", resolver.ErrTimeout))
		return
	}
	if l := m.lookups[q.dst]; l != nil {
		if len(l.waiters) >= MaxWaiters {
			count.overload.Add(1)
			q.done(resolver.Location{}, fmt.Errorf("acm: %d wait for this address: %w", len(l.waiters), resolver.ErrOverload))
			return
		}
		l.waiters = append(l.waiters, q.waiter)
		l.arm()
		return
	}
	if g := m.groups[0]; !g.joined && g.err != nil {
		q.done(resolver.Location{}, g.notJoined())
		return
	}
	if len(m.lookups) >= MaxLookups {
		count.overload.Add(1)
		q.done(resolver.Location{}, fmt.Errorf("acm: %d lookups under way: %w", len(m.lookups), resolver.ErrOverload))
		return
	}
	count.lookups.Add(1)
	l := &lookup{m: m, dst: q.dst, src: q.src, waiters: []waiter{q.waiter}}
	l.timer.Fire = l.fire
	m.lookups[l.dst] = l
	m.queue = append(m.queue, l)
	l.arm()
	m.pump()
}

// pump lets queued lookups into the window, once the endpoint is in its group.
func (m *member) pump() {
	for len(m.seats) < m.port.src.cfg.Depth && len(m.queue) > 0 && m.groups[0].joined {
		l := m.queue[0]
		m.queue[0] = nil
		m.queue = m.queue[1:]
		if m.lookups[l.dst] != l {
			continue // ended while it waited
		}
		m.seats = append(m.seats, l)
		l.seat = len(m.seats)
		m.port.client.Engage(1)
		l.tid = m.port.newTID()
		m.port.byTID[l.tid.Low()] = l
		l.try()
	}
}

// unseat makes room for another one.
func (l *lookup) unseat() {
	if l.seat == 0 {
		return
	}
	m := l.m
	last := len(m.seats) - 1
	m.seats[l.seat-1] = m.seats[last]
	m.seats[l.seat-1].seat = l.seat
	m.seats[last] = nil
	m.seats = m.seats[:last]
	l.seat = 0
	m.port.client.Engage(-1)
}

// try makes the next try.
func (l *lookup) try() {
	gap := l.m.port.src.cfg.gap(l.tries, l.m.ep.Port.SubnetTimeout)
	l.tries++
	l.next = time.Now().Add(gap)
	l.send(gap)
	l.arm()
}

// send sends the request to the common group. The next try is gap away.
func (l *lookup) send(gap time.Duration) {
	m, p := l.m, l.m.port
	g := m.groups[0]
	l.sent, l.again = time.Now(), time.Time{}
	var groups []mad.GID
	for _, g := range m.groups {
		if g.joined {
			groups = append(groups, g.mgid)
		}
	}
	var pkt mad.Packet
	kind, src, _ := wireSource(m.ep, &l.src, &l.dst)
	if l.err = acm.InitRequest(&pkt, l.tid, uint8(l.dst.Kind), l.dst.Bytes(), kind, src, groups...); l.err != nil {
		return // the lookup ends with this at its time
	}
	var h mad.UserHeader
	h.SetLID(g.rec.MLID())
	h.SetQPN(mad.MulticastQPN)
	m.address(&h, g, g.mgid)
	if p.caps.Timers && !p.caps.Listens {
		// By QP1 the kernel passes an answer on only while it knows of the
		// request, and takes no second copy before: it is to forget in time.
		h.SetTimeoutMS(uint32(max(gap*3/4, time.Millisecond) / time.Millisecond))
	}
	p.src.count.requests.Add(1)
	p.client.SendTo(&h, &pkt)
}

// address fills in what all datagrams of a group have in common.
func (m *member) address(h *mad.UserHeader, g *group, to mad.GID) {
	h.SetQKey(mad.WellKnownQKey)
	h.SetSL(g.rec.SL())
	h.SetPKeyIndex(m.ep.PKeyIndex)
	h.SetGID(to)
	h.SetFlowLabel(g.rec.FlowLabel())
	h.SetHopLimit(g.rec.HopLimit())
	h.SetTrafficClass(g.rec.TClass())
	if _, rate := g.rec.Rate(); acm.KnownRate(rate) { // an adapter may refuse others (field case 56)
		h.SetStaticRate(rate)
	}
	h.SetGIDIndex(m.gidIndex())
}

func (m *member) gidIndex() uint8 {
	for i, g := range m.ep.Port.GIDs {
		if g == m.ep.GID && i < 256 {
			return uint8(i)
		}
	}
	return 0
}

// arm sets the timer to what comes first: the next try or a waiter's deadline.
func (l *lookup) arm() {
	at := l.next
	if !l.again.IsZero() && l.again.Before(at) {
		at = l.again
	}
	for _, w := range l.waiters {
		if at.IsZero() || !w.deadline.IsZero() && w.deadline.Before(at) {
			at = w.deadline
		}
	}
	if !at.IsZero() {
		l.m.port.client.Start(&l.timer, max(time.Until(at), 0))
	}
}

// fire is the timer: tell waiters whose time is over, then try again.
func (l *lookup) fire() {
	now := time.Now()
	var late []waiter
	keep := l.waiters[:0]
	for _, w := range l.waiters {
		if !w.deadline.IsZero() && !now.Before(w.deadline) {
			late = append(late, w)
		} else {
			keep = append(keep, w)
		}
	}
	l.waiters = keep
	err := l.timeout()
	if len(l.waiters) == 0 {
		l.remove() // nobody wants to know any more
	}
	for _, w := range late {
		w.done(resolver.Location{}, err)
	}
	switch {
	case len(l.waiters) == 0:
	case l.tries > 0 && !now.Before(l.next):
		l.unseat()
		if l.tries > l.m.port.src.cfg.Retries {
			l.m.port.src.count.timeouts.Add(1)
			l.fail(err)
			break
		}
		l.try()
	case !l.again.IsZero() && !now.Before(l.again):
		l.send(l.next.Sub(now))
		l.arm()
	default:
		l.arm()
	}
	l.m.pump()
}

func (l *lookup) timeout() error {
	switch {
	case l.err != nil:
		return fmt.Errorf("acm: %w", l.err)
	case l.tries == 0 && !l.m.groups[0].joined:
		return fmt.Errorf("%w yet: %w", ErrNotJoined, resolver.ErrDown)
	case l.tries == 0:
		return fmt.Errorf("acm: waited behind %d others: %w", len(l.m.seats), resolver.ErrTimeout)
	}
	return fmt.Errorf("acm: %d multicast requests to %v: %w", l.tries, l.m.groups[0].mgid, resolver.ErrTimeout)
}

// remove takes l out of everything. An entry in the queue stays until pump.
func (l *lookup) remove() {
	p := l.m.port
	p.client.Stop(&l.timer)
	l.unseat()
	if l.m.lookups[l.dst] == l {
		delete(l.m.lookups, l.dst)
	}
	if p.byTID[l.tid.Low()] == l {
		delete(p.byTID, l.tid.Low())
	}
	if l.tries == 0 {
		l.m.sweep()
	}
}

// sweep keeps the queue no longer than a small multiple of what is alive in it.
func (m *member) sweep() {
	if len(m.queue) <= 2*len(m.lookups)+AutoDepth {
		return
	}
	keep := make([]*lookup, 0, len(m.lookups))
	for _, l := range m.queue {
		if m.lookups[l.dst] == l {
			keep = append(keep, l)
		}
	}
	m.queue = keep
}

func (l *lookup) fail(err error) { l.finish(resolver.Location{}, err) }

func (l *lookup) finish(loc resolver.Location, err error) {
	l.remove()
	waiters := l.waiters
	l.waiters = nil
	for _, w := range waiters {
		w.done(loc, err)
	}
}

// found ends l with what the header of a datagram says of its sender.
func (l *lookup) found(h *mad.UserHeader, g *group) {
	loc := resolver.Location{GID: h.GID(), LID: h.LID(), Source: resolver.SourceACM}
	if l.m.port.src.cfg.RouteACM {
		r := g.path(l.m.ep.Port.LID)
		if _, _, own := wireSource(l.m.ep, &l.src, &l.dst); own != nil && !own.GID.IsZero() {
			r.SetSGID(own.GID)
		}
		r.SetDGID(loc.GID)
		r.SetDLID(loc.LID)
		loc.Route, loc.Origin = &r, resolver.OriginGroup
	}
	l.m.port.src.count.found.Add(1)
	m := l.m
	l.finish(loc, nil)
	m.pump()
}
