// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package resolver

import (
	"encoding/binary"
	"math/bits"
	"math/rand/v2"
	"sync/atomic"

	"acmd/cache"
	"acmd/mad"
	"acmd/mad/sa"
)

// pathTable has the paths from one endpoint to every port, as one answer of the SA
// had them. It is read where it came to lie: what is built are two indexes of 4 bytes
// a path and one of 4 bytes a LID. It is immutable but for the marks of what the SA has
// taken back since, and safe for concurrent use.
type pathTable struct {
	paths []sa.PathRecord
	gids  []uint32 // by hash of the destination's GID, linear probing, at most half full; a path's number + 1
	lids  []uint32 // by destination LID, from base on; a path's number + 1
	base  mad.LID
	seed  uint64
	shift uint8
	void  []atomic.Uint32 // a bit for each path

	asked int64
	since cache.Epoch // before it was asked for
}

// newPathTable keeps those of paths, which it takes over, that fit; of several to one
// destination the first, which the SA prefers.
func newPathTable(paths []sa.PathRecord, asked int64, since cache.Epoch, fits func(*sa.PathRecord) bool) *pathTable {
	n, low, high := 0, mad.LID(0xffff), mad.LID(0)
	for i := range paths {
		p := &paths[i]
		if !fits(p) {
			continue
		}
		low, high = min(low, p.DLID()), max(high, p.DLID())
		if n != i {
			paths[n] = *p
		}
		n++
	}
	paths = paths[:n]
	t := &pathTable{paths: paths, base: low, seed: rand.Uint64() | 1, asked: asked, since: since,
		void: make([]atomic.Uint32, (n+31)/32)}
	if n > 0 {
		t.lids = make([]uint32, int(high-low)+1)
	}
	size := bits.Len(uint(2 * n)) // at least one slot stays empty
	t.gids, t.shift = make([]uint32, 1<<size), uint8(64-size)
	for i := range paths {
		p := &paths[i]
		if slot, found := t.slot(p[8:24]); found < 0 {
			t.gids[slot] = uint32(i) + 1
		}
		if at := &t.lids[p.DLID()-low]; *at == 0 {
			*at = uint32(i) + 1
		}
	}
	return t
}

// slot finds the place of a GID, and the number of its path, -1 if it has none.
func (t *pathTable) slot(gid []byte) (slot uint64, path int) {
	// The GUIDs of one vendor differ in few bits: the upper half of the product has them
	// all. Prefixes are nearly always the same, and a seed then.
	hi, lo := bits.Mul64(binary.NativeEndian.Uint64(gid)^t.seed, 0x9e3779b97f4a7c15)
	hi, lo = bits.Mul64(binary.NativeEndian.Uint64(gid[8:16])^hi^lo, 0x9e3779b97f4a7c15)
	for slot = (hi ^ lo) >> t.shift; ; slot = (slot + 1) & uint64(len(t.gids)-1) {
		n := t.gids[slot]
		if n == 0 {
			return slot, -1
		}
		if [16]byte(t.paths[n-1][8:24]) == [16]byte(gid) {
			return slot, int(n - 1)
		}
	}
}

// find returns the number of the path to what a route is asked for: a GID, else a
// LID; -1 if there is none that holds.
func (t *pathTable) find(route *sa.PathRecord) int {
	n := -1
	if l := route.DLID(); l != 0 {
		if i := int(l) - int(t.base); i >= 0 && i < len(t.lids) {
			n = int(t.lids[i]) - 1
		}
	} else {
		_, n = t.slot(route[8:24])
	}
	if n >= 0 && t.void[n/32].Load()&(1<<(n%32)) != 0 {
		return -1
	}
	return n
}

// drop marks the path to what a route was asked for: the SA says that there is none.
func (t *pathTable) drop(route *sa.PathRecord) {
	if n := t.find(route); n >= 0 {
		t.void[n/32].Or(1 << (n % 32))
	}
}
