// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//go:build verbs && cgo

package verbs

// #include "shim.h"
import "C"

import (
	"errors"
	"fmt"
	"time"

	"acmd/mad"
	"acmd/mad/ring"

	"golang.org/x/sys/unix"
)

const (
	// sendPoll is how many completions of sends are taken at a time.
	sendPoll = 16
	// sendPatience is how long Send waits for one of its datagrams to leave, and
	// sendNap how long between two looks.
	sendPatience = 10 * time.Millisecond
	sendNap      = 50 * time.Microsecond
)

var (
	errResetting = errors.New("queue pair is being reset")
	errFull      = fmt.Errorf("send queue is full: %w", unix.EAGAIN)
	errNoGroup   = errors.New("no group of this partition is joined")
)

// Send implements [transport.Port]. The ACM class leaves by the queue pair of its
// partition, all else by the wrapped port.
func (p *Port) Send(slots []*ring.Slot) (int, error) { return p.send(slots, p.inner.Send, true) }

// send is Send with the wrapped port's way to send, and with or without waiting
// for room.
func (p *Port) send(slots []*ring.Slot, inner func([]*ring.Slot) (int, error), wait bool) (n int, err error) {
	if err := p.enter(); err != nil {
		return 0, err
	}
	defer p.gate.Leave()
	for n < len(slots) {
		acm := isACM(slots[n])
		end := n + 1
		for end < len(slots) && isACM(slots[end]) == acm {
			end++
		}
		var k int
		if acm {
			k, err = p.sendQP(slots[n:end], wait)
		} else if k, err = inner(slots[n:end]); err == nil && k < end-n {
			return n + k, nil
		}
		if n += k; err != nil {
			return n, p.because(err)
		}
	}
	return n, nil
}

func isACM(s *ring.Slot) bool { return s.MAD().Class() == mad.ClassACM }

func (p *Port) sendQP(slots []*ring.Slot, wait bool) (int, error) {
	for i, s := range slots {
		q := p.first
		if index := s.Header().PKeyIndex(); q.pkey != index {
			q = nil
			for _, c := range *p.qps.Load() {
				if c.pkey == index {
					q = c
				}
			}
		}
		if q == nil || !q.armed.Load() {
			return i, fmt.Errorf("verbs: %s: P_Key index %d: %w", p.device, s.Header().PKeyIndex(), errNoGroup)
		}
		if err := q.send(s, wait); err != nil {
			return i, fmt.Errorf("verbs: %s: queue pair 0x%06x: %w", p.device, uint32(q.qpn()), err)
		}
		if s.Header().QPN() == mad.MulticastQPN {
			p.ask()
		}
		p.stats.sent.Add(1)
	}
	return len(slots), nil
}

// send puts a copy of the slot's MAD on the send queue: the slot is the caller's
// again before the adapter has read it.
func (q *queuePair) send(s *ring.Slot, wait bool) error {
	if !q.busy.CompareAndSwap(busyNot, busySend) {
		return errResetting
	}
	defer q.busy.Store(busyNot)
	if err := q.room(wait); err != nil {
		return err
	}
	h := s.Header()
	ah, err := q.ahs.get(q.port, h)
	if err != nil {
		return err
	}
	place := q.idle[len(q.idle)-1]
	own := q.tx[place]
	*own.MAD() = *s.MAD()
	at := C.struct_acm_place{place: C.uint32_t(place), index: C.uint32_t(own.Index())}
	if err := status("post", C.acm_post_send(q.qp, &q.port.dev.region, C.uint32_t(q.gen.Load()), at, ah, C.uint32_t(h.QPN()))); err != nil {
		return err
	}
	q.idle = q.idle[:len(q.idle)-1]
	return nil
}

// room takes what has left, and may wait a little if nothing has.
func (q *queuePair) room(wait bool) error {
	q.reap()
	for end := time.Now().Add(sendPatience); len(q.idle) == 0; q.reap() {
		if !wait || q.sick.Load() || time.Now().After(end) || q.port.gate.IsShut() {
			q.port.stats.full.Add(1)
			return errFull
		}
		time.Sleep(sendNap)
	}
	return nil
}

// reap takes completions of sends. Each gives its place back, whatever it says.
func (q *queuePair) reap() {
	for {
		got := int(C.ibv_poll_cq(q.scq, sendPoll, &q.swc[0]))
		for i := range max(got, 0) {
			wc := &q.swc[i]
			place := uint32(wc.wr_id)
			if uint32(wc.wr_id>>32) != q.gen.Load() || place >= uint32(len(q.tx)) {
				q.port.stats.stale.Add(1)
				continue
			}
			q.idle = append(q.idle, place)
			if wc.status != C.IBV_WC_SUCCESS {
				q.port.stats.sendErrors.Add(1)
				q.sick.Store(true)
				q.port.inner.Wake() // Recv's goroutine resets
			}
		}
		if got < sendPoll {
			return
		}
	}
}
