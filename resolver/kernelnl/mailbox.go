// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package kernelnl

import (
	"sync"

	"acmd/mad/sa"
	"acmd/resolver"
)

// completion is an answer of the engine on its way to the door's goroutine.
type completion struct {
	tag  uint64
	ok   bool
	path sa.PathRecord
}

// mailbox takes completions from any goroutine. It holds at most one for each
// slot of the table.
type mailbox struct {
	wake func()

	mu     sync.Mutex
	items  []completion
	stop   bool
	closed bool
}

// Answered implements [resolver.Waiter].
func (m *mailbox) Answered(tag uint64, a *resolver.Answer) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return // the door has told the kernel
	}
	m.items = append(m.items, completion{tag, a.Status == resolver.StatusSuccess, a.Path})
	m.wake() // with the mutex: the socket must not be closed under it
}

// end tells the goroutine to stop.
func (m *mailbox) end() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stop = true
	if !m.closed {
		m.wake()
	}
}

// take swaps the contents for an emptied list.
func (m *mailbox) take(items []completion) (full []completion, stop bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	full, m.items = m.items, items[:0]
	return full, m.stop
}

// close refuses what comes from now on; wake is not called any more.
func (m *mailbox) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed, m.items = true, nil
}
