// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package cache

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	hugePage = 2 << 20
	// hugeFrom is the table size from which address translation costs more than
	// the memory that half-filled huge pages waste.
	hugeFrom = 32 << 20
)

// adviseHuge asks for huge pages below a big table. It is advice: without it
// the table is only slower, so errors do not matter.
func adviseHuge(buckets []bucket, entries []entry) {
	if uintptr(len(entries))*unsafe.Sizeof(entry{}) < hugeFrom {
		return
	}
	advise(unsafe.Pointer(unsafe.SliceData(buckets)), uintptr(len(buckets))*unsafe.Sizeof(bucket{}))
	advise(unsafe.Pointer(unsafe.SliceData(entries)), uintptr(len(entries))*unsafe.Sizeof(entry{}))
}

// advise covers only whole huge pages inside the memory: its ends are shared with
// other objects of the heap.
func advise(p unsafe.Pointer, size uintptr) {
	skip := -uintptr(p) & (hugePage - 1)
	if size < skip+hugePage {
		return
	}
	size = (size - skip) &^ (hugePage - 1)
	_ = unix.Madvise(unsafe.Slice((*byte)(unsafe.Add(p, skip)), size), unix.MADV_HUGEPAGE)
}

// firstTouch is how much of a shard's entries is touched when the cache is made.
const firstTouch = 64 << 10

// populate touches what the first answers will touch, all at once: the index and
// the chains' heads, which are hit at random places, and the first entries of each
// shard. A daemon that has just started is asked for all its paths at the start of a job,
// and a page fault costs more than a look-up. It is advice (Linux 5.14); without
// it the first look-ups are only slower.
func (c *Cache) populate() {
	populate(c.buckets)
	for i := range c.shards {
		s := &c.shards[i]
		populate(s.gidHead)
		populate(s.lidHead)
		n := min(int(s.end-s.base), int(firstTouch/unsafe.Sizeof(entry{})))
		populate(c.entries[s.base:][:n])
		populate(c.links[s.base:][:n])
	}
}

// populate covers the pages that lie wholly inside t: the ends are shared with
// other objects of the heap.
func populate[T any](t []T) {
	page := uintptr(unix.Getpagesize())
	p := unsafe.Pointer(unsafe.SliceData(t))
	size := uintptr(len(t)) * unsafe.Sizeof(*new(T))
	skip := -uintptr(p) & (page - 1)
	if size < skip+page {
		return
	}
	size = (size - skip) &^ (page - 1)
	_ = unix.Madvise(unsafe.Slice((*byte)(unsafe.Add(p, skip)), size), unix.MADV_POPULATE_WRITE)
}
