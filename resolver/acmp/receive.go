// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acmp

import (
	"fmt"

	"acmd/mad"
	"acmd/mad/acm"
	"acmd/mad/ring"
	"acmd/resolver"
)

// Refusals beyond those of acm.Validate; they continue its row of counters.
const (
	refusedSender    = acm.Reason(acm.NumReasons) + iota // LID, GID or queue pair cannot be a sender's
	refusedAddress                                       // source or destination field is malformed
	refusedGroup                                         // no group in common
	refusedStray                                         // answer to nothing that was asked
	refusedOther                                         // request for an address that is not ours
	refusedRate                                          // more requests for us than MaxAnswers
	refusedPartition                                     // came in another partition than it is for
	refusedEcho                                          // our own request
	numReasons
)

// receive takes one datagram of the ACM class.
func (p *port) receive(s *ring.Slot) {
	h, m := s.Header(), s.MAD()
	n := mad.PacketSize
	if l := int(h.Length()); l != 0 {
		n = l - mad.UserHeaderSize
	}
	if err := acm.Validate(m, n); err != nil {
		reason, _ := err.(acm.Reason)
		p.refuse(reason)
		return
	}
	if !sender(h) {
		p.refuse(refusedSender)
		return
	}
	if m.IsResponse() {
		p.response(h, m)
		return
	}
	p.request(h, m)
}

// sender reports whether the header names a node that can be answered: where it
// is comes from here and from nowhere else.
func sender(h *mad.UserHeader) bool {
	g := h.GID()
	return h.HasGRH() && h.LID().IsUnicast() && h.QPN() != 0 && h.QPN() < mad.MulticastQPN &&
		!g.IsMulticast() && g.GUID() != 0
}

func (p *port) refuse(r acm.Reason) { p.src.count.refused[r].Add(1) }

// response ends the lookup that it answers.
func (p *port) response(h *mad.UserHeader, m *mad.Packet) {
	l := p.byTID[m.TID().Low()]
	if l == nil || m.TID() != l.tid && p.caps.Listens {
		p.refuse(refusedStray) // late, duplicate or forged; by QP1 the kernel has the upper half
		p.late(h, m)
		return
	}
	if !inPartition(l.m, h) {
		p.refuse(refusedPartition)
		return
	}
	if st := m.Status(); st != 0 {
		p.src.count.responses.Add(1)
		mem := l.m
		l.fail(fmt.Errorf("acm: LID %d refused with status 0x%04x: %w", h.LID(), uint16(st), resolver.ErrUnknown))
		mem.pump()
		return
	}
	g := l.m.common(acm.View(m))
	if g == nil {
		p.refuse(refusedGroup)
		return
	}
	p.src.count.responses.Add(1)
	p.conflicts.note(l, h.GID())
	l.m.hasten(l)
	l.found(h, g)
}

// request answers for our addresses and learns where a node is that we are just
// looking for. A partition has an endpoint of its own, told apart by the groups
// that the request offers.
func (p *port) request(h *mad.UserHeader, m *mad.Packet) {
	r := acm.View(m)
	src, ok1 := wireAddr(r.SrcType(), r.Src())
	dst, ok2 := wireAddr(r.DestType(), r.Dest())
	if !ok1 || !ok2 {
		p.refuse(refusedAddress)
		return
	}
	if p.echo(h, m) {
		p.refuse(refusedEcho)
		return
	}
	p.src.count.heard.Add(1)
	shared, here, ours := false, false, false
	for _, mem := range p.members {
		g := mem.common(r)
		if g == nil {
			continue
		}
		shared = true
		if !inPartition(mem, h) {
			continue
		}
		here = true
		claims := p.claims(mem, &src, h)
		if _, own := mem.own[dst]; own {
			ours = true
			// First, so that the peer need not wait for what our callbacks do.
			p.answer(mem, g, h, m.TID())
		}
		// Field case 25: whoever asks tells where it is.
		if l := mem.lookups[src]; l != nil && !claims {
			l.found(h, g)
		}
	}
	switch {
	case !shared:
		p.refuse(refusedGroup)
	case !here:
		p.refuse(refusedPartition)
	case !ours:
		p.refuse(refusedOther)
	}
}

// answer tells a requester that we have what it looks for. Requests are repeated
// under one TID, and each copy is answered: the last answer may have got lost.
func (p *port) answer(m *member, g *group, to *mad.UserHeader, tid mad.TID) {
	if !p.mayAnswer() {
		p.refuse(refusedRate)
		return
	}
	var pkt mad.Packet
	acm.InitResponse(&pkt, tid, g.mgid)
	var h mad.UserHeader
	h.SetLID(to.LID())
	h.SetQPN(to.QPN())
	m.address(&h, g, to.GID())
	p.src.count.answered.Add(1)
	p.client.SendTo(&h, &pkt)
}
