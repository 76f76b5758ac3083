// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package cache

// fataler is a testing.TB or a rapid.T.
type fataler interface {
	Helper()
	Fatalf(format string, args ...any)
}

// checkInvariants walks all of a quiet cache: slots and live entries are one to
// one, every key is in one of its two buckets, chains of the secondary index hold
// exactly the live entries, and nothing of the pools is lost.
func checkInvariants(t fataler, c *Cache) {
	t.Helper()
	slots := make(map[uint32]uint32)
	for b := range c.buckets {
		for i := range c.buckets[b].slot {
			if v := c.buckets[b].slot[i].Load(); v != 0 {
				n := v & c.number
				if _, twice := slots[n]; twice {
					t.Fatalf("entry %d has two slots", n)
				}
				slots[n] = uint32(b)
			}
		}
	}
	live := 0
	for i := range c.shards {
		live += checkShard(t, c, &c.shards[i], slots)
	}
	if live != len(slots) || live != c.Len() {
		t.Fatalf("%d live entries, %d slots, length %d", live, len(slots), c.Len())
	}
}

func checkShard(t fataler, c *Cache, s *shard, slots map[uint32]uint32) (live int) {
	t.Helper()
	var it item
	wantGID, wantLID, long := 0, 0, 0
	for n := s.base; n < s.next; n++ {
		if c.entries[n].ver.Load()&1 != 0 {
			continue
		}
		live++
		b, ok := slots[n]
		if !ok || !c.read(n, &it) {
			t.Fatalf("live entry %d has no slot", n)
		}
		h := c.hash.words(it.header(), &it.key)
		if first := c.first(h); b != first && b != c.second(h, first) || c.shardOf(h) != s {
			t.Fatalf("entry %d in bucket %d", n, b)
		}
		if tagLong(it.tag) {
			long++
		}
		d, odd := it.indexed()
		if d.gid != (gidWords{}) {
			wantGID++
		}
		if d.lid != 0 {
			wantLID++
		}
		if _, have := s.odd[n]; have != odd {
			t.Fatalf("entry %d odd %v, want %v", n, have, odd)
		}
	}
	gotGID, gotLID := 0, 0
	for _, n := range s.gidHead {
		for prev := uint32(0); n != 0; prev, n = n, c.links[n].gidNext {
			if gotGID++; c.links[n].gidPrev != prev {
				t.Fatalf("entry %d: wrong back link by GID", n)
			}
		}
	}
	for _, n := range s.lidHead {
		for prev := uint32(0); n != 0; prev, n = n, c.links[n].lidNext {
			if gotLID++; c.links[n].lidPrev != prev {
				t.Fatalf("entry %d: wrong back link by LID", n)
			}
		}
	}
	if gotGID != wantGID || gotLID != wantLID {
		t.Fatalf("%d entries by GID, want %d; %d by LID, want %d", gotGID, wantGID, gotLID, wantLID)
	}
	free := 0
	for n := s.freeHead; free < s.free; free++ {
		if c.entries[n].ver.Load()&1 == 0 {
			t.Fatalf("entry %d is free and live", n)
		}
		n = c.links[n].gidNext
	}
	if live+free != int(s.next-s.base) || live != int(s.live.Load()) || live > s.limit {
		t.Fatalf("%d live, %d free of %d, limit %d", live, free, s.next-s.base, s.limit)
	}
	if used := int(s.longNext-s.longBase) - len(s.longFree); used != long {
		t.Fatalf("%d long keys taken, want %d", used, long)
	}
	return live
}
