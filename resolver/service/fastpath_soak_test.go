// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package service

import (
	"bytes"
	"math/rand/v2"
	"os"
	"runtime"
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
			if got[2] == 0 && want[2] != 0 { // another node by chance, which took its time
				u.send(req)
				want = u.message()
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

// Everything at once: hits on many connections, one of a hundred for a path that is
// unknown, flushes, connections that come and go, the switch. Nothing is wrong,
// nothing is lost, and memory stays.
func TestFastPathSoak(t *testing.T) {
	s := startFast(t, "kernel")
	want := make([][][]byte, len(shapes))
	for i, h := range shapes {
		want[i] = make([][]byte, 51)
		for node := 1; node <= 50; node++ {
			want[i][node] = s.want(s.request(h, 0, node))
		}
	}
	s.forget(51, 3000)
	var asked, answered, nodata, conns atomic.Uint64
	end := time.Now().Add(soakTime())
	var wg sync.WaitGroup
	for c := range 8 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(c), 3))
			for time.Now().Before(end) && !t.Failed() {
				k := s.dial(t)
				conns.Add(1)
				for i := range 1 + r.IntN(2000) {
					shape := r.IntN(len(shapes))
					node := 1 + r.IntN(50)
					if r.IntN(100) == 0 {
						node = 51 + r.IntN(2900)
					}
					req := s.request(shapes[shape], uint64(1+i), node)
					k.send(req)
					asked.Add(1)
					got := k.message()
					answered.Add(1)
					switch {
					case got[2] == byte(resolver.StatusNoData), got[2] == byte(resolver.StatusTimedOut):
						nodata.Add(1) // as its path is flushed faster than it is found
					case node > 50:
						if gid := s.f.GID(node, 1); !bytes.Equal(got[32:48], gid[:]) {
							t.Errorf("path to %x, want %v", got[32:48], gid)
						}
					default:
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
		})
	}
	wg.Go(func() {
		for i := 0; time.Now().Before(end); i++ {
			time.Sleep(50 * time.Millisecond)
			switch i % 20 {
			case 7:
				s.engine.FlushAll()
			case 13:
				if err := s.fast.Switch(i%40 > 20); err != nil {
					t.Error(err)
				}
			default:
				s.engine.FlushDest(resolver.IPAddr(fabric.IPv4(1+i%50, 1)))
			}
		}
	})
	var first, last [2]uint64 // heap, kernel's slab, after a quarter of the time and at its end
	time.Sleep(soakTime() / 4)
	first = memory()
	wg.Wait()
	last = memory()
	t.Logf("%d asked, %d answered, %d without data, %d connections, heap %d -> %d KiB, slab %d -> %d KiB",
		asked.Load(), answered.Load(), nodata.Load(), conns.Load(), first[0], last[0], first[1], last[1])
	t.Logf("%+v", s.fast.State())
	if asked.Load() != answered.Load() || s.hits() == 0 {
		t.Errorf("%d asked, %d answered, %d hits", asked.Load(), answered.Load(), s.hits())
	}
	if last[0] > 2*first[0]+64<<10 {
		t.Errorf("the heap grew from %d to %d KiB", first[0], last[0])
	}
}

// memory is what the process and the kernel use, in KiB.
func memory() (m [2]uint64) {
	runtime.GC()
	var ms runtime.MemStats
	runtime.ReadMemStats(&ms)
	m[0] = ms.HeapAlloc >> 10
	b, _ := os.ReadFile("/proc/meminfo")
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "Slab:" {
			m[1], _ = strconv.ParseUint(f[1], 10, 64)
		}
	}
	return m
}
