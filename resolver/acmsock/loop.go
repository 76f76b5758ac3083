// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acmsock

import (
	"fmt"
	"runtime"
	"time"

	"acmd/bpf"
	"acmd/resolver"

	"golang.org/x/sys/unix"
)

const (
	// readSize bounds what is read of one client in its turn, and outLimit what
	// is written in one go: replies to a whole read of ordinary requests fit.
	readSize = 8 << 10
	outLimit = 16 << 10
	// keepOut is the capacity up to which the reply buffer is kept.
	keepOut = 256 << 10

	eventBatch = 128

	// yieldEvery is how often a busy loop lets the scheduler see it. A goroutine
	// that spends all its time in short system calls never passes the scheduler;
	// after 10 ms the runtime's monitor takes it for stuck, wakes every 20 us and
	// takes its processor away in each epoll_wait. Yielding keeps the monitor
	// asleep and saves about a tenth of the CPU time of a cached resolve. It is
	// cheap because the goroutine is not locked to a thread: locking made each
	// yield, and each lost processor, a hand-over between two threads.
	yieldEvery = int64(2 * time.Millisecond)
)

// Marks in the second word of an epoll event; connections have their generation
// there, which is positive.
const (
	markMailbox  = -1
	markListener = -2
	markPort     = -3
)

// loop serves its connections. Everything in it belongs to the goroutine of
// main, except the mailbox and the counters.
type loop struct {
	srv   *Server
	ep    int
	box   *mailbox
	done  chan struct{}
	stats loopStats
	count *bpf.Shard
	// before is what the slot of count had when the loop began.
	before traffic

	listeners []listener // only of the first loop
	spare     int        // descriptor to give up for a rejection
	paused    int64      // no accepting until then, 0: accepting
	nextLoop  int
	lastWarn  int64

	conns    []*conn          // by descriptor
	fast     map[uint16]*conn // on the fast path, by the client's port
	open     int
	gen      int32
	draining bool
	stopped  bool
	yielded  int64 // when the scheduler last saw the loop, engine's clock
	seen     int64 // what the engine's clock said around the last hit, 0: something else was done since

	base   time.Time
	timers [numTimers]timerList

	portList *[]Port // the server's list that ports was made from
	ports    []driven
	driving  int   // of them the loop has
	dense    bool  // misses follow each other closely
	lastMiss int64 // clock
	lingerer lingerer
	alone    bool // the turn has one event

	// Scratch of the connection in hand.
	in, out  []byte
	q        resolver.Query
	a        resolver.Answer
	now      int64  // engine's clock
	hits     uint64 // requests answered since now that are not timed yet
	bytesIn  uint64
	bytesOut uint64

	items   []completion
	fds     []handoff
	touched []*conn
	dropped [readSize]byte // what take reads
	msg     unix.Msghdr    // of peek
	iov     unix.Iovec
	events  [eventBatch]unix.EpollEvent
}

func newLoop(s *Server) (*loop, error) {
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("epoll: %w", err)
	}
	box, err := newMailbox()
	if err != nil {
		unix.Close(ep)
		return nil, err
	}
	l := &loop{
		srv: s, ep: ep, box: box, spare: -1, count: s.cfg.Counters.OwnShard(),
		done: make(chan struct{}), base: time.Now(),
		in: make([]byte, readSize), out: make([]byte, 0, outLimit+MaxRequest),
		lingerer: lingerer{yield: schedYield},
	}
	l.before = l.traffic()
	l.timers[timerPartial] = timerList{kind: timerPartial, timeout: s.cfg.PartialTimeout}
	l.timers[timerBlocked] = timerList{kind: timerBlocked, timeout: s.cfg.WriteTimeout}
	// Edge triggered: the counter is never read, each write is a new edge.
	ev := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET, Pad: markMailbox}
	if err := unix.EpollCtl(ep, unix.EPOLL_CTL_ADD, box.efd, &ev); err != nil {
		l.free()
		return nil, fmt.Errorf("epoll: %w", err)
	}
	return l, nil
}

// free closes the loop's own descriptors.
func (l *loop) free() {
	for _, h := range l.box.close() {
		l.abandon(h)
	}
	if l.spare >= 0 {
		unix.Close(l.spare)
	}
	unix.Close(l.ep)
}

func (l *loop) clock() int64 { return int64(time.Since(l.base)) }

// main runs until the server has ended.
func (l *loop) main() {
	defer close(l.done)
	for {
		if l.box.poked.Swap(false) || l.driving > 0 || l.dense {
			l.drive()
		}
		if l.box.full.Load() {
			l.mail()
		}
		if l.stopped || l.draining && l.open == 0 {
			break
		}
		l.expire()
		l.publish()
		n := l.wait()
		l.alone = n == 1
		for i := range l.events[:n] {
			l.event(&l.events[i])
		}
	}
	l.end()
}

// wait blocks for events. The blocking system call goes through the scheduler,
// which lends the processor to others meanwhile.
func (l *loop) wait() int {
	now := l.seen // a hit has read the clock twice, that is enough
	if l.seen = 0; now == 0 {
		now = l.srv.r.Now()
	}
	if now-l.yielded > yieldEvery {
		l.yielded = now
		runtime.Gosched()
	}
	if n := l.linger(); n > 0 {
		return n
	}
	timeout := l.timeout()
	l.box.sleeping.Store(true)
	if l.box.full.Load() || l.box.poked.Load() {
		timeout = 0
	}
	n, err := unix.EpollWait(l.ep, l.events[:], timeout)
	l.box.sleeping.Store(false)
	if err != nil {
		return 0 // interrupted
	}
	return n
}

