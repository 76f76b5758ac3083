// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package cache

import (
	"math/bits"
	"runtime"
	"sync/atomic"
)

const (
	defaultCapacity = 1 << 16
	maxCapacity     = 1 << 26
	minPerShard     = 4096 // an automatic shard is not smaller, so that hash imbalance stays small
	maxShards       = 1 << 10
)

// Config sizes a cache. The zero value is usable.
type Config struct {
	Capacity int    // entries, divided evenly among the shards; 0: 1<<16; at most 1<<26
	Shards   int    // 0: automatic; else rounded up to a power of two
	Seed     uint64 // of the key hash; 0: random, as it has to be outside of tests
	// Watch is told of changes; nil: nobody, and it costs nothing.
	Watch Watcher
}

// Watcher keeps a copy of entries where the cache does not see their use. Changed
// and Used are called with a lock of the cache held: they must be short, and of
// the cache's methods only call those that take no lock (Get, GetSince). The key
// is valid during the call.
type Watcher interface {
	// Changed tells that the entry of a key was published, replaced or removed.
	// Get sees the change. With void, what the entry had before is true no more: it
	// was removed, or replaced by something else. Whatever drops it returns after.
	Changed(k *Key, void bool)
	// Dropped tells that the entries of a scope are void. DropScope returns
	// after it.
	Dropped(s Scope)
	// Used reports whether the copy was used of late; such an entry is evicted
	// like one with a used mark.
	Used(k *Key) bool
}

// Cache maps keys to path records. All methods are safe for concurrent use; Get
// is wait-free.
type Cache struct {
	hash    hasher
	mask    uint32 // of bucket numbers
	within  uint32 // the part of mask inside a shard
	shift   uint32 // bucket number to shard number
	number  uint32 // the part of a slot that numbers an entry
	buckets []bucket
	entries []entry
	scopes  *[MaxScopes]atomic.Uint64 // epoch of the last drop
	longs   []atomic.Pointer[[longChunk]longKey]

	links   []links
	shards  []shard
	epochs  epochs
	refused atomic.Uint64
	sweeper sweeper
	watch   Watcher
}

// New makes a cache. Its memory is reserved at once and touched as it fills.
func New(cfg Config) *Cache {
	if cfg.Capacity <= 0 {
		cfg.Capacity = defaultCapacity
	}
	capacity := min(cfg.Capacity, maxCapacity)
	if cfg.Shards <= 0 {
		cfg.Shards = min(4*runtime.GOMAXPROCS(0), capacity/minPerShard)
	}
	shards := ceilPow2(min(cfg.Shards, maxShards))
	for shards > capacity {
		shards /= 2
	}
	limit := capacity / shards
	// At most three quarters of the slots are taken; with two buckets to choose
	// from, practically no key then lacks one.
	buckets := ceilPow2((limit*4/3 + bucketSlots - 1) / bucketSlots)
	chunks := (limit + spareEntries + longChunk - 1) / longChunk

	total := 1 + shards*(limit+spareEntries)

	c := &Cache{
		hash:    newHasher(cfg.Seed),
		mask:    uint32(shards*buckets - 1),
		within:  uint32(buckets - 1),
		shift:   uint32(bits.TrailingZeros(uint(buckets))),
		number:  uint32(1)<<bits.Len(uint(total-1)) - 1,
		buckets: make([]bucket, shards*buckets),
		entries: make([]entry, total),
		scopes:  new([MaxScopes]atomic.Uint64),
		longs:   make([]atomic.Pointer[[longChunk]longKey], shards*chunks),
		links:   make([]links, total),
		shards:  make([]shard, shards),
		watch:   cfg.Watch,
	}
	adviseHuge(c.buckets, c.entries)
	c.entries[0].ver.Store(1) // never matches, not even the zero key
	for i := range c.shards {
		s := &c.shards[i]
		s.base = uint32(1 + i*(limit+spareEntries))
		s.end = s.base + uint32(limit+spareEntries)
		s.next, s.hand, s.sweep = s.base, s.base, s.base
		s.limit = limit
		s.longBase = uint64(i * chunks * longChunk)
		s.longNext = s.longBase
		s.gidHead = make([]uint32, ceilPow2(limit))
		s.lidHead = make([]uint32, min(ceilPow2(limit), 1<<16))
	}
	c.populate()
	return c
}

func ceilPow2(n int) int {
	if n <= 1 {
		return 1
	}
	return 1 << bits.Len(uint(n-1))
}

// first and second return the numbers of the two buckets that a key can be in;
// both are of one shard, the one that shardOf returns.
func (c *Cache) first(h uint64) uint32 { return uint32(h) >> 3 & c.mask }

func (c *Cache) second(h uint64, first uint32) uint32 {
	return first ^ (uint32(h>>32)*0x9e3779b1>>7|1)&c.within
}

func (c *Cache) shardOf(h uint64) *shard { return &c.shards[c.first(h)>>c.shift] }

// Len returns the number of stored entries, dead ones included that nothing has
// freed yet.
func (c *Cache) Len() int {
	n := 0
	for i := range c.shards {
		n += int(c.shards[i].live.Load())
	}
	return n
}
