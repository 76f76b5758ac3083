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
