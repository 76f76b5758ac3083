// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package cache

import (
	"sync"
	"sync/atomic"
)

const (
	// spareEntries lie free in every shard, oldest first, so that an entry is
	// filled again only that many writes after it was freed: a reader that was
	// held up between slot and entry then rarely has to look again.
	spareEntries = 64
	// clockSteps bounds what one eviction looks at.
	clockSteps = 4096
)

// shard is what a writer locks: a range of buckets, a range of entries, a range
// of long keys. Readers do not touch it.
type shard struct {
	mu sync.Mutex

	base, next, end uint32 // entries [base,end); from next on never used
	limit           int    // most live entries
	live            atomic.Int64
	freeHead        uint32 // first in, first out, through links.gidNext
	freeTail        uint32
	free            int
	hand            uint32 // of the clock
	sweep           uint32 // where the next sweep goes on

	longBase, longNext uint64 // long keys [longBase,longNext) have been used
	longFree           []uint64

	gidHead, lidHead []uint32            // chains of the secondary index
	odd              map[uint32]struct{} // entries whose key names another GID or LID than their record

	puts, rejected, evicted, expired, dropped uint64

	_ [64]byte // keep neighbours' locks off this line
}

// take returns a free entry. There always is one: live entries are at most
// limit, and a shard has spareEntries more.
func (c *Cache) take(s *shard) uint32 {
	if s.next < s.end && s.free <= spareEntries {
		n := s.next
		s.next++
		c.entries[n].ver.Store(1)
		return n
	}
	n := s.freeHead
	s.freeHead = c.links[n].gidNext
	c.links[n] = links{}
	s.free--
	return n
}

// release frees an entry that no slot leads to any more.
func (c *Cache) release(s *shard, n uint32) {
	e := &c.entries[n]
	e.ver.Add(1)
	if tagLong(e.tag.Load()) {
		s.longFree = append(s.longFree, e.data[0].Load())
	}
	if s.free == 0 {
		s.freeHead = n
	} else {
		c.links[s.freeTail].gidNext = n
	}
	s.freeTail = n
	s.free++
	s.live.Add(-1)
}

// takeLong returns a place for a long key; a shard has as many as entries.
func (c *Cache) takeLong(s *shard) uint64 {
	if l := len(s.longFree); l > 0 {
		i := s.longFree[l-1]
		s.longFree = s.longFree[:l-1]
		return i
	}
	i := s.longNext
	s.longNext++
	if p := &c.longs[i/longChunk]; p.Load() == nil {
		p.Store(new([longChunk]longKey))
	}
	return i
}

// find returns the slot and the number of the entry of a key, or nil and 0.
func (c *Cache) find(h uint64, it *item) (*atomic.Uint32, uint32) {
	b := c.first(h)
	var have item
	for _, b := range [2]uint32{b, c.second(h, b)} {
		for i := range c.buckets[b].slot {
			p := &c.buckets[b].slot[i]
			n := p.Load() ^ c.fingerprint(h)
			if n > c.number || n == 0 {
				continue
			}
			if c.read(n, &have) && have.header() == it.header() && have.key == it.key {
				return p, n
			}
		}
	}
	return nil, 0
}

// slotOf returns the slot that leads to a live entry.
func (c *Cache) slotOf(n uint32, it *item) *atomic.Uint32 {
	h := c.hash.words(it.header(), &it.key)
	b := c.first(h)
	v := c.makeSlot(h, n)
	for _, b := range [2]uint32{b, c.second(h, b)} {
		for i := range c.buckets[b].slot {
			if p := &c.buckets[b].slot[i]; p.Load() == v {
				return p
			}
		}
	}
	panic("cache: live entry without a slot") // a broken invariant of this package, not of its input
}

// remove makes a live entry disappear for readers and frees it.
func (c *Cache) remove(s *shard, n uint32) {
	var it item
	c.read(n, &it)
	c.slotOf(n, &it).Store(0)
	c.unlink(s, n, &it)
	c.release(s, n)
	c.changed(&it, true)
}

// changed tells the watcher.
func (c *Cache) changed(it *item, void bool) {
	if c.watch != nil {
		var k Key
		it.unpackKey(&k)
		c.watch.Changed(&k, void)
	}
}

// unused reports whether nobody used a live entry since its mark was cleared, and
// nobody its copy.
func (c *Cache) unused(n uint32) bool {
	if c.entries[n].used.Load() != 0 {
		return false
	}
	if c.watch == nil {
		return true
	}
	var it item
	var k Key
	c.read(n, &it)
	it.unpackKey(&k)
	return !c.watch.Used(&k)
}

// place returns the slot for a key that has none, at best where its lookup
// begins. With both buckets full it moves another key out of the first, from its
// first bucket to its second: a reader looks at them in this order and cannot
// miss it. With nothing to move it evicts.
func (c *Cache) place(s *shard, h uint64) *atomic.Uint32 {
	b1 := c.first(h)
	b2 := c.second(h, b1)
	for _, b := range [2]uint32{b1, b2} {
		if p := c.vacant(b, h); p != nil {
			return p
		}
	}
	var it item
	for i := range c.buckets[b1].slot {
		p := &c.buckets[b1].slot[i]
		v := p.Load()
		c.read(v&c.number, &it)
		o := c.hash.words(it.header(), &it.key)
		if c.first(o) != b1 {
			continue
		}
		if q := c.vacant(c.second(o, b1), o); q != nil {
			q.Store(v)
			p.Store(0)
			return p
		}
	}
	p := &c.buckets[b1].slot[h%bucketSlots]
	for i := range c.buckets[b1].slot {
		q := &c.buckets[b1].slot[i]
		if c.unused(q.Load() & c.number) {
			p = q
			break
		}
	}
	c.remove(s, p.Load()&c.number)
	s.evicted++
	return p
}

// vacant returns an empty slot of a bucket, searched in the order of lookups.
func (c *Cache) vacant(b uint32, h uint64) *atomic.Uint32 {
	for i := range uint64(bucketSlots) {
		if p := &c.buckets[b].slot[(h^i)%bucketSlots]; p.Load() == 0 {
			return p
		}
	}
	return nil
}

// evict frees the first entry that the clock's hand finds dead or not used since
// it last came by. The hand clears marks as it goes. After clockSteps entries,
// all of them in use, the last one has to go.
func (c *Cache) evict(s *shard) {
	var last uint32
	for steps := 0; steps < clockSteps || last == 0; steps++ {
		n := s.hand
		if s.hand++; s.hand >= s.next {
			s.hand = s.base
		}
		e := &c.entries[n]
		if e.ver.Load()&1 != 0 {
			continue
		}
		if c.stale(e) {
			s.dropped++
			c.remove(s, n)
			return
		}
		last = n
		if c.unused(n) {
			break
		}
		e.used.Store(0)
	}
	s.evicted++
	c.remove(s, last)
}

// stale reports whether a live entry's scope was dropped.
func (c *Cache) stale(e *entry) bool {
	return e.since.Load() < c.scopes[tagScope(e.tag.Load())].Load()
}
