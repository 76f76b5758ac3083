// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package transport

import "sync/atomic"

// Gate is what a port's Close needs to end the calls in progress: it counts those
// that use the port's descriptors, and once it is shut it lets no more in. It
// holds no lock, so that a call inside may block. All methods are safe for
// concurrent use.
type Gate struct {
	// users counts the calls inside; the top bit says that no more may come. The
	// last of them closes idle.
	users atomic.Uint32
	idle  chan struct{}
	cause atomic.Pointer[error]
}

const shutBit = 1 << 31

// NewGate makes an open gate.
func NewGate() *Gate { return &Gate{idle: make(chan struct{})} }

// Enter must be paired with Leave unless it fails, with the cause that the gate
// was shut for.
func (g *Gate) Enter() error {
	for {
		u := g.users.Load()
		if u&shutBit != 0 {
			return g.Cause()
		}
		if g.users.CompareAndSwap(u, u+1) {
			return nil
		}
	}
}

// Leave ends what Enter began.
func (g *Gate) Leave() {
	if g.users.Add(^uint32(0)) == shutBit {
		close(g.idle)
	}
}

// Shut makes Enter fail with cause. It reports whether this call did it; the
// cause of the first stands. Calls that are inside go on: interrupt them, then
// [Gate.Wait].
func (g *Gate) Shut(cause error) bool {
	g.cause.CompareAndSwap(nil, &cause)
	was := g.users.Or(shutBit)
	if was == 0 {
		close(g.idle)
	}
	return was&shutBit == 0
}

// Wait returns when the gate is shut and nobody is inside.
func (g *Gate) Wait() { <-g.idle }

// IsShut reports whether Enter would fail.
func (g *Gate) IsShut() bool { return g.users.Load()&shutBit != 0 }

// Cause is why the gate was shut, nil while it is open.
func (g *Gate) Cause() error {
	if c := g.cause.Load(); c != nil {
		return *c
	}
	return nil
}

// SetCause replaces the cause of a gate that is shut: a port that was closed
// after its device had gone is a closed port.
func (g *Gate) SetCause(cause error) { g.cause.Store(&cause) }
