// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package resolver

import (
	"math"

	"acmd/cache"
	"acmd/mad/sa"
)

// Mirror serves answers without asking the engine: a copy in the kernel. What it
// is told to be void it serves no more when the call returns, and it follows by
// itself to what is true instead. So whatever drops something from the cache, a
// notice of the SM included, is in force there as well when it is done, and nobody
// has to wait for a system call.
type Mirror interface {
	cache.Watcher
	// Rechoose tells that sources chosen under another generation of the host
	// are void, before the host says so itself.
	Rechoose(gen uint64)
}

// Mirrored is an answer as it may be given without the engine for a while.
type Mirrored struct {
	// Mapped: the question has an endpoint, and what follows but Path is set,
	// whether there is an answer or not.
	Mapped bool
	// Key is the entry it comes from; when that changes, so may the answer. The
	// answer for a local address has no entry and changes with the topology only.
	Key   cache.Key
	Scope cache.Scope // whose drop voids it
	Row   int         // of the endpoint's counters
	Slot  uint16      // of the source address, see Sources
	Src   Addr        // of a question by address: named or chosen
	Gen   uint64      // the host's, under which Src was chosen; 0 if it was named
	Path  sa.PathRecord
	// Until is when it ends, on the clock of Now. A chosen source ends sooner
	// than its path.
	Until int64
	Due   bool // old enough to be looked up again if it is in use
}

// Mirrored answers q as Lookup would, uncounted. False: there is no success to be
// had without waiting. A source that has to be
// chosen is asked for, which is a system call. What is used somewhere should be
// asked for now and then: it counts as a hit for eviction.
func (e *Engine) Mirrored(q *Query, now int64, m *Mirrored) bool {
	*m = Mirrored{Until: math.MaxInt64}
	named := *q
	if q.Kind == ByAddress && q.Src.IsZero() {
		if !q.Dst.isIP() || !e.sourceFor(&q.Dst, now, &named.Src, m) {
			return false
		}
	}
	t := e.topo.Load()
	var a Answer
	var tg target
	if q.Kind == AskSA || e.target(t, &named, now, &tg, &a) != mapped {
		return false
	}
	m.Mapped, m.Key, m.Scope, m.Row, m.Slot, m.Src = true, tg.key, tg.scope, tg.ev.row.Row, tg.slot, named.Src
	meta, ok := e.cache.Get(&tg.key, now, (*[64]byte)(&m.Path))
	switch {
	case ok && meta.Status == 0:
		m.Until = min(m.Until, meta.Deadline)
		m.Due = now >= meta.Refresh || meta.Refresh <= tg.ev.port.state.staleUntil.Load()
		return true
	case ok, q.Kind != ByAddress, !e.cfg.Loopback, !loopback(t, &named, &tg, &a):
		return false
	}
	m.Path = a.Path
	return true
}

// sourceFor is the source towards dst, and in m until when and under which
// generation that holds. A choice is made anew in the second half of its life, so
// that one in use never ends.
func (e *Engine) sourceFor(dst *Addr, now int64, src *Addr, m *Mirrored) bool {
	m.Gen = e.cfg.Host.Generation().Load()
	c := e.sources.slots[sourceIndex(dst)].Load()
	if c == nil || c.dst != *dst || c.gen != m.Gen || c.until-now < sourceTTL/2 {
		chosen, err := e.chooseSource(dst, now)
		if err != nil {
			return false
		}
		*src, m.Until = chosen, now+sourceTTL
		return true
	}
	*src, m.Until = c.src, c.until
	return true
}

// RefreshSoon looks an answer up again that is due and in use, as a hit on it
// would. It takes a turn of the refresh rate or leaves it.
func (e *Engine) RefreshSoon(q *Query, now int64) {
	var a Answer
	var tg target
	if e.target(e.topo.Load(), q, now, &tg, &a) == mapped {
		if tg.chosen {
			return // named by who mirrors it
		}
		e.refresh.want(e, q, &tg, tg.source(q, &a), now)
	}
}

// SourceSlot is a local address and the slot that keys of questions from it have.
type SourceSlot struct {
	Addr Addr
	Slot uint16
}

// Sources lists the addresses that questions may come from.
func (e *Engine) Sources() []SourceSlot {
	t := e.topo.Load()
	list := make([]SourceSlot, 0, len(t.bySource))
	for a, ref := range t.bySource {
		list = append(list, SourceSlot{a, ref.slot})
	}
	return list
}
