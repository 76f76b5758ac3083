// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package kernelfake

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"

	"acmd/mad"
	"acmd/mad/sa"
	"acmd/resolver/kernelnl"
)

// queueLimit is how many messages the receive buffer holds.
const queueLimit = 4096

// Resolve is what the kernel asks for in a RESOLVE; Service, TClass and QoS as in
// a query to the SA.
type Resolve struct {
	Device     string
	Port, Use  uint8
	Service    uint64 // 0: the attribute is left out
	DGID, SGID mad.GID
	TClass     uint8
	PKey       mad.PKey
	QoS        uint16 // 0: the attribute is left out
}

// Outcome is how a request of the kernel ended.
type Outcome uint8

const (
	Waiting  Outcome = iota
	Answered         // with Call.Path or Call.GID
	Refused          // the error flag: the kernel asks the SA now
	TimedOut         // no answer: the kernel asks the SA now
	Broken           // an answer that makes the caller fail, or gives it an empty path
)

// Call is one request of the kernel.
type Call struct {
	Seq     uint32
	Outcome Outcome       // fixed once Done is closed
	After   time.Duration // from the request on
	Path    sa.PathRecord
	GID     mad.GID
	done    chan struct{}

	key   key
	asked time.Time
	timer *time.Timer
}

// Done is closed when the request has ended.
func (c *Call) Done() <-chan struct{} { return c.done }

// Wait waits for the end and returns the outcome.
func (c *Call) Wait() Outcome { <-c.done; return c.Outcome }

type key struct {
	typ uint16
	seq uint32
}

// Counts is what the kernel saw of answers that nobody waited for.
type Counts struct {
	Late       int // for a request that had timed out
	Duplicates int // for one that had been answered
	Strays     int // for one that there never was
	Invalid    int // messages that are no answers
	Lost       int // requests that did not fit into the receive buffer
}

type message struct {
	from uint32
	b    []byte
}

// Kernel implements [kernelnl.Conn] for a door. All methods are safe for
// concurrent use, except Recv and Wait, which are the door's.
type Kernel struct {
	notify chan struct{} // something to read, or a wake

	mu      sync.Mutex
	wait    time.Duration
	seq     uint32
	waiting map[key]*Call
	ended   map[key]Outcome
	queue   []message
	overrun int
	counts  Counts
	sendErr error
	waitErr error
	stall   time.Duration
	broken  error
	closed  bool
}

var _ kernelnl.Conn = (*Kernel)(nil)

// New makes a kernel that waits 2 s for each answer.
func New() *Kernel {
	return &Kernel{notify: make(chan struct{}, 1), wait: kernelnl.DefaultWait, waiting: map[key]*Call{}, ended: map[key]Outcome{}}
}

// Resolve asks for a path.
func (k *Kernel) Resolve(q Resolve) *Call { return k.ask(typeResolve, q.body()) }

// ResolveIP asks for the GID of an address that is routed through a gateway.
func (k *Kernel) ResolveIP(ifindex int32, ip netip.Addr) *Call {
	return k.ask(typeIPResolve, ipBody(ifindex, ip))
}

// Ask sends a request of any operation.
func (k *Kernel) Ask(op uint16, body []byte) *Call { return k.ask(typeResolve|op, body) }

func (k *Kernel) ask(typ uint16, body []byte) *Call {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.seq++
	c := &Call{Seq: k.seq, key: key{typ, k.seq}, asked: time.Now(), done: make(chan struct{})}
	k.waiting[c.key] = c
	c.timer = time.AfterFunc(k.wait, func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.end(c, TimedOut)
	})
	k.put(message{0, frame(typ, flagRequest, c.Seq, body)})
	return c
}

// end ends a call that still waits. Called with the mutex.
func (k *Kernel) end(c *Call, o Outcome) {
	if k.waiting[c.key] != c {
		return
	}
	delete(k.waiting, c.key)
	k.ended[c.key] = o
	c.timer.Stop()
	c.Outcome, c.After = o, time.Since(c.asked)
	close(c.done)
}

// put queues a message for the door. Called with the mutex.
func (k *Kernel) put(m message) {
	if len(k.queue) >= queueLimit {
		k.counts.Lost++
		k.overrun = max(k.overrun, 1)
	} else {
		k.queue = append(k.queue, m)
	}
	k.Wake()
}

