// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package transport

import (
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"testing"
)

// Whoever got in has left when Wait returns, and nobody gets in afterwards.
func TestGate(t *testing.T) {
	for range 4 {
		g := NewGate()
		var inside atomic.Int64
		var wg, started sync.WaitGroup
		for range 8 {
			started.Add(1)
			wg.Go(func() {
				started.Done()
				for {
					if err := g.Enter(); err != nil {
						if !errors.Is(err, ErrGone) {
							t.Errorf("%v", err)
						}
						return
					}
					inside.Add(1)
					inside.Add(-1)
					g.Leave()
				}
			})
		}
		started.Wait()
		if !g.Shut(ErrGone) || g.Shut(net.ErrClosed) {
			t.Error("the first call shuts the gate, and only that")
		}
		g.Wait()
		if n := inside.Load(); n != 0 || !g.IsShut() {
			t.Errorf("%d inside a gate that is shut", n)
		}
		wg.Wait()
		g.SetCause(net.ErrClosed)
		if err := g.Enter(); err != net.ErrClosed {
			t.Error(err)
		}
	}
}

// A gate that nobody is inside of is idle as soon as it is shut.
func TestGateEmpty(t *testing.T) {
	g := NewGate()
	if g.IsShut() || g.Cause() != nil || g.Enter() != nil {
		t.Fatal("a new gate is open")
	}
	g.Leave()
	g.Shut(ErrGone)
	g.Wait()
}
