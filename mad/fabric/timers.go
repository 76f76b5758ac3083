// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package fabric

import (
	"errors"
	"fmt"
	"time"

	"acmd/mad"
)

// errOutstanding is what umad's write says of a TID that still waits (EINVAL).
var errOutstanding = errors.New("a request with this TID is outstanding")

// pending is a request under the care of the kernel's timers, as ib_mad keeps
// it: until its answer comes or its time is over.
type pending struct {
	raw   message // as it was sent
	tid   mad.TID // with our upper half
	tries uint32  // left
	each  time.Duration
	done  bool
}

// pendingKey tells apart what the kernel does: class and low half of the TID.
func pendingKey(class uint8, tid mad.TID) uint32 {
	// Only classes SA and ACM are asked here; one bit of the TID's complement
	// keeps them apart without a wider key.
	if class == mad.ClassACM {
		return ^tid.Low()
	}
	return tid.Low()
}

// expect starts the timer of a request.
func (in *inbox) expect(h *mad.UserHeader, m *mad.Packet, tid mad.TID) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.stopped {
		return in.p.dead()
	}
	key := pendingKey(m.Class(), tid)
	if in.pending[key] != nil {
		return fmt.Errorf("fabric: TID %v: %w", m.TID(), errOutstanding)
	}
	if len(in.pending) >= in.limit {
		return fmt.Errorf("fabric: %d requests are outstanding", len(in.pending))
	}
	q := &pending{tid: tid, tries: h.Retries(), each: time.Duration(h.TimeoutMS()) * time.Millisecond}
	*q.raw.header(), *q.raw.mad() = *h, *m
	in.pending[key] = q
	in.late.add(due{at: time.Now().Add(q.each), wait: q})
	in.arm()
	return nil
}

// expected says whether a message may be delivered: with kernel timers an answer
// is taken once and only while its request waits. The caller holds in.mu.
func (in *inbox) expected(m *message) bool {
	p := m.mad()
	if in.pending == nil || !p.IsResponse() || m.header().Status() != 0 {
		return true
	}
	key := pendingKey(p.Class(), p.TID())
	q := in.pending[key]
	if q == nil || q.tid != p.TID() {
		// ACM answers to a port's own queue pair do not pass through the kernel.
		return p.Class() == mad.ClassACM && in.p.caps.Listens
	}
	q.done = true
	delete(in.pending, key)
	in.late.cancel()
	return true
}

// timeOut ends one try of a request: it returns true if there is another one,
// else the request comes back. The caller holds in.mu.
func (in *inbox) timeOut(q *pending, now time.Time) (again bool) {
	if q.done {
		return false
	}
	if q.tries > 0 {
		q.tries--
		in.late.add(due{at: now.Add(q.each), wait: q})
		return true
	}
	delete(in.pending, pendingKey(q.raw.mad().Class(), q.tid))
	q.raw.header().SetStatus(mad.StatusTimeout)
	q.raw.header().SetLength(0)
	q.raw.mad().SetTID(q.tid)
	in.p.f.count.timeouts.Add(1)
	in.p.f.trace(in.p, TimedOut, 0, &q.raw)
	*in.grow() = q.raw // not bound by the queue: it was when it was sent
	return false
}

// retransmit is the kernel's own try of a request whose answer did not come.
func (p *port) retransmit(q *pending) {
	var got []message
	p.route(p.f.world.Load(), q.raw.header(), q.raw.mad(), q.tid, &got)
	if len(got) > 0 {
		p.in.push(got)
	}
}
