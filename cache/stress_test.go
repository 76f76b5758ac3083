// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package cache

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"

	"acmd/mad"
	"acmd/mad/sa"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// stressKeys mixes keys that fit an entry with longer ones.
func stressKeys(n int) []Key {
	keys := make([]Key, n)
	for i := range keys {
		switch i % 3 {
		case 0:
			keys[i] = gidKey(uint16(i%5), testGID(i))
		case 1:
			keys[i] = MakeKey(1, KindIPv4, []byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
		default:
			var b [64]byte
			for j := range b {
				b[j] = byte(i*7 + j*i)
			}
			binary.LittleEndian.PutUint32(b[60:], uint32(i))
			keys[i] = MakeKey(1, KindName, b[:])
		}
	}
	return keys
}

// TestStress lets readers check every hit against the key while writers store,
// evict, delete, drop and sweep in a table that is far too small, so that
// entries are reused all the time. A torn or foreign record cannot pass: each of
// its words is derived from the key and its generation.
func TestStress(t *testing.T) {
	for _, cfg := range []Config{{Capacity: 8, Shards: 1}, {Capacity: 500, Shards: 1}, {Capacity: 3000, Shards: 4}} {
		c := New(cfg)
		keys := stressKeys(2 * cfg.Capacity)
		steps := 20_000
		if testing.Short() {
			steps = 4_000
		}
		var (
			writers, readers sync.WaitGroup
			stop             atomic.Bool
			hits             atomic.Int64
		)
		for w := range 2 {
			writers.Go(func() { writeAll(c, keys, rand.New(rand.NewPCG(uint64(w), 1)), steps) })
		}
		for r := range 3 {
			readers.Go(func() {
				rng := rand.New(rand.NewPCG(uint64(r), 2))
				for !stop.Load() {
					hits.Add(readSome(t, c, keys, rng))
				}
			})
		}
		writers.Wait()
		stop.Store(true)
		readers.Wait()
		if hits.Load() == 0 {
			t.Errorf("%+v: no hits", cfg)
		}
		checkInvariants(t, c)
		t.Logf("%+v: %d hits, %+v", cfg, hits.Load(), c.Stats())
	}
}

// What an invalidation is about to remove is nothing to base an entry on: who asks
// again would find it again, and be refused again.
func TestGetSinceInvalidated(t *testing.T) {
	short := MakeKey(1, KindIPv4, []byte{10, 0, 0, 1})
	long := stressKeys(3)[2]
	other := MakeKey(1, KindIPv6, []byte{0xfe, 0x80, 15: 1})
	for _, k := range []Key{short, long, gidKey(1, testGID(2))} {
		it, ot := makeItem(&k, new([64]byte), &Meta{}, 0), makeItem(&other, new([64]byte), &Meta{}, 0)
		for name, thing := range map[string]func(*Cache) *atomic.Uint64{
			"everything": func(c *Cache) *atomic.Uint64 { return &c.epochs.all },
			"the key":    func(c *Cache) *atomic.Uint64 { return c.keyEpoch(c.hash.words(it.header(), &it.key)) },
			"the other":  func(c *Cache) *atomic.Uint64 { return c.keyEpoch(c.hash.words(ot.header(), &ot.key)) },
			"the scope":  func(c *Cache) *atomic.Uint64 { return &c.scopes[3] },
			"the GID":    func(c *Cache) *atomic.Uint64 { return c.gidEpoch(toWords(testGID(1))) },
			"the LID":    func(c *Cache) *atomic.Uint64 { return c.lidEpoch(7) },
		} {
			c := New(Config{Capacity: 64, Shards: 1})
			var p sa.PathRecord
			p.SetDGID(testGID(1))
			p.SetDLID(7)
			m := Meta{Scope: 3, Deadline: math.MaxInt64}
			since := c.Epoch()
			if !c.Put(&k, (*[64]byte)(&p), m, since) {
				t.Fatal("refused")
			}
			if !c.Takes(&k, (*[64]byte)(&p), m, since) || c.Dropped(3, since) {
				t.Errorf("%s, before: not taken again", name)
			}
			var rec [64]byte
			if got, _, ok := c.GetSince(&k, &other, 0, &rec); !ok || got != m || rec != p {
				t.Errorf("%s, before: %v, %+v", name, ok, got)
			}
			c.epochs.raise(thing(c))
			if _, _, ok := c.GetSince(&k, &other, 0, &rec); ok {
				t.Errorf("%s is invalidated, and the entry found", name)
			}
			if took := c.Takes(&k, (*[64]byte)(&p), m, since); took != (name == "the other" && k != other) || took != c.Put(&k, (*[64]byte)(&p), m, since) {
				t.Errorf("%s is invalidated: taken %v, not as by Put", name, took)
			}
			if c.Dropped(3, since) != (name == "everything" || name == "the scope") || c.Dropped(4, since) != (name == "everything") || c.Dropped(3, c.Epoch()) {
				t.Errorf("%s is invalidated: wrong about the scope", name)
			}
		}
	}
}

// A flight is refused only if something was invalidated after it began: one that begins
// while an invalidation is half done would be refused as often as it asks, for as long
// as that is kept from running.
func TestPutBesideInvalidation(t *testing.T) {
	c := New(Config{Capacity: 64, Shards: 1})
	k := gidKey(0, testGID(1))
	var rec [64]byte
	rounds := 300_000
	if testing.Short() {
		rounds = 100_000
	}
	var stop atomic.Bool
	var raisers sync.WaitGroup
	raisers.Go(func() {
		for !stop.Load() {
			c.epochs.raise(&c.epochs.all)
			c.DropScope(0)
			c.Delete(&k)
		}
	})
	put := 0
	for range rounds {
		since := c.Epoch()
		if c.Put(&k, &rec, Meta{Deadline: math.MaxInt64}, since) {
			put++
		} else if c.Epoch() == since {
			t.Error("refused, and nothing was invalidated since it began")
			break
		}
	}
	stop.Store(true)
	raisers.Wait()
	if put == 0 {
		t.Error("nothing was published")
	}
	t.Logf("%d of %d published", put, rounds)
}

func writeAll(c *Cache, keys []Key, rng *rand.Rand, steps int) {
	for i := range steps {
		k := &keys[rng.IntN(len(keys))]
		switch rng.IntN(100) {
		case 0:
			c.Delete(k)
		case 1:
			c.DropGID(mad.GID(k.Data[:16]))
		case 2:
			c.DropLID(mad.LID(rng.IntN(1 << 16)))
		case 3:
			c.DropScope(Scope(rng.IntN(3)))
		case 4:
			c.Sweep(int64(i), 300)
		case 5:
			if rng.IntN(20) == 0 {
				c.Flush()
			}
		default:
			rec := recordOf(k, rng.Uint64())
			c.Put(k, &rec, Meta{Deadline: math.MaxInt64, Refresh: int64(rec[0]), Scope: Scope(k.Len % 3), Origin: rec[1]}, c.Epoch())
		}
	}
}

func readSome(t *testing.T, c *Cache, keys []Key, rng *rand.Rand) (hits int64) {
	var rec [64]byte
	check := func(k *Key, rec *[64]byte, m Meta) bool {
		if !checkRecord(k, rec) || m.Refresh != int64(rec[0]) || m.Origin != rec[1] || m.Scope != Scope(k.Len%3) {
			t.Errorf("key %v: %+v %x does not belong to it", *k, m, *rec)
			return false
		}
		return true
	}
	for range 500 {
		k := &keys[rng.IntN(len(keys))]
		if m, ok := c.Get(k, 0, &rec); ok {
			hits++
			if !check(k, &rec, m) {
				return hits
			}
		}
	}
	c.Range(check)
	return hits
}

// TestNoMiss holds that a key that is always stored is always found, however
// often it and its neighbours are updated: an update may not open a gap.
func TestNoMiss(t *testing.T) {
	c := New(Config{Capacity: 256, Shards: 1, Seed: 1}) // all find a place
	keys := stressKeys(200)
	put := func(k *Key, gen uint64) {
		rec := recordOf(k, gen)
		c.Put(k, &rec, Meta{Deadline: math.MaxInt64}, c.Epoch())
	}
	for i := range keys {
		put(&keys[i], 0)
	}
	var wg sync.WaitGroup
	var stop atomic.Bool
	wg.Go(func() {
		defer stop.Store(true)
		rng := rand.New(rand.NewPCG(1, 1))
		for i := range uint64(50_000) {
			put(&keys[rng.IntN(len(keys))], i)
		}
	})
	for range 2 {
		wg.Go(func() {
			var rec [64]byte
			for i := 0; !stop.Load(); i++ {
				k := &keys[i%len(keys)]
				if _, ok := c.Get(k, 0, &rec); !ok || !checkRecord(k, &rec) {
					t.Errorf("%v: found %v, %x", *k, ok, rec)
					return
				}
			}
		})
	}
	wg.Wait()
}

// TestNoStale holds the guarantee of an invalidation: once it returned, nothing
// that was asked before it is served or can be published, whatever the races.
// Flights carry the number of the last invalidation that they saw in the record;
// the invalidating goroutine raises it first (field case 8).
func TestNoStale(t *testing.T) {
	gid, lid := testGID(1), mad.LID(17)
	drops := map[string]func(*Cache, *Key){
		"GID":   func(c *Cache, _ *Key) { c.DropGID(gid) },
		"LID":   func(c *Cache, _ *Key) { c.DropLID(lid) },
		"scope": func(c *Cache, _ *Key) { c.DropScope(3) },
		"key":   func(c *Cache, k *Key) { c.Delete(k) },
		"all":   func(c *Cache, _ *Key) { c.Flush() },
	}
	for name, drop := range drops {
		t.Run(name, func(t *testing.T) {
			c := New(Config{Capacity: 1024, Shards: 4})
			key := MakeKey(1, KindName, []byte("node7"))
			var world atomic.Uint64 // what the subnet manager would answer
			var stop atomic.Bool
			var puts atomic.Int64
			var wg sync.WaitGroup
			for range 2 {
				wg.Go(func() {
					for !stop.Load() {
						since := c.Epoch()
						rec := makeRecord(gid, lid)
						binary.LittleEndian.PutUint64(rec[56:], world.Load())
						if c.Put(&key, &rec, Meta{Deadline: math.MaxInt64, Scope: 3}, since) {
							puts.Add(1)
						}
					}
				})
			}
			for i := uint64(1); i <= 5_000 || puts.Load() == 0; i++ {
				world.Store(i)
				drop(c, &key)
				var rec [64]byte
				if _, ok := c.Get(&key, 0, &rec); ok && binary.LittleEndian.Uint64(rec[56:]) < i {
					t.Errorf("after invalidation %d: record of %d", i, binary.LittleEndian.Uint64(rec[56:]))
					break
				}
			}
			stop.Store(true)
			wg.Wait()
			checkInvariants(t, c)
		})
	}
}
