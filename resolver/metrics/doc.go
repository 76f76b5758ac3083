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
// and every other label has a fixed set of words, but for the one reason of
// fast_path_failed_info, so that the number of series depends on the host's ports
// and on nothing that a client or neighbour does.
//
// Durations are given twice under one name, from the same counts: as classic
// buckets, one for each power of four, and as native histogram of schema 2, four
// buckets for each power of two.
//
// They are told apart by what answered, which is what they depend on, and not by
// transport: the kernel answers on TCP alone, and of the daemon's own answers a door
// adds no more than its system call. What each door has, and with which outcome, is
// in requests_total and responses_total. A histogram for each door and source would
// be four times the pinned memory for that.
//
// What is counted in the maps of package bpf goes on over a restart: the totals of
// the ACM protocol, requests and replies, durations, and what the kernel counts. The
// figures of the rooms (clients, engine, cache, ports, the ACM protocol between
// daemons, queue pairs) begin with the process, as Prometheus expects of a counter.
// Those of the ACM protocol describe a process: memberships, neighbours that it has
// heard and bounds that it hit; nobody reads them after its end.
//
// dashboards/ and rules/ hold a Grafana dashboard and alert rules for these names;
// the tests run each of their queries on a real Prometheus.
package metrics
