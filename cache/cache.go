// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package cache

import (
	"encoding/binary"
	"sync"

	"acmd/mad"
)

// Config sizes a cache. The zero value is usable.
type Config struct {
	Capacity int    // entries; 0: 1<<16
	Shards   int    // 0: automatic; rounded up to a power of two
	Seed     uint64 // of the key hash; 0: random, as it must be outside of tests
}

// Stats is a snapshot of the counters of a cache.
type Stats struct {
	Capacity int
	Entries  int    // stored, dead ones that no sweep has met included
	Puts     uint64 // published
	Rejected uint64 // not published: something that concerns them was invalidated meanwhile
	Refused  uint64 // not published: malformed key or scope
	Evicted  uint64 // to make room
	Expired  uint64 // freed by Sweep after their deadline
	Dropped  uint64 // freed because of Delete, DropGID, DropLID, DropScope or Flush
	Shards   []int  // entries per shard
}

type item struct {
	rec   [64]byte
	m     Meta
	since Epoch
}

// Cache maps keys to records.
type Cache struct {
	mu     sync.Mutex
	cap    int
	seq    Epoch
	all    Epoch
	scopes [MaxScopes]Epoch
	gids   map[mad.GID]Epoch
	lids   map[mad.LID]Epoch
	keys   map[Key]Epoch
	m      map[Key]*item
	st     Stats
}

// New makes a cache.
func New(cfg Config) *Cache {
	if cfg.Capacity <= 0 {
		cfg.Capacity = 1 << 16
	}
	return &Cache{cap: cfg.Capacity, gids: map[mad.GID]Epoch{}, lids: map[mad.LID]Epoch{},
		keys: map[Key]Epoch{}, m: map[Key]*item{}}
}

// MakeKey builds a key; names must already be folded. More than MaxKeyData bytes
// give the zero Key, which is never found and never stored.
func MakeKey(ep uint16, kind Kind, data []byte) (k Key) {
	if len(data) > MaxKeyData {
		return Key{}
	}
	k.Endpoint, k.Kind, k.Len = ep, kind, uint8(len(data))
	copy(k.Data[:], data)
	return k
}

// Get copies the record of k out. It reports false when the entry is absent,
// expired (now >= Deadline) or invalidated.
func (c *Cache) Get(k *Key, now int64, rec *[64]byte) (Meta, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.m[*k]
	if e == nil || now >= e.m.Deadline || e.since < c.scopes[e.m.Scope] {
		return Meta{}, false
	}
	*rec = e.rec
	return e.m, true
}

// Epoch returns the current point in the order of invalidations.
func (c *Cache) Epoch() Epoch {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.seq
}

func recGID(r *[64]byte) mad.GID { return mad.GID(r[8:24]) }
func recLID(r *[64]byte) mad.LID { return mad.LID(binary.BigEndian.Uint16(r[40:])) }

// Put publishes what a flight that began at since has learned. It reports false
// when something that concerns it was invalidated after that.
func (c *Cache) Put(k *Key, rec *[64]byte, m Meta, since Epoch) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if k.Kind == 0 || k.Len > MaxKeyData || m.Scope >= MaxScopes {
		c.st.Refused++
		return false
	}
	last := max(c.all, c.scopes[m.Scope], c.keys[*k])
	if m.Status == 0 {
		last = max(last, c.gids[recGID(rec)], c.lids[recLID(rec)])
	}
	if last > since {
		c.st.Rejected++
		return false
	}
	if len(c.m) >= c.cap && c.m[*k] == nil {
		for o := range c.m {
			delete(c.m, o)
			c.st.Evicted++
			break
		}
	}
	e := &item{m: m, since: since}
	if rec != nil {
		e.rec = *rec
	}
	c.m[*k] = e
	c.st.Puts++
	return true
}

// Delete drops one entry.
func (c *Cache) Delete(k *Key) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seq++
	c.keys[*k] = c.seq
	_, ok := c.m[*k]
	delete(c.m, *k)
	return ok
}

// DropScope kills the entries of a scope at once and returns the epoch of it.
func (c *Cache) DropScope(s Scope) Epoch {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seq++
	if s < MaxScopes {
		c.scopes[s] = c.seq
	}
	return c.seq
}

func (c *Cache) drop(f func(k *Key, e *item) bool) (n int) {
	for k, e := range c.m {
		if f(&k, e) {
			delete(c.m, k)
			n++
		}
	}
	c.st.Dropped += uint64(n)
	return n
}

// DropGID drops every entry whose record has this DGID or whose key is this GID.
func (c *Cache) DropGID(gid mad.GID) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seq++
	c.gids[gid] = c.seq
	return c.drop(func(k *Key, e *item) bool {
		return e.m.Status == 0 && recGID(&e.rec) == gid || k.Kind == KindGID && mad.GID(k.Data[:16]) == gid
	})
}

// DropLID drops every entry whose record has this DLID or whose key is this LID.
func (c *Cache) DropLID(lid mad.LID) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seq++
	c.lids[lid] = c.seq
	return c.drop(func(k *Key, e *item) bool {
		return e.m.Status == 0 && recLID(&e.rec) == lid ||
			k.Kind == KindLID && mad.LID(binary.BigEndian.Uint16(k.Data[:])) == lid
	})
}

// Flush drops everything.
func (c *Cache) Flush() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seq++
	c.all = c.seq
	return c.drop(func(*Key, *item) bool { return true })
}

// Len returns the number of stored entries.
func (c *Cache) Len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.m)
}

// Stats returns the counters.
func (c *Cache) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.st
	s.Capacity, s.Entries, s.Shards = c.cap, len(c.m), []int{len(c.m)}
	return s
}

// Range calls f for every entry until it returns false. f may call any method.
func (c *Cache) Range(f func(k *Key, rec *[64]byte, m Meta) bool) {
	c.mu.Lock()
	keys := make([]Key, 0, len(c.m))
	for k := range c.m {
		keys = append(keys, k)
	}
	c.mu.Unlock()
	for i := range keys {
		var rec [64]byte
		if m, ok := c.Get(&keys[i], -1<<63, &rec); ok && !f(&keys[i], &rec, m) {
			return
		}
	}
}

// Sweep frees expired and invalidated entries; it looks at no more than budget.
func (c *Cache) Sweep(now int64, budget int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.drop(func(_ *Key, e *item) bool {
		return now >= e.m.Deadline || e.since < c.scopes[e.m.Scope]
	})
}
