// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package service

import (
	"fmt"
	"runtime"
	"strings"

	"acmd/resolver"
	"acmd/resolver/acmsock"
	"acmd/resolver/config"
	"acmd/resolver/kernelnl"
	"acmd/resolver/metrics"
)

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
		Events:    d.fabric.EventSources(),
		ACM:       d.acm.Stats(),
		Groups:    d.acm.Groups(),
	}
	d.counters.Read(&s.Counts)
	s.FastPath = fastPathMetrics(d.fastPathState())
	if d.fast != nil {
		s.Programs = append(s.Programs, d.fast.Programs()...)
	}
	if st, ok := d.kernel.stats(); ok {
		s.Netlink = netlinkMetrics(&st)
	}
	if d.neigh != nil {
		s.Neigh = new(d.neigh.Stats())
	}
	if d.host != nil {
		s.Host = new(d.host.Stats())
	}
	for _, ep := range d.engine.Endpoints() {
		s.Endpoints = append(s.Endpoints, metricsEndpoint(ep, d.engine.EndpointCounters(ep)))
	}
	for _, p := range d.ports.list() {
		port := metrics.Port{Device: p.id.device, Port: p.id.port, SA: p.Client.Stats()}
		if p.queues != nil {
			port.Queues = new(p.queues.Stats())
		}
		s.Ports = append(s.Ports, port)
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

func fastPathMetrics(st fastPathState) metrics.FastPath {
	f := metrics.FastPath{
		State: "off", Reason: brief(st.Reason), Paths: int64(st.Paths), Puts: st.Puts, Deletes: st.Deletes, Full: st.Full,
		Lost: st.Lost, Inserted: st.Inserted, Refused: st.Refused, Refreshed: st.Refreshed,
	}
	switch {
	case st.On:
		f.State = "on"
	case st.Reason != "":
		f.State = "failed"
	case st.Setting != config.FastPathOff.String():
		f.State = "stopped"
	}
	return f
}

// brief cuts a reason down to what a label is good for: it may end with what the
// kernel's verifier has to say.
func brief(reason string) string {
	const most = 200
	line, _, _ := strings.Cut(reason, "\n")
	return strings.ToValidUTF8(line[:min(len(line), most)], "")
}

func netlinkMetrics(st *kernelnl.Stats) *metrics.Netlink {
	one := func(label string, n uint64) metrics.Count { return metrics.Count{Labels: []string{label}, N: n} }
	return &metrics.Netlink{
		Unanswered: []metrics.Count{one("late", st.Late), one("send_error", st.SendErrors), one("rejected", st.Rejected)},
		Ignored:    []metrics.Count{one("foreign", st.Foreign), one("control", st.Control), one("unreadable", st.Unreadable)},
		Overruns:   st.Overruns,
		Pending:    int64(st.Pending),
	}
}
