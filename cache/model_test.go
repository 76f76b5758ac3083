// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package cache

import (
	"math"
	"sync/atomic"
	"testing"

	"acmd/mad"
	"pgregory.net/rapid"
)

// model is what a cache of unlimited size does, written down plainly. Which keys
// share a bucket of epochs it asks the cache: two in one are refused together.
type model struct {
	c                  *Cache
	seq                Epoch
	all                Epoch
	scopes             map[Scope]Epoch
	dests              map[*atomic.Uint64]Epoch // by the cache's bucket of a GID, a LID or a key
	m                  map[Key]modelEntry
	puts, reject, drop uint64
}

type modelEntry struct {
	rec   [64]byte
	meta  Meta
	since Epoch
}

func newModel(c *Cache) *model {
	return &model{c: c, scopes: map[Scope]Epoch{}, dests: map[*atomic.Uint64]Epoch{}, m: map[Key]modelEntry{}}
}

func (m *model) key(k *Key) *atomic.Uint64 {
	it := makeItem(k, nil, &Meta{}, 0)
	return m.c.keyEpoch(m.c.hash.words(it.header(), &it.key))
}
func (m *model) lid(l mad.LID) *atomic.Uint64 { return m.c.lidEpoch(uint16(l)) }
func (m *model) gid(g mad.GID) *atomic.Uint64 { return m.c.gidEpoch(toWords(g)) }

// names returns the GIDs and LIDs that key and record name, zero where none.
func names(k *Key, rec *[64]byte, m Meta) (g [2]mad.GID, l [2]mad.LID) {
	lid := func(b []byte) mad.LID { return mad.LID(b[0])<<8 | mad.LID(b[1]) }
	switch k.Kind {
	case KindGID:
		g[0] = mad.GID(k.Data[:16])
	case KindLID:
		l[0] = lid(k.Data[:])
	case KindPath:
		g[0], l[0] = mad.GID(k.Data[8:24]), lid(k.Data[40:])
	}
	if m.Status == 0 {
		g[1], l[1] = mad.GID(rec[8:24]), lid(rec[40:])
	}
	return g, l
}

func (m *model) put(k Key, rec [64]byte, meta Meta, since Epoch) bool {
	last := max(m.all, m.scopes[meta.Scope], m.dests[m.key(&k)])
	g, l := names(&k, &rec, meta)
	for i := range g {
		if !g[i].IsZero() {
			last = max(last, m.dests[m.gid(g[i])])
		}
		if l[i] != 0 {
			last = max(last, m.dests[m.lid(l[i])])
		}
	}
	if last > since {
		m.reject++
		return false
	}
	m.puts++
	m.m[k] = modelEntry{rec, meta, since}
	return true
}

func (m *model) dead(e *modelEntry, now int64) bool {
	return now >= e.meta.Deadline || e.since < m.scopes[e.meta.Scope]
}

func (m *model) dropIf(f func(k Key, e modelEntry) bool) (n int) {
	for k, e := range m.m {
		if f(k, e) {
			delete(m.m, k)
			n++
		}
	}
	m.drop += uint64(n)
	return n
}

// The tests draw from few values, so that operations meet.
var (
	drawGID = rapid.Map(rapid.IntRange(0, 6), func(i int) mad.GID {
		if i == 0 {
			return mad.GID{}
		}
		return testGID(i)
	})
	drawLID = rapid.Map(rapid.IntRange(0, 6), func(i int) mad.LID { return mad.LID(i * 0x101) })
	drawKey = rapid.Custom(func(t *rapid.T) Key {
		ep := rapid.Uint16Range(0, 1).Draw(t, "endpoint")
		i := rapid.IntRange(0, 6).Draw(t, "n")
		switch rapid.SampledFrom([]Kind{KindName, KindIPv4, KindIPv6, KindGID, KindLID, KindPath}).Draw(t, "kind") {
		case KindName:
			names := []string{"a", "b", "node7", "a-name-of-24-bytes-length", "a-name-of-24-bytes-lengt",
				"a-name-of-25-bytes-length", "node-0007.rack-12.compute.cluster.example.org-padded-to-64-bytes"}
			return MakeKey(ep, KindName, []byte(names[i]))
		case KindIPv4:
			return MakeKey(ep, KindIPv4, []byte{10, 0, 0, byte(i)})
		case KindIPv6:
			g := testGID(i) // the same bytes as a GID are another key
			return MakeKey(ep, KindIPv6, g[:])
		case KindGID:
			return gidKey(ep, testGID(i))
		case KindLID:
			return lidKey(ep, mad.LID(i*0x101))
		}
		rec := makeRecord(drawGID.Draw(t, "key GID"), drawLID.Draw(t, "key LID"))
		rec[53] = byte(i)
		return MakeKey(ep, KindPath, rec[:])
	})
)

