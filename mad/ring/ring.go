// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

// Package ring has the memory that MADs live in: slots of 64 bytes of address
// information followed by one 256-byte MAD, cache-line aligned, all in one
// mapped region. A transport reads from the device straight into a slot, the
// receiver decodes where the bytes lie, and a sender builds its MAD in a slot
// that the transport writes from; user space never copies a MAD.
//
// A slot is borrowed: whoever took it with [Ring.Get] owns it until it is given
// back with [Slot.Release], and passing a slot on passes the ownership. A slot
// that was given back must not be touched, and a second release panics. With
// poisoning on (tests) the bytes of a free slot are overwritten, so that a late
// reader sees nonsense, and compared when it is borrowed again, so that a late
// writer is found out.
//
// A borrowed slot has the bytes of its last use, never zeros that somebody could
// rely on: clear header and MAD, or write all of both.
package ring

import (
	"errors"
	"fmt"
	"sync"
	"unsafe"

	"acmd/mad"

	"golang.org/x/sys/unix"
)

// SlotSize is the size of a slot: umad's 64-byte header and one MAD.
const SlotSize = mad.UserHeaderSize + mad.PacketSize

// PoisonByte fills released slots when poisoning is on.
const PoisonByte = 0xdb

// Slot is one borrowed slot. The zero value is not usable.
type Slot struct {
	mem   *[SlotSize]byte
	ring  *Ring
	long  []byte
	index uint32
	taken bool
}

// Header returns the address part, in place.
func (s *Slot) Header() *mad.UserHeader { return (*mad.UserHeader)(s.mem[:mad.UserHeaderSize]) }

// MAD returns the MAD, in place.
func (s *Slot) MAD() *mad.Packet { return (*mad.Packet)(s.mem[mad.UserHeaderSize:]) }

// Bytes returns header and MAD, the frame of read(2) and write(2) on umad.
func (s *Slot) Bytes() []byte { return s.mem[:] }

// Index is the slot's position in its ring.
func (s *Slot) Index() int { return int(s.index) }

// Long returns the whole MAD (56 bytes of SA header and all data) of a message
// that the transport reassembled from several packets, nil for a single packet.
// The slot's own MAD then has the first 256 bytes.
func (s *Slot) Long() []byte { return s.long }

// SetLong attaches a reassembled message; for transports.
func (s *Slot) SetLong(b []byte) { s.long = b }

// Release gives the slot back to its ring. It panics if the slot is not out:
// somebody else may own it by then, and two owners of one slot cannot be told
// apart later.
func (s *Slot) Release() { s.ring.put(s) }

// Ring is a fixed number of slots. All methods are safe for concurrent use.
type Ring struct {
	region []byte
	slots  []Slot
	poison bool

	mu      sync.Mutex
	free    []*Slot
	retired bool // lends nothing any more
}

// New maps n slots, 1 to 65536. poison overwrites free slots and makes Get panic
// for a slot that was written to while it was free; it is meant for tests.
func New(n int, poison bool) (*Ring, error) {
	if n < 1 || n > 1<<16 {
		return nil, fmt.Errorf("ring: %d slots", n)
	}
	region, err := unix.Mmap(-1, 0, n*SlotSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("ring: map %d slots: %w", n, err)
	}
	r := &Ring{region: region, slots: make([]Slot, n), free: make([]*Slot, 0, n), poison: poison}
	base := unsafe.Pointer(unsafe.SliceData(region))
	for i := n - 1; i >= 0; i-- {
		s := &r.slots[i]
		// Inside region: i < n and region has n*SlotSize bytes. The page-aligned
		// start and SlotSize = 5*64 keep every slot on a cache line.
		s.mem = (*[SlotSize]byte)(unsafe.Add(base, i*SlotSize))
		s.ring, s.index = r, uint32(i)
		r.free = append(r.free, s)
		if poison {
			s.fill()
		}
	}
	return r, nil
}

// Get borrows a slot, or returns nil when all are out: the caller then waits
// until some come back, it never allocates more.
func (r *Ring) Get() *Slot {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.retired || len(r.free) == 0 {
		return nil
	}
	return r.take()
}

// GetN fills dst with borrowed slots and returns how many there were.
func (r *Ring) GetN(dst []*Slot) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.retired {
		return 0
	}
	n := min(len(dst), len(r.free))
	for i := range n {
		dst[i] = r.take()
	}
	return n
}

// take borrows the slot that came back last, whose bytes are likely still in the
// processor's cache. The caller holds r.mu and knows that there is one.
func (r *Ring) take() *Slot {
	s := r.free[len(r.free)-1]
	r.free = r.free[:len(r.free)-1]
	s.taken = true
	if r.poison {
		s.check()
	}
	return s
}

// put checks under the lock: of two goroutines that release one slot, one is
// found out.
func (r *Ring) put(s *Slot) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !s.taken {
		panic("ring: slot released twice")
	}
	s.taken = false
	s.long = nil
	if r.poison {
		s.fill()
	}
	r.free = append(r.free, s)
	if r.retired && len(r.free) == len(r.slots) {
		_ = r.unmap() // as in Retire
	}
}

func (s *Slot) fill() {
	for i := range s.mem {
		s.mem[i] = PoisonByte
	}
}

func (s *Slot) check() {
	for i, b := range s.mem {
		if b != PoisonByte {
			panic(fmt.Sprintf("ring: byte %d of slot %d was written after release", i, s.index))
		}
	}
}

// Region is the memory of all slots, in the order of their indices, for a
// transport that has to tell its adapter of it; nil once the ring is unmapped.
// It must not be used after the last slot is back from a ring that is retired.
func (r *Ring) Region() []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.region
}

// Cap is the number of slots.
func (r *Ring) Cap() int { return len(r.slots) }

// Free is how many slots are not out; 0 once the ring is unmapped.
func (r *Ring) Free() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.free)
}

// ErrBusy is returned by [Ring.Close] while slots are out.
var ErrBusy = errors.New("ring: slots are still borrowed")

// Close unmaps the region. It refuses with ErrBusy while slots are out; once it
// succeeded, Get finds nothing and Close does nothing.
func (r *Ring) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.region != nil && len(r.free) != len(r.slots) {
		return ErrBusy
	}
	return r.unmap()
}

// Retire lends nothing any more and unmaps the region when the last slot is back,
// which may be at once. It is for a port that is closed while its slots are still
// in other hands, where they stay valid.
func (r *Ring) Retire() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.retired = true
	if len(r.free) == len(r.slots) {
		// munmap fails only for a range that was never mapped.
		_ = r.unmap()
	}
}

// unmap ends the ring; the caller holds r.mu and all slots are back.
func (r *Ring) unmap() error {
	r.retired = true
	region := r.region
	r.region, r.free = nil, nil
	if region == nil {
		return nil
	}
	return unix.Munmap(region)
}
