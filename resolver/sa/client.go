// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package sa

import (
	crand "crypto/rand"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"acmd/mad"
	"acmd/mad/ring"
	madsa "acmd/mad/sa"
	"acmd/mad/transport"
)

// Client is the SA client and owner of one port. Path, Do, Handle, Post, Update,
// Subscribe, Reregister, Stats, Info, Caps, Done, Err and Close are safe for concurrent use; SendTo,
// Reply, Start and Stop belong to the owner goroutine, that is, to callbacks.
type Client struct {
	port transport.Port
	caps transport.Caps
	cfg  Config
	log  *slog.Logger
	base time.Time // clock zero

	// What others bring. inbox and posts are taken as a whole by the owner.
	mu     sync.Mutex
	inbox  list
	posts  []func()
	spare  []func() // the other of two buffers for posts
	atEnd  []func(error)
	closed error // set once the owner takes nothing more

	fresh     atomic.Bool  // inbox, posts, info, forgotten or stop is waiting
	forgotten atomic.Bool  // Reregister was called
	asleep    atomic.Bool  // the owner may be in Recv and needs a Wake
	stop      atomic.Bool  // Close was called
	pending   atomic.Int64 // flights in hand
	engaged   atomic.Int64 // what others wait for
	info      atomic.Pointer[transport.PortInfo]
	handlers  [256]atomic.Pointer[func(*ring.Slot)]
	flights   sync.Pool
	done      chan struct{}
	quit      chan struct{} // closed by Close, ends a pause
	once      sync.Once

	count counters

	poll  transport.Pollable // the port, if a loop can have the turns
	owner atomic.Int32       // who has them
	wake  atomic.Pointer[func()]
	back  chan struct{} // the loop is done

	// The rest belongs to the owner goroutine.
	rnd      *rand.Rand
	now      int64               // clock at the start of this turn
	cur      *transport.PortInfo // the info in force
	pkey     uint16              // its P_Key index towards the SA
	byTID    map[uint32]*flight  // flights on the wire or delayed
	queue    list                // not yet in the window
	retry    list                // in the window, next try due
	timers   timerHeap           //
	limit    *rateLimit          //
	window   int                 // flights that may be in progress
	seated   int                 // flights that are
	shrunk   int64               // when the window was last halved
	owing    int64               // since when the SA owes an answer: its last one, or the first question since
	inARow   int                 // time-outs since the last answer
	hold     int64               // no SA sends before, unless Update comes
	suspect  int64               // Suspect is not called again before
	in       []*ring.Slot        // receive slots, borrowed for good
	out      []*ring.Slot        // send slots, borrowed for good
	outWhose []*flight           // whose try out[i] is; nil for datagrams
	nout     int                 // slots of out that wait for flush
	send     func([]*ring.Slot) (int, error)
	dead     error                // the port's end, seen while sending
	pause    time.Duration        // after a passing fault of Recv
	result   Result               // handed to callbacks
	warned   map[string]time.Time // log lines by kind, for their rate
	notices  notices              // the subscription to them
	slow     []func()             // what waits for the goroutine, as it may block
}

// Batch sizes. More than the largest automatic window is of no use.
const (
	recvBatch = 32
	sendBatch = 16
)

// Open starts a client on p, which it owns from now on: Close closes it. info is
// the port's state as known; Update replaces it. A ring without free slots is
// fatal: requests then fail with the error that Err returns.
func Open(p transport.Port, info transport.PortInfo, cfg Config, log *slog.Logger) *Client {
	cfg.normalize()
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	var seed [32]byte
	crand.Read(seed[:]) // never fails
	c := &Client{
		port: p, caps: p.Caps(), cfg: cfg, log: log, base: time.Now(),
		rnd:    rand.New(rand.NewChaCha8(seed)),
		byTID:  make(map[uint32]*flight, 2*AutoWindow),
		limit:  newRateLimit(cfg.MaxRate),
		window: cfg.Depth,
		shrunk: -1,
		done:   make(chan struct{}), quit: make(chan struct{}), back: make(chan struct{}, 1),
		warned: make(map[string]time.Time),
	}
	c.flights.New = func() any { return new(flight) }
	if c.auto() {
		c.window = AutoWindow / 4
	}
	c.count.init(cfg.Counters)
	c.count.window.Store(int64(c.window))
	c.poll, _ = p.(transport.Pollable)
	c.info.Store(&info)
	c.cur, c.pkey = &info, info.SAPKeyIndex()
	go c.run()
	return c
}

func (c *Client) auto() bool { return c.cfg.Depth <= 1 }

// clock is nanoseconds since Open, monotonic.
func (c *Client) clock() int64 { return int64(time.Since(c.base)) }

// Path asks for one PathRecord (SubnAdmGet). rec is copied. done is called
// exactly once: on the owner goroutine, or before Path returns when the request
// is refused at once (closed, queue full). Answers whose constrained GIDs, LIDs
// or P_Key (bit 15 aside) are not those of rec are never reported.
func (c *Client) Path(mask madsa.ComponentMask, rec *madsa.PathRecord, done func(*Result)) {
	f := c.newFlight(done)
	f.method, f.attr, f.mask = mad.MethodGet, madsa.AttrPathRecord, mask
	f.size = uint16(copy(f.data[:], rec[:]))
	f.norecsN = c.cfg.RetryNoRecords
	c.submit(f)
}

