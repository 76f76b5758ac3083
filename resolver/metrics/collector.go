// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package metrics

import (
	"slices"
	"strconv"

	"acmd/mad"
	"acmd/resolver"
	"acmd/resolver/acmp"

	"github.com/prometheus/client_golang/prometheus"
)

// The seven counters of the ACM protocol, by their index, as parts of names.
var counterNames = [resolver.NumCounters][2]string{
	resolver.CounterError:      {"errors", "Requests answered with a failure other than no data"},
	resolver.CounterResolve:    {"resolves", "Resolve requests"},
	resolver.CounterNoData:     {"nodata", "Resolve requests answered with no data"},
	resolver.CounterAddrQuery:  {"addr_queries", "Questions of the address step that left the node"},
	resolver.CounterAddrCache:  {"addr_cache_hits", "Resolve requests whose address was known and whose route was not"},
	resolver.CounterRouteQuery: {"route_queries", "Path queries sent to the SA"},
	resolver.CounterRouteCache: {"route_cache_hits", "Resolve requests answered from the cache"},
}

// acmCounters makes the families of the seven counters.
func acmCounters[T any](subsystem, whose string, row func(*T) *resolver.Counters, labels ...string) []family[T] {
	list := make([]family[T], 0, resolver.NumCounters)
	for i, n := range counterNames {
		list = append(list, counter(subsystem+"_"+n[0]+"_total", n[1]+", "+whose+".",
			func(t *T) uint64 { return row(t)[i] }, labels...))
	}
	return list
}

var (
	buildInfo    = desc("build_info", "What runs; always 1.", "version", "goversion")
	endpointInfo = desc("endpoint_info", "An endpoint, with the GUID of its port; always 1.",
		append(slices.Clone(atEndpoint), "provider", "guid")...)
	groupsWanted = desc("multicast_groups", "Multicast groups that the endpoint has to be a member of.", atEndpoint...)
	groupsJoined = desc("multicast_groups_joined", "Multicast groups that the endpoint is a member of.", atEndpoint...)

	serviceMetrics = append([]family[Snapshot]{
		gauge("start_time_seconds", "When the service came up, in seconds since 1970.", func(s *Snapshot) int64 { return s.Started.Unix() }),
	}, acmCounters("service", "in total", func(s *Snapshot) *resolver.Counters { return &s.Counts.Totals })...)
	endpointMetrics = acmCounters("endpoint", "by endpoint", func(e *Endpoint) *resolver.Counters { return &e.Counters }, atEndpoint...)
)

// Collector turns snapshots into metrics. It implements [prometheus.Collector] and
// is safe for concurrent use.
type Collector struct{ source Source }

// NewCollector makes a collector of what a source says.
func NewCollector(s Source) *Collector { return &Collector{s} }

// Describe implements [prometheus.Collector].
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		buildInfo, endpointInfo, groupsWanted, groupsJoined, clientsRejected, clientsClosed, clientFaults, acmRefused, saResponses, madDropped,
		netlinkUnanswered, netlinkIgnored, fastPathState, fastPathReason, eventSource,
	} {
		ch <- d
	}
	describeCounts(ch)
	describe(ch, serviceMetrics)
	describe(ch, endpointMetrics)
	describe(ch, clientMetrics)
	describe(ch, engineMetrics)
	describe(ch, cacheMetrics)
	describe(ch, portMetrics)
	describe(ch, acmMetrics)
	describe(ch, neighMetrics)
	describe(ch, hostMetrics)
	describe(ch, queueMetrics)
	describe(ch, eventMetrics)
	describe(ch, netlinkMetrics)
	describe(ch, fastPathMetrics)
}

// Collect implements [prometheus.Collector].
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	s := c.source.Snapshot()
	send(ch, buildInfo, prometheus.GaugeValue, 1, s.Version, s.GoVersion)
	emit(ch, serviceMetrics, s)
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		port := strconv.Itoa(int(e.Port))
		send(ch, endpointInfo, prometheus.GaugeValue, 1, e.Device, port, e.PKey, e.Provider, e.GUID)
		emit(ch, endpointMetrics, e, e.Device, port, e.PKey)
	}
	collectCounts(ch, s)
	collectFastPath(ch, &s.FastPath)
	collectNetlink(ch, s.Netlink)
	if s.Neigh != nil {
		emit(ch, neighMetrics, s.Neigh)
	}
	if s.Host != nil {
		emit(ch, hostMetrics, s.Host)
	}
	for i := range s.Events {
		e := &s.Events[i]
		send(ch, eventSource, prometheus.GaugeValue, 1, e.Device, e.Source)
		emit(ch, eventMetrics, e, e.Device)
	}
	emit(ch, clientMetrics, &s.Clients)
	counts(ch, clientsRejected, s.Clients.Rejected)
	counts(ch, clientsClosed, s.Clients.Closed)
	counts(ch, clientFaults, s.Clients.Faults)
	emit(ch, engineMetrics, &s.Engine)
	emit(ch, cacheMetrics, &s.Cache)
	for i := range s.Ports {
		p := &s.Ports[i]
		at := []string{p.Device, strconv.Itoa(int(p.Port))}
		emit(ch, portMetrics, p, at...)
		counts(ch, saResponses, responsesOf(p), at...)
		counts(ch, madDropped, droppedOf(p), at...)
		if p.Queues != nil {
			emit(ch, queueMetrics, p.Queues, at...)
		}
	}
	emit(ch, acmMetrics, &s.ACM)
	for reason, n := range s.ACM.Refused {
		send(ch, acmRefused, prometheus.CounterValue, float64(n), reason)
	}
	c.groups(ch, s.Groups)
}

// groups sends for each endpoint how many groups it should be in and is in.
func (c *Collector) groups(ch chan<- prometheus.Metric, list []acmp.GroupStatus) {
	type endpoint struct {
		device string
		port   uint8
		pkey   mad.PKey
	}
	type tally struct{ wanted, joined int }
	of := map[endpoint]tally{}
	for _, g := range list {
		key := endpoint{g.Device, g.Port, g.PKey}
		t := of[key]
		t.wanted++
		if g.Joined {
			t.joined++
		}
		of[key] = t
	}
	for ep, t := range of {
		labels := []string{ep.device, strconv.Itoa(int(ep.port)), ep.pkey.String()}
		send(ch, groupsWanted, prometheus.GaugeValue, float64(t.wanted), labels...)
		send(ch, groupsJoined, prometheus.GaugeValue, float64(t.joined), labels...)
	}
}
