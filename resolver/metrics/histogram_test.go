// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package metrics

import (
	"math"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"pgregory.net/rapid"
)

// decode undoes the spans and deltas of a native histogram: counts by bucket
// number.
func decode(h *dto.Histogram) map[int]int64 {
	m := map[int]int64{}
	i, at, n := 0, 0, int64(0)
	for _, s := range h.PositiveSpan {
		at += int(s.GetOffset())
		for range s.GetLength() {
			n += h.PositiveDelta[i]
			if n != 0 {
				m[at] = n
			}
			i, at = i+1, at+1
		}
	}
	return m
}

// Both forms have the same counts: a classic bucket is the sum of the native ones
// that end at or below its bound.
func TestTwins(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := histogram{
			buckets: rapid.SliceOfN(rapid.Uint64Range(0, 1000), 1, 120).Draw(t, "buckets"),
			first:   rapid.IntRange(-130, 40).Draw(t, "first"),
			sum:     rapid.Float64Range(0, 1e6).Draw(t, "sum"),
		}
		m, err := newTwin(saDuration, &h)
		if err != nil {
			t.Fatal(err)
		}
		var pb dto.Metric
		if err := m.Write(&pb); err != nil {
			t.Fatal(err)
		}
		got := pb.Histogram
		if got.GetSchema() != schema || got.GetSampleSum() != h.sum || got.GetZeroCount() != 0 || got.CreatedTimestamp != nil {
			t.Fatalf("%v", got)
		}
		native := decode(got)
		var all int64
		for i, n := range h.buckets {
			if native[h.first+i] != int64(n) {
				t.Fatalf("bucket %d: %d, want %d", h.first+i, native[h.first+i], n)
			}
			all += int64(n)
		}
		if got.GetSampleCount() != uint64(all) {
			t.Fatalf("count %d, want %d", got.GetSampleCount(), all)
		}
		last := math.Inf(-1)
		for _, b := range got.Bucket {
			if b.GetUpperBound() <= last {
				t.Fatalf("bounds do not grow: %v", got.Bucket)
			}
			last = b.GetUpperBound()
			if e := math.Log2(last) / 2; e != math.Trunc(e) {
				t.Fatalf("%g is no power of four", last)
			}
			var want int64
			for i, n := range native {
				if math.Pow(2, float64(i)/4) <= last*(1+1e-9) {
					want += n
				}
			}
			if b.GetCumulativeCount() != uint64(want) {
				t.Fatalf("up to %g: %d, want %d", last, b.GetCumulativeCount(), want)
			}
		}
	})
}
