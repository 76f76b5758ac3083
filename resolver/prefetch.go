// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package resolver

import (
	"errors"
	"math"
	"math/rand/v2"
	"sync"
	"time"

	"acmd/cache"
	"acmd/mad/sa"
)

// With Config.Prefetch each endpoint has the paths to all ports before anybody asks:
// one GetTable for the "half world" that begins here. A route step then looks there
// before it asks the SA. Whether a path of the table still holds is told as for one that
// is in the cache: nothing that concerns it was invalidated since it was asked for, and
// it is not due for a refresh. So notices, flushes and port events need to know nothing
// of tables.
//
// An SA has a few microseconds of work for each path, and all its nodes want a table
// after the same event. Each waits a random part of the time that all of them take, and
// asks again and again only as often as the SA could bear it from all.

const (
	tableWork = 5 * time.Microsecond // of the SA, for a path
	// tableWait is the least and tableWaitMost the greatest time over which nodes
	// spread their questions.
	tableWait     = time.Second
	tableWaitMost = time.Hour
	// tableShare bounds what tables may take of an SA's time in the long run: a part of
	// so many. Events may take tableAhead times their part in advance.
	tableShare = 20
	tableAhead = 4
	// tableRetry is the least time after which a table that did not come is asked for
	// again, twice that the most; twice as late each time, up to tableRetryMost.
	tableRetry     = 10 * time.Second
	tableRetryMost = 15 * time.Minute
)

// ErrCut is the error of a table of which only a part came.
var ErrCut = errors.New("the transport hands on the first packet alone")

// Tabler is an [SA] that can be asked for many paths at once.
type Tabler interface {
	// Table asks for all paths that fit. done is called exactly once, from any
	// goroutine, possibly before Table returns, and must not block; it takes the
	// paths as its own. rec is copied.
	Table(mask sa.ComponentMask, rec *sa.PathRecord, done func(paths []sa.PathRecord, err error))
}

// prefetcher has what is known of the endpoints' tables. It belongs to its goroutine
// but for what the mutex guards.
type prefetcher struct {
	of   map[uint16]*tableState // by slot, as a port that comes back is the same
	kick chan struct{}

	mu   sync.Mutex
	came []tableAnswer
}

// tableState is how far an endpoint's table is.
type tableState struct {
	x      *builtinEndpoint // nil: it is closed
	due    int64            // when it is to be asked for
	asked  int64            // when it last was, 0: never
	since  cache.Epoch      // before that
	used   int64            // until then what was asked has taken its part of the SA's time
	asking bool
	voided bool // what was last asked for, and due is when the next one may be had
	came   bool // ever
	failed int  // times in a row
	paths  int  // of the last one; at first a guess
}

// tableAnswer is an answer to the question for a table.
type tableAnswer struct {
	slot  uint16
	x     *builtinEndpoint
	asked int64
	since cache.Epoch
	paths []sa.PathRecord
	err   error
}

func (p *prefetcher) init() {
	p.of, p.kick = map[uint16]*tableState{}, make(chan struct{}, 1)
}

// wake has the tables looked at soon: something may have voided one, or an endpoint may
// have none yet. Any goroutine.
func (p *prefetcher) wake() {
	select {
	case p.kick <- struct{}{}:
	default:
	}
}

func (e *Engine) prefetchLoop() {
	defer e.done.Done()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-e.stop:
			return
		case <-e.prefetch.kick:
		case <-timer.C:
		}
		e.takeTables()
		timer.Reset(e.askTables())
	}
}

