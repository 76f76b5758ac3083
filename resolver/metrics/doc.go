// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

// Package metrics is the door for Prometheus: one page, /metrics, on a TCP or unix
// socket, in the text form, as OpenMetrics, or as protobuf, which is the one that
// carries native histograms.
//
// A scrape reads a [Snapshot] from the [Source] and writes it down. It asks
// nothing of the fabric, holds no lock for longer than some words take to read, and
// is the only time that anything is done here: between scrapes the door costs
// nothing.
//
// Names begin with acmd_ and follow Prometheus' rules: base units, _total for what
// only grows. The labels device, port and pkey say where; with the first two the
// series join node_exporter's node_infiniband_*. A destination is never a label,
// and every other label has a fixed set of words, so that the number of series
// depends on the host's ports and on nothing that a client or neighbour does.
//
// Durations are given twice under one name, from the same counts: as classic
// buckets, one for each power of four, and as native histogram of schema 2, four
// buckets for each power of two.
//
// dashboards/ and rules/ hold a Grafana dashboard and alert rules for these names;
// the tests run each of their queries on a real Prometheus.
package metrics
