// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package fastpath

import (
	"acmd/bpf"
	"acmd/cache"
	"acmd/resolver"
)

// pathRequest is the kind of a key that is a path record as asked.
const pathRequest = uint8(0x10)

// item is one question of the mirror. It exists as long as somebody may ask it,
// with or without an answer in the kernel.
type item struct {
	slot uint32 // of the use stamps, and place in the table; fixed
	key  bpf.FastKey
	q    resolver.Query

	// Of the mutex.
	from  cache.Key // entry that the answer comes from
	dirty bool      // in table.dirty
	dead  bool      // not in the table any more
	asked uint64    // stamp when the cache asked last
	// Others with the same entry. A program can ask in as many ways as there is room
	// for and get one entry.
	prev, next *item

	// Of the owner.
	present  bool // in the kernel
	queued   bool // to be written with the next flush
	mirrored bpf.FastPath
	gen      uint32
	until    int64 // engine's clock
	since    int64 // when it was last present or asked for, engine's clock
	stamp    uint64
	due      bool
	round    uint64
}

// table has the items. byCache and dirty belong to the mutex, the rest to the
// owner; items are added and removed by the owner with the mutex held.
type table struct {
	items   []*item // by slot, nil: free
	free    []uint32
	byKey   map[bpf.FastKey]*item
	byCache map[cache.Key]*item // first of a chain
	dirty   []*item
	hand    uint32 // of the clock
	limit   int
}

func (t *table) init(limit int) {
	t.limit = limit
	t.byKey = map[bpf.FastKey]*item{}
	t.byCache = map[cache.Key]*item{}
}

// add makes an item; the caller made sure that there is room.
func (t *table) add(key bpf.FastKey, q *resolver.Query, from cache.Key) *item {
	it := &item{key: key, q: *q}
	if n := len(t.free); n > 0 {
		it.slot = t.free[n-1]
		t.free = t.free[:n-1]
		t.items[it.slot] = it
	} else {
		it.slot = uint32(len(t.items))
		t.items = append(t.items, it)
	}
	t.byKey[key] = it
	t.link(it, from)
	return it
}

func (t *table) full() bool { return len(t.byKey) >= t.limit }

// remove forgets an item that is not in the kernel.
func (t *table) remove(it *item) {
	t.unlink(it)
	delete(t.byKey, it.key)
	t.items[it.slot] = nil
	t.free = append(t.free, it.slot)
	it.dead = true
}

func (t *table) link(it *item, from cache.Key) {
	it.from, it.prev, it.next = from, nil, t.byCache[from]
	if it.next != nil {
		it.next.prev = it
	}
	t.byCache[from] = it
}

func (t *table) unlink(it *item) {
	switch {
	case it.prev != nil:
		it.prev.next = it.next
	case it.next != nil:
		t.byCache[it.from] = it.next
	default:
		delete(t.byCache, it.from)
	}
	if it.next != nil {
		it.next.prev = it.prev
	}
	it.prev, it.next = nil, nil
}

// keyOf is the program's key of a question; slot is that of its source. False: the
// program does not answer such questions.
func keyOf(q *resolver.Query, slot uint16) (k bpf.FastKey, ok bool) {
	k.Slot = bpf.FastNoSource
	switch {
	case q.Kind == resolver.ByPath:
		k.Kind, k.Addr = pathRequest, q.Path
		return k, true
	case q.Kind != resolver.ByAddress:
		return k, false
	case !q.Src.IsZero():
		if k.Slot = slot; slot == bpf.FastNoSource {
			return k, false
		}
	}
	k.Kind, k.Addr = uint8(q.Dst.Kind), q.Dst.Data
	return k, mirroredKind(q.Dst.Kind)
}

// sourceKey is the program's key of a local address.
func sourceKey(a *resolver.Addr) (bpf.FastKey, bool) {
	return bpf.FastKey{Kind: uint8(a.Kind), Addr: a.Data}, mirroredKind(a.Kind)
}

func mirroredKind(k cache.Kind) bool {
	return k == cache.KindName || k == cache.KindIPv4 || k == cache.KindIPv6
}
