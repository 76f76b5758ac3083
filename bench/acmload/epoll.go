// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package main

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

// lane is one connection of a load that a single thread drives.
type lane struct {
	w    *worker
	c    rawConn
	in   reader
	t    *target // what it has asked for, nil when it is done
	tid  uint64
	sent time.Time
}

// crew drives all connections from one thread with epoll, one request in flight on
// each: many clients whose own cost is small. With a thread for each client the
// load generator takes as much of a small machine as the server.
type crew struct {
	fd    int
	lanes []lane
	rng   *rand.Rand
	out   [maxMsg]byte
	busy  int // lanes with a request in flight
}

// loadCrew is load on one thread.
func loadCrew(cfg *loadConfig) result {
	var (
		stop  atomic.Bool
		ws    = make([]worker, cfg.conns)
		conns []rawConn
	)
	runtime.GC()
	old := debug.SetGCPercent(-1)
	defer debug.SetGCPercent(old)
	defer func() {
		for _, c := range conns {
			c.Close()
		}
	}()
	k, err := newCrew()
	for i := range ws {
		w := &ws[i]
		w.cfg, w.lat = cfg, make([]uint32, 0, 1<<12)
		if err != nil {
			w.fail(err)
			continue
		}
		c, cerr := dialRaw(cfg.addr, cfg.timeout)
		if cerr != nil {
			w.fail(cerr)
			continue
		}
		conns = append(conns, c)
		if err := w.greeting(c); err != nil {
			w.fail(fmt.Errorf("greeting: %w", err))
			continue
		}
		if err := k.add(w, c, i); err != nil {
			w.fail(err)
		}
	}
	use := startUsage(cfg.pid, cfg.also)
	if !cfg.once {
		time.AfterFunc(cfg.dur, func() { stop.Store(true) })
	}
	if err == nil {
		k.run(chooser(cfg), &stop)
		k.close()
	}
	r := use.stop()
	r.summarize(cfg, ws)
	return r
}

func newCrew() (*crew, error) {
	fd, err := syscall.EpollCreate1(syscall.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("epoll: %w", err)
	}
	return &crew{fd: fd, rng: rand.New(rand.NewPCG(1, 1))}, nil
}

// add makes a connection one of the crew's; its requests count from seed.
func (k *crew) add(w *worker, c rawConn, seed int) error {
	ev := syscall.EpollEvent{Events: syscall.EPOLLIN, Fd: int32(len(k.lanes))}
	if err := syscall.EpollCtl(k.fd, syscall.EPOLL_CTL_ADD, c.fd, &ev); err != nil {
		return fmt.Errorf("epoll: %w", err)
	}
	k.lanes = append(k.lanes, lane{w: w, c: c, tid: uint64(seed+1) << 32})
	return nil
}

// ask sends a lane's next request, if there is one.
func (k *crew) ask(l *lane, next func(*rand.Rand) *target, stop *atomic.Bool) {
	l.t = nil
	if stop.Load() {
		return
	}
	t := next(k.rng)
	if t == nil {
		return
	}
	l.tid++
	n := t.request(k.out[:], l.tid, l.w.cfg.nodelay, l.w.cfg.pad)
	l.sent = time.Now()
	if _, err := l.c.Write(k.out[:n]); err != nil {
		l.w.fail(fmt.Errorf("write: %w", err))
		return
	}
	l.t = t
	k.busy++
}

// take reads the answer that a lane has ready.
func (k *crew) take(l *lane) (ok bool) {
	k.busy--
	msg, err := l.in.message(l.c)
	if err != nil {
		l.w.fail(err)
		return false
	}
	now := time.Now()
	if err := l.t.check(msg, l.tid); err != nil {
		l.w.fail(fmt.Errorf("%s: %w", l.t.text, err))
		l.in.done(msg)
		return l.w.cfg.keepGoing
	}
	l.w.ok++
	l.w.lat = append(l.w.lat, uint32(min(now.Sub(l.sent), 4*time.Second)))
	l.in.done(msg)
	return true
}

// run drives the lanes until none has a request in flight.
func (k *crew) run(next func(*rand.Rand) *target, stop *atomic.Bool) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for i := range k.lanes {
		k.ask(&k.lanes[i], next, stop)
	}
	var ready [64]syscall.EpollEvent
	for last := time.Now(); k.busy > 0; {
		const wait = 100 // ms
		n, _, e := syscall.RawSyscall6(syscall.SYS_EPOLL_PWAIT, uintptr(k.fd), uintptr(unsafe.Pointer(&ready[0])), uintptr(len(ready)), wait, 0, 0)
		switch {
		case e == syscall.EINTR:
			continue
		case e != 0:
			k.giveUp(fmt.Errorf("epoll: %w", e))
			return
		case n == 0:
			if time.Since(last) > k.lanes[0].c.timeout {
				k.giveUp(errTimeout)
				return
			}
			continue
		}
		last = time.Now()
		for _, ev := range ready[:n] {
			l := &k.lanes[ev.Fd]
			switch {
			case l.t == nil: // it was hung up on, or got an answer that it did not ask for
				l.w.fail(fmt.Errorf("connection %d: input that was not asked for", ev.Fd))
				k.drop(l)
			case k.take(l):
				k.ask(l, next, stop)
			default:
				l.t = nil
				k.drop(l)
			}
		}
	}
}

// drop no longer listens to a lane.
func (k *crew) drop(l *lane) {
	if err := syscall.EpollCtl(k.fd, syscall.EPOLL_CTL_DEL, l.c.fd, nil); err != nil {
		l.w.fail(fmt.Errorf("epoll: %w", err))
	}
}

// giveUp fails every request that is in flight.
func (k *crew) giveUp(err error) {
	for i := range k.lanes {
		if l := &k.lanes[i]; l.t != nil {
			l.w.fail(err)
		}
	}
}

func (k *crew) close() { syscall.Close(k.fd) }
