// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package resolver

import (
	"net/netip"
	"testing"
	"time"

	"acmd/bpf"
)

// Counters live where the configuration says, and go on from what is there: it
// may be from an earlier run.
func TestCountersGoOn(t *testing.T) {
	maps := bpf.NewMemory()
	earlier := maps.Endpoint("mlx5_0", 1, 0xffff, 1)
	earlier.Add(3, CounterResolve, 1000)
	bubble(t, func(_ *lab, c *Config) { c.Counters = maps }, func(t *testing.T, l *lab) {
		ep := l.e.Endpoints()[0]
		if ep.Device != "mlx5_0" || ep.Port.Num != 1 || ep.PKey != 0xffff {
			t.Fatalf("the lab's endpoint is %s/%d %v", ep.Device, ep.Port.Num, ep.PKey)
		}
		l.want(byIP("10.0.0.1", "10.0.0.1"), StatusSuccess)
		l.want(byIP("10.9.9.9", "10.0.0.1"), StatusSrcAddr)
		if got := maps.Counters(0); got != (Counters{CounterError: 1, CounterResolve: 1}) {
			t.Errorf("no endpoint: %v", got)
		}
		if got := l.e.EndpointCounters(ep); got != (Counters{CounterResolve: 1001, CounterRouteCache: 1}) {
			t.Errorf("endpoint: %v", got)
		}
		if got := l.e.Totals(); got != (Counters{CounterError: 1, CounterResolve: 1002, CounterRouteCache: 1}) {
			t.Errorf("totals %v", got)
		}
		if got := l.e.EndpointCounters(nil); got != (Counters{}) {
			t.Errorf("counters of no endpoint: %v", got)
		}
		var s bpf.Snapshot
		maps.Read(&s)
		if s.Endpoints[1].NodeGUID != uint64(ep.NodeGUID) || !s.Endpoints[1].Active {
			t.Errorf("row %+v", s.Endpoints[1])
		}
		l.e.Close()
		if maps.Read(&s); s.Endpoints[1].Active {
			t.Error("active after the engine has ended")
		}
	})
}

// Each query that waited is timed, and a slow one is in the recorder with what it
// asked for and how it ended.
func TestTimes(t *testing.T) {
	maps := bpf.NewMemory()
	bubble(t, func(_ *lab, c *Config) { c.Counters = maps }, func(t *testing.T, l *lab) {
		dst := IPAddr(netip.MustParseAddr("10.0.0.2"))
		l.knows(dst, 2)
		l.sa.delay = 25 * time.Millisecond
		l.want(byIP("10.0.0.1", "10.0.0.2"), StatusSuccess)
		var s bpf.Snapshot
		maps.Read(&s)
		for class, want := range map[bpf.Latency]time.Duration{
			bpf.LatMiss: 26 * time.Millisecond, bpf.LatAddress: time.Millisecond, bpf.LatRoute: 25 * time.Millisecond,
		} {
			if h := s.Latency[class]; h.Count() != 1 || h.Sum != uint64(want) {
				t.Errorf("%v: %d timed, %d ns, want 1 of %v", class, h.Count(), h.Sum, want)
			}
		}
		if len(s.Slow) != 1 {
			t.Fatalf("slow requests %+v", s.Slow)
		}
		r := s.Slow[0]
		if r.Took != 26*time.Millisecond || r.Class != bpf.LatMiss || r.Status != 0 || r.Kind != uint8(dst.Kind) ||
			string(r.Key) != string(dst.Bytes()) || s.Endpoints[r.Endpoint].Device != "mlx5_0" {
			t.Errorf("slow request %+v", r)
		}
		// One that ends its wait by itself is timed like any other.
		own := byIP("10.0.0.1", "10.0.0.4")
		own.OwnDeadline = true
		l.knows(own.Dst, 4)
		l.want(own, StatusSuccess)
		if maps.Read(&s); s.Latency[bpf.LatMiss].Count() != 2 || s.Latency[bpf.LatMiss].Sum != uint64(52*time.Millisecond) || len(s.Slow) != 2 {
			t.Errorf("with its own deadline: %d timed, %d ns, %d slow", s.Latency[bpf.LatMiss].Count(), s.Latency[bpf.LatMiss].Sum, len(s.Slow))
		}
		// Refused at once, though not by Lookup.
		l.want(byIP("10.9.9.9", "10.0.0.2"), StatusSrcAddr)
		q := byIP("10.0.0.1", "10.0.0.3")
		q.NoDelay = true
		l.want(q, StatusNoData)
		if maps.Read(&s); len(s.Slow) != 2 || s.Latency[bpf.LatMiss].Count() != 2 || s.Latency[bpf.LatHit].Count() != 1 {
			t.Errorf("%d slow, %d missed, %d at once", len(s.Slow), s.Latency[bpf.LatMiss].Count(), s.Latency[bpf.LatHit].Count())
		}
	})
}
