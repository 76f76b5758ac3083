// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package resolver

import (
	"acmd/bpf"
	"acmd/cache"
	"acmd/mad"
	"acmd/mad/sa"
)

// target is a query mapped to a local endpoint: whom to ask and under which key
// the answer is kept.
type target struct {
	ev    *epView
	sgid  mad.GID // source GID
	slot  uint16
	scope cache.Scope
	key   cache.Key
	// chosen: the source of a question by address is the one in the answer, not the
	// client's.
	chosen bool
}

// source returns the source of a question by address.
func (tg *target) source(q *Query, a *Answer) *Addr {
	if tg.chosen {
		return &a.Src
	}
	return &q.Src
}

// outcome of mapping a query.
type outcome uint8

const (
	mapped    outcome = iota
	failed            // the answer says why
	askSource         // the host's routing has to choose the source
)

// Lookup implements [Resolver]. It takes one snapshot and one read of the cache.
func (e *Engine) Lookup(q *Query, now int64, a *Answer) bool {
	var tg target
	t := e.topo.Load()
	a.Core, a.Asked, a.Src, a.Err, a.Origin = false, false, Addr{}, nil, OriginNone
	switch e.target(t, q, now, &tg, a) {
	case askSource:
		return false
	case failed:
		e.countCore(q, a)
		return true
	}
	if q.Kind == AskSA || !e.answerNow(t, q, &tg, now, a) {
		return false
	}
	e.countNow(q, &tg, a)
	return true
}

// target maps a query. On failed a is filled. When the client names no source and
// one is remembered, a.Src has it; when none is, the outcome is askSource.
func (e *Engine) target(t *topology, q *Query, now int64, tg *target, a *Answer) outcome {
	if q.Kind != ByAddress {
		return e.targetPath(t, q, tg, a)
	}
	if q.Dst.IsZero() {
		return a.refuse(StatusDestType, errNoDest)
	}
	if len(t.endpoints) == 0 {
		return a.refuse(StatusNotConn, errNoPort)
	}
	if tg.chosen = q.Src.IsZero(); tg.chosen {
		if !q.Dst.isIP() {
			return a.refuse(StatusDestType, errNeedsSource)
		}
		if !e.sources.recall(&q.Dst, e.cfg.Host.Generation().Load(), now, &a.Src) {
			return askSource
		}
	}
	src := tg.source(q, a)
	ref, ok := t.bySource[*src]
	if !ok {
		err := t.idle[*src]
		if err == nil {
			err = errNoSource
		}
		a.Src = Addr{}
		return a.refuse(StatusSrcAddr, err)
	}
	tg.ev, tg.sgid, tg.slot, tg.scope = ref.ev, ref.gid, ref.slot, ref.scope
	tg.key = cache.MakeKey(ref.slot, q.Dst.Kind, q.Dst.Bytes())
	return mapped
}

// targetPath maps a path request or an SA query.
func (e *Engine) targetPath(t *topology, q *Query, tg *target, a *Answer) outcome {
	p := &q.Path
	dgid, dlid := p.DGID(), p.DLID()
	switch {
	case q.Kind > AskSA:
		return a.refuse(StatusInvalid, errBadKind)
	case q.Kind == ByPath && dlid == 0 && dgid.IsZero():
		return a.refuse(StatusDestAddr, errNoDest)
	case len(t.endpoints) == 0:
		return a.refuse(StatusNotConn, errNoPort)
	}
	tg.ev = t.forPath(p.SGID(), p.SLID(), dgid, p.PKey())
	if tg.ev == nil {
		return a.refuse(StatusSrcAddr, errNoPathSource)
	}
	tg.slot = tg.ev.ep.Slot
	if tg.sgid = p.SGID(); tg.sgid.IsZero() {
		tg.sgid = tg.ev.port.sourceGID(dgid)
	}
	tg.scope = tg.ev.port.scopeOf(tg.sgid)
	if q.Kind == ByPath {
		tg.key = pathKey(tg, p)
	}
	return mapped
}

