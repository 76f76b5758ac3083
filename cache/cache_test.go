// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package cache

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"testing"
	"unsafe"

	"acmd/mad"
)

func TestSizes(t *testing.T) {
	if n := unsafe.Sizeof(bucket{}); n != 32 {
		t.Errorf("a bucket has %d bytes", n)
	}
	if n := unsafe.Sizeof(entry{}); n != 128 {
		t.Errorf("an entry has %d bytes", n)
	}
	if n := unsafe.Offsetof(entry{}.rec); n != 64 {
		t.Errorf("the record begins at %d", n)
	}
	if n := unsafe.Sizeof(links{}); n != 16 {
		t.Errorf("links have %d bytes", n)
	}
	c := New(Config{})
	if a := uintptr(unsafe.Pointer(&c.buckets[0])); a%64 != 0 {
		t.Errorf("buckets straddle lines: %#x", a)
	}
	if a := uintptr(unsafe.Pointer(&c.entries[0])); a%128 != 0 {
		t.Errorf("entries straddle lines: %#x", a)
	}
}

// TestMemory holds the bound of 200 bytes per entry, all in, for a table that is
// as large as needed.
func TestMemory(t *testing.T) {
	const n = 40_000
	keys := benchKeys(n)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	c := filled(t, keys, Config{Capacity: n + n/16})
	runtime.GC()
	runtime.ReadMemStats(&after)
	per := float64(after.HeapAlloc-before.HeapAlloc) / n
	t.Logf("%.0f bytes of heap per entry", per)
	if per > 200 || c.Len() != n {
		t.Errorf("%d entries of %.0f bytes", c.Len(), per)
	}
	runtime.KeepAlive(keys)
}

