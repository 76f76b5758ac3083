// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package service

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"

	"acmd/bpf"
	"acmd/mad/fabric"
	"acmd/mad/madtest/peer"
	"acmd/resolver"
)

func (s *fastSite) stock() peer.Client {
	devs, err := s.f.Devices()
	if err != nil || len(devs) == 0 {
		s.t.Fatal(devs, err)
	}
	return peer.Client{RunDir: s.opts.RunDir, GUID: devs[0].NodeGUID}
}

// The stock librdmacm finds the port, and the kernel answers it; several processes
// are counted exactly. ACMD_CALLS are made in all.
func TestFastPathLibrdmacm(t *testing.T) {
	s := startFast(t, "kernel")
	const processes = 4
	calls, err := strconv.Atoi(os.Getenv("ACMD_CALLS"))
	if err != nil {
		calls = 80000
	}
	calls /= processes
	before := s.engine.Totals()
	var wg sync.WaitGroup
	for p := range processes {
		wg.Go(func() {
			out, status := peer.Raitest(t, s.stock(), fabric.IPv4(0, 1).String(), fabric.IPv4(7+p, 1).String(), calls)
			if status != 0 || !strings.Contains(out, fmt.Sprintf("%d of %d with a route", calls, calls)) {
				t.Errorf("rdma_getaddrinfo: status %d\n%s", status, out)
			}
			t.Log(lastLine(out))
		})
	}
	wg.Wait()
	// The first calls are the daemon's, until the socket is on the map.
	if n := s.hits(); n < uint64(processes*calls/2) {
		t.Errorf("the kernel answered %d of %d: %+v", n, processes*calls, s.fast.State())
	}
	after := s.engine.Totals()
	if n := after[resolver.CounterResolve] - before[resolver.CounterResolve]; n != uint64(processes*calls) {
		t.Errorf("%d resolves counted, %d answered", n, processes*calls)
	}
	t.Logf("%+v", s.fast.State().Messages)
}

// stormCalls is the number of calls of the storm: ACMD_STORM, or what takes some
// seconds.
func stormCalls(t *testing.T) int {
	n, err := strconv.Atoi(os.Getenv("ACMD_STORM"))
	if err != nil {
		return 40000
	}
	return n
}

// forget keeps the paths to nodes unknown, by flushing one after the other until
// end is called or the test ends.
func (s *fastSite) forget(from, to int) (end func()) {
	stop, done := make(chan struct{}), make(chan struct{})
	end = sync.OnceFunc(func() { close(stop); <-done })
	s.t.Cleanup(end)
	go func() {
		defer close(done)
		for i := from; ; i++ {
			if i > to {
				i = from
			}
			select {
			case <-stop:
				return
			default:
				s.engine.FlushGID(s.f.GID(i, 1))
			}
		}
	}()
	return end
}

// Signals, one of ten paths unknown: librdmacm gives up on replies, never checks
// which question a reply is for, and gets no wrong path all the same. With and
// without SA_RESTART, with misses that fail and with misses that wait.
func TestFastPathSignals(t *testing.T) {
	for _, miss := range []string{"fail", "wait"} {
		for _, mode := range fastModes {
			t.Run(mode+"/"+miss, func(t *testing.T) {
				s := startFast(t, mode, "fast_path_miss "+miss)
				s.forget(51, 3050)
				for _, restart := range []bool{true, false} {
					calls := stormCalls(t) / 8
					out, status := peer.Raistorm(t, s.stock(), calls, 200, 150, restart)
					t.Logf("SA_RESTART %v: %s", restart, out)
					m := regexp.MustCompile(`(\d+) calls, (\d+) with a route, (\d+) failed, (\d+) wrong, (\d+) signals`).FindStringSubmatch(out)
					if status != 0 || m == nil {
						t.Fatalf("status %d", status)
					}
					if routed, _ := strconv.Atoi(m[2]); routed == 0 || m[4] != "0" || m[5] == "0" {
						t.Errorf("SA_RESTART %v: %s", restart, m[0])
					}
				}
				t.Logf("hits %d, misses %d, refused sends %d", s.hits(), s.counts(bpf.KernelMiss), s.counts(bpf.KernelDropTID))
				if s.hits() == 0 {
					t.Error("the kernel answered nothing")
				}
			})
		}
	}
}