// TestModel runs random operations against the model.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := New(Config{Capacity: 4096, Shards: rapid.SampledFrom([]int{1, 2, 8}).Draw(t, "shards"), Seed: 7})
		m := newModel(c)
		now := int64(0)
		epochs := []Epoch{0}
		t.Repeat(map[string]func(*rapid.T){
			"put": func(t *rapid.T) {
				k := drawKey.Draw(t, "key")
				rec := makeRecord(drawGID.Draw(t, "GID"), drawLID.Draw(t, "LID"))
				rec[63] = rapid.Byte().Draw(t, "byte")
				meta := Meta{
					Deadline: rapid.SampledFrom([]int64{now, now + 1, now + 5, now + 50, math.MaxInt64}).Draw(t, "deadline"),
					Refresh:  now, Scope: Scope(rapid.SampledFrom([]int{0, 1, MaxScopes - 1}).Draw(t, "scope")),
					Status: rapid.SampledFrom([]uint8{0, 0, 0, 3}).Draw(t, "status"), Origin: rapid.Uint8().Draw(t, "origin"),
				}
				since := rapid.SampledFrom(epochs[max(0, len(epochs)-5):]).Draw(t, "since")
				if got, want := c.Put(&k, &rec, meta, since), m.put(k, rec, meta, since); got != want {
					t.Fatalf("put: %v, want %v", got, want)
				}
			},
			"get": func(t *rapid.T) { checkGet(t, c, m, drawKey.Draw(t, "key"), now) },
			"delete": func(t *rapid.T) {
				k := drawKey.Draw(t, "key")
				m.seq++
				m.dests[m.key(&k)] = m.seq
				want := m.dropIf(func(o Key, _ modelEntry) bool { return o == k }) == 1
				if got := c.Delete(&k); got != want {
					t.Fatalf("delete: %v, want %v", got, want)
				}
				epochs = append(epochs, m.seq)
			},
			"drop scope": func(t *rapid.T) {
				s := Scope(rapid.SampledFrom([]int{0, 1, MaxScopes - 1}).Draw(t, "scope"))
				m.seq++
				m.scopes[s] = m.seq
				if got := c.DropScope(s); got != m.seq {
					t.Fatalf("epoch %d, want %d", got, m.seq)
				}
				epochs = append(epochs, m.seq)
			},
			"drop GID": func(t *rapid.T) {
				g := drawGID.Draw(t, "GID")
				want := 0
				if !g.IsZero() {
					m.seq++
					m.dests[m.gid(g)] = m.seq
					want = m.dropIf(func(k Key, e modelEntry) bool {
						n, _ := names(&k, &e.rec, e.meta)
						return n[0] == g || n[1] == g
					})
				}
				if got := c.DropGID(g); got != want {
					t.Fatalf("dropped %d, want %d", got, want)
				}
				epochs = append(epochs, m.seq)
			},
			"drop LID": func(t *rapid.T) {
				l := drawLID.Draw(t, "LID")
				want := 0
				if l != 0 {
					m.seq++
					m.dests[m.lid(l)] = m.seq
					want = m.dropIf(func(k Key, e modelEntry) bool {
						_, n := names(&k, &e.rec, e.meta)
						return n[0] == l || n[1] == l
					})
				}
				if got := c.DropLID(l); got != want {
					t.Fatalf("dropped %d, want %d", got, want)
				}
				epochs = append(epochs, m.seq)
			},
			"flush": func(t *rapid.T) {
				if rapid.IntRange(0, 9).Draw(t, "seldom") > 0 {
					return
				}
				m.seq++
				m.all = m.seq
				if got, want := c.Flush(), m.dropIf(func(Key, modelEntry) bool { return true }); got != want {
					t.Fatalf("flushed %d, want %d", got, want)
				}
				epochs = append(epochs, m.seq)
			},
			"time": func(t *rapid.T) { now += rapid.Int64Range(1, 10).Draw(t, "step") },
			"sweep": func(t *rapid.T) {
				// Twice the entries and then some: once round whatever the cursors say.
				got := c.Sweep(now, 10_000) + c.Sweep(now, 10_000)
				drop := m.drop
				want := m.dropIf(func(_ Key, e modelEntry) bool { return m.dead(&e, now) })
				m.drop = drop // expired and dropped ones are counted apart
				if got != want {
					t.Fatalf("swept %d, want %d", got, want)
				}
			},
			"": func(t *rapid.T) {
				if c.Epoch() != m.seq {
					t.Fatalf("epoch %d, want %d", c.Epoch(), m.seq)
				}
				checkAll(t, c, m, now)
			},
		})
	})
}

func checkGet(t *rapid.T, c *Cache, m *model, k Key, now int64) {
	var rec [64]byte
	e, want := m.m[k]
	want = want && !m.dead(&e, now)
	meta, ok := c.Get(&k, now, &rec)
	if ok != want {
		t.Fatalf("get %v: %v, want %v", k, ok, want)
	}
	if ok && (meta != e.meta || rec != e.rec) {
		t.Fatalf("get %v: %+v %x\nwant %+v %x", k, meta, rec, e.meta, e.rec)
	}
}

func checkAll(t *rapid.T, c *Cache, m *model, now int64) {
	for k := range m.m {
		checkGet(t, c, m, k, now)
	}
	st := c.Stats()
	if c.Len() != len(m.m) || st.Entries != c.Len() || st.Puts != m.puts || st.Rejected != m.reject {
		t.Fatalf("%d entries, want %d; %+v, want %d puts, %d rejected", c.Len(), len(m.m), st, m.puts, m.reject)
	}
	if st.Evicted != 0 {
		t.Fatalf("%d evicted far below the capacity", st.Evicted)
	}
	seen := map[Key]bool{}
	c.Range(func(k *Key, rec *[64]byte, meta Meta) bool {
		e, ok := m.m[*k]
		if !ok || e.rec != *rec || e.meta != meta || seen[*k] {
			t.Fatalf("range: %v %+v unexpected", *k, meta)
		}
		seen[*k] = true
		return true
	})
	for k, e := range m.m {
		if stale := e.since < m.scopes[e.meta.Scope]; seen[k] == stale {
			t.Fatalf("range: %v seen %v, stale %v", k, seen[k], stale)
		}
	}
	checkInvariants(t, c)
}
