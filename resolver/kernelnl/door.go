// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package kernelnl

import (
	"errors"
	"log/slog"
	"time"

	"acmd/bpf"
	"acmd/resolver"
)

// Defaults and bounds.
const (
	DefaultWait    = 2 * time.Second        // the kernel's own (sa_query.c, IB_SA_LOCAL_SVC_TIMEOUT_DEFAULT)
	MinWait        = 100 * time.Millisecond // IB_SA_LOCAL_SVC_TIMEOUT_MIN
	MaxWait        = 200 * time.Second      // IB_SA_LOCAL_SVC_TIMEOUT_MAX
	DefaultPending = 1 << 14

	bufferSize = 4096 // a request has at most 200 bytes
	batch      = 64   // datagrams read before completions and deadlines have their turn
)

// Config has what a door needs. Engine is required.
type Config struct {
	Engine resolver.Resolver
	// Static is asked for the GID of an address behind a gateway; nil: nobody. It
	// must answer before Locate returns, what comes later is not used.
	Static resolver.AddressSource
	// Wait is how long the kernel waits for an answer; zero: DefaultWait. The door
	// sets it in the kernel.
	Wait    time.Duration
	Pending int          // requests that the engine may work on; 0: DefaultPending
	Log     *slog.Logger // nil: slog.Default
	// Counters is where the door counts beside its own [Stats]: what was asked, and
	// success or "no data", which is all that the kernel is told. nil: nowhere.
	Counters *bpf.Shard
}

// Door answers the requests that come in on a [Conn]. All methods are safe for
// concurrent use.
type Door struct {
	cfg   Config
	conn  Conn
	log   *slog.Logger
	count counters
	box   mailbox
	done  chan struct{}
	err   error // why the goroutine ended by itself; fixed once done is closed

	// Of the goroutine.
	table   table
	ending  bool            // no lookups any more
	said    map[string]bool // messages are logged once each
	items   []completion
	in, out []byte
	req     Request
	q       resolver.Query
	a       resolver.Answer
}

// New serves the requests that come in on conn, which is the door's from now on.
// The kernel's wait is set first; when that fails the door assumes the shorter of
// the kernel's default and what was wanted.
func New(conn Conn, cfg Config) *Door {
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	if cfg.Counters == nil {
		cfg.Counters = bpf.NewShard()
	}
	if cfg.Pending <= 0 {
		cfg.Pending = DefaultPending
	}
	if cfg.Wait == 0 {
		cfg.Wait = DefaultWait
	}
	cfg.Wait = min(max(cfg.Wait, MinWait), MaxWait) // what the kernel does with it
	if err := conn.SetWait(cfg.Wait); err != nil {
		cfg.Wait = min(cfg.Wait, DefaultWait)
		cfg.Log.Warn("the kernel's wait for path answers stays as it is", "assumed", cfg.Wait, "err", err)
	}
	d := &Door{
		cfg: cfg, conn: conn, log: cfg.Log, done: make(chan struct{}), table: newTable(cfg.Pending),
		said: map[string]bool{}, in: make([]byte, bufferSize), out: make([]byte, 0, AnswerLen),
	}
	d.box.wake = conn.Wake
	go d.run()
	return d
}

// Done is closed when the door serves no more.
func (d *Door) Done() <-chan struct{} { return d.done }

// Err tells why the door ended by itself, nil if it did not.
func (d *Door) Err() error {
	select {
	case <-d.done:
		return d.err
	default:
		return nil
	}
}

// Close tells the kernel that what it waits for will not come, and ends the door.
func (d *Door) Close() error {
	d.box.end()
	<-d.done
	return nil
}

func (d *Door) run() {
	defer close(d.done)
	d.err = d.serve()
	// The kernel is told, also about what it has asked and nobody has read, so that
	// it goes to the SA now and not when its wait is over.
	d.ending = true
	for more := d.err == nil; more; {
		more, _ = d.receive(time.Now())
	}
	for s, ok := d.table.due(endOfTime); ok; s, ok = d.table.due(endOfTime) {
		d.refuseBy(&s.h, s.last, &d.count.failed)
	}
	d.count.pending.Store(0)
	d.box.close()
	if err := d.conn.Close(); err != nil {
		d.log.Warn("close RDMA netlink", "err", err)
	}
}

var endOfTime = time.Unix(1<<40, 0)

// serve runs until the door is to end, or its socket is of no use.
func (d *Door) serve() error {
	// What is read came then or later. A door that was kept from running before it
	// could read cannot know better: a message of the kernel has no time in it.
	var arrived time.Time
	for more := false; ; {
		if !more {
			if err := d.conn.Wait(d.table.next()); err != nil {
				return err
			}
			arrived = time.Now()
		}
		var stop bool
		if d.items, stop = d.box.take(d.items); stop {
			return nil
		}
		for i := range d.items {
			d.complete(&d.items[i])
		}
		var err error
		if more, err = d.receive(arrived); err != nil {
			return err
		}
		d.expire()
		d.count.pending.Store(int64(d.table.waiting))
	}
}

// receive reads what there is, at most a batch, and tells if there may be more.
func (d *Door) receive(arrived time.Time) (more bool, err error) {
	for range batch {
		n, from, err := d.conn.Recv(d.in)
		switch {
		case errors.Is(err, ErrEmpty):
			return false, nil
		case errors.Is(err, ErrOverrun):
			d.count.overruns.Add(1)
			d.once("overrun", "the kernel asked faster than it could be answered; what was lost it asks the SA")
			continue
		case err != nil:
			return false, err
		}
		switch {
		case from != 0:
			d.count.foreign.Add(1)
			d.once("foreign", "message to the kernel's group that is not from the kernel, ignored", "port", from)
		case n > len(d.in):
			d.count.unreadable.Add(1)
			d.once("long", "message of the kernel ignored", "bytes", n)
		default:
			d.datagram(d.in[:n], arrived)
		}
	}
	return true, nil
}

// datagram handles the messages of one datagram.
func (d *Door) datagram(b []byte, arrived time.Time) {
	for len(b) > 0 {
		h, body, rest, err := Split(b)
		if err != nil {
			d.count.unreadable.Add(1)
			d.once("split", "message of the kernel ignored", "err", err)
			return
		}
		d.message(h, body, arrived)
		b = rest
	}
}

// once logs a message of a kind for the first time.
func (d *Door) once(kind, msg string, a ...any) {
	if !d.said[kind] {
		d.said[kind] = true
		d.log.Warn("kernel: "+msg+"; more of these are only counted", a...)
	}
}
