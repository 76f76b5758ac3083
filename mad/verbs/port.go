// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//go:build verbs && cgo

package verbs

// #include "shim.h"
import "C"

import (
	"fmt"
	"math"
	"net"
	"sync/atomic"
	"time"

	"acmd/mad"
	"acmd/mad/ring"
	"acmd/mad/transport"
)

// Port is a port of another transport with queue pairs. The rules of its methods
// are those of [transport.Port].
type Port struct {
	fabric *Fabric
	device string
	num    uint8
	inner  transport.Port
	caps   transport.Caps
	ring   *ring.Ring
	dev    *device
	depth  int // receive buffers of a queue pair
	gate   *transport.Gate
	kick   int // eventfd of a pollable port, else -1: there may be completions to look at
	idle   int // its epoll descriptor for completions while no loop has it

	woken  atomic.Bool
	driven atomic.Bool                  // a loop has the port
	fresh  atomic.Bool                  // the channel told of completions
	qps    atomic.Pointer[[]*queuePair] // changed by Send's goroutine
	first  *queuePair                   // of the default partition
	base   time.Time
	asked  atomic.Int64 // since base: when we last multicast

	rx    rxState
	stats counters
}

var (
	_ transport.Port = (*Port)(nil)
	_ Counted        = (*Port)(nil)
)

type counters struct {
	received, sent, foreign, recvErrors, sendErrors, stale, resets, full, capped atomic.Uint64
}

// Stats implements [Counted].
func (p *Port) Stats() Stats {
	c := &p.stats
	return Stats{Received: c.received.Load(), Sent: c.sent.Load(), Foreign: c.foreign.Load(), RecvErrors: c.recvErrors.Load(),
		SendErrors: c.sendErrors.Load(), Stale: c.stale.Load(), Resets: c.resets.Load(), Full: c.full.Load(), Capped: c.capped.Load()}
}

// newPort makes the queue pair of the default partition, to see that it can be
// had. On an error inner stays open and the caller's.
func newPort(f *Fabric, inner transport.Port, name string, info *transport.PortInfo) (_ *Port, err error) {
	n := partitions(info.PKeys)
	r, err := ring.New(f.cfg.slots(n), f.cfg.Poison)
	if err != nil {
		return nil, err
	}
	p := &Port{fabric: f, device: name, num: info.Num, inner: inner, ring: r, gate: transport.NewGate(), kick: -1, idle: -1, base: time.Now()}
	p.asked.Store(math.MinInt64 / 2)
	p.qps.Store(&[]*queuePair{})
	defer func() {
		if err != nil {
			p.free()
		}
	}()
	if p.dev, err = openDevice(name, r, r.Cap()); err != nil {
		p.dev = nil
		return nil, err
	}
	p.depth = min(f.cfg.depth(n), p.dev.maxWR)
	if p.first, err = p.queue(info.SAPKeyIndex()); err != nil {
		return nil, err
	}
	p.caps = inner.Caps()
	p.caps.Multicast, p.caps.Listens, p.caps.QPN = true, true, p.first.qpn()
	completions := p.channelFD()
	if _, ok := inner.(transport.Pollable); ok {
		if err = p.watchAll(); err != nil {
			return nil, err
		}
		completions = p.idle
	}
	if err = p.dev.watch(completions, name+" completions", p.completion); err != nil {
		return nil, err
	}
	if err = p.dev.watch(int(p.dev.ctx.async_fd), name+" events", p.event); err != nil {
		return nil, err
	}
	return p, nil
}

// completion takes an event of the completion channel. A loop that has just taken
// the port is told of it as well.
func (p *Port) completion() error {
	if r, err := C.acm_cq_event(p.dev.channel); r != 0 {
		return err
	}
	p.fresh.Store(true)
	if p.driven.Load() {
		p.signal()
		return nil
	}
	p.inner.Wake()
	return nil
}

