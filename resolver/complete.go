// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package resolver

import (
	"errors"
	"math"
	"time"

	"acmd/cache"
	"acmd/mad/sa"
)

var errVoided = errors.New("paths were invalidated faster than they could be looked up")

// complete takes the outcome of an attempt. Publishing and leaving the table are
// one step under the mutex: who looks between them finds the flight, who looks
// after them finds the entry, and nobody is answered with a record that an
// acknowledged invalidation has killed, as then the cache refuses it.
func (e *Engine) complete(f *flight, r *Resolution) {
	ft := &e.flights
	ft.mu.Lock()
	if f.over {
		ft.mu.Unlock()
		return
	}
	if !e.publish(f, r) {
		e.stats.voided.Add(1)
		if f.attempts++; f.attempts < maxAttempts {
			ft.mu.Unlock()
			// Not from here: this may be the goroutine of the SA client.
			go e.again(f)
			return
		}
		r = &Resolution{Status: StatusNoData, Err: errVoided, Step: StepRoute}
	}
	ft.end(f)
	head := ft.takeWaiters(f)
	ft.mu.Unlock()
	if r.Status != StatusSuccess && !f.refresh {
		e.failures.note(f.attempt.Endpoint, f.q.describe(), r)
	}
	f.told = Answer{Status: r.Status, Path: r.Path, Err: r.Err, Origin: r.Origin}
	e.tellAll(head, &f.told)
}

// publish puts an outcome into the cache and reports false if a path in it has
// been invalidated since the flight, or what it rests on, began. A failure is
// told to the waiters even so, but not remembered.
func (e *Engine) publish(f *flight, r *Resolution) bool {
	since, asked := f.since, f.asked
	if r.asked != 0 {
		since, asked = min(since, r.since), min(asked, r.asked)
	}
	if r.Status == StatusSuccess {
		m := cache.Meta{Scope: f.scope, Origin: uint8(r.Origin)}
		m.Deadline, m.Refresh = e.lifetimes(asked, r)
		return e.cache.Put(&f.key, (*[64]byte)(&r.Path), m, since)
	}
	r.Path = sa.PathRecord{}
	if e.cfg.NegativeTimeout <= 0 || r.Status == StatusNoMemory {
		return true
	}
	// A path that is in use is not replaced by a failure: silence says nothing
	// about it, and "no such path" gives it a short time to be confirmed.
	if f.refresh {
		if r.Step == StepRoute && r.Status == StatusNoData {
			e.doubt(&f.key, since)
		}
		return true
	}
	if e.isForgotten(addSaturated(asked, int64(e.cfg.NegativeTimeout))) {
		return true // something came into service meanwhile
	}
	now := e.Now()
	var rec [64]byte
	rec[negativeStep] = uint8(r.Step)
	m := cache.Meta{Scope: f.scope, Status: uint8(r.Status), Refresh: e.refreshAt(asked),
		Deadline: now + int64(e.cfg.NegativeTimeout)}
	if e.cache.Put(&f.key, &rec, m, since) {
		e.stats.negative.Add(1)
	}
	return true
}

// doubtTime is how long a path is served on after the SA said that there is none.
// In the middle of a sweep it says so of good ones (field case 26); each hit may
// ask again meanwhile.
const doubtTime = 10 * time.Second

// doubt shortens the life of a path.
func (e *Engine) doubt(k *cache.Key, since cache.Epoch) {
	var rec [64]byte
	now := e.Now()
	m, own, ok := e.cache.GetSince(k, k, now, &rec)
	if end := now + int64(doubtTime); ok && m.Status == 0 && m.Deadline > end {
		m.Deadline, m.Refresh = end, now
		e.cache.Put(k, &rec, m, min(since, own))
	}
}

// computeRefreshAge returns the age at which a path is looked up again when it
// is hit: the configured one, earlier for lifetimes that end before it.
func (e *Engine) computeRefreshAge() int64 {
	age := e.cfg.Refresh
	if age == Forever {
		return int64(age) // switched off
	}
	for _, d := range []time.Duration{e.cfg.AddrTimeout, e.cfg.RouteTimeout} {
		if d > 0 && d != Forever {
			age = min(age, d-d/4)
		}
	}
	return int64(age)
}

// refreshAt is the Meta.Refresh of what was asked for at an instant. Its distance
// is the same for all entries, so that the age of an entry can be told from it.
func (e *Engine) refreshAt(asked int64) int64 { return addSaturated(asked, e.refreshAge) }

