// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package cache

import "encoding/binary"

// readTries bounds how often a reader looks again after it met an entry that was
// being reused. For that to happen once, spareEntries writes of one shard must
// fit between two of the reader's loads.
const readTries = 4

// Get copies the record of k out. It reports false when there is no entry, or it
// is expired (now >= Deadline) or invalidated; Meta and rec then mean nothing. A
// negative entry (Status not 0) has no meaningful record. Get neither allocates
// nor waits.
//
// Most keys lie in one of the first two slots that their hash names. Get looks
// there without a loop and leaves everything else to search; its body has to be kept in step
// with match. The compiler makes good code of it in this form: one base register
// for the entry, which it only keeps if the entry is chosen by a branch, and no
// struct of more than four fields copied as a whole.
func (c *Cache) Get(k *Key, now int64, rec *[64]byte) (m Meta, ok bool) {
	hdr := k.header()
	w0, w1, w2 := k.word(0), k.word(1), k.word(2)
	h := c.hash.short(hdr, w0, w1, w2)
	b := &c.buckets[c.first(h)]
	fp := c.fingerprint(h)
	n := b.slot[h%bucketSlots].Load() ^ fp
	if other := b.slot[(h^1)%bucketSlots].Load() ^ fp; other <= c.number {
		n = other
	}
	e := &c.entries[0] // matches no key
	if n <= c.number {
		e = &c.entries[n]
	}
	v := e.ver.Load()
	tag := e.tag.Load()
	if uint64(uint32(tag)^hdr|v&1)|(e.data[0].Load()^w0)|(e.data[1].Load()^w1)|(e.data[2].Load()^w2) != 0 {
		return c.search(k, h, now, rec)
	}
	binary.NativeEndian.PutUint64(rec[0:], e.rec[0].Load())
	binary.NativeEndian.PutUint64(rec[8:], e.rec[1].Load())
	binary.NativeEndian.PutUint64(rec[16:], e.rec[2].Load())
	binary.NativeEndian.PutUint64(rec[24:], e.rec[3].Load())
	binary.NativeEndian.PutUint64(rec[32:], e.rec[4].Load())
	binary.NativeEndian.PutUint64(rec[40:], e.rec[5].Load())
	binary.NativeEndian.PutUint64(rec[48:], e.rec[6].Load())
	binary.NativeEndian.PutUint64(rec[56:], e.rec[7].Load())
	m.Deadline = e.deadline.Load()
	m.Refresh = e.refresh.Load()
	m.Scope, m.Status, m.Origin = Scope(tag>>32), tagStatus(tag), uint8(tag>>56)
	since := e.since.Load()
	if e.ver.Load() != v {
		return c.search(k, h, now, rec)
	}
	if now >= m.Deadline || since < c.scopes[tagScope(tag)].Load() {
		return m, false
	}
	if e.used.Load() == 0 {
		e.used.Store(1)
	}
	return m, true
}

// search is the whole of Get: all slots of both buckets, keys of any length, and
// another look when an entry was reused in between. h is the hash of a short key.
func (c *Cache) search(k *Key, h uint64, now int64, rec *[64]byte) (Meta, bool) {
	m, _, ok := c.searchSince(k, h, now, rec)
	return m, ok
}

// GetSince is Get for who bases the entry of another key on this one: it also returns
// the epoch that the entry was published under. What is derived from it must be put
// under that epoch, not a later one: an invalidation raises its epoch before it
// removes entries, so an entry can be read after the counter has moved on. What could
// not be put is not found: an entry that is to be removed, or is from before the other
// key was dropped. Who asks again would find it again, and be refused again.
func (c *Cache) GetSince(k, derived *Key, now int64, rec *[64]byte) (Meta, Epoch, bool) {
	h := c.hash.short(k.header(), k.word(0), k.word(1), k.word(2))
	m, since, ok := c.searchSince(k, h, now, rec)
	if !ok || !c.wouldPut(k, rec, &m, since) || !c.wouldPut(derived, rec, &m, since) {
		return Meta{}, 0, false
	}
	return m, Epoch(since), true
}

// Takes reports whether Put would publish an answer: nothing that concerns it was
// invalidated after since.
func (c *Cache) Takes(k *Key, rec *[64]byte, m Meta, since Epoch) bool {
	return k.valid() && m.Scope < MaxScopes && c.wouldPut(k, rec, &m, uint64(since))
}

// wouldPut tells whether nothing that concerns an entry was invalidated after since.
func (c *Cache) wouldPut(k *Key, rec *[64]byte, m *Meta, since uint64) bool {
	it := makeItem(k, rec, m, Epoch(since))
	return c.lastInvalidation(c.hash.words(it.header(), &it.key), &it) <= since
}

func (c *Cache) searchSince(k *Key, h uint64, now int64, rec *[64]byte) (Meta, uint64, bool) {
	if k.Len > inlineKey {
		if !k.valid() {
			return Meta{}, 0, false
		}
		h = c.hashLong(k)
	}
	for range readTries {
		torn := false
		b := c.first(h)
		for i := range uint64(2 * bucketSlots) {
			if i == bucketSlots {
				b = c.second(h, b)
			}
			p := &c.buckets[b].slot[(h^i)%bucketSlots]
			slot := p.Load()
			n := slot ^ c.fingerprint(h)
			if n > c.number || n == 0 {
				continue
			}
			e := &c.entries[n]
			v := e.ver.Load()
			m, since, ok := c.match(e, v, k, rec)
			if !ok {
				// Another key's, unless something changed while it was read.
				torn = torn || v&1 != 0 || e.ver.Load() != v || p.Load() != slot
				continue
			}
			if now >= m.Deadline || since < c.scopes[m.Scope].Load() {
				return Meta{}, 0, false
			}
			return m, since, true
		}
		if !torn {
			break
		}
	}
	return Meta{}, 0, false
}

// match copies an entry of version v out if it is that of k and is not reused
// meanwhile, and marks it used. It also returns the entry's epoch.
func (c *Cache) match(e *entry, v uint32, k *Key, rec *[64]byte) (m Meta, since uint64, ok bool) {
	tag := e.tag.Load()
	d0, d1, d2 := e.data[0].Load(), e.data[1].Load(), e.data[2].Load()
	if uint32(tag) != inEntry(k.header()) || v&1 != 0 {
		return m, 0, false
	}
	if k.Len <= inlineKey {
		if d0 != k.word(0) || d1 != k.word(1) || d2 != k.word(2) {
			return m, 0, false
		}
	} else if e.ver.Load() != v || !c.long(d0).equal(k) {
		// The version is looked at first: the place of a reused entry's key may be
		// no place at all.
		return m, 0, false
	}
	deadline, refresh, since := e.deadline.Load(), e.refresh.Load(), e.since.Load()
	for i := range e.rec {
		binary.NativeEndian.PutUint64(rec[i*8:], e.rec[i].Load())
	}
	if e.ver.Load() != v {
		return m, 0, false
	}
	if e.used.Load() == 0 {
		e.used.Store(1)
	}
	return makeMeta(tag, deadline, refresh), since, true
}

func (l *longKey) equal(k *Key) bool {
	for i := range l {
		if l[i].Load() != k.word(i) {
			return false
		}
	}
	return true
}

func (c *Cache) hashLong(k *Key) uint64 {
	var w [keyWords]uint64
	for i := range w {
		w[i] = k.word(i)
	}
	return c.hash.long(k.header(), &w)
}
