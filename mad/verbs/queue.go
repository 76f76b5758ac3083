// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//go:build verbs && cgo

package verbs

// #include "shim.h"
import "C"

import (
	"fmt"
	"sync/atomic"
	"time"

	"acmd/mad"
	"acmd/mad/ring"
)

// queuePair is the queue pair of one partition.
type queuePair struct {
	port *Port
	qp   *C.struct_ibv_qp
	scq  *C.struct_ibv_cq // completions of sends, which nobody waits for
	pkey uint16           // index in the P_Key table

	groups []groupKey  // Send's goroutine
	armed  atomic.Bool // has its slots

	// Of the sending side, in the hands of whoever busy names.
	busy atomic.Uint32
	tx   []*ring.Slot // by place
	idle []uint32     // places that are not under way
	ahs  addressCache
	swc  [sendPoll]C.struct_ibv_wc

	gen  atomic.Uint32 // of what is posted; a reset changes it
	sick atomic.Bool   // fell into an error state

	// Of the receiving side, Recv's goroutine's once armed is set.
	rx    []*ring.Slot // by place
	post  [C.ACM_BATCH]C.struct_acm_place
	npost int
	heal  time.Time // no reset before
	pause time.Duration
}

// groupKey is one attachment.
type groupKey struct {
	mgid mad.GID
	mlid mad.LID
}

// Who works on the sending side of a queue pair: nobody, Send, or a reset. The two
// never wait for each other: Send then refuses, and a reset comes again.
const (
	busyNot = iota
	busySend
	busyReset
)

// newQueuePair makes a queue pair that sends but has no buffers yet.
func newQueuePair(p *Port, pkey uint16) (q *queuePair, err error) {
	q = &queuePair{port: p, pkey: pkey}
	q.gen.Store(1)
	defer func() {
		if err != nil {
			q.destroy()
		}
	}()
	sends := min(p.fabric.cfg.SendDepth, p.dev.maxWR)
	var e error
	if q.scq, e = C.ibv_create_cq(p.dev.ctx, C.int(sends), nil, nil, 0); q.scq == nil {
		return q, call("completion queue", e)
	}
	if q.qp, e = C.acm_create_qp(p.dev.pd, q.scq, p.dev.rcq, C.uint32_t(sends), C.uint32_t(p.depth)); q.qp == nil {
		return q, call("create", e)
	}
	if err := status("initialise (needs CAP_NET_RAW for the class's Q_Key)",
		C.acm_to_init(q.qp, C.uint8_t(p.num), C.uint16_t(pkey))); err != nil {
		return q, err
	}
	return q, status("ready to send", C.acm_to_rts(q.qp))
}

// qpn is the queue pair's number.
func (q *queuePair) qpn() mad.QPN { return mad.QPN(q.qp.qp_num) }

// arm takes slots for what is sent and for what comes, and posts these.
func (q *queuePair) arm() error {
	if q.armed.Load() {
		return nil
	}
	p := q.port
	// The ring is sized for the partitions that the port had when it was opened. A
	// later one has to do with less, and leaves some for those who use the port.
	sends := min(p.fabric.cfg.SendDepth, p.dev.maxWR)
	receives := max(min(p.depth, p.ring.Free()-sends-baseSlots/2), 0)
	tx, rx := make([]*ring.Slot, sends), make([]*ring.Slot, receives)
	tx, rx = tx[:p.ring.GetN(tx)], rx[:p.ring.GetN(rx)]
	if len(tx) < sends || len(rx) < minDepth {
		for _, s := range append(tx, rx...) {
			s.Release()
		}
		return fmt.Errorf("ring of %d slots has too few left for another partition", p.ring.Cap())
	}
	q.tx, q.rx, q.idle = tx, rx, make([]uint32, 0, len(tx))
	q.credit()
	q.postAll()
	q.armed.Store(true)
	return nil
}

// credit makes all places of the sending side idle.
func (q *queuePair) credit() {
	q.idle = q.idle[:0]
	for i := range q.tx {
		q.idle = append(q.idle, uint32(i))
	}
}

func (q *queuePair) attach(mgid mad.GID, mlid mad.LID) error {
	k := groupKey{mgid, mlid}
	for _, g := range q.groups {
		if g == k {
			return nil
		}
	}
	if err := q.arm(); err != nil {
		return err
	}
	if err := status("attach", C.acm_attach(q.qp, (*C.uint8_t)(&mgid[0]), C.uint16_t(mlid))); err != nil {
		return err
	}
	q.groups = append(q.groups, k)
	return nil
}

func (q *queuePair) detach(mgid mad.GID, mlid mad.LID) error {
	for i, g := range q.groups {
		if g == (groupKey{mgid, mlid}) {
			q.groups = append(q.groups[:i], q.groups[i+1:]...)
			return status("detach", C.acm_detach(q.qp, (*C.uint8_t)(&mgid[0]), C.uint16_t(mlid)))
		}
	}
	return nil
}

// destroy ends the queue pair; nothing may use it any more.
func (q *queuePair) destroy() {
	if q.qp != nil {
		for _, g := range q.groups {
			_ = C.acm_detach(q.qp, (*C.uint8_t)(&g.mgid[0]), C.uint16_t(g.mlid))
		}
		C.ibv_destroy_qp(q.qp)
	}
	q.ahs.clear()
	if q.scq != nil {
		C.ibv_destroy_cq(q.scq)
	}
	for _, s := range append(q.tx, q.rx...) {
		s.Release()
	}
	q.qp, q.scq, q.tx, q.rx, q.groups = nil, nil, nil, nil, nil
}
