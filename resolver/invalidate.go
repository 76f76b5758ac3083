// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package resolver

import (
	"fmt"
	"slices"

	"acmd/cache"
	"acmd/mad"
	"acmd/mad/sa"
)

// The flushes return the number of paths that went, where that can be told. A
// query that begins after one returned is not answered with what it dropped:
// flights that asked before are refused by the cache and ask again. Addresses go
// before paths, so that a flight that still found an old address is caught when
// it publishes the path. A mirror is told by the cache, see [Mirror].

// FlushAll drops everything that is cached.
func (e *Engine) FlushAll() int {
	defer e.prefetch.wake()
	e.addrs.Flush()
	return e.cache.Flush()
}

// FlushGID drops every path to a GID, whatever the question was.
func (e *Engine) FlushGID(gid mad.GID) int {
	e.addrs.DropGID(gid)
	return e.cache.DropGID(gid)
}

// FlushLID drops every path to a LID.
func (e *Engine) FlushLID(lid mad.LID) int {
	e.addrs.DropLID(lid)
	return e.cache.DropLID(lid)
}

// FlushDest drops what is known about a name, an address, a GID or a LID, on all
// endpoints, and the paths to the GIDs that it led to.
func (e *Engine) FlushDest(dst Addr) (n int) {
	switch dst.Kind {
	case cache.KindGID:
		return e.FlushGID(mad.GID(dst.Data[:16]))
	case cache.KindLID:
		return e.FlushLID(dst.LID())
	}
	gids := map[mad.GID]bool{}
	n = e.deleteDest(&dst, gids)
	for g := range gids {
		n += e.FlushGID(g)
	}
	return n
}

// deleteDest drops the entries of one destination and collects the GIDs they led
// to, if asked.
func (e *Engine) deleteDest(dst *Addr, gids map[mad.GID]bool) (n int) {
	for slot := range e.topo.Load().slots {
		k := cache.MakeKey(uint16(slot), dst.Kind, dst.Bytes())
		var rec sa.PathRecord
		now := e.Now()
		for _, c := range []*cache.Cache{e.addrs, e.cache} {
			m, ok := c.Get(&k, now, (*[64]byte)(&rec))
			if ok && m.Status == 0 && gids != nil && !rec.DGID().IsZero() {
				gids[rec.DGID()] = true
			}
			if c.Delete(&k) && c == e.cache {
				n++
			}
		}
	}
	return n
}

// FlushPort drops every path that starts at a port, active or not. It fails when
// no such InfiniBand port was ever active.
func (e *Engine) FlushPort(device string, port uint8) (n int, err error) {
	scopes := e.topo.Load().scopes[portID{device, port}]
	if len(scopes) == 0 {
		return 0, fmt.Errorf("%s/%d: no such InfiniBand port", device, port)
	}
	e.cache.Range(func(_ *cache.Key, _ *[64]byte, m cache.Meta) bool {
		if slices.Contains(scopes, m.Scope) {
			n++
		}
		return true
	})
	for _, s := range scopes {
		e.dropScope(s)
	}
	return n, nil
}

// CacheLen returns the number of paths and remembered failures.
func (e *Engine) CacheLen() int { return e.cache.Len() }

// CacheStats reads the counters of the path cache.
func (e *Engine) CacheStats() cache.Stats { return e.cache.Stats() }

func (e *Engine) dropScope(s cache.Scope) {
	e.addrs.DropScope(s)
	e.cache.DropScope(s)
	e.prefetch.wake()
}

// scopeDrops returns the drops of everything that starts at a port.
func (e *Engine) scopeDrops(p *portState) (drops []func()) {
	for id, s := range e.ports.scopes {
		if id.port == p.id {
			drops = append(drops, func() { e.dropScope(s) })
		}
	}
	return drops
}

// markStale makes every path of a port due for refresh and forgets its failures.
// With refreshing off it does nothing.
func (e *Engine) markStale(p *portState) {
	if e.refreshAge != int64(Forever) {
		p.staleUntil.Store(e.Now() + e.refreshAge)
		e.prefetch.wake()
	}
}

// dropLocals drops what a change of local addresses made wrong: what was learned
// from the fabric about addresses that are local from now on, and the paths to the
// port that an address has left, which may have been found by it.
func (e *Engine) dropLocals(old, t *topology) {
	if e.stats.started.Load() == 0 && e.cache.Len() == 0 {
		return
	}
	for a := range t.bySource {
		if _, had := old.bySource[a]; !had && e.cfg.Loopback {
			e.deleteDest(&a, nil)
		}
	}
	left := map[mad.GID]bool{}
	for a, o := range old.bySource {
		if n, has := t.bySource[a]; !has || n.gid != o.gid || n.slot != o.slot {
			left[o.gid] = true
		}
	}
	for g := range left {
		e.FlushGID(g) // a flight that found the old port is refused as well
	}
}

// Endpoints implements [Resolver].
func (e *Engine) Endpoints() []*Endpoint { return e.topo.Load().endpoints }

// BySource implements [Resolver].
func (e *Engine) BySource(src *Addr) *Endpoint {
	if ref, ok := e.topo.Load().bySource[*src]; ok {
		return ref.ev.ep
	}
	return nil
}
