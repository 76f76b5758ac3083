// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package resolver

import (
	"sync/atomic"
	"time"
	"unsafe"

	"acmd/bpf"
	"acmd/cache"
)

// shardHint makes a number out of where a thread keeps its answer: every loop of
// a door has its own. The address is only hashed, never used as one.
func shardHint(a *Answer) uintptr { return uintptr(unsafe.Pointer(a)) >> 8 }

// counters is what the engine counts with.
type counters struct {
	maps  *bpf.Maps
	shard *bpf.Shard
	core  *bpf.Endpoint // of what belongs to no endpoint
}

func (c *counters) init(m *bpf.Maps) { c.maps, c.shard, c.core = m, m.Shard(), m.None() }

// endpoint finds the row of an endpoint; an endpoint of an earlier run goes on
// from its counters.
func (c *counters) endpoint(ep *Endpoint) *bpf.Endpoint {
	return c.maps.Endpoint(ep.Device, ep.Port.Num, uint16(ep.PKey), uint64(ep.NodeGUID))
}

// setActive marks the rows of endpoints that are on active ports.
func (c *counters) setActive(t *topology) {
	rows := make([]*bpf.Endpoint, 0, len(t.bySlot))
	for _, ev := range t.bySlot {
		rows = append(rows, ev.row)
	}
	c.maps.SetActive(rows)
}

// timeHit notes the time of a query that Resolve answered at once. Those that
// Lookup answers are timed by their door, many with one reading of the clock.
func (e *Engine) timeHit(asked int64) { e.counters.shard.Observe(bpf.LatHit, e.Now()-asked) }

// timeStep notes the time of a step of a lookup.
func (e *Engine) timeStep(class bpf.Latency, began int64) {
	e.counters.shard.Observe(class, e.Now()-began)
}

// timeMiss notes the time of a query that waited, and records a slow one.
func (e *Engine) timeMiss(w *waiter, st Status) {
	took := e.Now() - w.asked
	e.counters.shard.Observe(bpf.LatMiss, took)
	if took < int64(bpf.SlowAfter) {
		return
	}
	r := bpf.SlowRequest{When: time.Now(), Took: time.Duration(took), Endpoint: w.row.Row, Class: bpf.LatMiss, Status: uint8(st)}
	if q := &w.flight.q; q.Kind == ByAddress {
		r.Kind, r.Key = uint8(q.Dst.Kind), q.Dst.Bytes()
	} else {
		r.Kind, r.Key = uint8(cache.KindPath), q.Path[:]
	}
	e.counters.maps.RecordSlow(&r)
}

// Totals returns the counters of the service since they were made, which may be
// before it started, kernel hits included.
func (e *Engine) Totals() Counters { return e.counters.maps.Totals() }

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
	return e.counters.maps.Counters(e.counters.endpoint(ep).Row)
}

// Stats is what the engine counts beside the seven counters.
type Stats struct {
	Flights        int    `json:"flights"`      // lookups under way
	Waiters        int    `json:"waiters"`      // queries that wait for them
	Started        uint64 `json:"started"`      // flights
	Joined         uint64 `json:"joined"`       // queries that joined a flight of others
	Refused        uint64 `json:"refused"`      // queries refused because of MaxFlights or MaxWaiters
	LateWaiters    uint64 `json:"late_waiters"` // waiters that were told StatusTimedOut while their flight went on
	Voided         uint64 `json:"voided"`       // answers thrown away because of an invalidation meanwhile
	RouteAsks      uint64 `json:"route_asks"`   // path queries for addresses; Shared ones joined another's
	RouteShared    uint64 `json:"route_shared"`
	Refreshes      uint64 `json:"refreshes"`       // lookups behind a hit
	RefreshDropped uint64 `json:"refresh_dropped"` // due and in turn, but there was no room; a later hit tries again
	Negative       uint64 `json:"negative"`        // failures remembered
	SourceAsks     uint64 `json:"source_asks"`     // questions to the host's routing
	Notices        uint64 `json:"notices"`         // told by the SM
	NoticeDrops    uint64 `json:"notice_drops"`    // paths dropped for them
	Tables         uint64 `json:"tables"`          // times that all paths of an endpoint came at once
	TableFailures  uint64 `json:"table_failures"`  // times that they did not
	TablePaths     int    `json:"table_paths"`     // paths in the tables now
	TableRoutes    uint64 `json:"table_routes"`    // routes found there
}

type engineStats struct {
	started, joined, refused, late, voided, routeAsks, routeShared atomic.Uint64
	refreshes, refreshDropped, negative, sourceAsks                atomic.Uint64
	notices, noticeDrops                                           atomic.Uint64
	tables, tableFailures, tableRoutes                             atomic.Uint64
	tablePaths                                                     atomic.Int64
}

// Stats returns a snapshot of the engine's own figures.
func (e *Engine) Stats() Stats {
	s := &e.stats
	out := Stats{
		Started: s.started.Load(), Joined: s.joined.Load(), Refused: s.refused.Load(), LateWaiters: s.late.Load(),
		Voided: s.voided.Load(), RouteAsks: s.routeAsks.Load(), RouteShared: s.routeShared.Load(),
		Refreshes: s.refreshes.Load(), RefreshDropped: s.refreshDropped.Load(), Negative: s.negative.Load(),
		SourceAsks: s.sourceAsks.Load(), Notices: s.notices.Load(), NoticeDrops: s.noticeDrops.Load(),
		Tables: s.tables.Load(), TableFailures: s.tableFailures.Load(), TablePaths: int(s.tablePaths.Load()), TableRoutes: s.tableRoutes.Load(),
	}
	e.flights.mu.Lock()
	out.Flights, out.Waiters = e.flights.inFlight, e.flights.waiting
	e.flights.mu.Unlock()
	return out
}
