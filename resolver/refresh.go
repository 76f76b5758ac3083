// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package resolver

import (
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"
)

const (
	refreshMarks = 1 << 12
	refreshQueue = 128
	refreshRetry = int64(time.Second) // a key does not ask for tokens more often
	sweepEvery   = time.Second
	sweepBudget  = 8192
)

// refresher turns hits on old entries into lookups behind them: at most rate a
// second, however many entries are due (field case 9).
type refresher struct {
	gap   int64        // between two refreshes
	next  atomic.Int64 // when the next one may start
	marks [refreshMarks]atomic.Int64
	queue chan Query
}

func (r *refresher) init(rate int) {
	r.gap = int64(time.Second) / int64(rate)
	r.queue = make(chan Query, refreshQueue)
}

// want asks for a refresh of what q hit; src is its source if it is by address. It
// runs on the hot path: it takes a turn or leaves it to a later hit. The marks keep one
// busy key from taking the turns of others while its refresh is under way.
func (r *refresher) want(e *Engine, q *Query, tg *target, src *Addr, now int64) {
	next := r.next.Load()
	if now < next {
		return
	}
	mark := &r.marks[(xxhash.Sum64(tg.key.Data[:tg.key.Len])^uint64(tg.slot))%refreshMarks]
	until := mark.Load()
	if now < until || !r.next.CompareAndSwap(next, now+r.gap) {
		return
	}
	mark.Store(now + refreshRetry)
	named := *q
	if q.Kind == ByAddress {
		named.Src = *src
	}
	select {
	case r.queue <- named:
	default:
		e.stats.refreshDropped.Add(1)
	}
}

// refreshLoop starts the refreshes and sweeps the caches.
func (e *Engine) refreshLoop() {
	defer e.done.Done()
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		select {
		case <-e.stop:
			return
		case q := <-e.refresh.queue:
			e.startRefresh(&q)
		case <-tick.C:
			now := e.Now()
			e.cache.Sweep(now, sweepBudget)
			e.addrs.Sweep(now, sweepBudget)
		}
	}
}

// startRefresh starts a flight that nobody waits for, unless one for the key is
// under way.
func (e *Engine) startRefresh(q *Query) {
	since := e.cache.Epoch()
	var a Answer
	var tg target
	now := e.Now()
	if e.target(e.topo.Load(), q, now, &tg, &a) != mapped {
		return
	}
	f := newFlight(q, &tg, since, now, &a)
	f.refresh = true
	e.ask(f, &f.try, &tg)
	ft := &e.flights
	ft.mu.Lock()
	switch {
	case ft.closed || ft.m[f.key] != nil:
		ft.mu.Unlock()
		return
	case ft.inFlight >= e.cfg.MaxFlights:
		ft.mu.Unlock()
		e.stats.refreshDropped.Add(1)
		return
	}
	ft.file(f)
	ft.mu.Unlock()
	e.stats.refreshes.Add(1)
	e.run(f)
}
