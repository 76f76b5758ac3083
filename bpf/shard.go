// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package bpf

import (
	"sync/atomic"
	"time"
)

// Shard is a writer's slot. Its methods neither lock nor allocate, and are safe
// for concurrent use, except that a slot of [Maps.OwnShard] belongs to one
// goroutine; anybody may read.
type Shard struct {
	word   *[NumWords]uint64
	lat    []hist
	own    bool    // nobody else writes word
	ownLat bool    // nobody else writes lat
	mem    *arrays // nil: memory of its own
}

// NewShard makes a slot in ordinary memory that nobody reads, for those who were
// given none.
func NewShard() *Shard { return &Shard{word: new([NumWords]uint64), lat: make([]hist, latClasses)} }

// Add adds to a counter.
func (s *Shard) Add(w Word, n uint64) { add(s.own, &s.word[w&(NumWords-1)], n) }

// Load reads a counter of this slot.
func (s *Shard) Load(w Word) uint64 { return load(&s.word[w&(NumWords-1)]) }

func add(own bool, p *uint64, n uint64) {
	if own {
		addAlone(p, n)
		return
	}
	atomic.AddUint64(p, n)
}

// Observe notes a time in ns; a negative one counts as 0.
func (s *Shard) Observe(c Latency, ns int64) { s.ObserveN(c, ns, 1) }

// ObserveN notes n equal times, as of requests that were answered together.
func (s *Shard) ObserveN(c Latency, ns int64, n uint64) {
	h := &s.lat[c&(latClasses-1)]
	ns = max(ns, 0)
	add(s.ownLat, &h.Bucket[bucketOf(ns)], n)
	add(s.ownLat, &h.Sum, uint64(ns)*n)
}

// SlowAfter is how long a request takes that is recorded as slow.
const SlowAfter = 10 * time.Millisecond

// SlowRequest is one entry of the recorder.
type SlowRequest struct {
	When     time.Time     `json:"when"` // end of the request
	Took     time.Duration `json:"took_ns"`
	Endpoint int           `json:"endpoint"` // row, 0: none
	Class    Latency       `json:"class"`
	Status   uint8         `json:"status"`
	// Kind says what Key is: 1 name, 2 IPv4, 3 IPv6, 4 GID, 5 LID (big endian),
	// 6 path record.
	Kind uint8  `json:"kind"`
	Key  []byte `json:"key"` // at most 64 bytes
}

// RecordSlow records a request. There is room for the last 1024.
func (m *Maps) RecordSlow(r *SlowRequest) {
	n := atomic.AddUint64(&m.head.Flights, 1)
	s := &m.flights[(n-1)%maxFlights]
	var v slow
	v.When, v.Took = uint64(r.When.UnixNano()), uint64(max(r.Took, 0))
	v.Ep, v.Lat, v.Status, v.Kind = uint32(r.Endpoint), uint8(r.Class), r.Status, r.Kind
	v.Len = uint8(copy(v.Key[:], r.Key))
	dst, src := wordsOf(s), wordsOf(&v)
	last := len(dst) - 1
	// The order that acm_maps.h promises to readers.
	atomic.StoreUint64(&dst[last], 0)
	for i := 1; i < last; i++ {
		atomic.StoreUint64(&dst[i], src[i])
	}
	atomic.StoreUint64(&dst[0], n)
	atomic.StoreUint64(&dst[last], n)
}

// readSlow turns a record into a SlowRequest; false: none, or being written.
func readSlow(s *slow) (r SlowRequest, ok bool) {
	var v slow
	dst, src := wordsOf(&v), wordsOf(s)
	for i := range dst {
		dst[i] = load(&src[i])
	}
	if v.Seq == 0 || v.Seq != v.End {
		return r, false
	}
	return SlowRequest{
		When: time.Unix(0, int64(v.When)), Took: time.Duration(v.Took), Endpoint: int(v.Ep), Class: Latency(v.Lat),
		Status: v.Status, Kind: v.Kind, Key: v.Key[:min(int(v.Len), len(v.Key))],
	}, true
}