// lifetimes returns Deadline and Refresh of a path that was asked for at an
// instant. What lives shorter than usual is not refreshed ahead, it ends.
func (e *Engine) lifetimes(asked int64, r *Resolution) (deadline, refresh int64) {
	deadline, refresh = math.MaxInt64, e.refreshAt(asked)
	switch {
	case e.cfg.AddrTimeout == 0:
		return asked, math.MaxInt64 // no caching at all
	case e.cfg.AddrTimeout != Forever:
		deadline = addSaturated(asked, int64(e.cfg.AddrTimeout))
	}
	switch {
	case e.cfg.RouteTimeout == 0: // "expires after the current minute"
		minute := int64(time.Minute)
		deadline, refresh = min(deadline, asked-asked%minute+minute), math.MaxInt64
	case e.cfg.RouteTimeout != Forever:
		deadline = min(deadline, addSaturated(asked, int64(e.cfg.RouteTimeout)))
	}
	if r.Lifetime > 0 {
		if d := addSaturated(asked, int64(r.Lifetime)); d < deadline {
			deadline = d
			if d <= refresh {
				refresh = math.MaxInt64
			}
		}
	}
	if r.Origin == OriginPreload {
		refresh = math.MaxInt64 // a file does not age; it is read again when it changes
	}
	return deadline, refresh
}

func addSaturated(a, b int64) int64 {
	if b > math.MaxInt64-a {
		return math.MaxInt64
	}
	return a + b
}

// again starts the next attempt of a flight on the present snapshot. The
// endpoint's LID or GID may be others by now, and so the key; if a flight for it
// is under way the waiters go there.
func (e *Engine) again(f *flight) {
	since := e.cache.Epoch()
	t := e.topo.Load()
	now := e.Now()
	var a Answer
	var tg target
	out := e.target(t, &f.q, now, &tg, &a)
	ft := &e.flights
	ft.mu.Lock()
	if f.over {
		ft.mu.Unlock()
		return
	}
	done := out == failed
	if !done {
		if tg.key != f.key {
			delete(ft.m, f.key)
			f.filed = false
			if o := ft.m[tg.key]; o != nil {
				ft.merge(f, o)
				ft.mu.Unlock()
				return
			}
			f.key = tg.key
			ft.m[f.key], f.filed = f, true
		}
		f.ev, f.scope, f.since, f.asked = tg.ev, tg.scope, since, now
		// The provider may still have the last question.
		e.ask(f, new(attempt), &tg)
		done = !f.refresh && e.answerNow(t, &f.q, &tg, now, &a) // a local address by now
	}
	if done {
		ft.end(f)
		head := ft.takeWaiters(f)
		ft.mu.Unlock()
		a.Core = false
		e.tellAll(head, &a)
		return
	}
	ft.mu.Unlock()
	e.run(f)
}

// merge moves the waiters of f, which ends, to o. Called with the mutex.
func (t *flightTable) merge(f, o *flight) {
	for w := f.waiters.head; w != nil; w = f.waiters.head {
		f.waiters.remove(w)
		w.flight, w.joined = o, true
		o.waiters.push(w)
	}
	t.end(f)
}

// askSA passes an SA query on. It is no lookup: nobody joins it and its answer is
// not kept.
func (e *Engine) askSA(f *flight, w *waiter) {
	ft := &e.flights
	ft.mu.Lock()
	var a Answer
	switch {
	case ft.closed:
		a.Status, a.Err, a.Core = StatusNotConn, errClosed, true
	case ft.inFlight >= e.cfg.MaxFlights || ft.waiting >= e.cfg.MaxWaiters:
		e.stats.refused.Add(1)
		a.Status, a.Err, a.Core = StatusNoMemory, errFlights, true
	}
	if a.Status != StatusSuccess {
		ft.mu.Unlock()
		a.Path = f.q.Path
		countFailure(f.ev.row, w.hint, a.Status)
		e.timeHit(f.asked)
		tellNow(w.w, w.tag, &a)
		return
	}
	ft.loose[f] = struct{}{}
	ft.inFlight++
	e.stats.started.Add(1)
	ft.addWaiter(f, w)
	f.mark.set(StepRoute)
	ft.mu.Unlock()
	// As ibacm: what it never sets is left out, or a path would not verify.
	mask := sa.PathMask(&f.q.Path) &^ (sa.PathNumPath | sa.PathPreference)
	f.ev.row.Add(w.hint, CounterRouteQuery, 1)
	f.ev.prov.Query(mask, &f.q.Path, func(r SAResult) { e.askedSA(f, &r) })
}

// askedSA answers an SA query.
func (e *Engine) askedSA(f *flight, r *SAResult) {
	ft := &e.flights
	ft.mu.Lock()
	if f.over {
		ft.mu.Unlock()
		return
	}
	ft.end(f)
	head := ft.takeWaiters(f)
	ft.mu.Unlock()
	a := Answer{Path: f.q.Path, Origin: OriginSA}
	if r.Valid {
		a.Path, a.Asked = r.Path, true
	}
	if a.Status, a.Err = saFailure(r); a.Err != nil {
		a.Err = stepError(StepRoute, a.Err)
	}
	e.tellAll(head, &a)
}