// askTables asks for the tables that are due, and returns how long nothing is.
func (e *Engine) askTables() time.Duration {
	since := e.cache.Epoch() // before the snapshot, see apply
	t, p := e.topo.Load(), &e.prefetch
	now := e.Now()
	next := int64(math.MaxInt64)
	paths := 0
	for slot, ev := range t.bySlot {
		x, ok := ev.prov.(*builtinEndpoint)
		if !ok {
			continue
		}
		from, ok := x.sa.(Tabler)
		if !ok {
			continue
		}
		s := p.of[slot]
		if s == nil {
			// Nobody has told yet how many nodes there are; SMs number them from 1 on.
			s = &tableState{paths: int(ev.port.info.LID)}
			p.of[slot] = s
		}
		if s.x != x { // opened, perhaps anew
			s.x, s.asking, s.asked, s.failed, s.due = x, false, 0, 0, s.soon(now)
		}
		if s.asked != 0 && !s.voided && e.voided(ev, s.asked, s.since) {
			s.voided = true
			x.table.Store(nil)
			s.due = min(s.due, s.soon(now))
		}
		if tab := x.table.Load(); tab != nil {
			if end := e.tableEnd(tab.asked); now < end {
				paths += len(tab.paths)
				next = min(next, end-now)
			} else {
				x.table.Store(nil) // the next one is due as the SA can bear it
			}
		}
		if s.asking {
			continue
		}
		if now >= s.due {
			s.asking, s.voided, s.due = true, false, math.MaxInt64
			s.asked, s.since, s.used = now, since, max(s.used, now)+tablePart(s.paths)
			e.askTable(ev, x, from, tableAnswer{slot: slot, x: x, asked: s.asked, since: s.since})
			continue
		}
		next = min(next, s.due-now)
	}
	for slot, s := range p.of {
		if t.bySlot[slot] == nil {
			s.x = nil
		}
	}
	e.stats.tablePaths.Store(int64(paths))
	return time.Duration(min(next, int64(time.Hour)))
}

// soon is when a table may be asked for that something just made necessary.
func (s *tableState) soon(now int64) int64 {
	return max(now+rand.Int64N(int64(spreadOver(s.paths))), s.used-tableAhead*tablePart(s.paths))
}

// spreadOver returns the time that an SA needs for a table of each of so many nodes.
func spreadOver(nodes int) time.Duration {
	n := time.Duration(min(nodes, 1<<16))
	return min(max(n*n*tableWork, tableWait), tableWaitMost)
}

// tablePart is for how long a table of so many paths takes a node's part of what tables
// may take of an SA's time.
func tablePart(paths int) int64 { return tableShare * int64(spreadOver(paths)) }

// tableEnd is when the paths that were asked for at an instant are of no use any more.
func (e *Engine) tableEnd(asked int64) int64 {
	deadline, _ := e.lifetimes(asked, &Resolution{Origin: OriginSA})
	return min(deadline, e.refreshAt(asked))
}

// voided tells whether an event has made all of an endpoint's paths that were asked for
// at a time void, or due for a refresh.
func (e *Engine) voided(ev *epView, asked int64, since cache.Epoch) bool {
	return e.cache.Dropped(ev.port.scopeOf(ev.ep.GID), since) || e.refreshAt(asked) <= ev.port.state.staleUntil.Load()
}

// askTable asks for the paths from one endpoint to everywhere. a has what is noted
// before the question.
func (e *Engine) askTable(ev *epView, x *builtinEndpoint, from Tabler, a tableAnswer) {
	rec := fillPath(&target{ev: ev, sgid: ev.ep.GID}, &sa.PathRecord{})
	from.Table(maskOf(&rec), &rec, func(paths []sa.PathRecord, err error) {
		p := &e.prefetch
		a.paths, a.err = paths, err
		p.mu.Lock()
		p.came = append(p.came, a) // at most one of each endpoint
		p.mu.Unlock()
		p.wake()
	})
}

// takeTables puts in force what came.
func (e *Engine) takeTables() {
	p := &e.prefetch
	p.mu.Lock()
	came := p.came
	p.came = nil
	p.mu.Unlock()
	for i := range came {
		a := &came[i]
		s := p.of[a.slot]
		if s.x != a.x {
			continue // it was closed and opened
		}
		s.asking = false
		if ev := e.topo.Load().bySlot[a.slot]; ev != nil && ev.prov == ProviderEndpoint(a.x) {
			e.takeTable(ev, a, s)
		}
	}
}

