// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package resolver

import (
	"runtime"
	"sync/atomic"

	"acmd/cache"
	"acmd/mad/sa"
)

// attempt is one question of a flight to its provider, which may keep it for longer
// than the flight lasts.
type attempt struct {
	Ask
	e        *Engine
	f        *flight
	answered atomic.Bool
}

// done takes the provider's answer. A second one is ignored.
func (a *attempt) done(r *Resolution) {
	if a.answered.CompareAndSwap(false, true) {
		a.e.complete(a.f, r)
	}
}

// newFlight makes the flight for a query that was mapped to tg and a. What it asks the
// provider is not set.
func newFlight(q *Query, tg *target, since cache.Epoch, now int64, a *Answer) *flight {
	f := &flight{key: tg.key, q: *q, ev: tg.ev, scope: tg.scope, since: since, asked: now}
	if tg.chosen {
		f.q.Src = a.Src
	}
	return f
}

// ask makes the question of f's next attempt.
func (e *Engine) ask(f *flight, to *attempt, tg *target) {
	f.attempt = to
	to.e, to.f = e, f
	q, ask := &f.q, &to.Ask
	ask.Endpoint, ask.SGID, ask.Refresh = tg.ev.ep, tg.sgid, f.refresh
	ask.slot, ask.port, ask.since, ask.step = tg.slot, tg.ev.port, f.since, &f.mark
	if q.Kind == ByAddress {
		ask.Src, ask.Dst = q.Src, q.Dst
		ask.Path = fillPath(tg, &sa.PathRecord{})
	} else {
		ask.Path = fillPath(tg, &q.Path)
	}
	ask.Mask = maskOf(&ask.Path)
}

// run asks the provider.
func (e *Engine) run(f *flight) { f.ev.prov.Resolve(&f.attempt.Ask, f.attempt.done) }

// warmFlights is how many lookups find their memory mapped in a process that has
// just started: about 1 MB.
const warmFlights = 1024

// Warm has most of the memory of the first lookups mapped: it takes and drops it, and
// collects what is garbage by then. A node's daemon is asked for all its paths at once
// when a job starts, and a page fault for each would be a good part of what a lookup
// costs. It takes a few milliseconds.
func Warm() {
	flights := make([]*flight, warmFlights)
	outcomes := make([]*Resolution, warmFlights)
	for i := range flights {
		flights[i], outcomes[i] = &flight{asked: 1}, &Resolution{asked: 1} // written, or nothing is mapped
	}
	runtime.KeepAlive(flights)
	runtime.KeepAlive(outcomes)
	runtime.GC()
}