// Inject queues raw bytes as a datagram from a netlink port, 0 for the kernel.
func (k *Kernel) Inject(from uint32, b []byte) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.put(message{from, b})
}

// Overrun makes the next n reads fail as after lost messages.
func (k *Kernel) Overrun(n int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.overrun = n
	k.Wake()
}

// FailSends makes Send fail, nil: no longer. FailWait makes SetWait fail.
func (k *Kernel) FailSends(err error) { k.mu.Lock(); k.sendErr = err; k.mu.Unlock() }
func (k *Kernel) FailWait(err error)  { k.mu.Lock(); k.waitErr = err; k.mu.Unlock() }

// Stall makes the door's next Wait return so much later than it should, as on a
// machine that does not let it run. Break makes it return an error.
func (k *Kernel) Stall(d time.Duration) { k.mu.Lock(); k.stall = d; k.mu.Unlock(); k.Wake() }
func (k *Kernel) Break(err error)       { k.mu.Lock(); k.broken = err; k.mu.Unlock(); k.Wake() }

// Counts returns what there was besides answers in order.
func (k *Kernel) Counts() Counts { k.mu.Lock(); defer k.mu.Unlock(); return k.counts }

// Timeout is how long the kernel waits.
func (k *Kernel) Timeout() time.Duration { k.mu.Lock(); defer k.mu.Unlock(); return k.wait }

// Closed tells whether the door has closed its socket.
func (k *Kernel) Closed() bool { k.mu.Lock(); defer k.mu.Unlock(); return k.closed }

// Wait implements [kernelnl.Conn].
func (k *Kernel) Wait(deadline time.Time) error {
	if !k.readable() {
		k.sleep(deadline)
	}
	k.mu.Lock()
	stall, broken := k.stall, k.broken
	k.stall = 0
	k.mu.Unlock()
	time.Sleep(stall)
	return broken
}

func (k *Kernel) readable() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.queue) > 0 || k.overrun > 0
}

func (k *Kernel) sleep(deadline time.Time) {
	var over <-chan time.Time // never
	if !deadline.IsZero() {
		t := time.NewTimer(time.Until(deadline))
		defer t.Stop()
		over = t.C
	}
	select {
	case <-k.notify:
	case <-over:
	}
}

// Recv implements [kernelnl.Conn].
func (k *Kernel) Recv(b []byte) (int, uint32, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.overrun > 0:
		k.overrun--
		return 0, 0, kernelnl.ErrOverrun
	case len(k.queue) == 0:
		return 0, 0, kernelnl.ErrEmpty
	}
	m := k.queue[0]
	k.queue = k.queue[1:]
	copy(b, m.b)
	return len(m.b), m.from, nil
}

// Wake implements [kernelnl.Conn].
func (k *Kernel) Wake() {
	select {
	case k.notify <- struct{}{}:
	default:
	}
}

// SetWait implements [kernelnl.Conn] with the kernel's bounds.
func (k *Kernel) SetWait(d time.Duration) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.waitErr != nil {
		return k.waitErr
	}
	k.wait = min(max(d, kernelnl.MinWait), kernelnl.MaxWait)
	return nil
}

// Close implements [kernelnl.Conn].
func (k *Kernel) Close() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		return net.ErrClosed
	}
	k.closed = true
	return nil
}

var errShort = errors.New("short message")

// Send implements [kernelnl.Conn]: the kernel takes an answer in.
func (k *Kernel) Send(b []byte) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.sendErr != nil {
		return k.sendErr
	}
	ne := binary.NativeEndian
	if len(b) < headerLen || int(ne.Uint32(b)) != len(b) {
		k.counts.Invalid++
		return errShort
	}
	typ, flags, seq := ne.Uint16(b[4:]), ne.Uint16(b[6:]), ne.Uint32(b[8:])
	if flags&flagRequest != 0 {
		k.counts.Invalid++
		k.put(message{0, frame(typeError, 0, seq, permissionDenied)})
		return nil
	}
	id := key{typ, seq}
	c := k.waiting[id]
	if c == nil {
		switch o, known := k.ended[id]; {
		case !known:
			k.counts.Strays++
		case o == TimedOut:
			k.counts.Late++
		default:
			k.counts.Duplicates++
		}
		return nil
	}
	k.end(c, c.judge(flags, b[headerLen:]))
	return nil
}
