// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acmp

import (
	crand "crypto/rand"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"acmd/mad"
	"acmd/mad/transport"
	"acmd/resolver"
	"acmd/resolver/sa"
)

// port is the part of a source on one port. Everything but key, client, caps and
// status belongs to the client's owner goroutine.
type port struct {
	src    *Source
	key    portKey
	client *sa.Client
	caps   transport.Caps
	status atomic.Pointer[[]GroupStatus]

	rnd     *rand.Rand
	members []*member // in the order of the endpoints
	bySlot  map[uint16]*member
	byTID   map[uint32]*lookup
	ended   error

	conflicts  conflicts
	joinLogged time.Time // when a refused join was last told

	second  int64 // start of the second in which answers were counted
	answers int   // sent in it
}

func newPort(s *Source, key portKey, c *sa.Client) *port {
	var seed [32]byte
	crand.Read(seed[:]) // never fails
	return &port{
		src: s, key: key, client: c, caps: c.Caps(),
		rnd:    rand.New(rand.NewChaCha8(seed)),
		bySlot: map[uint16]*member{}, byTID: map[uint32]*lookup{},
	}
}

// setEndpoints makes the members those of eps that are on this port.
func (p *port) setEndpoints(eps []*resolver.Endpoint) {
	if p.ended != nil || !p.caps.Multicast {
		return
	}
	var members []*member
	bySlot := map[uint16]*member{}
	for _, ep := range eps {
		if ep.Device != p.key.device || ep.Port.Num != p.key.num {
			continue
		}
		m := p.bySlot[ep.Slot]
		if m != nil && !m.same(ep) {
			m = nil
		}
		if m == nil {
			m = newMember(p, ep)
		} else {
			m.update(ep)
		}
		members = append(members, m)
		bySlot[ep.Slot] = m
	}
	old := p.members
	p.members, p.bySlot = members, bySlot
	for _, m := range old {
		if !slices.Contains(members, m) {
			m.leave()
		}
	}
	for _, m := range members {
		m.start()
	}
	p.publish()
}

// tally counts the groups that the port is in, and those that it should be in.
func (p *port) tally() (joined, wanted int) {
	for _, m := range p.members {
		wanted += len(m.groups)
		for _, g := range m.groups {
			if g.joined {
				joined++
			}
		}
	}
	return joined, wanted
}

// rejoin has every endpoint that is older than age join again.
func (p *port) rejoin(age time.Duration) {
	for _, m := range p.members {
		if time.Since(m.since) < age {
			continue
		}
		for _, g := range m.groups {
			g.rejoin()
		}
	}
}

// end drops everything; the client has ended.
func (p *port) end(err error) {
	p.src.detach(p)
	p.ended = err
	for _, m := range p.members {
		m.fail(fmt.Errorf("acm: %w: %w", resolver.ErrDown, err))
		for _, g := range m.groups {
			p.client.Stop(&g.timer)
		}
	}
	p.members, p.bySlot = nil, nil
	p.status.Store(nil)
}

// locate starts or joins a lookup.
func (p *port) locate(q *ask) {
	switch m := p.bySlot[q.ep.Slot]; {
	case p.ended != nil:
		q.done(resolver.Location{}, fmt.Errorf("acm: %w: %w", resolver.ErrDown, p.ended))
	case m == nil:
		q.done(resolver.Location{}, fmt.Errorf("acm: %w: endpoint is not up: %w", ErrNotJoined, resolver.ErrDown))
	default:
		m.locate(q)
	}
}

// newTID draws a TID whose low half no lookup of this port has. All 64 bits are
// random: whoever wants to forge an answer has to guess them.
func (p *port) newTID() mad.TID {
	for {
		t := mad.TID(p.rnd.Uint64())
		if t.Low() != 0 && p.byTID[t.Low()] == nil {
			return t
		}
	}
}

// mayAnswer takes one from this second's answers.
func (p *port) mayAnswer() bool {
	if now := time.Now().Unix(); now != p.second {
		p.second, p.answers = now, 0
	}
	p.answers++
	return p.answers <= MaxAnswers
}
