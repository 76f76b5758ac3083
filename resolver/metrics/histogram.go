// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package metrics

import (
	"math"
	"time"

	"acmd/bpf"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// schema is the resolution of native histograms: 2^2 buckets for each power of two
// (Prometheus, native histograms: bucket i of schema n ends at 2^(i/2^n)).
const schema = 2

// classicStep is how many buckets of schema 2 make a classic one: a power of four
// is eight quarters of a power of two.
const classicStep = 2 << schema

// histogram counts durations in buckets of schema 2.
type histogram struct {
	// buckets[i] counts durations up to 2^((first+i)/4) seconds that the bucket
	// before does not have. The first has all that is shorter as well, the last
	// all that is longer.
	buckets []uint64
	first   int
	sum     float64 // seconds
}

func histogramOf(h *bpf.Histogram) *histogram {
	return &histogram{h.Buckets[:], bpf.NativeIndex(0), float64(h.Sum) / 1e9}
}

// count is the number of durations, as the buckets have it, so that the two agree
// even while others count.
func (h *histogram) count() (n uint64) {
	for _, b := range h.buckets {
		n += b
	}
	return n
}

// classic returns a bucket for each power of four inside the range. What is longer
// than the last of them is left to +Inf.
func (h *histogram) classic() []*dto.Bucket {
	var list []*dto.Bucket
	var sum uint64
	for i, n := range h.buckets {
		sum += n
		end := h.first + i
		if end%classicStep == 0 && i < len(h.buckets)-1 {
			list = append(list, &dto.Bucket{UpperBound: new(math.Ldexp(1, end>>schema)), CumulativeCount: new(sum)})
		}
	}
	return list
}

// native returns the counts by bucket number, those that are not zero.
func (h *histogram) native() map[int]int64 {
	m := make(map[int]int64, len(h.buckets))
	for i, n := range h.buckets {
		if n > 0 {
			m[h.first+i] = int64(n)
		}
	}
	return m
}

// twin is a histogram in both forms; a scraper takes the one that it knows.
type twin struct {
	prometheus.Metric // the native one
	classic           []*dto.Bucket
}

func newTwin(desc *prometheus.Desc, h *histogram, labels ...string) (prometheus.Metric, error) {
	m, err := prometheus.NewConstNativeHistogram(desc, h.count(), h.sum, h.native(), nil, 0,
		schema, prometheus.DefNativeHistogramZeroThreshold, time.Time{}, labels...)
	if err != nil {
		return nil, err
	}
	return twin{m, h.classic()}, nil
}

// Write implements [prometheus.Metric].
func (t twin) Write(out *dto.Metric) error {
	if err := t.Metric.Write(out); err != nil {
		return err
	}
	out.Histogram.Bucket = t.classic
	// The counts may be older than this process, nobody knows by how much.
	out.Histogram.CreatedTimestamp = nil
	return nil
}
