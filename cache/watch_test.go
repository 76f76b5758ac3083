// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package cache

import (
	"math"
	"testing"

	"acmd/mad"
	"acmd/mad/sa"
)

// follower mirrors a cache by asking it again about each key that changed.
type follower struct {
	c       *Cache
	have    map[Key]bool
	dropped []Scope
	used    map[Key]bool
	void    bool // what the last change said
}

func (f *follower) Changed(k *Key, void bool) {
	var rec [64]byte
	if _, ok := f.c.Get(k, 0, &rec); ok {
		f.have[*k] = true
	} else {
		delete(f.have, *k)
	}
	f.void = void
}

func (f *follower) Dropped(s Scope) { f.dropped = append(f.dropped, s) }

func (f *follower) Used(k *Key) bool { return f.used[*k] }

func newFollowed(cfg Config) (*Cache, *follower) {
	f := &follower{have: map[Key]bool{}, used: map[Key]bool{}}
	cfg.Watch = f
	f.c = New(cfg)
	return f.c, f
}

// Whoever asks again when told has what the cache has, whatever happens to it.
func TestWatchFollows(t *testing.T) {
	c, f := newFollowed(Config{Capacity: 64, Shards: 1, Seed: 1})
	key := func(i int) Key { return MakeKey(uint16(i%3), KindIPv4, []byte{10, 0, byte(i >> 8), byte(i)}) }
	long := MakeKey(1, KindName, []byte("a-name-that-does-not-fit-into-an-entry"))
	put := func(k Key, dlid mad.LID, deadline int64) {
		var p sa.PathRecord
		p.SetDLID(dlid)
		if !c.Put(&k, (*[64]byte)(&p), Meta{Deadline: deadline, Scope: 7}, c.Epoch()) {
			t.Fatalf("put %v", k)
		}
	}
	check := func(what string) {
		t.Helper()
		have := 0
		c.Range(func(k *Key, _ *[64]byte, _ Meta) bool {
			have++
			if !f.have[*k] {
				t.Errorf("%s: %v is missing", what, *k)
			}
			return true
		})
		if have != len(f.have) {
			t.Errorf("%s: the watcher has %d entries, the cache %d", what, len(f.have), have)
		}
	}
	put(long, 9, math.MaxInt64)
	put(key(1), 1, math.MaxInt64)
	put(key(1), 2, math.MaxInt64)
	check("replaced")
	for i := range 500 {
		put(key(i), mad.LID(i%5+1), math.MaxInt64)
	}
	check("evicted")
	put(key(1000), 3, 100)
	c.Sweep(200, 1<<20)
	check("swept")
	c.DropLID(2)
	check("dropped by LID")
	k := key(499)
	c.Delete(&k)
	check("deleted")
	if c.DropScope(7); len(f.dropped) != 1 || f.dropped[0] != 7 {
		t.Errorf("dropped scopes %v", f.dropped)
	}
	c.Flush()
	if len(f.have) != 0 {
		t.Errorf("%d entries after a flush", len(f.have))
	}
}

// What an entry had is void when it goes or something else takes its place, and not
// when the same is found again: a copy is served on while it is refreshed.
func TestWatchVoid(t *testing.T) {
	c, f := newFollowed(Config{Capacity: 64, Shards: 1, Seed: 1})
	k := MakeKey(1, KindName, []byte("a-name-that-does-not-fit-into-an-entry"))
	path := func(dlid mad.LID) *[64]byte {
		var p sa.PathRecord
		p.SetDLID(dlid)
		return (*[64]byte)(&p)
	}
	for _, step := range []struct {
		what string
		do   func()
		void bool
	}{
		{"published", func() { c.Put(&k, path(1), Meta{Deadline: 10}, c.Epoch()) }, false},
		{"refreshed", func() { c.Put(&k, path(1), Meta{Deadline: 20, Refresh: 15}, c.Epoch()) }, false},
		{"replaced", func() { c.Put(&k, path(2), Meta{Deadline: 20}, c.Epoch()) }, true},
		{"in another scope", func() { c.Put(&k, path(2), Meta{Deadline: 20, Scope: 1}, c.Epoch()) }, true},
		{"failed", func() { c.Put(&k, nil, Meta{Deadline: 20, Status: 3, Scope: 1}, c.Epoch()) }, true},
		{"found", func() { c.Put(&k, path(2), Meta{Deadline: 20}, c.Epoch()) }, true},
		{"dropped", func() { c.DropLID(2) }, true},
		{"published again", func() { c.Put(&k, path(2), Meta{Deadline: 20}, c.Epoch()) }, false},
		{"swept", func() { c.Sweep(30, 1<<20) }, true},
	} {
		f.void = !step.void
		if step.do(); f.void != step.void {
			t.Errorf("%s: void %v, want %v", step.what, f.void, step.void)
		}
	}
}

// An entry that only the watcher's copy is used of outlives colder ones.
func TestWatchedUseKeepsAnEntry(t *testing.T) {
	c, f := newFollowed(Config{Capacity: 64, Shards: 1, Seed: 1})
	var rec [64]byte
	hot := MakeKey(0, KindIPv4, []byte{10, 1, 2, 3})
	put := func(k Key) { c.Put(&k, &rec, Meta{Deadline: math.MaxInt64}, c.Epoch()) }
	put(hot)
	f.used[hot] = true
	for i := range 10000 {
		put(MakeKey(0, KindIPv4, []byte{10, 0, byte(i >> 8), byte(i)}))
	}
	if _, ok := c.Get(&hot, 0, &rec); !ok {
		t.Error("evicted before colder entries")
	}
	delete(f.used, hot)
	for i := range 10000 {
		put(MakeKey(0, KindIPv4, []byte{10, 0, byte(i >> 8), byte(i)}))
	}
	if _, ok := c.Get(&hot, 0, &rec); ok {
		t.Error("a cold entry stays for ever")
	}
}
