// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//go:build verbs && cgo

package verbs

// #include "shim.h"
import "C"

import "time"

// A queue pair that keeps falling into its error state is reset less and less
// often; one that worked for a while starts over.
const (
	firstPause = 10 * time.Millisecond
	lastPause  = 10 * time.Second
	busyPause  = time.Millisecond
)

// healAll resets the queue pairs that are in an error state, and returns when to
// look again; zero: when something happens.
func (p *Port) healAll() (next time.Time) {
	for _, q := range *p.qps.Load() {
		if !q.sick.Load() {
			continue
		}
		now := time.Now()
		if !now.Before(q.heal) && q.reset(now) {
			continue
		}
		if next.IsZero() || q.heal.Before(next) {
			next = q.heal
		}
	}
	return next
}

// reset takes a queue pair out of its error state: a receive error ends both
// directions, and a failed send stops the sends of a datagram queue pair (IBTA
// vol. 1, 10.3.1). Everything that was posted is posted anew, and what completes
// from before has an old generation.
func (q *queuePair) reset(now time.Time) bool {
	if !q.armed.Load() || !q.busy.CompareAndSwap(busyNot, busyReset) {
		q.heal = now.Add(busyPause) // a Send is in it, which is soon over
		return false
	}
	defer q.busy.Store(busyNot)
	if now.Sub(q.heal) > lastPause {
		q.pause = 0
	}
	q.pause = min(max(2*q.pause, firstPause), lastPause)
	q.heal = now.Add(q.pause)
	p := q.port
	if err := status("reset", C.acm_to_reset(q.qp)); err != nil {
		p.complain(q, err)
		return false
	}
	q.gen.Add(1)
	q.npost = 0
	for C.ibv_poll_cq(q.scq, sendPoll, &q.swc[0]) > 0 {
		// of the old generation, as everything in there
	}
	q.credit()
	if err := status("initialise", C.acm_to_init(q.qp, C.uint8_t(p.num), C.uint16_t(q.pkey))); err != nil {
		p.complain(q, err)
		return false
	}
	q.sick.Store(false)
	q.postAll()
	if err := status("ready to send", C.acm_to_rts(q.qp)); err != nil {
		q.sick.Store(true)
		p.complain(q, err)
		return false
	}
	p.stats.resets.Add(1)
	p.fabric.cfg.Log.Warn("queue pair fell into an error state and was reset", "device", p.device, "port", p.num,
		"pkey_index", q.pkey, "recv_errors", p.stats.recvErrors.Load(), "send_errors", p.stats.sendErrors.Load())
	return true
}

func (p *Port) complain(q *queuePair, err error) {
	p.fabric.cfg.Log.Error("queue pair stays in its error state", "device", p.device, "port", p.num,
		"pkey_index", q.pkey, "err", err, "next", q.pause)
}