// event takes an asynchronous event of the device.
func (p *Port) event() error {
	var kind, num C.int
	if r, err := C.acm_async_event(p.dev.ctx, &kind, &num); r != 0 {
		return err
	}
	switch t := transport.EventType(kind); t {
	case transport.EventDeviceFatal:
		// Nothing works any more until the device was reset; what we hold of it may
		// hold up just that.
		p.fabric.tell(transport.Event{Type: t, Device: p.device})
		p.end(fmt.Errorf("verbs: %s: fatal event: %w", p.device, transport.ErrGone))
		p.signal() // a loop that has the port hears of it, too
	case transport.EventPortActive, transport.EventPortError, transport.EventLIDChange, transport.EventPKeyChange,
		transport.EventSMChange, transport.EventReregister, transport.EventGIDChange:
		if uint8(num) == p.num {
			p.fabric.tell(transport.Event{Type: t, Device: p.device, Port: p.num})
		}
	}
	return nil
}

// Ring implements [transport.Port].
func (p *Port) Ring() *ring.Ring { return p.ring }

// Caps implements [transport.Port].
func (p *Port) Caps() transport.Caps { return p.caps }

// Wake implements [transport.Port].
func (p *Port) Wake() {
	p.woken.Store(true)
	p.inner.Wake()
}

// JoinQP implements [transport.Port].
func (p *Port) JoinQP(mgid mad.GID, mlid mad.LID, pkeyIndex uint16) error {
	if err := p.enter(); err != nil {
		return err
	}
	defer p.gate.Leave()
	if !mgid.IsMulticast() || mlid.IsUnicast() || mlid == 0 || mlid == 0xffff {
		return fmt.Errorf("verbs: %v with LID %v is no multicast group", mgid, mlid)
	}
	q, err := p.queue(pkeyIndex)
	if err != nil {
		return err
	}
	if err := q.attach(mgid, mlid); err != nil {
		return fmt.Errorf("verbs: %s: queue pair 0x%06x: %w", p.device, uint32(q.qpn()), err)
	}
	return nil
}

// LeaveQP implements [transport.Port]. The queue pairs stay for the next group.
func (p *Port) LeaveQP(mgid mad.GID, mlid mad.LID) (err error) {
	if err := p.enter(); err != nil {
		return err
	}
	defer p.gate.Leave()
	for _, q := range *p.qps.Load() {
		if e := q.detach(mgid, mlid); e != nil {
			err = fmt.Errorf("verbs: %s: queue pair 0x%06x: %w", p.device, uint32(q.qpn()), e)
		}
	}
	return err
}

// queue finds or makes the queue pair of a partition.
func (p *Port) queue(pkeyIndex uint16) (*queuePair, error) {
	list := *p.qps.Load()
	for _, q := range list {
		if q.pkey == pkeyIndex {
			return q, nil
		}
	}
	q, err := newQueuePair(p, pkeyIndex)
	if err != nil {
		return nil, fmt.Errorf("verbs: %s: queue pair for P_Key index %d: %w", p.device, pkeyIndex, err)
	}
	list = append(list[:len(list):len(list)], q)
	p.qps.Store(&list)
	return q, nil
}

func (p *Port) enter() error {
	if err := p.gate.Enter(); err != nil {
		return fmt.Errorf("verbs: %w", err)
	}
	return nil
}

// end makes all calls fail with cause.
func (p *Port) end(cause error) bool {
	first := p.gate.Shut(cause)
	p.inner.Wake()
	return first
}

// Close implements [transport.Port].
func (p *Port) Close() error {
	p.end(net.ErrClosed)
	p.gate.SetCause(net.ErrClosed)
	p.gate.Wait()
	if !p.fabric.forget(p) {
		return nil // closed before, or just now by another
	}
	p.free()
	return p.inner.Close()
}

// free gives everything back but the port that is wrapped.
func (p *Port) free() {
	for _, q := range *p.qps.Load() {
		q.destroy()
	}
	p.qps.Store(&[]*queuePair{})
	if p.dev != nil {
		p.dev.close()
	}
	p.unwatch() // nothing signals any more
	p.ring.Retire()
}
