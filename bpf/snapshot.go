// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package bpf

import (
	"sort"
	"sync/atomic"
	"time"
)

// Snapshot is a reading of everything. Each number is read by itself: while
// requests are under way they are not of one instant, but none goes back.
type Snapshot struct {
	Time  time.Time // of the reading
	Start time.Time // of the daemon
	Boots uint32    // daemons that counted here so far
	PID   uint32    // of the daemon; 0 after a clean exit
	// RunDir is the daemon's run directory.
	RunDir string
	FastOn bool // the kernel may answer

	Totals    Counters // kernel hits included
	Words     [NumWords]uint64
	Kernel    [NumKernelWords]uint64 // of all endpoints
	Endpoints []EndpointCounters
	Latency   [NumLatencies]Histogram
	Fabric    [NumFabricLatencies]Histogram
	// FabricWords are the counters beside Fabric.
	FabricWords [NumFabricWords]uint64
	Slow        []SlowRequest // newest first
	SlowTotal   uint64        // how many were ever recorded
}

// EndpointCounters are the counters of one endpoint.
type EndpointCounters struct {
	Row      int // 0: requests that reached no endpoint; no device
	Device   string
	Port     uint8
	PKey     uint16
	NodeGUID uint64
	Active   bool     // on an active port now
	Counters Counters // kernel hits included
	Kernel   [NumKernelWords]uint64
}

// Read fills a snapshot.
func (m *Maps) Read(s *Snapshot) { m.read(s) }

func (a *arrays) read(s *Snapshot) {
	h := a.head
	*s = Snapshot{
		Time: time.Now(), Start: time.Unix(0, int64(h.StartNs)), Boots: h.Boots, PID: atomic.LoadUint32(&h.Pid),
		RunDir: cString(h.RunDir[:]), FastOn: atomic.LoadUint32(&h.FastOn) != 0, Totals: a.totals(), SlowTotal: load(&h.Flights),
		Endpoints: s.Endpoints[:0], Slow: s.Slow[:0],
	}
	for i := range a.stats {
		for w := range s.Words {
			s.Words[w] += load(&a.stats[i].Word[w])
		}
	}
	n := min(int(atomic.LoadUint32(&h.Endpoints)), len(a.eps))
	for i := range n {
		e := &a.eps[i]
		ec := EndpointCounters{
			Row: i, Device: cString(e.Device[:]), Port: uint8(e.Port), PKey: uint16(atomic.LoadUint32(&e.Pkey)),
			NodeGUID: load(&e.Guid), Active: atomic.LoadUint32(&e.Active) != 0,
			Counters: a.counters(i), Kernel: a.kernel(i),
		}
		for w := range s.Kernel {
			s.Kernel[w] += ec.Kernel[w]
		}
		s.Endpoints = append(s.Endpoints, ec)
	}
	sumHistograms(a.lat, s.Latency[:])
	sumHistograms(a.sa, s.Fabric[:])
	for i := fabricWords; i < len(a.sa); i += latClasses {
		for w := range s.FabricWords {
			s.FabricWords[w] += load(&a.sa[i].Bucket[w])
		}
	}
	for i := range a.flights {
		if r, ok := readSlow(&a.flights[i]); ok {
			s.Slow = append(s.Slow, r)
		}
	}
	sort.Slice(s.Slow, func(i, j int) bool { return s.Slow[i].When.After(s.Slow[j].When) })
}

func sumHistograms(src []hist, dst []Histogram) {
	for i := range src {
		c := i % latClasses
		if c >= len(dst) {
			continue
		}
		d := &dst[c]
		for b := range d.Buckets {
			d.Buckets[b] += load(&src[i].Bucket[b])
		}
		d.Sum += load(&src[i].Sum)
	}
}
