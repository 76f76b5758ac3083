// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package cache

import (
	"encoding/binary"

	"acmd/mad"
)

// The secondary index leads from a GID or LID to the entries that a fabric event
// on it kills. Each shard indexes its own entries under its own lock. An entry is
// in one chain by GID and in one by LID: those of its record, else those that its
// key names. Key and record naming different ones is possible (a preloaded route
// to a stand-in) but rare; such entries are in the shard's odd set as well, which
// every drop looks through.

// gidWords is a GID as two words in memory order.
type gidWords [2]uint64

func toWords(g mad.GID) gidWords {
	return gidWords{binary.NativeEndian.Uint64(g[0:]), binary.NativeEndian.Uint64(g[8:])}
}

// dest is a GID and a LID, zero where none is named.
type dest struct {
	gid gidWords
	lid uint16
}

// firstLID takes the first two bytes of a word, in memory order, as a big-endian
// LID.
func firstLID(w uint64) uint16 {
	var b [8]byte
	binary.NativeEndian.PutUint64(b[:], w)
	return binary.BigEndian.Uint16(b[:])
}

// pathDest takes the destination from a PathRecord's words: DGID in bytes 8 to
// 23, DLID in 40 and 41 (IBTA vol. 1, 15.2.5.16).
func pathDest(w *[recWords]uint64) dest {
	return dest{gid: gidWords{w[1], w[2]}, lid: firstLID(w[5])}
}

// dests returns what the key names and what the record leads to. A negative
// entry has no record.
func (it *item) dests() (key, rec dest) {
	hdr := it.header()
	switch kind, n := Kind(hdr>>16), hdr>>24; {
	case kind == KindGID && n == 16:
		key.gid = gidWords{it.key[0], it.key[1]}
	case kind == KindLID && n == 2:
		key.lid = firstLID(it.key[0])
	case kind == KindPath && n == 64:
		key = pathDest(&it.key)
	}
	if tagStatus(it.tag) == 0 {
		rec = pathDest(&it.rec)
	}
	return key, rec
}

// indexed returns what an entry's chains are found by, and whether its key names
// anything else.
func (it *item) indexed() (d dest, odd bool) {
	key, d := it.dests()
	if d.gid == (gidWords{}) {
		d.gid = key.gid
	}
	if d.lid == 0 {
		d.lid = key.lid
	}
	odd = key.gid != (gidWords{}) && key.gid != d.gid || key.lid != 0 && key.lid != d.lid
	return d, odd
}

func (c *Cache) gidHead(s *shard, g gidWords) *uint32 {
	return &s.gidHead[c.hash.gid(g)&uint32(len(s.gidHead)-1)]
}

func (c *Cache) lidHead(s *shard, l uint16) *uint32 {
	return &s.lidHead[c.hash.lid(l)&uint32(len(s.lidHead)-1)]
}

func (c *Cache) link(s *shard, n uint32, it *item) {
	d, odd := it.indexed()
	l := &c.links[n]
	if d.gid != (gidWords{}) {
		head := c.gidHead(s, d.gid)
		if l.gidNext = *head; l.gidNext != 0 {
			c.links[l.gidNext].gidPrev = n
		}
		*head = n
	}
	if d.lid != 0 {
		head := c.lidHead(s, d.lid)
		if l.lidNext = *head; l.lidNext != 0 {
			c.links[l.lidNext].lidPrev = n
		}
		*head = n
	}
	if odd {
		if s.odd == nil {
			s.odd = make(map[uint32]struct{})
		}
		s.odd[n] = struct{}{}
	}
}

func (c *Cache) unlink(s *shard, n uint32, it *item) {
	d, odd := it.indexed()
	l := &c.links[n]
	if d.gid != (gidWords{}) {
		if l.gidNext != 0 {
			c.links[l.gidNext].gidPrev = l.gidPrev
		}
		if l.gidPrev != 0 {
			c.links[l.gidPrev].gidNext = l.gidNext
		} else {
			*c.gidHead(s, d.gid) = l.gidNext
		}
	}
	if d.lid != 0 {
		if l.lidNext != 0 {
			c.links[l.lidNext].lidPrev = l.lidPrev
		}
		if l.lidPrev != 0 {
			c.links[l.lidPrev].lidNext = l.lidNext
		} else {
			*c.lidHead(s, d.lid) = l.lidNext
		}
	}
	if odd {
		delete(s.odd, n)
	}
	*l = links{}
}

// removeDest frees the entries of a shard that name or lead to a GID (when it is
// not zero) or a LID (when it is not 0).
func (c *Cache) removeDest(s *shard, d dest) (freed int) {
	hit := func(n uint32) {
		var it item
		c.read(n, &it)
		key, rec := it.dests()
		if d.gid != (gidWords{}) && (key.gid == d.gid || rec.gid == d.gid) ||
			d.lid != 0 && (key.lid == d.lid || rec.lid == d.lid) {
			c.remove(s, n)
			freed++
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if d.gid != (gidWords{}) {
		for n := *c.gidHead(s, d.gid); n != 0; {
			next := c.links[n].gidNext // before the entry leaves the chain
			hit(n)
			n = next
		}
	}
	if d.lid != 0 {
		for n := *c.lidHead(s, d.lid); n != 0; {
			next := c.links[n].lidNext
			hit(n)
			n = next
		}
	}
	for n := range s.odd {
		hit(n)
	}
	s.dropped += uint64(freed)
	return freed
}
