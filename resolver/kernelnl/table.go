// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package kernelnl

import "time"

// none ends a list of slots.
const none = -1

// slot is a request that the engine works on. The kernel may have been told by
// then that there is no answer; the slot is free again when the engine has spoken,
// so that the size of the table bounds the engine's work for this door too.
type slot struct {
	h       Header
	gen     uint32 // of the tag; a callback for an earlier use does not match
	used    bool
	waiting bool // the kernel still waits

	// The kernel is told at tell that there is no answer, and nothing after last.
	tell, last time.Time
	next, prev int32 // of the waiting ones, by tell; of the free ones
}

// table has the slots, and those that wait in order of arrival, which is that of
// their deadlines. It belongs to the door's goroutine.
type table struct {
	slots       []slot // grows up to limit
	limit       int
	free        int32
	first, last int32
	waiting     int
}

func newTable(limit int) table {
	return table{limit: limit, free: none, first: none, last: none}
}

// add files a request; false: there is no room. The tag names it to the engine.
func (t *table) add(h *Header, tell, last time.Time) (tag uint64, ok bool) {
	i := t.free
	switch {
	case i != none:
		t.free = t.slots[i].next
	case len(t.slots) < t.limit:
		i = int32(len(t.slots))
		t.slots = append(t.slots, slot{})
	default:
		return 0, false
	}
	s := &t.slots[i]
	*s = slot{h: *h, gen: s.gen + 1, used: true, waiting: true, tell: tell, last: last, next: none, prev: t.last}
	if t.last == none {
		t.first = i
	} else {
		t.slots[t.last].next = i
	}
	t.last = i
	t.waiting++
	return uint64(s.gen)<<32 | uint64(i), true
}

// told takes a slot out of the list of those that wait.
func (t *table) told(i int32) {
	s := &t.slots[i]
	if s.prev == none {
		t.first = s.next
	} else {
		t.slots[s.prev].next = s.next
	}
	if s.next == none {
		t.last = s.prev
	} else {
		t.slots[s.next].prev = s.prev
	}
	s.waiting = false
	t.waiting--
}

// finish frees the slot of a tag, as the engine has spoken, and returns what it
// was. A tag that is not in use, which the engine does not produce, is refused.
func (t *table) finish(tag uint64) (was slot, ok bool) {
	i := int32(uint32(tag))
	if i < 0 || int(i) >= len(t.slots) {
		return slot{}, false
	}
	s := &t.slots[i]
	if !s.used || s.gen != uint32(tag>>32) {
		return slot{}, false
	}
	was = *s
	if s.waiting {
		t.told(i)
	}
	s.used, s.next = false, t.free
	t.free = i
	return was, true
}

// due takes the next request off the list whose time has come.
func (t *table) due(now time.Time) (s slot, ok bool) {
	if t.first == none || t.slots[t.first].tell.After(now) {
		return slot{}, false
	}
	i := t.first
	t.told(i)
	return t.slots[i], true
}

// next is when due will return something, zero: never as things are.
func (t *table) next() time.Time {
	if t.first == none {
		return time.Time{}
	}
	return t.slots[t.first].tell
}
