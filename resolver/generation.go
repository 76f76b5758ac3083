// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package resolver

import (
	"sync"
	"sync/atomic"
)

// Generation is the number of a [Host] that changes when sources may have to be
// chosen anew. The zero value is usable. All methods are safe for concurrent use.
type Generation struct {
	now atomic.Uint64

	mu     sync.Mutex // one change at a time, so that followers hear of them in order
	follow func(gen uint64)
}

// Load returns it; one atomic load.
func (g *Generation) Load() uint64 { return g.now.Load() }

// Raise changes it. Who follows knows before Load returns the new one.
func (g *Generation) Raise() {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := g.now.Load() + 1
	if g.follow != nil {
		g.follow(n)
	}
	g.now.Store(n)
}

// Follow has f told the generation of now and each one before it begins. f must be
// short and not call back. A second call replaces the first.
func (g *Generation) Follow(f func(gen uint64)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.follow = f
	f(g.now.Load())
}
