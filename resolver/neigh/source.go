// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package neigh

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"acmd/mad"
	"acmd/resolver"
	"acmd/resolver/hostnet"
	"acmd/resolver/rtnl"

	"golang.org/x/sys/unix"
)

// Source is the address source "neigh". All methods are safe for concurrent use.
type Source struct {
	cfg   Config
	log   *slog.Logger
	open  func() (table, error) // for a dump after an overrun
	news  notifier
	queue chan *lookup
	stop  chan struct{}
	done  sync.WaitGroup
	count counters

	mu      sync.Mutex
	closed  bool
	live    map[*lookup]struct{} // under way
	pending map[entry][]*lookup  // who waits for an entry
	told    map[entry]answer     // what was answered
}

// entry names an entry of the neighbour table.
type entry struct {
	index int // of the interface
	ip    netip.Addr
}

// answer is what was told of an entry.
type answer struct {
	gid     mad.GID
	doubted bool // the entry failed, and the kernel was made to ask all once more
}

// lookup is one call of Locate. Its fields belong to the source's mutex, except
// those that never change.
type lookup struct {
	dst   netip.Addr          // fixed
	on    []hostnet.Interface // fixed; where to look, at least one
	done  func(resolver.Location, error)
	timer *time.Timer

	over    bool
	entries []entry // under which it is pending
}

// New opens the kernel's neighbour table in the network namespace of the calling
// thread and starts two goroutines.
func New(cfg Config) (*Source, error) {
	m, err := rtnl.Listen(unix.RTNLGRP_NEIGH)
	if err != nil {
		return nil, fmt.Errorf("neigh: %w", err)
	}
	s, err := start(cfg, openKernel, m)
	if err != nil {
		return nil, fmt.Errorf("neigh: %w", errors.Join(err, m.Close()))
	}
	return s, nil
}

func start(cfg Config, open func() (table, error), news notifier) (*Source, error) {
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	t, err := open()
	if err != nil {
		return nil, err
	}
	s := &Source{cfg: cfg, log: cfg.Log, open: open, news: news,
		queue: make(chan *lookup, MaxLookups), stop: make(chan struct{}),
		live: map[*lookup]struct{}{}, pending: map[entry][]*lookup{}, told: map[entry]answer{}}
	s.done.Add(2)
	go s.asker(t)
	go s.listener()
	return s, nil
}

// Close fails what is under way and ends the goroutines.
func (s *Source) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	s.mu.Unlock()
	close(s.stop)
	err := s.news.Close()
	s.done.Wait()
	s.mu.Lock()
	left := slices.Collect(maps.Keys(s.live))
	s.mu.Unlock()
	for _, l := range left {
		s.fail(l, nil, errClosed)
	}
	return err
}

var errClosed = fmt.Errorf("neigh: shutting down: %w", resolver.ErrDown)

// Name implements [resolver.AddressSource].
func (s *Source) Name() string { return Name }

// Locate implements [resolver.AddressSource].
func (s *Source) Locate(ep *resolver.Endpoint, src, dst *resolver.Addr, deadline time.Time, done func(resolver.Location, error)) {
	ip := dst.IP()
	fail := func(format string, a ...any) { done(resolver.Location{}, fmt.Errorf("neigh: "+format, a...)) }
	switch {
	case !ip.IsValid():
		fail("the neighbour table has no names: %w", resolver.ErrUnknown)
		return
	case ip.IsUnspecified() || ip.IsMulticast():
		fail("%v is no host's: %w", ip, resolver.ErrUnknown)
		return
	}
	on := interfacesOf(ep, src.IP(), ip.Is4(), s.cfg.Interfaces())
	if len(on) == 0 {
		fail("no IPoIB interface of %s port %d, P_Key %v, for %v: %w", ep.Device, ep.Port.Num, ep.PKey, ip, resolver.ErrUnknown)
		return
	}
	wait := s.cfg.Timeout
	if !deadline.IsZero() {
		if left := time.Until(deadline); wait <= 0 || left < wait {
			wait = max(left, 0)
		}
	}
	s.begin(&lookup{dst: ip, on: on, done: done}, wait, deadline)
}

// begin gives l to the asker. It ends after wait, if that or a deadline is set.
func (s *Source) begin(l *lookup, wait time.Duration, deadline time.Time) {
	fail := func(format string, a ...any) { l.done(resolver.Location{}, fmt.Errorf("neigh: "+format, a...)) }
	s.mu.Lock()
	switch {
	case s.closed:
		s.mu.Unlock()
		l.done(resolver.Location{}, errClosed)
		return
	case len(s.live) >= MaxLookups:
		s.mu.Unlock()
		s.count.overload.Add(1)
		fail("%d lookups under way: %w", MaxLookups, resolver.ErrOverload)
		return
	}
	s.live[l] = struct{}{}
	s.count.lookups.Add(1)
	if wait > 0 || !deadline.IsZero() {
		l.timer = time.AfterFunc(wait, func() { s.late(l) })
	}
	s.mu.Unlock()
	select {
	case s.queue <- l:
	default: // of lookups that are over, or are to be looked at again
		s.fail(l, &s.count.overload, fmt.Errorf("neigh: too many questions are queued: %w", resolver.ErrOverload))
	}
}

// interfacesOf returns where neighbours of an endpoint are: the interface that has
// the source, else those that have an address of the family.
func interfacesOf(ep *resolver.Endpoint, src netip.Addr, is4 bool, all []hostnet.Interface) (on []hostnet.Interface) {
	for i := range all {
		f := &all[i]
		if !ep.PKey.Matches(f.PKey) || !slices.Contains(ep.Port.GIDs, f.GID) {
			continue
		}
		if src.Is4() == is4 && slices.Contains(f.Addrs, src) {
			return all[i : i+1]
		}
		if slices.ContainsFunc(f.Addrs, func(a netip.Addr) bool { return a.Is4() == is4 }) {
			on = append(on, *f)
		}
	}
	return on
}

// late ends a lookup whose time is over.
func (s *Source) late(l *lookup) {
	s.fail(l, &s.count.timeouts, fmt.Errorf("neigh: %v does not answer on %s: %w", l.dst, names(l.on), resolver.ErrTimeout))
}

// names lists interfaces for a message.
func names(on []hostnet.Interface) string {
	text := on[0].Name
	for _, f := range on[1:] {
		text += ", " + f.Name
	}
	return text
}

// fail ends l with an error unless it has ended before, and counts that if a counter
// is given: before l is told, so that whoever has the answer finds it counted.
func (s *Source) fail(l *lookup, counter *atomic.Uint64, err error) {
	s.mu.Lock()
	first := s.take(l)
	s.mu.Unlock()
	if !first {
		return
	}
	if counter != nil {
		counter.Add(1)
	}
	l.done(resolver.Location{}, err)
}

// take takes l out of everything and reports whether it was still under way. The
// caller holds the mutex and calls l.done after it.
func (s *Source) take(l *lookup) bool {
	if l.over {
		return false
	}
	l.over = true
	delete(s.live, l)
	if l.timer != nil {
		l.timer.Stop()
	}
	for _, e := range l.entries {
		list := slices.DeleteFunc(s.pending[e], func(o *lookup) bool { return o == l })
		if len(list) == 0 {
			delete(s.pending, e)
		} else {
			s.pending[e] = list
		}
	}
	return true
}
