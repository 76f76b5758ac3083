// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package cache

import (
	"encoding/binary"
	"math/bits"
	"runtime"
	"sync/atomic"
)

const (
	defaultCapacity = 1 << 16
	maxCapacity     = 1 << 26
	minPerShard     = 4096 // an automatic shard is not smaller, so that hash imbalance stays small
	maxShards       = 1 << 10
	readTries       = 4
)

// Config sizes a cache. The zero value is usable.
type Config struct {
	Capacity int    // entries, divided evenly among the shards; 0: 1<<16; at most 1<<26
	Shards   int    // 0: automatic; else rounded up to a power of two
	Seed     uint64 // of the key hash; 0: random, as it has to be outside of tests
}

// Cache maps keys to path records. All methods are safe for concurrent use; Get
// is wait-free.
type Cache struct {
	hash    hasher
	mask    uint32 // of bucket numbers
	within  uint32 // the part of mask inside a shard
	shift   uint32 // bucket number to shard number
	buckets []bucket
	entries []entry
	scopes  []atomic.Uint64 // MaxScopes: epoch of the last drop
	longs   []atomic.Pointer[[longChunk]longKey]

	links   []links
	shards  []shard
	epochs  epochs
	refused atomic.Uint64
	sweeper sweeper
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

	c := &Cache{
		hash:    newHasher(cfg.Seed),
		mask:    uint32(shards*buckets - 1),
		within:  uint32(buckets - 1),
		shift:   uint32(bits.TrailingZeros(uint(buckets))),
		buckets: make([]bucket, shards*buckets),
		entries: make([]entry, 1+shards*(limit+spareEntries)),
		scopes:  make([]atomic.Uint64, MaxScopes),
		longs:   make([]atomic.Pointer[[longChunk]longKey], shards*chunks),
		links:   make([]links, 1+shards*(limit+spareEntries)),
		shards:  make([]shard, shards),
	}
	adviseHuge(c.buckets, c.entries)
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

// Get copies the record of k out. It reports false when there is no entry, or it
// is expired (now >= Deadline) or invalidated; rec may then have been written to.
// A negative entry (Status not 0) has no meaningful record. Get neither
// allocates nor waits.
func (c *Cache) Get(k *Key, now int64, rec *[64]byte) (Meta, bool) {
	hdr := k.header()
	w0, w1, w2 := k.word(0), k.word(1), k.word(2)
	var h uint64
	if k.Len <= inlineKey {
		h = c.hash.short(hdr, w0, w1, w2)
	} else {
		h = c.hashLong(k)
	}
	for range readTries {
		torn := false
		b := c.first(h)
		for i := uint64(0); i < 2*bucketSlots; i++ {
			if i == bucketSlots {
				b = c.second(h, b)
			}
			slot := c.buckets[b].slot[(h+i)&(bucketSlots-1)].Load()
			if uint32(slot>>32) != fingerprint(h) {
				continue
			}
			e := &c.entries[uint32(slot)]
			v := e.ver.Load()
			tag, d0, d1, d2 := e.tag.Load(), e.data[0].Load(), e.data[1].Load(), e.data[2].Load()
			if uint32(tag) != hdr {
				torn = true
				continue
			}
			if k.Len <= inlineKey {
				if d0 != w0 || d1 != w1 || d2 != w2 {
					torn = true
					continue
				}
			} else if !c.sameLong(k, e, v, d0) {
				torn = true
				continue
			}
			deadline, refresh, since := e.deadline.Load(), e.refresh.Load(), e.since.Load()
			r0, r1, r2, r3 := e.rec[0].Load(), e.rec[1].Load(), e.rec[2].Load(), e.rec[3].Load()
			r4, r5, r6, r7 := e.rec[4].Load(), e.rec[5].Load(), e.rec[6].Load(), e.rec[7].Load()
			if v&1 != 0 || e.ver.Load() != v {
				torn = true
				continue
			}
			if now >= deadline || since < c.scopes[tagScope(tag)].Load() {
				return Meta{}, false
			}
			binary.NativeEndian.PutUint64(rec[0:], r0)
			binary.NativeEndian.PutUint64(rec[8:], r1)
			binary.NativeEndian.PutUint64(rec[16:], r2)
			binary.NativeEndian.PutUint64(rec[24:], r3)
			binary.NativeEndian.PutUint64(rec[32:], r4)
			binary.NativeEndian.PutUint64(rec[40:], r5)
			binary.NativeEndian.PutUint64(rec[48:], r6)
			binary.NativeEndian.PutUint64(rec[56:], r7)
			if e.used.Load() == 0 {
				e.used.Store(1)
			}
			return makeMeta(tag, deadline, refresh), true
		}
		if !torn {
			break
		}
	}
	return Meta{}, false
}

// hashLong and sameLong keep the rarer case out of Get's way.
func (c *Cache) hashLong(k *Key) uint64 {
	var w [keyWords]uint64
	for i := range w {
		w[i] = k.word(i)
	}
	return c.hash.long(k.header(), &w)
}

// sameLong compares the long key of an entry that was of version v when its tag
// and place were loaded. The version has to be looked at before the place is
// used: that of a reused entry may be no place at all.
func (c *Cache) sameLong(k *Key, e *entry, v uint32, place uint64) bool {
	if v&1 != 0 || e.ver.Load() != v {
		return false
	}
	l := c.long(place)
	for i := range l {
		if l[i].Load() != k.word(i) {
			return false
		}
	}
	return true
}

// Len returns the number of stored entries, dead ones included that nothing has
// freed yet.
func (c *Cache) Len() int {
	n := 0
	for i := range c.shards {
		n += int(c.shards[i].live.Load())
	}
	return n
}