// Do sends any SA request; done is as in Path. An attribute that does not fit or
// a method that has no answer fails with ErrQuery.
func (c *Client) Do(q *Query, done func(*Result)) {
	if len(q.Data) > madsa.DataSize || responseMethod(q.Method) == 0 {
		done(&Result{Err: ErrQuery})
		return
	}
	f := c.newFlight(done)
	f.method, f.attr, f.mod, f.mask = q.Method, q.Attr, q.Mod, q.Mask
	f.size = uint16(copy(f.data[:], q.Data))
	f.norecsN = min(max(q.RetryNoRecords, 0), MaxRetries)
	if q.Tries > 0 {
		f.retries = min(q.Tries-1, MaxRetries)
	}
	f.base = max(f.base, int64(q.Gap))
	f.cap = max(f.cap, f.base)
	c.submit(f)
}

// responseMethod returns the method of the answer, 0 for what has none.
func responseMethod(m uint8) uint8 {
	switch m {
	case mad.MethodGet, mad.MethodSet:
		return mad.MethodGetResp
	case mad.MethodGetTable, mad.MethodDelete:
		return m | mad.MethodResponse
	}
	return 0
}

func (c *Client) newFlight(done func(*Result)) *flight {
	f := c.flights.Get().(*flight)
	*f = flight{done: done, base: int64(MinGap), cap: int64(c.cfg.Timeout), retries: c.cfg.Retries}
	f.timer.owner = f
	return f
}

func (c *Client) submit(f *flight) {
	if c.pending.Add(1) > int64(c.cfg.Queue) {
		c.refuse(f, ErrQueueFull)
		return
	}
	c.mu.Lock()
	if err := c.closed; err != nil {
		c.mu.Unlock()
		c.refuse(f, err)
		return
	}
	c.inbox.push(f)
	c.mu.Unlock()
	c.count.queries.Add(1)
	c.notify()
}

func (c *Client) refuse(f *flight, err error) {
	c.pending.Add(-1)
	c.count.refused.Add(1)
	done := f.done
	*f = flight{}
	c.flights.Put(f)
	done(&Result{Err: err})
}

// notify makes the owner look at what is fresh. It costs a system call only when
// the owner may be asleep, and then only the first of several.
func (c *Client) notify() {
	c.fresh.Store(true)
	if c.owner.Load() == ownerLoop {
		(*c.wake.Load())()
		return
	}
	if c.asleep.CompareAndSwap(true, false) {
		c.port.Wake()
	}
}

// Post runs fn on the owner goroutine, soon. It fails with ErrQueueFull, or the error
// that ended the client; fn is then not called. Once Post returned nil, fn is
// called, if need be while the client ends, when SendTo does nothing any more.
func (c *Client) Post(fn func()) error {
	c.mu.Lock()
	switch {
	case c.closed != nil:
		err := c.closed
		c.mu.Unlock()
		return err
	case len(c.posts) >= c.cfg.Queue:
		c.mu.Unlock()
		c.count.refused.Add(1)
		return ErrQueueFull
	}
	c.posts = append(c.posts, fn)
	c.mu.Unlock()
	c.notify()
	return nil
}

// AtEnd registers fn to be called on the owner goroutine when the client ends,
// after what was posted, so that whoever keeps state there can drop it. It fails
// with the error that ended the client.
func (c *Client) AtEnd(fn func(error)) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed != nil {
		return c.closed
	}
	c.atEnd = append(c.atEnd, fn)
	return nil
}

// Handle gives packets of a management class to fn, on the owner goroutine; the
// slot is valid during the call. For the SA class these are requests, that is,
// Reports; for other classes everything. nil takes the handler away.
func (c *Client) Handle(class uint8, fn func(*ring.Slot)) {
	if fn == nil {
		c.handlers[class].Store(nil)
		return
	}
	c.handlers[class].Store(&fn)
}

// Update replaces what is known of the port: addresses of the SM, P_Key index,
// state. Questions that wait go to the new address; those on the wire are asked
// again there soon when the SM has moved. A port that is not active, or has no
// SM, fails what is queued with ErrNoSM.
func (c *Client) Update(info transport.PortInfo) {
	c.info.Store(&info)
	c.notify()
}

// Info is the port's state as last given. It must not be changed.
func (c *Client) Info() *transport.PortInfo { return c.info.Load() }

// Caps says what the port can do.
func (c *Client) Caps() transport.Caps { return c.caps }

// JoinQP passes a group membership on to the port, and calls done with what that
// gave. An adapter may take its time: in a loop's turn it waits until the loop has
// given the client back, which it is then told to do. Owner goroutine only.
func (c *Client) JoinQP(mgid mad.GID, mlid mad.LID, pkeyIndex uint16, done func(error)) {
	c.apart(func() { done(c.port.JoinQP(mgid, mlid, pkeyIndex)) })
}

// LeaveQP undoes JoinQP, in the order of the calls. Owner goroutine only.
func (c *Client) LeaveQP(mgid mad.GID, mlid mad.LID) {
	// An error means that nothing is received any more either way.
	c.apart(func() { _ = c.port.LeaveQP(mgid, mlid) })
}

// Done is closed when the owner goroutine has ended: after Close, or because the
// device is gone. Err then says why.
func (c *Client) Done() <-chan struct{} { return c.done }

// Err is nil while the client works, ErrClosed after Close, else what ended it.
func (c *Client) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed
}

// Close ends the client and closes its port. Every pending callback has been
// called, with an error, when it returns. It must not be called from a callback.
func (c *Client) Close() {
	c.once.Do(func() { close(c.quit) })
	c.stop.Store(true)
	c.notify()
	<-c.done
}
