// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package resolver

import (
	"sync"
	"testing"
	"unsafe"
)

// store is a CounterStore of which some rows are of the wrong size.
type store struct {
	mu   sync.Mutex
	rows map[int][]uint64
	size func(row int) int
}

func (s *store) Row(n int) []uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.rows[n] == nil {
		s.rows[n] = make([]uint64, s.size(n))
	}
	return s.rows[n]
}

// Counters live where the configuration says, and go on from what is there: it
// may be from an earlier run.
func TestCounterStore(t *testing.T) {
	s := &store{rows: map[int][]uint64{}, size: func(int) int { return 2 * CounterStride }}
	s.Row(1)[CounterStride+CounterResolve] = 1000
	bubble(t, func(_ *lab, c *Config) { c.Counters = s }, func(t *testing.T, l *lab) {
		l.want(byIP("10.0.0.1", "10.0.0.1"), StatusSuccess)
		l.want(byIP("10.9.9.9", "10.0.0.1"), StatusSrcAddr)
		var core, ep Counters
		counterRow(s.rows[0]).sumInto(&core)
		counterRow(s.rows[1]).sumInto(&ep)
		if core != (Counters{CounterError: 1, CounterResolve: 1}) || ep != (Counters{CounterResolve: 1001, CounterRouteCache: 1}) {
			t.Errorf("rows %v, %v", core, ep)
		}
		if got := l.e.Totals(); got != (Counters{CounterError: 1, CounterResolve: 1002, CounterRouteCache: 1}) {
			t.Errorf("totals %v", got)
		}
		if got := l.e.EndpointCounters(nil); got != (Counters{}) {
			t.Errorf("counters of no endpoint: %v", got)
		}
	})
}

// Memory that is no power of two of shards is not used.
func TestCounterStoreSizes(t *testing.T) {
	for _, n := range []int{0, 1, 7, 12, 3 * CounterStride, CounterStride + 1} {
		var c counterRows
		c.init(&store{rows: map[int][]uint64{}, size: func(int) int { return n }})
		c.core.add(^uintptr(0), CounterRouteCache, 1)
		var sum Counters
		c.core.sumInto(&sum)
		if sum[CounterRouteCache] != 1 || len(c.core)%CounterStride != 0 || len(c.core) == n && n != 0 {
			t.Errorf("store of %d words: row of %d, sum %v", n, len(c.core), sum)
		}
	}
}

// No count is lost between threads.
func TestCountersExact(t *testing.T) {
	var c counterRows
	c.init(nil)
	var wg sync.WaitGroup
	const threads, each = 8, 10000
	for g := range threads {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for range each {
				c.core.add(uintptr(g), CounterResolve, 1)
			}
		}()
	}
	wg.Wait()
	var sum Counters
	c.core.sumInto(&sum)
	if sum[CounterResolve] != threads*each {
		t.Errorf("%d, want %d", sum[CounterResolve], threads*each)
	}
	if size := unsafe.Sizeof([CounterStride]uint64{}); size != 64 {
		t.Errorf("a shard has %d bytes, want a cache line", size)
	}
}
