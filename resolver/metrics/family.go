// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package metrics

import (
	"slices"

	"acmd/bpf"

	"github.com/prometheus/client_golang/prometheus"
)

// namespace begins every name.
const namespace = "acmd"

// Where a series belongs, in node_exporter's words.
var (
	atPort     = []string{"device", "port"}
	atEndpoint = []string{"device", "port", "pkey"}
)

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(namespace+"_"+name, help, labels, nil)
}

// family is one name whose value is a part of a T.
type family[T any] struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(*T) float64
}

func counter[T any](name, help string, value func(*T) uint64, labels ...string) family[T] {
	return family[T]{desc(name, help, labels...), prometheus.CounterValue, func(t *T) float64 { return float64(value(t)) }}
}

func gauge[T any](name, help string, value func(*T) int64, labels ...string) family[T] {
	return family[T]{desc(name, help, labels...), prometheus.GaugeValue, func(t *T) float64 { return float64(value(t)) }}
}

// describe sends the names of a table.
func describe[T any](ch chan<- *prometheus.Desc, table []family[T]) {
	for i := range table {
		ch <- table[i].desc
	}
}

// emit sends the values that a table takes from t.
func emit[T any](ch chan<- prometheus.Metric, table []family[T], t *T, labels ...string) {
	for i := range table {
		f := &table[i]
		send(ch, f.desc, f.kind, f.value(t), labels...)
	}
}

// send sends one value. What cannot be one (a label that is no UTF-8) spoils its
// own name only: the page says so and has the rest.
func send(ch chan<- prometheus.Metric, d *prometheus.Desc, kind prometheus.ValueType, v float64, labels ...string) {
	m, err := prometheus.NewConstMetric(d, kind, v, labels...)
	if err != nil {
		m = prometheus.NewInvalidMetric(d, err)
	}
	ch <- m
}

// counts sends counters that bring labels of their own behind those that all have.
func counts(ch chan<- prometheus.Metric, d *prometheus.Desc, list []Count, labels ...string) {
	for _, c := range list {
		send(ch, d, prometheus.CounterValue, float64(c.N), slices.Concat(labels, c.Labels)...)
	}
}

// duration sends a histogram.
func duration(ch chan<- prometheus.Metric, d *prometheus.Desc, h *bpf.Histogram, labels ...string) {
	m, err := newTwin(d, histogramOf(h), labels...)
	if err != nil {
		m = prometheus.NewInvalidMetric(d, err)
	}
	ch <- m
}
