// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package main

import (
	"encoding/binary"
	"math"
	"sync"

	"github.com/maypok86/otter/v2"
	"github.com/puzpuzpuz/xsync/v4"

	"acmd/cache"
	"acmd/mad"
)

type record = [64]byte

// makeRecord carries the GID where a PathRecord has it, a generation in the
// first word, and both mixed in the last one.
func makeRecord(r *record, g *mad.GID, gen uint64) {
	copy(r[8:24], g[:])
	binary.NativeEndian.PutUint64(r[0:], gen)
	binary.NativeEndian.PutUint64(r[56:], gen^binary.NativeEndian.Uint64(g[8:]))
}

func good(r *record, g *mad.GID) bool {
	w := binary.NativeEndian.Uint64
	return w(r[8:]) == w(g[0:]) && w(r[16:]) == w(g[8:]) && w(r[0:])^w(r[56:]) == w(g[8:])
}

// table is one contender. read does n lookups of random keys in its own loop,
// so that no table pays for an indirect call, and returns the failed ones.
type table interface {
	name() string
	put(g *mad.GID, gen uint64)
	read(gids []mad.GID, n int, seed uint32, chained bool) (bad int)
}

func makers() []func(n int) table {
	return []func(n int) table{
		func(n int) table { return &acmdTable{cache.New(cache.Config{Capacity: max(1<<16, n+n/16)})} },
		func(n int) table { return &xsyncTable{xsync.NewMap[mad.GID, *record](xsync.WithPresize(n))} },
		func(n int) table {
			return &otterTable{otter.Must(&otter.Options[mad.GID, *record]{MaximumSize: n + n/16, InitialCapacity: n})}
		},
		func(int) table { return &syncTable{} },
		func(n int) table { return &lockedTable{m: make(map[mad.GID]*record, n)} },
	}
}

// pick is the index of the next key: the upper bits of a linear congruence.
func pick(x *uint32, n int) uint32 {
	*x = *x*1664525 + 1013904223
	return uint32(uint64(*x) * uint64(n) >> 32)
}

// reserved reads a word of the record that is always zero. Adding it to the
// generator's state makes every lookup wait for the one before it, as in a
// daemon, which does not have the next request yet.
func reserved(r *record) uint32 { return binary.NativeEndian.Uint32(r[48:]) }

type acmdTable struct{ c *cache.Cache }

func (t *acmdTable) name() string { return "acmd/cache" }

func (t *acmdTable) put(g *mad.GID, gen uint64) {
	var r record
	makeRecord(&r, g, gen)
	k := cache.MakeKey(1, cache.KindGID, g[:])
	t.c.Put(&k, &r, cache.Meta{Deadline: math.MaxInt64}, t.c.Epoch())
}

func (t *acmdTable) read(gids []mad.GID, n int, x uint32, chained bool) (bad int) {
	var r record
	k := cache.Key{Endpoint: 1, Kind: cache.KindGID, Len: 16}
	for range n {
		g := &gids[pick(&x, len(gids))]
		copy(k.Data[:16], g[:])
		if _, ok := t.c.Get(&k, 1, &r); !ok || !good(&r, g) {
			bad++
		}
		if chained {
			x += reserved(&r)
		}
	}
	return bad
}

type xsyncTable struct{ m *xsync.Map[mad.GID, *record] }

func (t *xsyncTable) name() string { return "xsync.Map" }

func (t *xsyncTable) put(g *mad.GID, gen uint64) {
	r := new(record)
	makeRecord(r, g, gen)
	t.m.Store(*g, r)
}

func (t *xsyncTable) read(gids []mad.GID, n int, x uint32, chained bool) (bad int) {
	var r record
	for range n {
		g := &gids[pick(&x, len(gids))]
		p, ok := t.m.Load(*g)
		if !ok {
			bad++
			continue
		}
		if r = *p; !good(&r, g) {
			bad++
		}
		if chained {
			x += reserved(&r)
		}
	}
	return bad
}

type otterTable struct {
	m *otter.Cache[mad.GID, *record]
}

func (t *otterTable) name() string { return "otter" }

func (t *otterTable) put(g *mad.GID, gen uint64) {
	r := new(record)
	makeRecord(r, g, gen)
	t.m.Set(*g, r)
}

func (t *otterTable) read(gids []mad.GID, n int, x uint32, chained bool) (bad int) {
	var r record
	for range n {
		g := &gids[pick(&x, len(gids))]
		p, ok := t.m.GetIfPresent(*g)
		if !ok {
			bad++
			continue
		}
		if r = *p; !good(&r, g) {
			bad++
		}
		if chained {
			x += reserved(&r)
		}
	}
	return bad
}

type syncTable struct{ m sync.Map }

func (t *syncTable) name() string { return "sync.Map" }

func (t *syncTable) put(g *mad.GID, gen uint64) {
	r := new(record)
	makeRecord(r, g, gen)
	t.m.Store(*g, r)
}

func (t *syncTable) read(gids []mad.GID, n int, x uint32, chained bool) (bad int) {
	var r record
	for range n {
		g := &gids[pick(&x, len(gids))]
		p, ok := t.m.Load(*g)
		if !ok {
			bad++
			continue
		}
		if r = *p.(*record); !good(&r, g) {
			bad++
		}
		if chained {
			x += reserved(&r)
		}
	}
	return bad
}

type lockedTable struct {
	mu sync.RWMutex
	m  map[mad.GID]*record
}

func (t *lockedTable) name() string { return "RWMutex+map" }

func (t *lockedTable) put(g *mad.GID, gen uint64) {
	r := new(record)
	makeRecord(r, g, gen)
	t.mu.Lock()
	t.m[*g] = r
	t.mu.Unlock()
}

func (t *lockedTable) read(gids []mad.GID, n int, x uint32, chained bool) (bad int) {
	var r record
	for range n {
		g := &gids[pick(&x, len(gids))]
		t.mu.RLock()
		p, ok := t.m[*g]
		t.mu.RUnlock()
		if !ok {
			bad++
			continue
		}
		if r = *p; !good(&r, g) {
			bad++
		}
		if chained {
			x += reserved(&r)
		}
	}
	return bad
}
