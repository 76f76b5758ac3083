// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package preload

import (
	"cmp"
	"iter"
	"slices"

	"acmd/cache"
	"acmd/mad"
	"acmd/resolver"
)

// Reading is what the files said at one time. It is immutable.
type Reading struct {
	hosts *Hosts
	dump  *Dump
}

// Reading returns what is in force.
func (s *Source) Reading() Reading {
	now := s.now.Load()
	return Reading{now.hosts, now.dump}
}

// Differ yields what a later reading says otherwise, or only one of them says: names
// and IP addresses with another GID, LIDs with another path. What was learned of these
// from the earlier one is not true any more.
func (r Reading) Differ(later Reading) iter.Seq[resolver.Addr] {
	return func(yield func(resolver.Addr) bool) {
		for a, gid := range r.hosts.rowsInOrder() {
			if g, ok := later.hosts.Lookup(&a); (!ok || g != gid) && !yield(a) {
				return
			}
		}
		for a := range later.hosts.rowsInOrder() {
			if _, ok := r.hosts.Lookup(&a); !ok && !yield(a) {
				return
			}
		}
		lids := map[mad.LID]bool{}
		r.dump.differ(later.dump, lids)
		later.dump.differ(r.dump, lids)
		for l := range lids {
			if !yield(resolver.LIDAddr(l)) {
				return
			}
		}
	}
}

// rowsInOrder returns the rows as the file has them; of no file there are none.
func (h *Hosts) rowsInOrder() iter.Seq2[resolver.Addr, mad.GID] {
	return func(yield func(resolver.Addr, mad.GID) bool) {
		if h == nil {
			return
		}
		for i := range h.rows {
			b := h.addr(i)
			a := resolver.Addr{Kind: cache.Kind(b[0]), Len: b[1]}
			copy(a.Data[:], b[2:])
			if !yield(a, h.rows[i].gid) {
				return
			}
		}
	}
}

// differ adds the LIDs whose path, or port, another dump does not have like that.
func (d *Dump) differ(other *Dump, lids map[mad.LID]bool) {
	if d == nil {
		return
	}
	for id, paths := range d.blocks {
		var block []Path
		if other != nil {
			block = other.blocks[id]
		}
		for _, p := range paths {
			i, ok := findPath(block, p.DLID)
			if !ok || block[i] != p || d.ownerGUID(p.DLID) != other.ownerGUID(p.DLID) {
				lids[p.DLID] = true
			}
		}
	}
}

func (d *Dump) ownerGUID(l mad.LID) mad.GUID {
	n, _ := d.Owner(l)
	return n.GUID
}

// findPath finds a path in a block, or where it would be.
func findPath(block []Path, l mad.LID) (int, bool) {
	return slices.BinarySearchFunc(block, l, func(p Path, l mad.LID) int { return cmp.Compare(p.DLID, l) })
}
