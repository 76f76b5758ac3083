// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acmsock

import (
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"

	"acmd/bpf"
	"acmd/mad/sa"
	"acmd/resolver"

	"golang.org/x/sys/unix"
)

// completion is an answer on its way to the loop of its connection. It has what
// a reply needs of a [resolver.Answer], by value: the answer is only lent.
type completion struct {
	c      *conn
	seq    uint64
	status resolver.Status
	core   bool
	asked  bool
	path   sa.PathRecord
	src    resolver.Addr
}

// handoff is an accepted connection, on its way to its loop or there.
type handoff struct {
	fd     int32
	uid    uint32
	hasUID bool
	door   bpf.Door
	passes bool   // the client can pass descriptors
	port   uint16 // of a client that the kernel can answer, else 0
}

type order uint8

const (
	orderDrain order = 1 << iota // serve what was sent, then end
	orderStop                    // end at once
)

// mailbox brings work of other goroutines to a loop. The sender writes the
// eventfd only if the loop sleeps and nobody else has woken it, so that a batch
// costs one system call.
type mailbox struct {
	efd      int
	full     atomic.Bool // something is in it
	sleeping atomic.Bool // the loop is about to wait, or waits
	poked    atomic.Bool // a port of the loop has something to do

	mu     sync.Mutex
	items  []completion
	fds    []handoff
	guards []guarded
	orders order
	closed bool
}

func newMailbox() (*mailbox, error) {
	efd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("eventfd: %w", err)
	}
	return &mailbox{efd: efd}, nil
}

// wake is called with mu held: the descriptor must not be closed under it.
func (m *mailbox) wake() {
	m.full.Store(true)
	// Either the loop sees full after it set sleeping, or this sees sleeping.
	if m.sleeping.CompareAndSwap(true, false) {
		var one [8]byte
		binary.NativeEndian.PutUint64(one[:], 1)
		unix.Write(m.efd, one[:])
	}
}

// answer is the way back of [resolver.Waiter]; any goroutine, the loop's
// included.
func (m *mailbox) answer(c *conn, seq uint64, a *resolver.Answer) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return
	}
	m.items = append(m.items, completion{c, seq, a.Status, a.Core, a.Asked, a.Path, a.Src})
	m.wake()
}

// hand passes a connection on; false if the loop has ended.
func (m *mailbox) hand(h handoff) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return false
	}
	m.fds = append(m.fds, h)
	m.wake()
	return true
}

// poke makes the loop look at its ports.
func (m *mailbox) poke() {
	m.poked.Store(true)
	if !m.sleeping.Load() {
		return // it looks before it sleeps
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.closed {
		m.wake()
	}
}

func (m *mailbox) order(o order) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return
	}
	m.orders |= o
	m.wake()
}

// guard brings the outcome of FastConn.Insert.
func (m *mailbox) guard(g guarded) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return
	}
	m.guards = append(m.guards, g)
	m.wake()
}

func (m *mailbox) takeGuarded() (list []guarded) {
	m.mu.Lock()
	defer m.mu.Unlock()
	list, m.guards = m.guards, nil
	return list
}

// keepItems is the capacity up to which an emptied list is kept for the next
// batch.
const keepItems = 1024

// take swaps what is in the mailbox for the two emptied lists.
func (m *mailbox) take(items []completion, fds []handoff) ([]completion, []handoff, order) {
	clear(items) // they point at connections
	if cap(items) > keepItems {
		items = nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.full.Store(false)
	items, m.items = m.items, items[:0]
	fds, m.fds = m.fds, fds[:0]
	o := m.orders
	m.orders = 0
	return items, fds, o
}

// close refuses everything from now on and returns the connections that were
// still in it.
func (m *mailbox) close() []handoff {
	m.mu.Lock()
	defer m.mu.Unlock()
	fds := m.fds
	if !m.closed {
		unix.Close(m.efd)
	}
	m.closed, m.items, m.fds = true, nil, nil
	return fds
}