// pathKey makes the key of a path request: that of the GID or the LID when
// nothing else is constrained beyond what we would fill in anyway, else all 64
// bytes in canonical form (B-22).
func pathKey(tg *target, p *sa.PathRecord) cache.Key {
	dgid, dlid := p.DGID(), p.DLID()
	port := &tg.ev.port.info
	plain := p.ServiceID() == 0 && p[44]&0x8f == 0 && p[45]|p[46]|p[47]|p[48] == 0 &&
		p[52]|p[53]|p[54]|p[55]|p[56] == 0 &&
		(p.SLID() == 0 || p.SLID() == port.LID) && tg.sgid == tg.ev.port.sourceGID(dgid)
	switch {
	case plain && dlid == 0:
		return cache.MakeKey(tg.slot, cache.KindGID, p[8:24])
	case plain && dgid.IsZero():
		return cache.MakeKey(tg.slot, cache.KindLID, p[40:42])
	}
	c := fillPath(tg, p)
	return cache.MakeKey(tg.slot, cache.KindPath, c[:])
}

// fillPath completes a path request with the source (acm-wire 6.4), asks for one
// reversible path (B-34) and clears what constrains nothing: preference and
// reserved bits.
func fillPath(tg *target, p *sa.PathRecord) sa.PathRecord {
	c := *p
	c.SetSGID(tg.sgid)
	if c.SLID() == 0 {
		c.SetSLID(tg.ev.port.info.LID)
	}
	c.SetPKey(tg.ev.ep.PKey)
	c.SetReversibleNumPath(true, 1)
	c[44] &= 0x8f
	clear(c[57:])
	return c
}

// maskOf returns the components that a filled path request constrains.
func maskOf(p *sa.PathRecord) sa.ComponentMask {
	m := sa.PathMask(p)
	if p.RawTraffic() {
		m |= sa.PathRawTraffic
	}
	return m
}

// refuse fills in a failure that was found before any provider was asked.
func (a *Answer) refuse(s Status, err error) outcome {
	a.Status, a.Core, a.Err, a.Path = s, true, err, sa.PathRecord{}
	return failed
}

// answerNow answers from the cache, or for a local address from the snapshot.
// The cache goes first, as it has nearly all answers; what becomes local is
// dropped from it (dropLocals).
func (e *Engine) answerNow(t *topology, q *Query, tg *target, now int64, a *Answer) bool {
	m, ok := e.cache.Get(&tg.key, now, (*[64]byte)(&a.Path))
	if !ok {
		return q.Kind == ByAddress && e.cfg.Loopback && loopback(t, q, tg, a)
	}
	stale := m.Refresh <= tg.ev.port.state.staleUntil.Load()
	if m.Status != 0 {
		if stale || e.isForgotten(m.Deadline) {
			return false // what failed before the event deserves another try
		}
		a.remembered(Status(m.Status), q.NoDelay)
		return true
	}
	a.Status, a.Origin = StatusSuccess, Origin(m.Origin)
	if stale || now >= m.Refresh {
		e.refresh.want(e, q, tg, tg.source(q, a), now)
	}
	return true
}

// Where a negative entry's record says which step failed.
const negativeStep = 63

// remembered answers from a negative entry. Who wanted no delay gets what the
// protocol says for "not in the cache".
func (a *Answer) remembered(s Status, noDelay bool) {
	step := min(int(a.Path[negativeStep]), len(errRemembered)-1)
	a.Status, a.Err, a.Path = s, errRemembered[step], sa.PathRecord{}
	if noDelay {
		a.Status = StatusNoData
	}
}

// Now-counters: one row takes both, the totals are sums.
func (e *Engine) countNow(q *Query, tg *target, a *Answer) {
	h, row := shardHint(a), tg.ev.row
	row.Add(h, CounterResolve, 1)
	if a.Status == StatusSuccess {
		row.Add(h, CounterRouteCache, 1)
		return
	}
	countFailure(row, h, a.Status)
}

// countCore counts a query that no endpoint takes.
func (e *Engine) countCore(_ *Query, a *Answer) {
	h := shardHint(a)
	e.counters.core.Add(h, CounterResolve, 1)
	countFailure(e.counters.core, h, a.Status)
}

func countFailure(r *bpf.Endpoint, h uintptr, s Status) {
	switch s {
	case StatusSuccess:
	case StatusNoData:
		r.Add(h, CounterNoData, 1)
	default:
		r.Add(h, CounterError, 1)
	}
}
