// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package metrics

import (
	"strings"

	"acmd/bpf"
	"acmd/resolver"

	"github.com/prometheus/client_golang/prometheus"
)

// What is counted in the maps of package bpf.

var (
	requests  = desc("requests_total", "Requests, by how they came and what they ask for. Those of transport kernel were answered there.", "transport", "op")
	responses = desc("responses_total", "Replies, by how they leave and what they say.", "transport", "status")

	requestDuration = desc("request_duration_seconds", "From a request to its reply, by what answered it: the kernel (one in 64 is timed), the daemon at once, or a lookup.", "source")
	stepDuration    = desc("step_duration_seconds", "How long a lookup took for one of its steps.", "step")
	saDuration      = desc("sa_duration_seconds", "From the last send of an SA request to its answer.")

	fabricTrace    = desc("fabric_trace", "1 while SA requests are followed through the kernel's tracepoints.")
	fabricDuration = desc("fabric_duration_seconds", "Parts of an SA request's way: queue, from write(2) to the adapter; send, to its completion; fabric, from the adapter to the answer's arrival; lag, from there to the daemon's read(2).", "part")
	fabricRequests = desc("fabric_requests_total", "SA requests and answers as the kernel sees them.", "event")

	kernelMessages = desc("kernel_messages_total", "Messages that clients of the fast path sent, by what the kernel did: hit is answered there, all others go to the daemon or are refused.", "result")

	countersPlace  = desc("counters_place", "Where counters are: pinned ones outlive the daemon; always 1.", "place")
	programRuns    = desc("bpf_program_runs_total", "Runs of a program in the kernel, while kernel.bpf_stats_enabled is set.", "program")
	programSeconds = desc("bpf_program_run_seconds_total", "Time that these runs took.", "program")
)

var countsMetrics = []family[bpf.Snapshot]{
	counter("kernel_split_messages_total", "Of the messages on the fast path, those that lay in two pages.", func(s *bpf.Snapshot) uint64 { return s.Kernel[bpf.KernelSplit] }),
	counter("slow_requests_total", "Requests that took 10 ms or more; acmctl top shows the latest.", func(s *bpf.Snapshot) uint64 { return s.SlowTotal }),
	counter("starts_total", "Starts of the daemon since these counters began.", func(s *bpf.Snapshot) uint64 { return uint64(s.Boots) }),
	counter("unsent_replies_total", "Replies whose connection was gone.", func(s *bpf.Snapshot) uint64 { return s.Words[bpf.Unsent] }),
	counter("endpoints_uncounted_total", "Endpoints that found no row of counters and share that of requests without one.", func(s *bpf.Snapshot) uint64 { return s.Words[bpf.EndpointsFull] }),
}

func describeCounts(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		requests, responses, requestDuration, stepDuration, saDuration, fabricTrace, fabricDuration, fabricRequests,
		kernelMessages, countersPlace, programRuns, programSeconds,
	} {
		ch <- d
	}
	describe(ch, countsMetrics)
}

func collectCounts(ch chan<- prometheus.Metric, s *Snapshot) {
	c := &s.Counts
	emit(ch, countsMetrics, c)
	send(ch, countersPlace, prometheus.GaugeValue, 1, s.Place.String())
	count := func(d *prometheus.Desc, n uint64, labels ...string) {
		send(ch, d, prometheus.CounterValue, float64(n), labels...)
	}
	for door := range bpf.NumDoors {
		for kind := range bpf.NumKinds {
			count(requests, c.Words[bpf.RequestWord(door, kind)], door.String(), kind.String())
		}
		var other uint64
		for status := range uint8(bpf.NumStatuses) {
			n := c.Words[bpf.ReplyWord(door, status)]
			if name := resolver.Status(status).String(); strings.HasPrefix(name, "status ") {
				other += n // the protocol has no such status
			} else {
				count(responses, n, door.String(), statusLabel(resolver.Status(status)))
			}
		}
		count(responses, other, door.String(), "other")
	}
	hits := c.Kernel[bpf.KernelHit]
	count(requests, hits, "kernel", "resolve")
	count(responses, hits, "kernel", resolver.StatusSuccess.String())
	for word := range bpf.KernelWord(bpf.NumKernelWords) {
		if name := word.String(); name != "" && word != bpf.KernelSplit {
			count(kernelMessages, c.Kernel[word], name)
		}
	}

	duration(ch, requestDuration, &c.Latency[bpf.LatKernel], "kernel")
	duration(ch, requestDuration, &c.Latency[bpf.LatHit], "daemon")
	duration(ch, requestDuration, &c.Latency[bpf.LatMiss], "lookup")
	duration(ch, stepDuration, &c.Latency[bpf.LatAddress], "address")
	duration(ch, stepDuration, &c.Latency[bpf.LatRoute], "route")
	duration(ch, saDuration, &c.Latency[bpf.LatSA])

	send(ch, fabricTrace, prometheus.GaugeValue, truth(s.Trace))
	for part := range bpf.NumFabricLatencies {
		duration(ch, fabricDuration, &c.Fabric[part], part.String())
	}
	for event := range bpf.NumFabricWords {
		count(fabricRequests, c.FabricWords[event], event.String())
	}
	for _, p := range s.Programs {
		count(programRuns, p.Runs, p.Name)
		send(ch, programSeconds, prometheus.CounterValue, p.RunTime.Seconds(), p.Name)
	}
}

// statusLabel is a status as a label's value.
func statusLabel(s resolver.Status) string { return strings.ReplaceAll(s.String(), " ", "_") }

func truth(v bool) float64 {
	if v {
		return 1
	}
	return 0
}
