// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acmp

import (
	"time"

	"acmd/mad"
	"acmd/resolver"
)

// An address that two nodes claim resolves to whoever answers first, which may be
// another one each time: that is told, as nothing else shows it (B-27).
const (
	// recentAnswers is how many lookups are remembered to see a second answer, and
	// recentTime how long: a stock peer's own query of the SA may delay its answer.
	recentAnswers = 256
	recentTime    = 10 * time.Second
	// conflictLogEvery bounds the log lines of a port.
	conflictLogEvery = time.Minute
)

// answered is a lookup that an answer ended.
type answered struct {
	tid  mad.TID
	dst  resolver.Addr
	gid  mad.GID
	when time.Time
}

// conflicts finds addresses that two nodes claim. It belongs to the owner.
type conflicts struct {
	recent [recentAnswers]answered
	next   int
	logged time.Time
}

// note remembers who answered a lookup.
func (c *conflicts) note(l *lookup, gid mad.GID) {
	c.recent[c.next] = answered{l.tid, l.dst, gid, time.Now()}
	c.next = (c.next + 1) % recentAnswers
}

// late looks at an answer that ended no lookup: another node may have answered
// it before.
func (p *port) late(h *mad.UserHeader, m *mad.Packet) {
	if m.Status() != 0 {
		return
	}
	for i := range p.conflicts.recent {
		a := &p.conflicts.recent[i]
		if a.tid == m.TID() && a.tid != 0 && a.gid != h.GID() && time.Since(a.when) < recentTime {
			p.conflict(&a.dst, a.gid, h)
			return
		}
	}
}

// claims looks at the source of a request: another node may use an address of this
// one. What it asks is answered all the same, and nothing is learned.
func (p *port) claims(m *member, src *resolver.Addr, h *mad.UserHeader) bool {
	if _, own := m.own[*src]; !own || p.isOwn(m, h) {
		return false
	}
	p.conflict(src, m.ep.GID, h)
	return true
}

func (p *port) conflict(a *resolver.Addr, has mad.GID, h *mad.UserHeader) {
	p.src.count.conflicts.Add(1)
	if now := time.Now(); now.Sub(p.conflicts.logged) >= conflictLogEvery {
		p.conflicts.logged = now
		p.src.log.Warn("acm: an address is claimed by two nodes", "device", p.key.device, "port", p.key.num,
			"address", a.String(), "gid", has, "other_gid", h.GID(), "other_lid", h.LID(), "so_far", p.src.count.conflicts.Load())
	}
}

// isOwn reports whether a datagram came from this port: some adapters bring a
// multicast back to its sender (field case 59).
func (p *port) isOwn(m *member, h *mad.UserHeader) bool {
	pi := &m.ep.Port
	if h.LID()&^(1<<pi.LMC-1) != pi.LID {
		return false
	}
	for _, g := range pi.GIDs {
		if g == h.GID() {
			return true
		}
	}
	return false
}

// echo reports whether a request is one of our own that came back.
func (p *port) echo(h *mad.UserHeader, m *mad.Packet) bool {
	l := p.byTID[m.TID().Low()]
	return l != nil && l.tid == m.TID() && p.isOwn(l.m, h)
}

// inPartition reports whether a datagram came in the partition of m. What it says
// of its groups is not enough: any node of the subnet can write that.
func inPartition(m *member, h *mad.UserHeader) bool {
	keys, i := m.ep.Port.PKeys, int(h.PKeyIndex())
	return i < len(keys) && keys[i].Matches(m.ep.PKey)
}

// mode is what a node's ports can do; each is logged once.
type mode uint8

const (
	modeNone mode = iota
	modeAsks
	modeAnswers
	modes
)

// say logs which of the three a port is, the first time.
func (s *Source) say(p *port) {
	m := modeNone
	switch {
	case p.caps.Multicast && p.caps.Listens:
		m = modeAnswers
	case p.caps.Multicast:
		m = modeAsks
	}
	s.mu.Lock()
	told := s.told[m]
	s.told[m] = true
	s.mu.Unlock()
	if told {
		return
	}
	log := s.log.With("device", p.key.device, "port", p.key.num)
	switch m {
	case modeAnswers:
		log.Info("acm: asks other nodes and answers them", "qpn", p.caps.QPN)
	case modeAsks:
		log.Info("acm: asks other nodes out of QP1; without a queue pair of its own it cannot answer them")
	default:
		log.Info("acm: neither asks nor answers other nodes: no multicast on this transport")
	}
}
