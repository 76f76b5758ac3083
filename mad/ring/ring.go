// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

// Package ring has the memory that MADs live in: slots of 64 bytes of address
// information followed by one 256-byte MAD, cache-line aligned, all in one
// mapped region. A transport reads from the device straight into a slot, the
// receiver decodes where the bytes lie, and a sender builds its MAD in a slot
// that the transport writes from; user space never copies a MAD.
//
// A slot is borrowed: whoever took it with [Ring.Get] owns it until it is given
// back with [Slot.Release], and passing a slot on passes the ownership. A slot
// that was given back must not be touched; with poisoning on (tests) its bytes
// are overwritten to make such use show, and a second release panics.
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

// Release gives the slot back to its ring.
func (s *Slot) Release() {
	if !s.taken {
		panic("ring: slot released twice")
	}
	s.ring.put(s)
}

// Ring is a fixed number of slots. All methods are safe for concurrent use.
type Ring struct {
	region []byte
	slots  []Slot
	poison bool

	mu   sync.Mutex
	free []*Slot
}

// New maps n slots, 1 to 65536. poison makes released slots unreadable by
// overwriting them and is meant for tests.
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
	}
	return r, nil
}

// Get borrows a slot, or returns nil when all are out: the caller then waits
// until some come back, it never allocates more.
func (r *Ring) Get() *Slot {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := len(r.free)
	if n == 0 {
		return nil
	}
	s := r.free[n-1]
	r.free = r.free[:n-1]
	s.taken = true
	return s
}

// GetN fills dst with borrowed slots and returns how many there were.
func (r *Ring) GetN(dst []*Slot) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := min(len(dst), len(r.free))
	for i := range n {
		s := r.free[len(r.free)-1]
		r.free = r.free[:len(r.free)-1]
		s.taken = true
		dst[i] = s
	}
	return n
}

func (r *Ring) put(s *Slot) {
	s.long = nil
	if r.poison {
		for i := range s.mem {
			s.mem[i] = PoisonByte
		}
	}
	r.mu.Lock()
	s.taken = false
	r.free = append(r.free, s)
	r.mu.Unlock()
}

// Cap is the number of slots, Free how many are not out.
func (r *Ring) Cap() int { return len(r.slots) }

func (r *Ring) Free() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.free)
}

// ErrBusy is returned by [Ring.Close] while slots are out.
var ErrBusy = errors.New("ring: slots are still borrowed")

// Close unmaps the region. It refuses while slots are out.
func (r *Ring) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.free) != len(r.slots) {
		return ErrBusy
	}
	if r.region == nil {
		return nil
	}
	err := unix.Munmap(r.region)
	r.region, r.free = nil, nil
	return err
}
