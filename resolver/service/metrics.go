// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package service

import (
	"fmt"
	"runtime"

	"acmd/resolver"
	"acmd/resolver/acmsock"
	"acmd/resolver/config"
	"acmd/resolver/metrics"
)

// metricsDoor is the door for Prometheus as `acmctl state` shows it.
type metricsDoor struct {
	address string // "": off or not to be had
	err     error  // why it is not to be had
}

// startMetrics opens the door that the settings say. Paths are what the node needs
// the daemon for: an address that is not to be had is an error in the log and in
// the state, and the daemon goes on.
func (d *Daemon) startMetrics(s *config.Settings) {
	if s.MetricsAddr == "" {
		return
	}
	server, err := metrics.Listen(s.MetricsAddr, metricsSource{d}, d.log)
	if err != nil {
		d.metrics.err = err
		d.log.Error("no metrics", "err", err)
		return
	}
	d.onStop(server.Close)
	d.metrics.address = server.Addr().String()
	d.log.Info("serving metrics", "network", server.Addr().Network(), "address", d.metrics.address)
}

func (m *metricsDoor) state() map[string]string {
	state := map[string]string{"address": "off"}
	if m.address != "" {
		state["address"] = m.address
	}
	if m.err != nil {
		state["error"] = m.err.Error()
	}
	return state
}

// metricsSource reads the figures of a daemon from the memory of its rooms.
type metricsSource struct{ d *Daemon }

// Snapshot implements [metrics.Source].
func (m metricsSource) Snapshot() *metrics.Snapshot {
	d := m.d
	s := &metrics.Snapshot{
		Version:   d.opts.Version,
		GoVersion: runtime.Version(),
		Started:   d.started,
		Place:     d.counters.Place(),
		Trace:     d.trace.running.Load() != nil,
		Programs:  d.trace.running.Load().Programs(),
		Clients:   clientMetrics(d.door.Stats()),
		Engine:    d.engine.Stats(),
		Cache:     d.engine.CacheStats(),
		ACM:       d.acm.Stats(),
		Groups:    d.acm.Groups(),
	}
	d.counters.Read(&s.Counts)
	for _, ep := range d.engine.Endpoints() {
		s.Endpoints = append(s.Endpoints, metricsEndpoint(ep, d.engine.EndpointCounters(ep)))
	}
	for _, p := range d.ports.list() {
		s.Ports = append(s.Ports, metrics.Port{Device: p.id.device, Port: p.id.port, SA: p.Client.Stats()})
	}
	return s
}

func metricsEndpoint(ep *resolver.Endpoint, c resolver.Counters) metrics.Endpoint {
	return metrics.Endpoint{
		Device: ep.Device, Port: ep.Port.Num, PKey: ep.PKey.String(), Provider: ep.Provider,
		GUID: ep.GID.GUID().String(), Counters: c,
	}
}

func clientMetrics(s acmsock.Stats) metrics.Clients {
	return metrics.Clients{
		Open: s.Open, Pending: s.Pending, Accepted: s.Accepted, BytesIn: s.BytesIn, BytesOut: s.BytesOut,
		Malformed: s.BodyErrors, Refused: s.Refused, Superseded: s.Superseded, Paused: s.Paused,
		Rejected: byReason[acmsock.RejectReason](s.Rejected[:]),
		Closed:   byReason[acmsock.CloseReason](s.Closed[:]),
		Faults:   byReason[acmsock.Fault](s.Faults[:])[1:], // without FaultNone
	}
}

// byReason gives counters by index the names of their indices.
func byReason[R interface {
	~uint8
	fmt.Stringer
}](counts []uint64) []metrics.Count {
	list := make([]metrics.Count, len(counts))
	for i, n := range counts {
		list[i] = metrics.Count{Labels: []string{R(i).String()}, N: n}
	}
	return list
}