func (e *Engine) takeTable(ev *epView, a *tableAnswer, s *tableState) {
	now := e.Now()
	log := e.log.With("device", ev.ep.Device, "port", ev.ep.Port.Num, "pkey", ev.ep.PKey)
	if a.err != nil {
		e.stats.tableFailures.Add(1)
		wait := min(tableRetry<<min(s.failed, 16), tableRetryMost)
		if s.failed++; s.failed == 1 {
			log.Warn("paths cannot be asked for all at once, trying again", "err", a.err)
		}
		s.due = min(s.due, now+int64(wait)+rand.Int64N(int64(max(wait, spreadOver(s.paths)))))
		return
	}
	if e.voided(ev, a.asked, a.since) {
		return // an event has overtaken it, and brings the next one
	}
	sgid, slid := ev.ep.GID, ev.port.info.LID
	t := newPathTable(a.paths, a.asked, a.since, func(p *sa.PathRecord) bool {
		d := p.DGID()
		return p.SGID() == sgid && p.SLID() == slid && p.PKey().Matches(ev.ep.PKey) && p.DLID().IsUnicast() &&
			isSet(d) && !d.IsMulticast() && ev.port.sourceGID(d) == sgid
	})
	if s.failed > 0 || !s.came {
		log.Info("paths are there", "paths", len(t.paths), "answered", len(a.paths), "after", time.Duration(now-a.asked).Round(time.Microsecond))
	}
	a.x.table.Store(t)
	e.stats.tables.Add(1)
	s.failed, s.paths, s.came = 0, len(t.paths), true
	if end := e.tableEnd(a.asked); end != math.MaxInt64 {
		// A path out of it must be from the last half of the refresh age to stand for
		// a refresh.
		half := (end - a.asked) / 2
		s.due = max(now+half-half/8+rand.Int64N(half/8+1), s.used)
	}
}

// tableKey is the key of the route that a table may have: from GID and LID of the
// endpoint to a GID or a LID, without further constraints.
func tableKey(ask *Ask, route *sa.PathRecord) (key cache.Key, ok bool) {
	if ask.SGID != ask.Endpoint.GID || route.SLID() != ask.port.info.LID {
		return key, false
	}
	switch maskOf(route) &^ plainMask {
	case sa.PathDGID:
		return cache.MakeKey(ask.slot, cache.KindGID, route[8:24]), true
	case sa.PathDLID:
		return cache.MakeKey(ask.slot, cache.KindLID, route[40:42]), true
	}
	return key, false
}

// fetched finds a route in the endpoint's table, if it holds.
func (x *builtinEndpoint) fetched(ask *Ask, route *sa.PathRecord) *Resolution {
	t := x.table.Load()
	if t == nil {
		return nil
	}
	key, ok := tableKey(ask, route)
	if !ok {
		return nil
	}
	n := t.find(route)
	if n < 0 {
		return nil
	}
	e, now := x.e, x.e.Now()
	r := &Resolution{Path: t.paths[n], Origin: OriginSA, asked: t.asked, since: t.since}
	if now >= e.tableEnd(t.asked) || e.refreshAt(t.asked) <= ask.port.state.staleUntil.Load() || ask.Refresh && now-t.asked > e.refreshAge/2 {
		return nil
	}
	m := cache.Meta{Scope: ask.port.scopeOf(ask.SGID)}
	own := key
	if ask.Dst.Kind != 0 {
		own = cache.MakeKey(ask.slot, ask.Dst.Kind, ask.Dst.Bytes())
	}
	if !e.cache.Takes(&key, (*[64]byte)(&r.Path), m, t.since) || own != key && !e.cache.Takes(&own, (*[64]byte)(&r.Path), m, t.since) {
		return nil
	}
	e.stats.tableRoutes.Add(1)
	return r
}
