// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//go:build verbs && cgo

package verbs

// #include "shim.h"
import "C"

import (
	"fmt"
	"time"

	"acmd/mad"
	"acmd/mad/ring"
)

// rxState belongs to the one goroutine in Recv.
type rxState struct {
	wc   [C.ACM_BATCH]C.struct_ibv_wc
	more bool // the completion queue was not seen empty since it was armed
	calm moderation
	turn bool // the wrapped port is next: queue pairs had the last one
}

// Recv implements [transport.Port]. Datagrams and the wrapped port's messages take
// turns, so that a flood of the former does not keep the SA's answers away.
func (p *Port) Recv(slots []*ring.Slot, deadline time.Time) (int, error) {
	if err := p.enter(); err != nil {
		return 0, err
	}
	defer p.gate.Leave()
	driven := p.driven.Load()
	if driven {
		p.called()
	}
	for {
		if p.rx.turn {
			p.rx.turn = false
			if n, err := p.inner.Recv(slots, time.Unix(1, 0)); n > 0 || err != nil {
				if driven {
					p.signal() // completions were not looked at
				}
				return n, p.because(err)
			}
		}
		switch {
		case p.gate.IsShut():
			return 0, fmt.Errorf("verbs: %w", p.gate.Cause())
		case p.woken.Swap(false) && !driven: // a loop is not to miss what it was called for
			return 0, nil
		}
		n := p.look(slots, driven)
		again := p.healAll()
		if n > 0 {
			p.rx.turn = true
			if driven && p.rx.more {
				p.signal() // there may be more than was taken
			}
			return n, nil
		}
		until := earlier(earlier(deadline, again), p.rx.calm.look)
		n, err := p.inner.Recv(slots, until)
		if n > 0 || err != nil {
			return n, p.because(err)
		}
		if !deadline.IsZero() && !time.Now().Before(deadline) && !p.fresh.Load() {
			return 0, nil
		}
	}
}

// called takes what made the descriptor readable for a loop.
func (p *Port) called() {
	if C.acm_cq_event(p.dev.channel) == 0 {
		p.fresh.Store(true)
		return // the eventfd, if it was that too, calls once more
	}
	p.unsignal()
}

// earlier of two times; the zero time is never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// because puts what ended the port in the place of an error of the wrapped one.
func (p *Port) because(err error) error {
	if err != nil && p.gate.IsShut() {
		return fmt.Errorf("verbs: %w", p.gate.Cause())
	}
	return err
}

// look exchanges slots for those that completions name, and returns how many.
func (p *Port) look(slots []*ring.Slot, driven bool) (n int) {
	rx := &p.rx
	if p.due(driven) {
		rx.more = true
	}
	for rx.more && n < len(slots) {
		room := min(len(slots)-n, len(rx.wc))
		if !driven { // a loop takes few at a time, and serves its clients in between
			room = rx.calm.room(room, time.Now())
		}
		if room == 0 {
			break
		}
		got := int(C.ibv_poll_cq(p.dev.rcq, C.int(room), &rx.wc[0]))
		rx.more = got == room
		if got > 0 {
			rx.calm.noted(got, p.stats.sent.Load(), time.Now())
			if rx.calm.left == 0 {
				p.stats.capped.Add(1)
			}
		}
		for i := range max(got, 0) {
			if p.take(&rx.wc[i], &slots[n]) {
				n++
			}
		}
		for _, q := range *p.qps.Load() {
			q.flushPosts()
		}
	}
	return n
}

// take handles one completion. If it brought a datagram, that is in *slot then,
// and what was there is to be filled next.
func (p *Port) take(wc *C.struct_ibv_wc, slot **ring.Slot) bool {
	var q *queuePair
	for _, c := range *p.qps.Load() {
		if c.qp.qp_num == wc.qp_num {
			q = c
		}
	}
	place := uint32(wc.wr_id)
	if q == nil || uint32(wc.wr_id>>32) != q.gen.Load() || !q.armed.Load() || place >= uint32(len(q.rx)) {
		p.stats.stale.Add(1)
		return false
	}
	if wc.status != C.IBV_WC_SUCCESS {
		// The queue pair is in its error state and brings all buffers back. They are
		// posted again, this one too, when it is out of that.
		p.stats.recvErrors.Add(1)
		q.sick.Store(true)
		return false
	}
	s := q.rx[place]
	if s.MAD().Class() != mad.ClassACM {
		// Nothing else is for a queue pair. What a neighbour sends there must never
		// be taken for an answer of the SA, which comes by the wrapped port.
		p.stats.foreign.Add(1)
		q.later(place)
		return false
	}
	settle(s, wc, q.pkey)
	q.rx[place], *slot = *slot, s
	q.later(place)
	p.stats.received.Add(1)
	return true
}

// settle makes the header of a slot from the completion and from the global
// routing header, which lies where the second part of that header will be.
func settle(s *ring.Slot, wc *C.struct_ibv_wc, pkey uint16) {
	h := s.Header()
	grh := mad.GRH(h[mad.UserHeaderSize-mad.GRHSize:])
	*h = mad.UserHeader{}
	h.SetLength(uint32(mad.UserHeaderSize + max(int(wc.byte_len)-mad.GRHSize, 0)))
	h.SetQPN(mad.QPN(wc.src_qp))
	h.SetQKey(mad.WellKnownQKey)
	h.SetLID(mad.LID(wc.slid))
	h.SetSL(uint8(wc.sl))
	h.SetPathBits(uint8(wc.dlid_path_bits))
	h.SetPKeyIndex(pkey)
	if wc.wc_flags&C.IBV_WC_GRH != 0 {
		h.SetGID(grh.SGID())
		h.SetHopLimit(grh.HopLimit())
		h.SetTrafficClass(grh.TrafficClass())
		h.SetFlowLabel(grh.FlowLabel())
	}
}

// later puts a place on the list of those to post.
func (q *queuePair) later(place uint32) {
	if q.npost == len(q.post) {
		q.flushPosts()
	}
	q.post[q.npost] = C.struct_acm_place{place: C.uint32_t(place), index: C.uint32_t(q.rx[place].Index())}
	q.npost++
}

// flushPosts posts the list. What the adapter does not take is posted by a reset.
func (q *queuePair) flushPosts() {
	if q.npost == 0 {
		return
	}
	n := q.npost
	q.npost = 0
	if int(C.acm_post_recv(q.qp, &q.port.dev.region, C.uint32_t(q.gen.Load()), &q.post[0], C.int(n))) < n {
		q.sick.Store(true)
	}
}

// postAll posts all buffers.
func (q *queuePair) postAll() {
	for place := range q.rx {
		q.later(uint32(place))
	}
	q.flushPosts()
}
