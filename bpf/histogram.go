// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package bpf

import (
	"math"
	"math/bits"
	"time"
)

// NumBuckets is the number of buckets of a histogram.
//
// Bucket b ends, inclusive, at 2^(b/4 - 22) seconds: four buckets for each power
// of two, the bounds of a Prometheus native histogram of schema 2 in seconds
// ([NativeIndex]). Bucket 0 holds everything up to 238 ns, the last one
// everything above 16 s.
const NumBuckets = 106

// lowest is the exponent of the first bound: 2^-22 s.
const lowest = -22

// Longest time that is not in the last bucket.
const longest = 16 * time.Second

// bucketOf finds the bucket of a time in ns; acm_bucket in acm_count.h is the
// same. A time becomes a number of units of 2^-59 s, the finest that 16 s fits 64
// bits with; its exponent and the place of its mantissa among the roots of two
// give the bucket.
func bucketOf(ns int64) int {
	switch {
	case ns <= 0:
		return 0
	case ns >= int64(longest):
		if ns > int64(longest) {
			return NumBuckets - 1
		}
		return NumBuckets - 2
	}
	n := uint64(ns)
	v := n*576460752 + n*318162>>20 // 2^59 / 10^9, not quite, so that a bound itself is below it
	shift := bits.LeadingZeros64(v)
	e, m := 63-shift, v<<shift
	if e < 59+lowest {
		return 0
	}
	b := 4*(e-59-lowest) + 1
	for _, root := range [3]uint64{0x9837f0518db8a96f, 0xb504f333f9de6484, 0xd744fccad69d6af4} { // 2^(1/4), 2^(2/4), 2^(3/4)
		if m >= root {
			b++
		}
	}
	return b
}

// BucketBound is the upper bound, inclusive, of a bucket in seconds; +Inf for the
// last.
func BucketBound(b int) float64 {
	if b >= NumBuckets-1 {
		return math.Inf(1)
	}
	return math.Exp2(float64(b)/4 + lowest)
}

// NativeIndex is the index that a bucket has in a Prometheus native histogram of
// schema 2 in seconds. The lowest bucket takes shorter times too, the last one
// longer.
func NativeIndex(b int) int { return b + 4*lowest }

// Histogram is a reading of a latency histogram.
type Histogram struct {
	Buckets [NumBuckets]uint64
	Sum     uint64 // ns
}

// Count is the number of observations.
func (h *Histogram) Count() (n uint64) {
	for _, b := range h.Buckets {
		n += b
	}
	return n
}

// Sub takes an earlier reading away.
func (h *Histogram) Sub(o *Histogram) {
	for i := range h.Buckets {
		h.Buckets[i] -= o.Buckets[i]
	}
	h.Sum -= o.Sum
}

// Quantile estimates the time that a share q of the observations, 0 to 1, does
// not exceed; it is exact to a bucket, that is, 19 %. 0 without observations.
func (h *Histogram) Quantile(q float64) time.Duration {
	n := h.Count()
	if n == 0 {
		return 0
	}
	rank := q * float64(n)
	seen := 0.0
	for b, c := range h.Buckets {
		if c == 0 {
			continue
		}
		if seen+float64(c) < rank {
			seen += float64(c)
			continue
		}
		// Between the bounds on a logarithmic scale, as Prometheus does.
		if b == NumBuckets-1 {
			return longest
		}
		part := max(rank-seen, 0) / float64(c)
		return time.Duration(math.Exp2((float64(b)-1+part)/4+lowest) * 1e9)
	}
	return longest
}
