// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package service

import (
	"bytes"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"acmd/mad/fabric"
	"acmd/resolver"
)

// Requests with bytes changed at random: whatever the kernel answers, the daemon
// would have answered the same.
func TestFastPathMutations(t *testing.T) {
	s := startFast(t, "kernel", "fast_path_miss wait", "request_timeout 20", "negative_timeout 600000")
	s.engine.FlushAll()
	const seed, rounds = 1, 400
	r := rand.New(rand.NewPCG(seed, 2))
	k, u := s.dial(t), s.dialUnix()
	warm := s.request(shapes[2], 77, 5)
	s.warm(k, warm)
	same := 0
	for i := range rounds {
		h := shapes[r.IntN(len(shapes))]
		good := s.request(h, uint64(1+i), 1+r.IntN(5))
		req := bytes.Clone(good)
		for range 1 + r.IntN(3) {
			at := r.IntN(len(req))
			if at == 6 || at == 7 {
				continue // a longer message would be waited for
			}
			switch r.IntN(3) {
			case 0:
				req[at] = byte(r.Uint32())
			case 1:
				req[at] ^= 1 << r.IntN(8)
			default: // in the first bytes of a record: flags, type
				if at = 16 + 72*r.IntN(len(req)/72) + r.IntN(8); at < len(req) {
					req[at] ^= 1 << r.IntN(8)
				}
			}
		}
		u.send(req)
		want := u.message()
		for range 2 { // the second time perhaps from the kernel
			k.send(req)
			got := k.message()
			// Another node by chance, or a question that each time goes to the SA, may
			// take its time for one of the two.
			late := func(r []byte) bool { return r[2] == byte(resolver.StatusTimedOut) }
			for end := time.Now().Add(patience); (got[2] == 0 && late(want) || want[2] == 0 && late(got)) && time.Now().Before(end); {
				if late(want) {
					u.send(req)
					want = u.message()
				} else {
					k.send(req)
					got = k.message()
				}
			}
			if (got[2] == 0 || want[2] == 0) && !bytes.Equal(got, want) {
				t.Fatalf("seed %d, round %d: request %x\nkernel's side %x\ndaemon's %x", seed, i, req, got, want)
			}
			if got[2] == 0 {
				same++
			}
			if req[0] != 1 || req[1] < 1 || req[1] > 3 {
				k.close() // nothing more is framed on either connection
				k, u = s.dial(t), s.dialUnix()
				s.warm(k, warm)
				break
			}
		}
	}
	if same == 0 || s.hits() == 0 {
		t.Errorf("%d successes, %d hits", same, s.hits())
	}
	t.Logf("%d successes, %d hits", same, s.hits())
}

// soakTime is ACMD_SOAK, or a few seconds.
func soakTime() time.Duration {
	d, err := time.ParseDuration(os.Getenv("ACMD_SOAK"))
	if err != nil {
		return 3 * time.Second
	}
	return d
}

// soak counts what became of the requests of a soak.
type soak struct{ asked, answered, paths, misses, flushed, timedOut, conns atomic.Uint64 }

// soakNodes are asked for all the time, the nodes behind them once in a while.
const soakNodes = 50

// client asks on one connection after the other, as a process does that comes and
// goes, until end.
func (c *soak) client(t *testing.T, s *fastSite, seed uint64, end time.Time, want [][][]byte) {
	r := rand.New(rand.NewPCG(seed, 3))
	for time.Now().Before(end) && !t.Failed() {
		k := s.dial(t)
		c.conns.Add(1)
		for i := range 1 + r.IntN(2000) {
			shape := r.IntN(len(shapes))
			node := 1 + r.IntN(soakNodes)
			if r.IntN(100) == 0 {
				node = soakNodes + 1 + r.IntN(2900)
			}
			req := s.request(shapes[shape], uint64(1+i), node)
			k.send(req)
			c.asked.Add(1)
			got := k.message()
			c.answered.Add(1)
			if !bytes.Equal(got[8:16], req[8:16]) {
				t.Errorf("a reply to another request: %x to %x", got, req)
			}
			switch {
			case got[2] == byte(resolver.StatusNoData) && node > soakNodes:
				c.misses.Add(1)
			case got[2] == byte(resolver.StatusNoData):
				c.flushed.Add(1) // nobody waits on a connection of the map
			case got[2] == byte(resolver.StatusTimedOut):
				c.timedOut.Add(1)
			case node > soakNodes:
				c.paths.Add(1)
				if gid := s.f.GID(node, 1); !bytes.Equal(got[32:48], gid[:]) {
					t.Errorf("path to %x, want %v", got[32:48], gid)
				}
			default:
				c.paths.Add(1)
				w := bytes.Clone(want[shape][node])
				copy(w[8:16], req[8:16])
				if !bytes.Equal(got, w) {
					t.Errorf("got %x\nwant %x", got, w)
				}
			}
		}
		if r.IntN(4) == 0 { // leave with a reply unread
			k.send(s.request(shapes[2], 9, 1))
		}
		k.close()
	}
}