// timeout is how long nothing falls due, in milliseconds, rounded up; -1: for
// ever.
func (l *loop) timeout() int {
	end := l.paused
	for i := range l.timers {
		end = l.timers[i].next(end)
	}
	for i := range l.ports {
		if d := &l.ports[i]; d.mine && (end == 0 || d.next < end) {
			end = d.next
		}
	}
	if end == 0 {
		return -1
	}
	left := end - l.clock()
	return int(max(0, (left+int64(time.Millisecond)-1)/int64(time.Millisecond)))
}

// expire closes the clients whose deadline is over and resumes accepting.
func (l *loop) expire() {
	if l.paused == 0 && l.timers[timerPartial].first == nil && l.timers[timerBlocked].first == nil {
		return
	}
	now := l.clock()
	for c := l.timers[timerPartial].due(now); c != nil; c = l.timers[timerPartial].due(now) {
		l.close(c, ClosedPartial)
	}
	for c := l.timers[timerBlocked].due(now); c != nil; c = l.timers[timerBlocked].due(now) {
		l.close(c, ClosedBlocked)
	}
	if l.paused != 0 && l.paused <= now {
		l.resume()
	}
}

// publish makes the counts of the hot path visible, once for each batch.
func (l *loop) publish() {
	if l.bytesIn|l.bytesOut == 0 {
		return
	}
	l.count.Add(bpf.BytesIn, l.bytesIn)
	l.count.Add(bpf.BytesOut, l.bytesOut)
	l.bytesIn, l.bytesOut = 0, 0
}

// traffic is what a loop counts in its slot and [Stats] shows.
type traffic struct{ requests, in, out uint64 }

// traffic reads the loop's slot; from any goroutine.
func (l *loop) traffic() traffic {
	t := traffic{in: l.count.Load(bpf.BytesIn), out: l.count.Load(bpf.BytesOut)}
	for d := range bpf.NumDoors {
		for k := range bpf.KindInvalid { // a header that frames nothing is no request
			t.requests += l.count.Load(bpf.RequestWord(d, k))
		}
	}
	return t
}

func (l *loop) event(ev *unix.EpollEvent) {
	switch ev.Pad {
	case markMailbox:
		return // looked at in every turn
	case markListener:
		l.seen = 0
		l.acceptFrom(int(ev.Fd))
		return
	case markPort:
		l.portReadable(int(ev.Fd))
		return
	}
	c := l.conns[ev.Fd]
	if c == nil || c.gen != ev.Pad {
		return // closed earlier in this batch
	}
	if ev.Events&unix.EPOLLOUT != 0 && len(c.out) > 0 {
		l.write(c)
		if c.closed {
			return
		}
	}
	switch {
	case ev.Events&unix.EPOLLIN != 0 && c.events&unix.EPOLLIN != 0:
		l.read(c, ev.Events&(unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0)
	case ev.Events&(unix.EPOLLHUP|unix.EPOLLERR) != 0:
		// Nobody is left to read what is owed.
		l.close(c, ClosedByClient)
	}
}

// mail handles what other goroutines brought.
func (l *loop) mail() {
	var o order
	l.seen = 0
	l.items, l.fds, o = l.box.take(l.items, l.fds)
	for _, g := range l.box.takeGuarded() {
		l.guarded(&g)
	}
	for _, h := range l.fds {
		l.adopt(h)
	}
	for i := range l.items {
		l.complete(&l.items[i])
	}
	for i, c := range l.touched {
		c.queued = false
		if !c.closed {
			l.run(c, c.in)
		}
		l.touched[i] = nil
	}
	l.touched = l.touched[:0]
	if o&orderStop != 0 {
		l.stopped = true
	}
	if o&orderDrain != 0 {
		l.drain()
	}
}

// complete puts an answer into its slot.
func (l *loop) complete(m *completion) {
	c := m.c
	c.waiting--
	if c.closed {
		return
	}
	if !c.queued {
		c.queued = true
		l.touched = append(l.touched, c)
	}
	if m.seq < c.head {
		return // superseded and gone
	}
	s := c.slot(m.seq)
	if s.state != slotWaiting {
		return
	}
	l.replied(c, m.status)
	a := resolver.Answer{Status: m.status, Core: m.core, Asked: m.asked, Path: m.path, Src: m.src}
	req := s.buf // the reply overwrites it
	if s.sa {
		s.fill(appendSAReply(s.buf[:0], req[:s.n], a.Status, &a))
	} else {
		s.fill(AppendAnswer(s.buf[:0], req[:s.n], &a))
	}
	if c.hold(s.buf[:], a.Status) {
		s.state = slotHeld
	}
}

// drain takes what every client has sent, and no more.
func (l *loop) drain() {
	if l.draining {
		return
	}
	l.draining = true
	for i := range l.listeners {
		for range backlog / acceptBatch {
			l.acceptFrom(i)
		}
	}
	l.closeListeners()
	for _, c := range l.conns {
		if c != nil {
			l.lastRead(c)
		}
	}
}

// lastReads bounds what is taken of a client that has sent more than one read
// gives.
const lastReads = 8

func (l *loop) lastRead(c *conn) {
	for range lastReads {
		had := l.bytesIn
		if c.closed || c.events&unix.EPOLLIN == 0 {
			break
		}
		if l.read(c, false); l.bytesIn == had {
			break
		}
	}
	if !c.closed {
		c.eof = true
		l.settle(c, false)
	}
}

// end closes everything that is left.
func (l *loop) end() {
	for i := range l.ports {
		l.giveBack(&l.ports[i])
	}
	l.closeListeners()
	for _, c := range l.conns {
		if c != nil {
			l.close(c, ClosedShutdown)
		}
	}
	l.publish()
	l.free()
}
