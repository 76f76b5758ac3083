// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package cache

import "sync"

// sweepBatch is how many entries a sweep looks at under one hold of a lock.
const sweepBatch = 256

// sweeper remembers where the last sweep ended.
type sweeper struct {
	mu    sync.Mutex
	shard int
}

// Sweep frees entries that are expired at now or whose scope was dropped, and
// returns how many. It looks at no more than budget entries, goes on where the
// last call ended, and ends with the shard that it began in. It never holds up a
// writer for longer than a batch of 256 entries.
func (c *Cache) Sweep(now int64, budget int) (freed int) {
	c.sweeper.mu.Lock()
	defer c.sweeper.mu.Unlock()
	for turns := 0; budget > 0 && turns <= len(c.shards); {
		looked, n, wrapped := c.sweepShard(&c.shards[c.sweeper.shard], now, min(budget, sweepBatch))
		freed += n
		budget -= looked
		if wrapped {
			turns++
			c.sweeper.shard = (c.sweeper.shard + 1) % len(c.shards)
		}
	}
	return freed
}

// sweepShard looks at up to n entries from where the last sweep of the shard
// ended; wrapped says that it came to the end of the shard.
func (c *Cache) sweepShard(s *shard, now int64, n int) (looked, freed int, wrapped bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for ; looked < n && s.sweep < s.next; s.sweep++ {
		looked++
		e := &c.entries[s.sweep]
		if e.ver.Load()&1 != 0 {
			continue
		}
		switch {
		case now >= e.deadline.Load():
			s.expired++
		case c.stale(e):
			s.dropped++
		default:
			continue
		}
		c.remove(s, s.sweep)
		freed++
	}
	if s.sweep < s.next {
		return looked, freed, false
	}
	s.sweep = s.base
	return looked, freed, true
}

// Range calls f for the entries one by one until it returns false; expired ones
// are included, those of dropped scopes are not. It holds no lock, so f may call
// any method; the pointers are valid during the call. A key that is stored all
// the while is visited once, unless a Put that found its bucket full moves it to
// its other one meanwhile: then it may be visited twice or not at all. Range does
// not count as use.
func (c *Cache) Range(f func(k *Key, rec *[64]byte, m Meta) bool) {
	var (
		it  item
		key Key
		rec [64]byte
	)
	for b := range c.buckets {
		for i := range c.buckets[b].slot {
			p := &c.buckets[b].slot[i]
			ok := false
			for tries := 0; tries < readTries && !ok; tries++ {
				slot := p.Load()
				if slot == 0 {
					break
				}
				ok = c.read(slot&c.number, &it)
			}
			if !ok || it.since < c.scopes[tagScope(it.tag)].Load() {
				continue
			}
			m := it.unpack(&key, &rec)
			if !f(&key, &rec, m) {
				return
			}
		}
	}
}

// Stats is a snapshot of a cache's counters; they only grow.
type Stats struct {
	Capacity int    // most entries
	Entries  int    // as Len
	Puts     uint64 // published
	Rejected uint64 // not published: something that concerned them was invalidated meanwhile
	Refused  uint64 // not published: malformed key, scope or record
	Evicted  uint64 // freed to make room
	Expired  uint64 // freed by Sweep after their deadline
	Dropped  uint64 // freed because they were invalidated
	Shards   []int  // entries of each shard
}

// Stats reads the counters, each shard's at one point in time.
func (c *Cache) Stats() Stats {
	st := Stats{Refused: c.refused.Load(), Shards: make([]int, len(c.shards))}
	for i := range c.shards {
		s := &c.shards[i]
		s.mu.Lock()
		st.Capacity += s.limit
		st.Shards[i] = int(s.live.Load())
		st.Entries += st.Shards[i]
		st.Puts += s.puts
		st.Rejected += s.rejected
		st.Evicted += s.evicted
		st.Expired += s.expired
		st.Dropped += s.dropped
		s.mu.Unlock()
	}
	return st
}
