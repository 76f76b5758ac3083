// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package fabric

import (
	"sync"
	"time"

	"acmd/mad"
	"acmd/mad/ring"
)

// message is one received MAD: the frame of a slot, and the whole MAD if it has
// more than one packet.
type message struct {
	raw  [ring.SlotSize]byte
	long []byte
}

func (m *message) header() *mad.UserHeader { return (*mad.UserHeader)(m.raw[:mad.UserHeaderSize]) }
func (m *message) mad() *mad.Packet        { return (*mad.Packet)(m.raw[mad.UserHeaderSize:]) }

// inbox is the receive side of a port: a bounded queue, what is still on its
// way, and, with kernel timers, the requests that wait for an answer.
type inbox struct {
	p      *port
	limit  int
	notify chan struct{} // a token for a Recv that waits

	mu      sync.Mutex
	queue   []message // ring buffer of head, n
	head, n int
	waiting bool
	wake    bool
	stopped bool
	late    schedule
	timer   *time.Timer
	pending map[uint32]*pending

	idle *time.Timer // of Recv, which is one goroutine
}

func (in *inbox) init(p *port, limit int) {
	in.p, in.limit = p, limit
	in.notify = make(chan struct{}, 1)
	if p.f.cfg.KernelTimers {
		in.pending = map[uint32]*pending{}
	}
}

// push queues messages that have arrived.
func (in *inbox) push(list []message) {
	in.mu.Lock()
	for i := range list {
		in.accept(&list[i])
	}
	in.signal()
	in.mu.Unlock()
}

// pushLater queues a message that arrives after d. It counts against the limit
// of the queue from now on.
func (in *inbox) pushLater(m *message, d time.Duration) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if d <= 0 {
		in.accept(m)
		in.signal()
		return
	}
	c := *m
	switch {
	case in.stopped:
	case in.n+in.late.len() >= in.limit:
		in.p.f.lost(in.p, &c, LostQueue)
	default:
		in.late.add(due{at: time.Now().Add(d), m: &c})
		in.arm()
	}
}

// accept queues one message. The caller holds in.mu.
func (in *inbox) accept(m *message) {
	switch {
	case in.stopped:
	case !in.expected(m):
		in.p.f.lost(in.p, m, LostUnasked)
	case in.n+in.late.len() >= in.limit:
		in.p.f.lost(in.p, m, LostQueue)
	default:
		*in.grow() = *m
		in.p.f.delivered(in.p, m)
	}
}

// grow makes room for one more message and returns it.
func (in *inbox) grow() *message {
	if in.n == len(in.queue) {
		next := make([]message, max(64, 2*len(in.queue)))
		k := copy(next, in.queue[in.head:])
		copy(next[k:], in.queue[:in.head])
		in.queue, in.head = next, 0
	}
	m := &in.queue[(in.head+in.n)%len(in.queue)]
	in.n++
	return m
}

// signal wakes a Recv that waits for what has come. The caller holds in.mu.
func (in *inbox) signal() {
	if in.waiting && (in.n > 0 || in.wake || in.stopped) {
		in.waiting = false
		select {
		case in.notify <- struct{}{}:
		default:
		}
	}
}

func (in *inbox) interrupt() {
	in.mu.Lock()
	in.wake = true
	in.signal()
	in.mu.Unlock()
}

// stop ends the inbox: nothing comes in any more, Recv returns.
func (in *inbox) stop() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.stopped = true
	in.queue, in.n, in.late, in.pending = nil, 0, schedule{}, nil
	if in.timer != nil {
		in.timer.Stop()
	}
	in.signal()
}

// recv is Port.Recv.
func (in *inbox) recv(slots []*ring.Slot, deadline time.Time) (int, error) {
	for {
		n, ready := in.take(slots, true)
		if err := in.p.dead(); err != nil {
			return 0, err
		}
		if ready || len(slots) == 0 {
			return n, nil
		}
		if deadline.IsZero() {
			<-in.notify
			continue
		}
		left := time.Until(deadline)
		if left > 0 {
			if in.idle == nil {
				in.idle = time.NewTimer(left)
			} else {
				in.idle.Reset(left)
			}
			select {
			case <-in.notify:
				in.idle.Stop()
				continue
			case <-in.idle.C:
			}
		}
		n, _ = in.take(slots, false)
		return n, in.p.dead()
	}
}

// take moves what there is into slots. ready says that Recv has to return; if it
// has not and will wait, the next message signals it.
func (in *inbox) take(slots []*ring.Slot, wait bool) (n int, ready bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	for n < len(slots) && in.n > 0 {
		m := &in.queue[in.head]
		s := slots[n]
		if m.header().Status() == mad.StatusTimeout {
			// Only the MAD header comes back, the rest of the slot is stale.
			copy(s.Bytes(), m.raw[:mad.UserHeaderSize+mad.HeaderSize])
		} else {
			copy(s.Bytes(), m.raw[:])
		}
		s.SetLong(m.long)
		m.long = nil
		in.head = (in.head + 1) % len(in.queue)
		in.n--
		n++
	}
	ready = n > 0 || in.wake || in.stopped
	in.wake = false
	in.waiting = wait && !ready
	return n, ready
}

// arm sets the timer to what is due first. The caller holds in.mu.
func (in *inbox) arm() {
	if in.late.empty() || in.stopped {
		return
	}
	d := max(0, time.Until(in.late.first().at))
	if in.timer == nil {
		in.timer = time.AfterFunc(d, in.fire)
	} else {
		in.timer.Reset(d)
	}
}

// fire delivers what is due and deals with time-outs that are over.
func (in *inbox) fire() {
	var again []*pending
	in.mu.Lock()
	now := time.Now()
	for !in.stopped && !in.late.empty() && !in.late.first().at.After(now) {
		d := in.late.pop()
		if d.m != nil {
			in.accept(d.m)
		} else if in.timeOut(d.wait, now) {
			again = append(again, d.wait)
		}
	}
	in.arm()
	in.signal()
	in.mu.Unlock()
	for _, q := range again {
		in.p.retransmit(q)
	}
}
