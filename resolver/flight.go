// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package resolver

import (
	"sync"
	"time"

	"acmd/bpf"
	"acmd/cache"
	"acmd/mad/sa"
)

// maxAttempts bounds how often a flight asks again because what it learned was
// invalidated meanwhile.
const maxAttempts = 4

// flight is one lookup under way for all who ask the same. Its fields belong to
// the table's mutex, except attempt and since, which are fixed while an attempt
// runs, and told, which is for who ends it. Nearly all lookups have one waiter and one
// attempt: they are part of the flight, so that a miss takes its memory in one piece.
type flight struct {
	key      cache.Key
	q        Query // with the source that was chosen
	ev       *epView
	scope    cache.Scope
	attempt  *attempt
	since    cache.Epoch // before the attempt looked at anything
	asked    int64
	mark     stepMark
	attempts int
	filed    bool // in the table under key
	over     bool

	refresh bool  // nobody waited when it began: a known path is checked
	shun    int64 // until then new askers are told what its first waiters were told
	waiters waiterList

	first waiter  // who began it, if it waits
	try   attempt // the first one
	told  Answer  // what the waiters are lent at the end
}

// waiter is one query that waits. It is in its flight's list, and in the queue of
// deadlines unless it has one of its own.
type waiter struct {
	w        Waiter
	tag      uint64
	flight   *flight
	asked    int64
	deadline int64
	src      Addr // to be told, when the engine chose it
	joined   bool // somebody else's flight
	own      bool // Query.OwnDeadline
	hint     uintptr
	row      *bpf.Endpoint // of the endpoint when it asked

	next, prev       *waiter // of the flight
	laterD, earlierD *waiter // in order of deadlines
}

type waiterList struct{ head, tail *waiter }

func (l *waiterList) push(w *waiter) {
	w.prev = l.tail
	if l.tail == nil {
		l.head = w
	} else {
		l.tail.next = w
	}
	l.tail = w
}

func (l *waiterList) remove(w *waiter) {
	if w.prev == nil {
		l.head = w.next
	} else {
		w.prev.next = w.next
	}
	if w.next == nil {
		l.tail = w.prev
	} else {
		w.next.prev = w.prev
	}
	w.next, w.prev = nil, nil
}

// flightTable has the flights by key, and the waiters in order of deadlines,
// which is that of arrival: all have the same time.
type flightTable struct {
	e        *Engine
	mu       sync.Mutex
	m        map[cache.Key]*flight
	loose    map[*flight]struct{} // SA queries, which nobody can join
	inFlight int
	waiting  int
	first    *waiter
	last     *waiter
	timer    *time.Timer
	closed   bool
}

func (t *flightTable) init(e *Engine) {
	t.e, t.m, t.loose = e, map[cache.Key]*flight{}, map[*flight]struct{}{}
	t.timer = time.AfterFunc(time.Hour, t.expire)
	t.timer.Stop()
}

// addWaiter puts a waiter onto a flight. Called with the mutex.
func (t *flightTable) addWaiter(f *flight, w *waiter) {
	w.flight = f
	f.waiters.push(w)
	t.waiting++
	w.asked = t.e.Now()
	if w.own {
		return
	}
	w.deadline = w.asked + int64(t.e.cfg.RequestTimeout)
	w.earlierD = t.last
	if t.last == nil {
		t.first = w
		t.timer.Reset(t.e.cfg.RequestTimeout)
	} else {
		t.last.laterD = w
	}
	t.last = w
}

// dropDeadline takes a waiter out of the queue of deadlines. Called with the
// mutex. The timer may fire early for it; expire sets it anew.
func (t *flightTable) dropDeadline(w *waiter) {
	t.waiting--
	if w.own {
		return
	}
	if w.earlierD == nil {
		t.first = w.laterD
	} else {
		w.earlierD.laterD = w.laterD
	}
	if w.laterD == nil {
		t.last = w.earlierD
	} else {
		w.laterD.earlierD = w.earlierD
	}
	w.laterD, w.earlierD = nil, nil
}

// takeWaiters detaches all waiters of a flight. Called with the mutex.
func (t *flightTable) takeWaiters(f *flight) (head *waiter) {
	head = f.waiters.head
	for w := head; w != nil; w = w.next {
		t.dropDeadline(w)
	}
	f.waiters = waiterList{}
	return head
}

// end takes a flight out of the table. Called with the mutex.
func (t *flightTable) end(f *flight) {
	if f.filed {
		delete(t.m, f.key)
	}
	delete(t.loose, f)
	f.filed, f.over = false, true
	t.inFlight--
}

// expire tells waiters whose time is over. Their flights go on; for the negative
// lifetime, who asks the same is told the same at once (field case 3).
func (t *flightTable) expire() {
	t.mu.Lock()
	now := t.e.Now()
	var head, tail *waiter
	for w := t.first; w != nil && w.deadline <= now; w = t.first {
		t.dropDeadline(w)
		w.flight.waiters.remove(w)
		if n := t.e.cfg.NegativeTimeout; n > 0 {
			w.flight.shun = now + int64(n)
		}
		if tail == nil {
			head = w
		} else {
			tail.next = w
		}
		tail = w
	}
	if t.first != nil && !t.closed {
		t.timer.Reset(time.Duration(t.first.deadline - now))
	}
	t.mu.Unlock()
	for w := head; w != nil; {
		next := w.next
		t.e.stats.late.Add(1)
		a := Answer{Status: StatusTimedOut, Err: errLate[w.flight.mark.Load()]}
		if w.flight.q.Kind == AskSA {
			a.Path = w.flight.q.Path
		}
		t.e.tell(w, &a)
		w = next
	}
}