func TestNoAllocations(t *testing.T) {
	keys := stressKeys(300)
	c := filled(t, keys, Config{})
	var rec [64]byte
	i := 0
	next := func() *Key { i++; return &keys[i%len(keys)] }
	for name, f := range map[string]func(){
		"hit":  func() { c.Get(next(), 0, &rec) },
		"miss": func() { k := *next(); k.Endpoint = 99; c.Get(&k, 0, &rec) },
		"key":  func() { k := MakeKey(1, KindGID, rec[:16]); c.Get(&k, 0, &rec) },
		"put":  func() { c.Put(next(), &rec, Meta{Deadline: 1}, c.Epoch()) },
		"drop": func() { c.DropLID(1); c.DropGID(mad.GID{1}); c.DropScope(9) },
	} {
		if n := testing.AllocsPerRun(1000, f); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

func TestMakeKey(t *testing.T) {
	k := MakeKey(7, KindName, []byte("node7"))
	if k.Endpoint != 7 || k.Kind != KindName || k.Len != 5 || string(k.Bytes()) != "node7" || k.Data[5] != 0 {
		t.Errorf("%+v", k)
	}
	if k := MakeKey(7, KindName, make([]byte, 65)); k != (Key{}) {
		t.Errorf("65 bytes gave %+v", k)
	}
	c := New(Config{Capacity: 8})
	for name, k := range map[string]Key{"zero": {}, "no kind": {Len: 4}, "too long": {Kind: KindName, Len: 200}} {
		var rec [64]byte
		if c.Put(&k, &rec, Meta{Deadline: math.MaxInt64}, c.Epoch()) {
			t.Errorf("%s: stored", name)
		}
		if _, ok := c.Get(&k, math.MinInt64, &rec); ok {
			t.Errorf("%s: found", name)
		}
		if c.Delete(&k) {
			t.Errorf("%s: deleted", name)
		}
	}
	ok := MakeKey(1, KindName, []byte("a"))
	if c.Put(&ok, &[64]byte{}, Meta{Deadline: 1, Scope: MaxScopes}, 0) || c.Put(&ok, nil, Meta{Deadline: 1}, 0) {
		t.Error("scope out of range or success without a record stored")
	}
	if !c.Put(&ok, nil, Meta{Deadline: 1, Status: 3}, 0) {
		t.Error("negative entry without a record not stored")
	}
	if st := c.Stats(); st.Refused != 5 {
		t.Errorf("refused %d, want 5", st.Refused)
	}
	if c.DropScope(MaxScopes) != 0 || c.DropGID(mad.GID{}) != 0 || c.DropLID(0) != 0 || c.Epoch() != 0 {
		t.Error("an invalidation of nothing moved the epoch")
	}
}

// TestFutureEpoch: a flight cannot claim an epoch that has not come yet, or its
// entry would outlive the next invalidations.
func TestFutureEpoch(t *testing.T) {
	c := New(Config{Capacity: 8})
	k := gidKey(1, testGID(1))
	c.Put(&k, &[64]byte{}, Meta{Deadline: math.MaxInt64, Scope: 1}, c.Epoch()+100)
	c.DropScope(1)
	if _, ok := c.Get(&k, 0, new([64]byte)); ok {
		t.Error("served after its scope was dropped")
	}
}

// What is derived from an entry under the epoch that GetSince returns is refused once
// an invalidation of the entry has begun, for short keys and long ones.
func TestGetSince(t *testing.T) {
	const lid = 17
	for _, name := range []string{"node7", "a-name-that-does-not-fit-the-entry-itself.example"} {
		c := New(Config{Capacity: 64})
		key, derived := MakeKey(1, KindName, []byte(name)), MakeKey(1, KindName, []byte(name+"-alias"))
		meta := Meta{Deadline: 100, Refresh: 50, Scope: 3, Origin: 2}
		rec := makeRecord(testGID(1), lid)
		put := c.Epoch()
		if !c.Put(&key, &rec, meta, put) {
			t.Fatal("refused")
		}
		c.DropLID(lid + 1) // time goes on
		var got [64]byte
		m, since, ok := c.GetSince(&key, &derived, 99, &got)
		if !ok || m != meta || got != rec || since != put {
			t.Fatalf("%s: %+v, epoch %d, %v; want %+v, epoch %d", name, m, since, ok, meta, put)
		}
		if _, _, ok := c.GetSince(&key, &derived, 100, &got); ok {
			t.Errorf("%s: served at its deadline", name)
		}
		c.epochs.raise(c.lidEpoch(lid))
		if c.Put(&derived, &got, m, since) {
			t.Errorf("%s: a path that is being removed was published again", name)
		}
	}
}

// TestCapacity fills caches of all sorts far beyond their capacity. The seeds are fixed:
// with 64 shards of one entry a random one now and then leaves eight of them without a key.
func TestCapacity(t *testing.T) {
	for _, cfg := range []Config{
		{Capacity: 1, Seed: 1}, {Capacity: 2, Shards: 8, Seed: 2}, {Capacity: 7, Shards: 3, Seed: 3}, {Capacity: 64, Shards: 64, Seed: 4},
		{Capacity: 64, Shards: 64, Seed: 5}, {Capacity: 1000, Shards: 1, Seed: 6}, {Capacity: 1000, Shards: 16, Seed: 7}, {Capacity: 9_000, Seed: 8},
	} {
		c := New(cfg)
		keys := stressKeys(3 * cfg.Capacity)
		for i := range keys {
			rec := recordOf(&keys[i], 1)
			if !c.Put(&keys[i], &rec, Meta{Deadline: math.MaxInt64}, c.Epoch()) {
				t.Fatalf("%+v: put %d refused", cfg, i)
			}
			if _, ok := c.Get(&keys[i], 0, &rec); !ok || !checkRecord(&keys[i], &rec) {
				t.Fatalf("%+v: entry %d not there right after the put", cfg, i)
			}
		}
		st := c.Stats()
		if st.Capacity > cfg.Capacity || st.Entries > st.Capacity || st.Entries < st.Capacity*9/10 {
			t.Errorf("%+v: %d entries, capacity %d", cfg, st.Entries, st.Capacity)
		}
		if got := st.Entries + int(st.Evicted); got != len(keys) {
			t.Errorf("%+v: %d stored and evicted of %d", cfg, got, len(keys))
		}
		checkInvariants(t, c)
	}
}

// TestNoConflicts: below the capacity hash collisions evict nothing, because
// place finds room by moving keys to their second bucket.
func TestNoConflicts(t *testing.T) {
	for seed := range uint64(6) {
		const n = 6144 // three quarters of the slots
		c := New(Config{Capacity: n, Shards: 1, Seed: seed + 1})
		if len(c.buckets)*bucketSlots*3/4 != n {
			t.Fatalf("%d buckets", len(c.buckets))
		}
		keys := stressKeys(n)
		for i := range keys {
			rec := recordOf(&keys[i], 0)
			c.Put(&keys[i], &rec, Meta{Deadline: math.MaxInt64}, 0)
		}
		if st := c.Stats(); st.Evicted > 2 {
			t.Errorf("seed %d: %d of %d evicted", seed+1, st.Evicted, n)
		}
		checkInvariants(t, c)
	}
}

// TestEvictionKeepsUsed asks a tenth of the entries between many keys that are
// asked never again, as a scan over addresses does (field case 32).
func TestEvictionKeepsUsed(t *testing.T) {
	for _, shards := range []int{1, 8} {
		const capacity = 2048
		c := New(Config{Capacity: capacity, Shards: shards, Seed: 1})
		hot, rng := benchKeys(capacity/10), rand.New(rand.NewPCG(1, 1))
		var rec [64]byte
		put := func(k *Key) { c.Put(k, &rec, Meta{Deadline: math.MaxInt64}, c.Epoch()) }
		for i := range hot {
			put(&hot[i])
		}
		misses := 0
		for i := range 10 * capacity {
			cold := MakeKey(1, KindIPv4, binary.BigEndian.AppendUint32(nil, uint32(i)))
			put(&cold)
			for range 2 {
				k := &hot[rng.IntN(len(hot))]
				if _, ok := c.Get(k, 0, &rec); !ok {
					misses++
					put(k)
				}
			}
		}
		t.Logf("%d shards: %d of %d asks missed", shards, misses, 20*capacity)
		if misses > 20*capacity/100 {
			t.Errorf("%d shards: %d asks of hot keys missed", shards, misses)
		}
	}
}

// TestEvictionBounded: an eviction among entries that are all in use does not
// look at more than clockSteps of them.
func TestEvictionBounded(t *testing.T) {
	keys := benchKeys(3*clockSteps + 1)
	// A fixed seed: with a random one now and then a key finds no place, and one place is free at the end.
	c := filled(t, keys[:3*clockSteps], Config{Capacity: 3 * clockSteps, Shards: 1, Seed: 1})
	var rec [64]byte
	used := func() (n int) {
		for i := range c.entries {
			n += int(c.entries[i].used.Load())
		}
		return n
	}
	for i := range keys[:3*clockSteps] {
		c.Get(&keys[i], 0, &rec)
	}
	before := used()
	c.Put(&keys[3*clockSteps], &rec, Meta{Deadline: math.MaxInt64}, 0)
	if cleared := before - used(); cleared > clockSteps || cleared < clockSteps-1 {
		t.Errorf("%d marks cleared", cleared)
	}
}

// TestSweepBudget: a sweep looks at no more than its budget, and repeated ones
// come round.
func TestSweepBudget(t *testing.T) {
	keys := benchKeys(5000)
	c := New(Config{Capacity: 6000, Shards: 4, Seed: 1}) // all find a place
	for i := range keys {
		rec := recordOf(&keys[i], 0)
		c.Put(&keys[i], &rec, Meta{Deadline: 10, Scope: Scope(i & 1)}, c.Epoch())
	}
	if n := c.Sweep(9, 1<<30); n != 0 {
		t.Errorf("%d swept before their deadline", n)
	}
	calls, total := 0, 0
	for ; total < len(keys) && calls < 1000; calls++ {
		n := c.Sweep(10, 100)
		if n > 100 {
			t.Fatalf("%d swept with a budget of 100", n)
		}
		total += n
	}
	if total != len(keys) || c.Len() != 0 || calls > 60 {
		t.Errorf("%d swept in %d calls, %d left", total, calls, c.Len())
	}
	if st := c.Stats(); st.Expired != uint64(len(keys)) || st.Dropped != 0 {
		t.Errorf("%+v", st)
	}
	if n := c.Sweep(10, 100) + c.Sweep(10, 0) + c.Sweep(10, -1); n != 0 {
		t.Errorf("%d swept in an empty cache", n)
	}
	checkInvariants(t, c)
}

// TestHashSpread compares bucket loads of orderly keys with what chance gives,
// for several seeds: neither counting GUIDs nor counting addresses may cluster.
func TestHashSpread(t *testing.T) {
	const n, buckets = 1 << 16, 1 << 12
	makers := map[string]func(i int) Key{
		"GID":  func(i int) Key { return gidKey(1, mad.MakeGID(0xfe80<<48, mad.GUID(0x2c903<<40+uint64(i)))) },
		"IPv4": func(i int) Key { return MakeKey(1, KindIPv4, binary.BigEndian.AppendUint32(nil, 10<<24|uint32(i))) },
		"LID":  func(i int) Key { return lidKey(uint16(i>>12), mad.LID(i)) },
		"name": func(i int) Key { return MakeKey(1, KindName, fmt.Appendf(nil, "node%05d", i)) },
		"long": func(i int) Key { return MakeKey(1, KindName, fmt.Appendf(nil, "node%05d.rack.cluster.example.org", i)) },
	}
	for name, mk := range makers {
		for seed := range uint64(3) {
			h := newHasher(seed)
			var low, high, tag [buckets]int
			for i := range n {
				k := mk(i)
				it := makeItem(&k, nil, &Meta{}, 0)
				v := h.words(it.header(), &it.key)
				low[v>>3%buckets]++
				high[v>>52]++
				tag[v>>33%buckets]++
			}
			for part, counts := range map[string]*[buckets]int{"low": &low, "high": &high, "middle": &tag} {
				chi := 0.0
				for _, c := range counts {
					d := float64(c) - n/buckets
					chi += d * d / (n / buckets)
				}
				// Mean buckets-1, standard deviation sqrt(2*buckets) = 90; orderly
				// spread gives less, which is as good.
				if chi > buckets+8*90 {
					t.Errorf("%s, seed %d, %s bits: chi square %.0f of %d", name, seed, part, chi, buckets)
				}
			}
		}
	}
}

// TestSeeds: a random seed is another one each time.
func TestSeeds(t *testing.T) {
	if newHasher(0) == newHasher(0) || newHasher(5) != newHasher(5) || newHasher(5) == newHasher(6) {
		t.Error("seeds do not do what they should")
	}
}

// FuzzKey stores and finds keys of any bytes, next to near relatives of them.
func FuzzKey(f *testing.F) {
	f.Add(uint16(0), uint8(1), []byte("node7"))
	f.Add(uint16(65535), uint8(4), []byte("\xfe\x80\x00\x00\x00\x00\x00\x00\x00\x02\xc9\x03\x00\x00\x00\x01"))
	f.Add(uint16(1), uint8(6), make([]byte, 64))
	f.Add(uint16(1), uint8(1), make([]byte, 25))
	f.Add(uint16(1), uint8(0), []byte{})
	f.Add(uint16(1), uint8(1), make([]byte, 65))
	f.Fuzz(func(t *testing.T, ep uint16, kind uint8, data []byte) {
		c := New(Config{Capacity: 64, Shards: 1})
		k := MakeKey(ep, Kind(kind), data)
		rec := recordOf(&k, 1)
		stored := c.Put(&k, &rec, Meta{Deadline: 2}, c.Epoch())
		if want := kind != 0 && len(data) <= MaxKeyData; stored != want {
			t.Fatalf("stored %v, want %v", stored, want)
		}
		var got [64]byte
		if _, ok := c.Get(&k, 1, &got); ok != stored || ok && got != rec {
			t.Fatalf("found %v, stored %v", ok, stored)
		}
		for _, other := range []Key{
			MakeKey(ep+1, Kind(kind), data), MakeKey(ep, Kind(kind+1), data), MakeKey(ep, Kind(kind), append(data[:len(data):len(data)], 0)),
		} {
			if _, ok := c.Get(&other, 1, &got); ok {
				t.Fatalf("%v found as %v", k, other)
			}
		}
		checkInvariants(t, c)
		if c.Delete(&k) != stored || c.Len() != 0 {
			t.Fatal("not deleted")
		}
	})
}
