// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package bpf

import (
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// Layouts of acm_maps.h.
type (
	header   = acmAcmHeader
	words    = acmAcmWords
	endpoint = acmAcmEndpoint
	hist     = acmAcmHist
	slow     = acmAcmSlow
	kwords   = acmAcmKwords
)

// Sizes of acm_maps.h.
const (
	magic        = 0x3144434d4d4341
	schema       = 1
	statShards   = 128
	maxCPUSlots  = 64 // of acm_kstat for each endpoint
	maxEndpoints = 1024
	epShards     = 8
	latShards    = 16
	latClasses   = 8
	maxFlights   = 1024
)

// arrays are the contents of the maps: mapped, on the heap, or copies. Words that
// change are read and written with atomic operations.
type arrays struct {
	head    *header
	stats   []words
	eps     []endpoint
	lat     []hist // [shard*latClasses + class]
	sa      []hist // likewise
	flights []slow
	kstat   []kwords // [endpoint*kshards + cpu]; none without BPF
}

// heap makes arrays of ordinary memory.
func heap() *arrays {
	return &arrays{
		head: new(header), stats: make([]words, statShards), eps: make([]endpoint, maxEndpoints),
		lat: make([]hist, latShards*latClasses), sa: make([]hist, latShards*latClasses),
		flights: make([]slow, maxFlights),
	}
}

// mapped maps arrays of BPF maps into the process. The memory is given back once
// nobody refers to the arrays any more, not before: a late writer must not fault.
// Slices of it do not count as references, whoever has one keeps the arrays.
func mapped(m *acmMaps) (*arrays, error) {
	a := new(arrays)
	var pieces [][]byte
	cleanup := func(pieces [][]byte) {
		for _, b := range pieces {
			_ = unix.Munmap(b) // of addresses that mmap gave
		}
	}
	head, err := mmap[header](m.AcmMeta, &pieces)
	if err == nil {
		a.head = &head[0]
		a.stats, err = mmap[words](m.AcmStats, &pieces)
	}
	if err == nil {
		a.eps, err = mmap[endpoint](m.AcmEp, &pieces)
	}
	if err == nil {
		a.lat, err = mmap[hist](m.AcmLat, &pieces)
	}
	if err == nil {
		a.sa, err = mmap[hist](m.AcmSa, &pieces)
	}
	if err == nil {
		a.flights, err = mmap[slow](m.AcmFlight, &pieces)
	}
	if err == nil {
		a.kstat, err = mmap[kwords](m.AcmKstat, &pieces)
	}
	if err != nil {
		cleanup(pieces)
		return nil, err
	}
	runtime.AddCleanup(a, cleanup, pieces)
	return a, nil
}

// mmap maps an array whose elements are T, a multiple of 8 bytes long.
func mmap[T any](m *ebpf.Map, pieces *[][]byte) ([]T, error) {
	var elem T
	if uintptr(m.ValueSize()) != unsafe.Sizeof(elem) {
		return nil, fmt.Errorf("%v: elements of %d bytes, want %d", m, m.ValueSize(), unsafe.Sizeof(elem))
	}
	page := os.Getpagesize()
	size := (int(m.ValueSize())*int(m.MaxEntries()) + page - 1) &^ (page - 1)
	b, err := unix.Mmap(m.FD(), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("%v: mmap: %w", m, err)
	}
	*pieces = append(*pieces, b)
	// The mapping is page aligned and at least MaxEntries elements long.
	return unsafe.Slice((*T)(unsafe.Pointer(&b[0])), m.MaxEntries()), nil
}

// wordsOf is a value as 64-bit words, for atomic access.
func wordsOf[T any](v *T) []uint64 {
	// All layouts are multiples of 8 bytes and 8-byte aligned.
	return unsafe.Slice((*uint64)(unsafe.Pointer(v)), unsafe.Sizeof(*v)/8)
}

// load reads a word that others write.
func load(p *uint64) uint64 { return atomic.LoadUint64(p) }

// cString reads NUL terminated text.
func cString(b []int8) string {
	s := make([]byte, 0, len(b))
	for _, c := range b {
		if c == 0 {
			break
		}
		s = append(s, byte(c))
	}
	return string(s)
}

// putString writes text with its NUL, cut off where it does not fit.
func putString(dst []int8, s string) {
	clear(dst)
	for i := 0; i < len(s) && i < len(dst)-1; i++ {
		dst[i] = int8(s[i])
	}
}
