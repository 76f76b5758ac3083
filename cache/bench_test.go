// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package cache

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

// benchKeys makes n keys of GIDs as a fabric has them: one prefix, GUIDs of a
// few vendors counting up.
func benchKeys(n int) []Key {
	keys := make([]Key, n)
	for i := range keys {
		keys[i] = gidKey(1, testGID(i))
	}
	return keys
}

func filled(tb testing.TB, keys []Key, cfg Config) *Cache {
	tb.Helper()
	c := New(cfg)
	for i := range keys {
		rec := recordOf(&keys[i], 0)
		if !c.Put(&keys[i], &rec, Meta{Deadline: math.MaxInt64, Scope: Scope(i & 1)}, c.Epoch()) {
			tb.Fatalf("put %d refused", i)
		}
	}
	return c
}

// capacityFor leaves the shards some room for the hash's imbalance.
func capacityFor(n int) int { return max(1<<16, n+n/16) }

var benchSizes = []int{1_000, 40_000, 1_000_000}

func BenchmarkGet(b *testing.B) {
	for _, n := range benchSizes {
		keys := benchKeys(n)
		c := filled(b, keys, Config{Capacity: capacityFor(n)})
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			var rec [64]byte
			x := rand.Uint32()
			b.ReportAllocs()
			for b.Loop() {
				x = x*1664525 + 1013904223
				k := &keys[uint64(x)*uint64(n)>>32]
				if _, ok := c.Get(k, 0, &rec); !ok || rec[23] != k.Data[15] {
					b.Fatal("miss or wrong record")
				}
			}
		})
	}
}

func BenchmarkGetParallel(b *testing.B) {
	for _, n := range benchSizes {
		keys := benchKeys(n)
		c := filled(b, keys, Config{Capacity: capacityFor(n)})
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			b.RunParallel(func(pb *testing.PB) {
				var rec [64]byte
				x := rand.Uint32()
				for pb.Next() {
					x = x*1664525 + 1013904223
					k := &keys[uint64(x)*uint64(n)>>32]
					if _, ok := c.Get(k, 0, &rec); !ok || rec[23] != k.Data[15] {
						b.Error("miss or wrong record")
						return
					}
				}
			})
		})
	}
}

func BenchmarkGetLong(b *testing.B) {
	keys := benchKeys(40_000)
	for i := range keys {
		keys[i] = MakeKey(1, KindName, fmt.Appendf(nil, "node-%06d.compute.cluster.example.org", i))
	}
	c := filled(b, keys, Config{})
	var rec [64]byte
	x := rand.Uint32()
	b.ReportAllocs()
	for b.Loop() {
		x = x*1664525 + 1013904223
		if _, ok := c.Get(&keys[uint64(x)*uint64(len(keys))>>32], 0, &rec); !ok {
			b.Fatal("miss")
		}
	}
}

func BenchmarkGetMiss(b *testing.B) {
	keys := benchKeys(80_000)
	c := filled(b, keys[:40_000], Config{})
	var rec [64]byte
	x := rand.Uint32()
	for b.Loop() {
		x = x*1664525 + 1013904223
		if _, ok := c.Get(&keys[40_000+uint64(x)*40_000>>32], 0, &rec); ok {
			b.Fatal("hit")
		}
	}
}

func BenchmarkPut(b *testing.B) {
	for _, full := range []bool{false, true} {
		name := map[bool]string{false: "update", true: "evict"}[full]
		b.Run(name, func(b *testing.B) {
			keys := benchKeys(80_000)
			c := filled(b, keys[:40_000], Config{Capacity: 60_000})
			n := 40_000
			if full {
				c, n = filled(b, keys, Config{Capacity: 30_000}), 80_000
			}
			rec := recordOf(&keys[0], 0)
			x := rand.Uint32()
			b.ReportAllocs()
			for b.Loop() {
				x = x*1664525 + 1013904223
				c.Put(&keys[uint64(x)*uint64(n)>>32], &rec, Meta{Deadline: math.MaxInt64}, c.Epoch())
			}
		})
	}
}

func BenchmarkDropGID(b *testing.B) {
	keys := benchKeys(40_000)
	c := filled(b, keys, Config{})
	i := 0
	for b.Loop() {
		rec := recordOf(&keys[i], 0)
		c.DropGID(testGID(i))
		c.Put(&keys[i], &rec, Meta{Deadline: math.MaxInt64}, c.Epoch())
		i = (i + 1) % len(keys)
	}
}

func BenchmarkMakeKey(b *testing.B) {
	g := testGID(7)
	var k Key
	for b.Loop() {
		k = MakeKey(1, KindGID, g[:])
	}
	if k.Data[15] != g[15] {
		b.Fatal("wrong key")
	}
}
