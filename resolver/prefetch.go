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
// after the same event. Each waits a random part of the time that all of them take.

const (
	tableWork = 5 * time.Microsecond // of the SA, for a path
	// tableWait is the least and tableWaitMost the greatest time over which nodes
	// spread their questions.
	tableWait     = time.Second
	tableWaitMost = time.Hour
	// tableShare bounds what tables may take of an SA's time: a part of so many.
	tableShare = 20
	// tableRetry is when a table that did not come is asked for again; twice as late
	// each time, up to tableRetryMost.
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
	of   map[*builtinEndpoint]*tableState
	kick chan struct{}

	mu   sync.Mutex
	came []tableAnswer
}

// tableState is how far an endpoint's table is.
type tableState struct {
	due    int64 // when it is to be asked for
	asking bool
	failed int // times in a row
	paths  int // of the last one
}

// tableAnswer is an answer to the question for a table.
type tableAnswer struct {
	x     *builtinEndpoint
	asked int64
	since cache.Epoch
	paths []sa.PathRecord
	err   error
}

func (p *prefetcher) init() {
	p.of, p.kick = map[*builtinEndpoint]*tableState{}, make(chan struct{}, 1)
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
	t, p := e.topo.Load(), &e.prefetch
	now := e.Now()
	next := int64(math.MaxInt64)
	of := make(map[*builtinEndpoint]*tableState, len(t.bySlot))
	paths := 0
	for _, ev := range t.bySlot {
		x, ok := ev.prov.(*builtinEndpoint)
		if !ok {
			continue
		}
		from, ok := x.sa.(Tabler)
		if !ok {
			continue
		}
		s := p.of[x]
		if s == nil {
			s = &tableState{due: now + spread(0)}
		}
		of[x] = s
		if tab := x.table.Load(); tab != nil {
			switch {
			case e.voided(ev, tab.asked, tab.since):
				x.table.Store(nil)
				s.due = min(s.due, now+spread(s.paths))
			case now >= e.refreshAt(tab.asked):
				x.table.Store(nil) // the next one is due as the SA can bear it
			default:
				paths += len(tab.paths)
			}
		}
		if s.asking {
			continue
		}
		if now >= s.due {
			s.asking = true
			e.askTable(ev, x, from)
			continue
		}
		next = min(next, s.due-now)
	}
	p.of = of
	e.stats.tablePaths.Store(int64(paths))
	return time.Duration(min(next, int64(time.Hour)))
}

// spread returns a random time within that which an SA needs for a table of each of so
// many nodes.
func spread(nodes int) int64 {
	return rand.Int64N(int64(spreadOver(nodes)))
}

func spreadOver(nodes int) time.Duration {
	n := time.Duration(min(nodes, 1<<16))
	return min(max(n*n*tableWork, tableWait), tableWaitMost)
}

// voided tells whether an event has made all of an endpoint's paths that were asked for
// at a time void, or due for a refresh.
func (e *Engine) voided(ev *epView, asked int64, since cache.Epoch) bool {
	return e.cache.Dropped(ev.port.scopeOf(ev.ep.GID), since) || e.refreshAt(asked) <= ev.port.state.staleUntil.Load()
}

// askTable asks for the paths from one endpoint to everywhere.
func (e *Engine) askTable(ev *epView, x *builtinEndpoint, from Tabler) {
	a := tableAnswer{x: x, asked: e.Now(), since: e.cache.Epoch()}
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
		s := p.of[a.x]
		if s == nil {
			continue // the endpoint is closed
		}
		for _, ev := range e.topo.Load().bySlot {
			if ev.prov == ProviderEndpoint(a.x) {
				e.takeTable(ev, a, s)
			}
		}
		s.asking = false
	}
}

func (e *Engine) takeTable(ev *epView, a *tableAnswer, s *tableState) {
	now := e.Now()
	log := e.log.With("device", ev.ep.Device, "port", ev.ep.Port.Num, "pkey", ev.ep.PKey)
	switch {
	case a.err != nil:
		e.stats.tableFailures.Add(1)
		wait := min(tableRetry<<min(s.failed, 16), tableRetryMost)
		if s.failed++; s.failed == 1 {
			log.Warn("paths cannot be asked for all at once, trying again", "err", a.err)
		}
		s.due = now + int64(wait) + spread(s.paths)
		return
	case e.voided(ev, a.asked, a.since):
		s.due = now + spread(s.paths) // an event has overtaken it
		return
	}
	sgid, slid := ev.ep.GID, ev.port.info.LID
	t := newPathTable(a.paths, a.asked, a.since, func(p *sa.PathRecord) bool {
		d := p.DGID()
		return p.SGID() == sgid && p.SLID() == slid && p.PKey().Matches(ev.ep.PKey) && p.DLID().IsUnicast() &&
			isSet(d) && !d.IsMulticast() && ev.port.sourceGID(d) == sgid
	})
	if s.failed > 0 || s.paths == 0 {
		log.Info("paths are there", "paths", len(t.paths), "answered", len(a.paths), "after", time.Duration(now-a.asked).Round(time.Microsecond))
	}
	a.x.table.Store(t)
	e.stats.tables.Add(1)
	s.failed, s.paths, s.due = 0, len(t.paths), math.MaxInt64
	if e.refreshAge != int64(Forever) {
		// A path out of it must be from the last half of the refresh age to stand for
		// a refresh.
		every := max(e.refreshAge/2, tableShare*int64(spreadOver(s.paths)))
		s.due = addSaturated(now, every-every/8+rand.Int64N(every/8+1))
	}
}

// fetched finds a route in the endpoint's table, if it holds.
func (x *builtinEndpoint) fetched(ask *Ask, route *sa.PathRecord) *Resolution {
	t := x.table.Load()
	if t == nil || ask.SGID != ask.Endpoint.GID || route.SLID() != ask.port.info.LID {
		return nil
	}
	var key cache.Key
	switch maskOf(route) &^ plainMask {
	case sa.PathDGID:
		key = cache.MakeKey(ask.slot, cache.KindGID, route[8:24])
	case sa.PathDLID:
		key = cache.MakeKey(ask.slot, cache.KindLID, route[40:42])
	default:
		return nil
	}
	n := t.find(route)
	if n < 0 {
		return nil
	}
	e, now := x.e, x.e.Now()
	r := &Resolution{Path: t.paths[n], Origin: OriginSA, asked: t.asked, since: t.since}
	deadline, _ := e.lifetimes(t.asked, r)
	due := e.refreshAt(t.asked)
	if now >= deadline || now >= due || due <= ask.port.state.staleUntil.Load() || ask.Refresh && now-t.asked > e.refreshAge/2 {
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
