// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package cache

import (
	"encoding/binary"
	"sync/atomic"
)

const (
	bucketSlots = 8  // half a cache line of slots
	keyWords    = 8  // of MaxKeyData
	recWords    = 8  // of a path record
	inlineKey   = 24 // key bytes kept in the entry itself
	inlineWords = inlineKey / 8
	longChunk   = 256 // long keys are allocated so many at a time
)

// bucket is half a cache line of the index. A slot is 0, or an entry number in
// the lower bits, which is never 0, and a fingerprint in those that are left:
// 15 at the default capacity, 5 at the greatest.
type bucket struct {
	slot [bucketSlots]atomic.Uint32
}

// fingerprint is the part of a slot that does not number an entry.
func (c *Cache) fingerprint(h uint64) uint32 { return uint32(h>>32) &^ c.number }

func (c *Cache) makeSlot(h uint64, n uint32) uint32 { return c.fingerprint(h) | n }

// entry is two cache lines. Words keep the byte order of memory: they are moved,
// never computed with. Entry 0 is not used, so that 0 can mean "none".
type entry struct {
	ver  atomic.Uint32 // odd: free or being filled; changes with every reuse
	used atomic.Uint32 // set by readers, cleared by the clock
	tag  atomic.Uint64 // key header, then scope, status, origin of the Meta
	data [inlineWords]atomic.Uint64

	deadline atomic.Int64
	refresh  atomic.Int64
	since    atomic.Uint64 // epoch that the answer was asked in

	rec [recWords]atomic.Uint64
}

// longMark in a tag, in an otherwise clear bit of the key's length, says that the
// entry has the place of the key instead of the key. It keeps such an entry from
// matching where headers and first words are compared.
const longMark = 1 << 31

// inEntry makes of a key's header what the tag of its entry has in the lower half.
func inEntry(hdr uint32) uint32 {
	if hdr>>24 > inlineKey {
		return hdr | longMark
	}
	return hdr
}

func makeTag(hdr uint32, m *Meta) uint64 {
	return uint64(inEntry(hdr)) | uint64(m.Scope)<<32 | uint64(m.Status)<<48 | uint64(m.Origin)<<56
}

func tagScope(tag uint64) uint16 { return uint16(tag>>32) & (MaxScopes - 1) }
func tagStatus(tag uint64) uint8 { return uint8(tag >> 48) }
func tagLong(tag uint64) bool    { return tag&longMark != 0 }

func makeMeta(tag uint64, deadline, refresh int64) Meta {
	return Meta{Deadline: deadline, Refresh: refresh,
		Scope: Scope(tag >> 32), Status: tagStatus(tag), Origin: uint8(tag >> 56)}
}

// links are an entry's places in the secondary index, doubly linked so that
// leaving a chain does not depend on its length. A free entry's gidNext is the
// next free one. Guarded by the shard's lock.
type links struct {
	gidNext, gidPrev uint32
	lidNext, lidPrev uint32
}

// longKey is the whole of a key that does not fit its entry. It belongs to one
// entry as long as that entry's version does not change.
type longKey [keyWords]atomic.Uint64

// item is an entry's content in plain words.
type item struct {
	tag      uint64
	key      [keyWords]uint64
	rec      [recWords]uint64
	deadline int64
	refresh  int64
	since    uint64
}

func (it *item) header() uint32 { return uint32(it.tag) &^ longMark }

// makeItem takes a nil record for zeros.
func makeItem(k *Key, rec *[64]byte, m *Meta, since Epoch) (it item) {
	it.tag = makeTag(k.header(), m)
	for i := range it.key {
		it.key[i] = k.word(i)
	}
	if rec != nil {
		for i := range it.rec {
			it.rec[i] = binary.NativeEndian.Uint64(rec[i*8:])
		}
	}
	it.deadline, it.refresh, it.since = m.Deadline, m.Refresh, uint64(since)
	return it
}

// unpackKey and unpack are makeItem's inverse.
func (it *item) unpackKey(k *Key) {
	hdr := it.header()
	k.Endpoint, k.Kind, k.Len = uint16(hdr), Kind(hdr>>16), uint8(hdr>>24)
	for i, w := range it.key {
		binary.NativeEndian.PutUint64(k.Data[i*8:], w)
	}
}

func (it *item) unpack(k *Key, rec *[64]byte) Meta {
	it.unpackKey(k)
	for i, w := range it.rec {
		binary.NativeEndian.PutUint64(rec[i*8:], w)
	}
	return makeMeta(it.tag, it.deadline, it.refresh)
}

// long returns the place of a long key.
func (c *Cache) long(i uint64) *longKey {
	return &c.longs[i/longChunk].Load()[i%longChunk]
}

// read copies entry n out and reports false when it was free or reused in
// between. It may be called without the shard's lock.
func (c *Cache) read(n uint32, it *item) bool {
	e := &c.entries[n]
	v := e.ver.Load()
	if v&1 != 0 {
		return false
	}
	it.tag = e.tag.Load()
	it.key = [keyWords]uint64{e.data[0].Load(), e.data[1].Load(), e.data[2].Load()}
	if tagLong(it.tag) {
		if e.ver.Load() != v {
			return false // the place of the key may be no place at all
		}
		l := c.long(it.key[0])
		for i := range l {
			it.key[i] = l[i].Load()
		}
	}
	for i := range e.rec {
		it.rec[i] = e.rec[i].Load()
	}
	it.deadline, it.refresh, it.since = e.deadline.Load(), e.refresh.Load(), e.since.Load()
	return e.ver.Load() == v
}

// fill writes a free entry, which no slot leads to, and makes its version even.
func (c *Cache) fill(s *shard, n uint32, it *item, used uint32) {
	e := &c.entries[n]
	e.tag.Store(it.tag)
	data := [inlineWords]uint64(it.key[:inlineWords])
	if tagLong(it.tag) {
		data[0] = c.takeLong(s)
		l := c.long(data[0])
		for j, w := range it.key {
			l[j].Store(w)
		}
	}
	for j, w := range data {
		e.data[j].Store(w)
	}
	for j, w := range it.rec {
		e.rec[j].Store(w)
	}
	e.deadline.Store(it.deadline)
	e.refresh.Store(it.refresh)
	e.since.Store(it.since)
	e.used.Store(used)
	e.ver.Add(1)
}