// Everything at once: hits on many connections, one of a hundred for a path that is
// unknown, flushes, connections that come and go, the switch. Nothing is wrong,
// nothing is lost, and memory stays. What is no path is told apart: a path that
// nobody knew yet or that was flushed has no data for a moment; a request that
// timed out is one that was served badly, which a few may be on a busy machine.
func TestFastPathSoak(t *testing.T) {
	s := startFast(t, "kernel")
	want := make([][][]byte, len(shapes))
	for i, h := range shapes {
		want[i] = make([][]byte, soakNodes+1)
		for node := 1; node <= soakNodes; node++ {
			want[i][node] = s.want(s.request(h, 0, node))
		}
	}
	forget := s.forget(soakNodes+1, 3000)
	goroutines, open := runtime.NumGoroutine(), s.door.Stats().Open
	const clients = 8
	var c soak
	length := soakTime()
	end := time.Now().Add(length)
	var wg sync.WaitGroup
	for i := range uint64(clients) {
		wg.Go(func() { c.client(t, s, i, end, want) })
	}
	over, calm := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(calm)
		for i := 0; ; i++ { // as long as clients ask: what they began they end
			select {
			case <-over:
				return
			case <-time.After(50 * time.Millisecond):
			}
			switch i % 20 {
			case 7:
				s.engine.FlushAll()
			case 13:
				if err := s.fast.Switch(i%40 > 20); err != nil {
					t.Error(err)
				}
			default:
				s.engine.FlushDest(resolver.IPAddr(fabric.IPv4(1+i%soakNodes, 1)))
			}
		}
	}()
	time.Sleep(length / 4)
	first := memory()
	wg.Wait()
	close(over)
	<-calm
	last := memory()
	t.Logf("%d asked, %d answered: %d paths, %d hits in the kernel; without data %d misses and %d flushed; %d timed out; %d connections",
		c.asked.Load(), c.answered.Load(), c.paths.Load(), s.hits(), c.misses.Load(), c.flushed.Load(), c.timedOut.Load(), c.conns.Load())
	t.Logf("KiB after a quarter and at the end: heap %d -> %d, resident %d -> %d, the host's slab %d -> %d",
		first.heap, last.heap, first.resident, last.resident, first.slab, last.slab)
	t.Logf("%+v", s.fast.State())
	if c.asked.Load() != c.answered.Load() {
		t.Errorf("%d asked, %d answered", c.asked.Load(), c.answered.Load())
	}
	// A flush of everything each second makes all of it be looked up again, which
	// takes its time where others have the processors: what share has no path says
	// something of a long run only, and in a short one the switch may have been off.
	if bad := c.asked.Load() - c.paths.Load(); c.paths.Load() == 0 ||
		length >= time.Minute && (bad > c.asked.Load()/2 || s.hits() < c.paths.Load()/100) {
		t.Errorf("of %d requests %d have no path, and %d were answered by the kernel", c.asked.Load(), bad, s.hits())
	}
	if err := s.fast.Switch(true); err != nil {
		t.Error(err)
	}
	forget() // it voids what is looked up at the same time, all the time on a busy machine
	k := s.dial(t)
	s.warm(k, s.get(shapes[2], 1)) // the kernel still answers
	k.close()
	if c.timedOut.Load() > 10+c.asked.Load()/1000 {
		t.Errorf("%d requests of %d timed out", c.timedOut.Load(), c.asked.Load())
	}
	// In a short soak what can be asked for is still being found.
	slack := uint64(64 << 10)
	if length >= time.Minute {
		slack = 8 << 10
	}
	if last.heap > first.heap+first.heap/4+slack || last.resident > first.resident+first.resident/4+slack {
		t.Errorf("memory grew: heap %d to %d KiB, resident %d to %d KiB", first.heap, last.heap, first.resident, last.resident)
	}
	for end := time.Now().Add(patience); s.door.Stats().Open > open || runtime.NumGoroutine() > goroutines; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d connections and %d goroutines are left, were %d and %d",
				s.door.Stats().Open, runtime.NumGoroutine(), open, goroutines)
		}
	}
}

// usage is memory in KiB: of the process, and the whole host's slab, where clients'
// unread answers would show.
type usage struct{ heap, resident, slab uint64 }

func memory() (m usage) {
	debug.FreeOSMemory()
	var ms runtime.MemStats
	runtime.ReadMemStats(&ms)
	m.heap = ms.HeapAlloc >> 10
	field := func(file, name string) (n uint64) {
		b, _ := os.ReadFile(file)
		for line := range strings.Lines(string(b)) {
			if f := strings.Fields(line); len(f) > 1 && f[0] == name {
				n, _ = strconv.ParseUint(f[1], 10, 64)
			}
		}
		return n
	}
	m.resident, m.slab = field("/proc/self/status", "VmRSS:"), field("/proc/meminfo", "Slab:")
	return m
}
