// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package bpf

import (
	"math"
	"math/big"
	"testing"
	"time"

	"acmd/bpf/bpftest"

	"github.com/cilium/ebpf"
)

// boundNS is the longest time in whole ns that does not exceed a bucket's bound,
// without rounding: floor(10^9 * 2^(b/4 - 22)).
func boundNS(b int) int64 {
	// 2^(b/4) is the fourth root of 2^b; 200 bits are more than enough.
	f := new(big.Float).SetPrec(200).SetMantExp(big.NewFloat(1).SetPrec(200), b)
	f.Sqrt(f).Sqrt(f)
	f.SetMantExp(f, lowest)
	n, _ := f.Mul(f, big.NewFloat(1e9)).Int64()
	return n
}

// edges are times at both sides of every bound, and some beside the range.
func edges() []int64 {
	list := []int64{math.MinInt64, -1, 0, 1, 100, int64(longest) - 1, int64(longest) + 1, 17e9, math.MaxInt64}
	for b := range NumBuckets - 1 {
		list = append(list, boundNS(b), boundNS(b)+1)
	}
	return list
}

// Each bound is in its bucket, and the next nanosecond in the next one.
func TestBuckets(t *testing.T) {
	for b := range NumBuckets - 1 {
		n := boundNS(b)
		if got := bucketOf(n); got != b {
			t.Errorf("%d ns is in bucket %d, want %d", n, got, b)
		}
		if got := bucketOf(n + 1); got != b+1 {
			t.Errorf("%d ns is in bucket %d, want %d", n+1, got, b+1)
		}
		if got := int64(BucketBound(b) * 1e9); got < n-1 || got > n+1 {
			t.Errorf("bound of bucket %d is %d ns, want %d", b, got, n)
		}
		// Prometheus: bucket i of schema 2 ends at 2^(i/4).
		if got := math.Exp2(float64(NativeIndex(b)) / 4); math.Abs(got/BucketBound(b)-1) > 1e-12 {
			t.Errorf("native bucket %d ends at %g s, bucket %d at %g s", NativeIndex(b), got, b, BucketBound(b))
		}
	}
	if !math.IsInf(BucketBound(NumBuckets-1), 1) || bucketOf(math.MaxInt64) != NumBuckets-1 || bucketOf(math.MinInt64) != 0 {
		t.Error("the ends of the range")
	}
}

func TestQuantile(t *testing.T) {
	m := NewMemory()
	sh := m.Shard()
	for i := range int64(1000) {
		sh.Observe(LatHit, (i+1)*int64(time.Microsecond))
	}
	var s Snapshot
	m.Read(&s)
	h := &s.Latency[LatHit]
	for q, want := range map[float64]time.Duration{0.5: 500 * time.Microsecond, 0.99: 990 * time.Microsecond, 1: time.Millisecond} {
		if got := h.Quantile(q); got < want*80/100 || got > want*120/100 {
			t.Errorf("quantile %g: %v, want about %v", q, got, want)
		}
	}
	before := *h
	h.Sub(&before)
	if h.Count() != 0 || h.Sum != 0 || h.Quantile(0.5) != 0 {
		t.Errorf("nothing is left of %d", h.Count())
	}
	sh.Observe(LatSA, int64(time.Minute))
	if m.Read(&s); s.Latency[LatSA].Quantile(0.5) != longest {
		t.Errorf("a minute: %v", s.Latency[LatSA].Quantile(0.5))
	}
}

// The kernel's side counts and cuts as the daemon's does, into the same maps.
func TestKernelSide(t *testing.T) {
	bpftest.NeedMaps(t)
	m, err := Open(Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	spec, err := bpftest.LoadCount()
	if err != nil {
		t.Fatal(err)
	}
	opts, err := m.Share(spec)
	if err != nil {
		t.Fatal(err)
	}
	c, err := ebpf.NewCollectionWithOptions(spec, opts)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	type args struct {
		NS                      uint64
		EP, Word, Class, Bucket uint32
	}
	ep := m.Endpoint("mlx5_0", 1, 0xffff, 1)
	var want Histogram
	n := 0
	for _, ns := range edges() {
		if ns < 0 {
			continue // the kernel's clock does not go back
		}
		a := args{NS: uint64(ns), EP: uint32(ep.Row), Word: uint32(KernelHit), Class: uint32(LatKernel)}
		var out args
		if _, err := c.Programs["count"].Run(&ebpf.RunOptions{Context: a, ContextOut: &out}); err != nil {
			t.Fatal(err)
		}
		if int(out.Bucket) != bucketOf(ns) {
			t.Errorf("%d ns: bucket %d in the kernel, %d here", ns, out.Bucket, bucketOf(ns))
		}
		want.Buckets[bucketOf(ns)]++
		want.Sum += uint64(ns)
		n++
	}
	// Rows that there are not count in row 0; other words are no hits.
	for _, a := range []args{{EP: maxEndpoints, Word: uint32(KernelHit), Class: 7}, {EP: 0xffffffff, Word: uint32(KernelMiss), Class: 7}} {
		if _, err := c.Programs["count"].Run(&ebpf.RunOptions{Context: a}); err != nil {
			t.Fatal(err)
		}
	}
	var s Snapshot
	m.Read(&s)
	if s.Latency[LatKernel] != want {
		t.Errorf("histogram of the kernel's side: %d of %d ns, want %d of %d", s.Latency[LatKernel].Count(), s.Latency[LatKernel].Sum, want.Count(), want.Sum)
	}
	hits := uint64(n)
	if s.Kernel[KernelHit] != hits+1 || s.Kernel[KernelMiss] != 1 || s.Endpoints[ep.Row].Kernel[KernelHit] != hits ||
		s.Endpoints[0].Kernel[KernelHit] != 1 {
		t.Errorf("kernel's counts %v of %d hits", s.Kernel, hits)
	}
	// A kernel hit is a RESOLVE answered from the cache, in every total.
	if want := (Counters{CountResolve: hits + 1, CountRouteCache: hits + 1}); s.Totals != want || m.Totals() != want {
		t.Errorf("totals %v, want %v", s.Totals, want)
	}
	if want := (Counters{CountResolve: hits, CountRouteCache: hits}); m.Counters(ep.Row) != want {
		t.Errorf("endpoint %v, want %v", m.Counters(ep.Row), want)
	}
}
