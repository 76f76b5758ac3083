// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package cache

import (
	"sync"
	"sync/atomic"

	"acmd/mad"
)

// destEpochs is how many hash buckets remember invalidations of GIDs, of LIDs
// and of keys. Two in one bucket only make a flight ask again.
const destEpochs = 1 << 12

// epochs is the order of invalidations: a counter, and for each thing that can
// be invalidated the counter's value when it last was.
//
// An invalidation first raises the counter, then its thing, then removes entries
// under the shards' locks; Put checks under the shard's lock. So a Put of an earlier
// flight either sees the raised value, or is done before the removal comes to its
// shard. A flight that begins in between has the new value, and all that happened
// before the invalidation was before it: it may publish, however long an invalidation
// is kept from going on.
type epochs struct {
	mu   sync.Mutex // one invalidation at a time, or an older value could overwrite a newer
	seq  atomic.Uint64
	all  atomic.Uint64
	gids [destEpochs]atomic.Uint64
	lids [destEpochs]atomic.Uint64
	keys [destEpochs]atomic.Uint64
}

func (e *epochs) raise(p *atomic.Uint64) Epoch {
	e.mu.Lock()
	defer e.mu.Unlock()
	v := e.seq.Add(1)
	p.Store(v)
	return Epoch(v)
}

func (c *Cache) gidEpoch(g gidWords) *atomic.Uint64 {
	return &c.epochs.gids[c.hash.gid(g)%destEpochs]
}

func (c *Cache) lidEpoch(l uint16) *atomic.Uint64 { return &c.epochs.lids[c.hash.lid(l)%destEpochs] }

// The upper bits of a hash's lower half choose buckets only in the greatest tables.
func (c *Cache) keyEpoch(h uint64) *atomic.Uint64 { return &c.epochs.keys[uint32(h)>>20] }

// lastInvalidation returns when something that concerns an item was last
// invalidated.
func (c *Cache) lastInvalidation(h uint64, it *item) uint64 {
	last := max(c.epochs.all.Load(), c.keyEpoch(h).Load(), c.scopes[tagScope(it.tag)].Load())
	key, rec := it.dests()
	for _, d := range [2]dest{key, rec} {
		if d.gid != (gidWords{}) {
			last = max(last, c.gidEpoch(d.gid).Load())
		}
		if d.lid != 0 {
			last = max(last, c.lidEpoch(d.lid).Load())
		}
	}
	return last
}

// Dropped reports whether everything of a scope was dropped after since.
func (c *Cache) Dropped(s Scope, since Epoch) bool {
	return s >= MaxScopes || max(c.epochs.all.Load(), c.scopes[s].Load()) > uint64(since)
}

// Epoch returns the current point in the order of invalidations. A flight takes
// it before it asks.
func (c *Cache) Epoch() Epoch { return Epoch(c.epochs.seq.Load()) }

// Delete drops the entry of a key and reports whether there was one. Flights
// that began earlier cannot publish the key.
func (c *Cache) Delete(k *Key) bool {
	if !k.valid() {
		return false
	}
	it := makeItem(k, nil, &Meta{}, 0)
	h := c.hash.words(it.header(), &it.key)
	c.epochs.raise(c.keyEpoch(h))
	s := c.shardOf(h)
	s.mu.Lock()
	defer s.mu.Unlock()
	_, n := c.find(h, &it)
	if n == 0 {
		return false
	}
	c.remove(s, n)
	s.dropped++
	return true
}

// DropScope kills every entry of a scope with one store, and with it what
// flights that began earlier may publish for it. The memory is freed by Sweep or
// eviction. It returns the epoch of the drop; a scope that is not below
// MaxScopes has no entries.
func (c *Cache) DropScope(s Scope) Epoch {
	if s >= MaxScopes {
		return c.Epoch()
	}
	e := c.epochs.raise(&c.scopes[s])
	if c.watch != nil {
		c.watch.Dropped(s)
	}
	return e
}

// DropGID drops every entry whose record leads to this GID or whose key names
// it, and returns how many. Flights that began earlier cannot publish one. The
// zero GID names nothing.
func (c *Cache) DropGID(gid mad.GID) int {
	d := dest{gid: toWords(gid)}
	if gid.IsZero() {
		return 0
	}
	c.epochs.raise(c.gidEpoch(d.gid))
	return c.dropDest(d)
}

// DropLID does the same for a DLID. LID 0 names nothing.
func (c *Cache) DropLID(lid mad.LID) int {
	if lid == 0 {
		return 0
	}
	c.epochs.raise(c.lidEpoch(uint16(lid)))
	return c.dropDest(dest{lid: uint16(lid)})
}

func (c *Cache) dropDest(d dest) (freed int) {
	for i := range c.shards {
		freed += c.removeDest(&c.shards[i], d)
	}
	return freed
}

// Flush drops everything and returns how many entries that were. Flights that
// began earlier cannot publish.
func (c *Cache) Flush() (freed int) {
	c.epochs.raise(&c.epochs.all)
	for i := range c.shards {
		freed += c.flushShard(&c.shards[i])
	}
	return freed
}

func (c *Cache) flushShard(s *shard) (freed int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for n := s.base; n < s.next; n++ {
		if c.entries[n].ver.Load()&1 == 0 {
			c.remove(s, n)
			freed++
		}
	}
	s.dropped += uint64(freed)
	return freed
}
