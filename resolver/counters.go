// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package resolver

import (
	"sync"
	"sync/atomic"
	"unsafe"
)

// counterRow is one row of counters: shards of CounterStride words, so that
// threads that count the same thing write different cache lines.
type counterRow []uint64

// add counts n in the shard of a hint, any number that tends to differ between
// threads.
func (r counterRow) add(hint uintptr, counter int, n uint64) {
	mask := uintptr(len(r)/CounterStride - 1)
	atomic.AddUint64(&r[(hint&mask)*CounterStride+uintptr(counter)], n)
}

// sumInto adds a row up.
func (r counterRow) sumInto(c *Counters) {
	for s := 0; s < len(r); s += CounterStride {
		for i := range c {
			c[i] += atomic.LoadUint64(&r[s+i])
		}
	}
}

// shardHint makes a number out of where a thread keeps its answer: every loop of
// a door has its own. The address is only hashed, never used as one.
func shardHint(a *Answer) uintptr { return uintptr(unsafe.Pointer(a)) >> 8 }

// counterRows has the rows of all endpoints that there ever were: counters of an
// endpoint that went stay in the totals.
type counterRows struct {
	store  CounterStore
	shards int
	core   counterRow // row 0

	mu   sync.Mutex
	rows map[int]counterRow
}

func (c *counterRows) init(store CounterStore) {
	c.store, c.shards, c.rows = store, counterShards(), map[int]counterRow{}
	c.core = c.row(0)
}

// row returns a row, made at first use. Memory from the store is used only if
// its size is a power of two of shards.
func (c *counterRows) row(n int) counterRow {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r := c.rows[n]; r != nil {
		return r
	}
	var r counterRow
	if c.store != nil {
		r = c.store.Row(n)
	}
	if s := len(r) / CounterStride; s == 0 || s&(s-1) != 0 || len(r)%CounterStride != 0 {
		r = make(counterRow, c.shards*CounterStride)
	}
	c.rows[n] = r
	return r
}

// Totals returns the counters of the service since they were made.
func (e *Engine) Totals() (c Counters) {
	e.counters.mu.Lock()
	defer e.counters.mu.Unlock()
	for _, r := range e.counters.rows {
		r.sumInto(&c)
	}
	return c
}

// EndpointCounters returns the counters of an endpoint, those of its provider if
// that keeps its own.
func (e *Engine) EndpointCounters(ep *Endpoint) (c Counters) {
	if ep == nil {
		return c
	}
	if ev := e.topo.Load().bySlot[ep.Slot]; ev != nil {
		if own, ok := ev.prov.Perf(); ok {
			return own
		}
	}
	e.counters.mu.Lock()
	r := e.counters.rows[1+int(ep.Slot)]
	e.counters.mu.Unlock()
	r.sumInto(&c)
	return c
}

// Stats is what the engine counts beside the seven counters.
type Stats struct {
	Flights        int    // lookups under way
	Waiters        int    // queries that wait for them
	Started        uint64 // flights
	Joined         uint64 // queries that joined a flight of others
	Refused        uint64 // queries refused because of MaxFlights or MaxWaiters
	LateWaiters    uint64 // waiters that were told StatusTimedOut while their flight went on
	Voided         uint64 // answers thrown away because of an invalidation meanwhile
	RouteAsks      uint64 // path queries for addresses; Shared ones joined another's
	RouteShared    uint64
	Refreshes      uint64 // lookups behind a hit
	RefreshDropped uint64 // due, but over the rate; a later hit tries again
	Negative       uint64 // failures remembered
	SourceAsks     uint64 // questions to the host's routing
}

type engineStats struct {
	started, joined, refused, late, voided, routeAsks, routeShared atomic.Uint64
	refreshes, refreshDropped, negative, sourceAsks                atomic.Uint64
}

// Stats returns a snapshot of the engine's own figures.
func (e *Engine) Stats() Stats {
	s := &e.stats
	out := Stats{
		Started: s.started.Load(), Joined: s.joined.Load(), Refused: s.refused.Load(), LateWaiters: s.late.Load(),
		Voided: s.voided.Load(), RouteAsks: s.routeAsks.Load(), RouteShared: s.routeShared.Load(),
		Refreshes: s.refreshes.Load(), RefreshDropped: s.refreshDropped.Load(), Negative: s.negative.Load(),
		SourceAsks: s.sourceAsks.Load(),
	}
	e.flights.mu.Lock()
	out.Flights, out.Waiters = e.flights.inFlight, e.flights.waiting
	e.flights.mu.Unlock()
	return out
}