// close answers everybody and refuses what comes later.
func (t *flightTable) close() {
	t.mu.Lock()
	t.closed = true
	t.timer.Stop()
	var heads []*waiter
	all := make([]*flight, 0, len(t.m)+len(t.loose))
	for _, f := range t.m {
		all = append(all, f)
	}
	for f := range t.loose {
		all = append(all, f)
	}
	for _, f := range all {
		if w := t.takeWaiters(f); w != nil {
			heads = append(heads, w)
		}
		t.end(f)
	}
	t.mu.Unlock()
	for _, w := range heads {
		t.e.tellAll(w, &Answer{Status: StatusNotConn, Err: errClosed})
	}
}

// tellAll lends a to a chain of waiters, one after the other.
func (e *Engine) tellAll(head *waiter, a *Answer) {
	for w := head; w != nil; {
		next := w.next
		e.tell(w, a)
		w = next
	}
}

// tell counts and answers one waiter.
func (e *Engine) tell(w *waiter, a *Answer) {
	a.Src = w.src
	if a.Status == StatusSuccess && w.joined {
		w.row.Add(w.hint, CounterRouteCache, 1)
	}
	countFailure(w.row, w.hint, a.Status)
	e.timeMiss(w, a.Status)
	who := w.w
	w.w, w.next, w.prev = nil, nil, nil // the flight may go on, and is not to keep them
	who.Answered(w.tag, a)
}

// Resolve implements [Resolver].
func (e *Engine) Resolve(q *Query, tag uint64, w Waiter) {
	since := e.cache.Epoch() // before the snapshot, see apply
	t := e.topo.Load()
	now := e.Now()
	var a Answer
	var tg target
	out := e.target(t, q, now, &tg, &a)
	if out == askSource {
		src, err := e.chooseSource(&q.Dst, now)
		if err != nil {
			out = a.refuse(StatusSrcAddr, err)
		} else {
			named := *q
			named.Src = src
			if out = e.target(t, &named, now, &tg, &a); out == mapped {
				a.Src, tg.chosen = src, true
			}
		}
	}
	if out == failed {
		e.countCore(q, &a)
		e.timeHit(now)
		tellNow(w, tag, &a)
		return
	}
	w1 := waiter{w: w, tag: tag, own: q.OwnDeadline, hint: shardHint(&a), row: tg.ev.row}
	if tg.chosen {
		w1.src = a.Src
	}
	if q.Kind == AskSA {
		e.counters.core.Add(w1.hint, CounterResolve, 1) // an endpoint counts no SA queries here
		f := newFlight(q, &tg, since, now, &a)
		f.first = w1
		e.askSA(f, &f.first)
		return
	}
	tg.ev.row.Add(w1.hint, CounterResolve, 1)
	e.join(t, q, &w1, &tg, since, now, &a)
}

// join puts a waiter, which it copies, onto the flight for its key, and starts one
// if there is none. The cache is looked at once more under the mutex, since flights
// publish under it: so a key is never asked for twice in a row.
func (e *Engine) join(t *topology, q *Query, w *waiter, tg *target, since cache.Epoch, now int64, a *Answer) {
	ft := &e.flights
	ft.mu.Lock()
	cur := ft.m[tg.key]
	start := false
	verdict := func(s Status, err error) {
		ft.mu.Unlock()
		a.Status, a.Err, a.Path = s, err, sa.PathRecord{}
		a.Core = s == StatusNoMemory || s == StatusNotConn // nobody was asked
		countFailure(tg.ev.row, w.hint, s)
		e.timeHit(now)
		if start {
			e.run(cur)
		}
		tellNow(w.w, w.tag, a)
	}
	if ft.closed {
		verdict(StatusNotConn, errClosed)
		return
	}
	if cur == nil {
		if e.answerNow(t, q, tg, now, a) {
			ft.mu.Unlock()
			if a.Status == StatusSuccess {
				tg.ev.row.Add(w.hint, CounterRouteCache, 1)
			}
			countFailure(tg.ev.row, w.hint, a.Status)
			e.timeHit(now)
			tellNow(w.w, w.tag, a)
			return
		}
		if ft.inFlight >= e.cfg.MaxFlights {
			e.stats.refused.Add(1)
			verdict(StatusNoMemory, errFlights)
			return
		}
		// Under the mutex: made before it, it would be in vain for all who join.
		cur, start = newFlight(q, tg, since, now, a), true
		e.ask(cur, &cur.try, tg)
		ft.file(cur)
	}
	switch {
	case q.NoDelay:
		verdict(StatusNoData, errNoDelay)
	case cur.shun > now && !w.own && !e.isForgotten(cur.shun):
		verdict(StatusTimedOut, errRemembered[cur.mark.Load()])
	case ft.waiting >= e.cfg.MaxWaiters:
		e.stats.refused.Add(1)
		verdict(StatusNoMemory, errWaiters)
	default:
		own := &cur.first
		if !start {
			own = new(waiter)
		}
		*own = *w
		own.joined = !start
		ft.addWaiter(cur, own)
		ft.mu.Unlock()
		if start {
			e.run(cur)
		} else {
			e.stats.joined.Add(1)
		}
	}
}

// tellNow lends a copy of a, so that only who is told at once pays for its memory.
func tellNow(w Waiter, tag uint64, a *Answer) {
	c := *a
	w.Answered(tag, &c)
}

// file enters a flight. Called with the mutex.
func (t *flightTable) file(f *flight) {
	t.m[f.key] = f
	f.filed = true
	t.inFlight++
	t.e.stats.started.Add(1)
}
