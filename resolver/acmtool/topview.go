// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acmtool

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"slices"
	"time"

	"acmd/bpf"
	"acmd/cache"
	"acmd/mad"
	"acmd/mad/sa"
	"acmd/resolver"
)

// topView is one screen of top, and its JSON. Rates are of the time since the
// reading before and 0 on the first; counts are since the counters began, which
// may be several daemons ago.
type topView struct {
	From     string    `json:"from"` // pin directory or socket
	RunDir   string    `json:"run_dir"`
	Time     time.Time `json:"time"`
	PID      uint32    `json:"pid"` // 0: ended cleanly
	Alive    bool      `json:"alive"`
	Start    time.Time `json:"start"` // of the last daemon
	Daemons  uint32    `json:"daemons"`
	FastPath bool      `json:"fast_path"`
	Seconds  float64   `json:"seconds"` // that rates are of

	Totals    map[string]uint64 `json:"totals"`
	Answered  []topAnswered     `json:"answered"`
	SA        []topRate         `json:"sa"`
	Endpoints []topEndpoint     `json:"endpoints"`
	Latency   []topLatency      `json:"latency"`
	Slow      []topSlow         `json:"slow"` // slowest first
	SlowTotal uint64            `json:"slow_total"`
}

// topRate is a counter.
type topRate struct {
	Name      string  `json:"name"`
	Count     uint64  `json:"count"`
	PerSecond float64 `json:"per_second"`
}

// topAnswered is a share of the RESOLVE requests: answered by the kernel, by the
// daemon at once, or after a lookup.
type topAnswered struct {
	topRate
	Share float64 `json:"share"` // of those since the last reading, of all if there were none
}

type topEndpoint struct {
	Device    string            `json:"device"` // "": requests that reached no endpoint
	Port      uint8             `json:"port"`
	PKey      string            `json:"pkey"`
	Active    bool              `json:"active"`
	PerSecond float64           `json:"per_second"` // RESOLVE requests
	Kernel    uint64            `json:"kernel_hits"`
	Counters  map[string]uint64 `json:"counters"`
	values    bpf.Counters
}

// topLatency has percentiles of what was timed since the last reading, and of
// everything when that was nothing.
type topLatency struct {
	topRate
	Recent bool  `json:"recent"` // percentiles are of the time since the last reading
	Mean   int64 `json:"mean_ns"`
	P50    int64 `json:"p50_ns"`
	P99    int64 `json:"p99_ns"`
	P999   int64 `json:"p999_ns"`
}

type topSlow struct {
	When        time.Time `json:"when"`
	Took        int64     `json:"took_ns"`
	Status      uint8     `json:"status"`
	Endpoint    string    `json:"endpoint"`
	Destination string    `json:"destination"`
}

// slowRows is how many slow requests are shown.
const slowRows = 10

// newTop compares two readings; last is nil for the first.
func newTop(src *topSource, last, now *bpf.Snapshot) *topView {
	v := &topView{
		From: src.from, RunDir: now.RunDir, Time: now.Time, PID: now.PID, Alive: alive(now.PID),
		Start: now.Start, Daemons: now.Boots, FastPath: now.FastOn, SlowTotal: now.SlowTotal,
		Totals: sevenCounters(&now.Totals), Endpoints: []topEndpoint{}, Slow: []topSlow{},
	}
	if last == nil || last.Boots > now.Boots {
		last = now
	}
	v.Seconds = now.Time.Sub(last.Time).Seconds()
	v.answered(last, now)
	for _, w := range []struct {
		name string
		word bpf.Word
	}{
		{"sent", bpf.SASent}, {"answers", bpf.SAAnswers}, {"retries", bpf.SARetries}, {"timeouts", bpf.SATimeouts},
		{"busy", bpf.SABusy}, {"failures", bpf.SAFailures},
	} {
		v.SA = append(v.SA, v.rate(w.name, last.Words[w.word], now.Words[w.word]))
	}
	for i := range now.Endpoints {
		v.endpoint(last, &now.Endpoints[i])
	}
	for c := range bpf.NumLatencies {
		v.latency(c.String(), &last.Latency[c], &now.Latency[c])
	}
	for c := range bpf.NumFabricLatencies {
		if now.Fabric[c].Count() > 0 {
			v.latency("mad "+c.String(), &last.Fabric[c], &now.Fabric[c])
		}
	}
	v.slow(now)
	return v
}

// rate makes a counter's row. A counter that went back is one that began anew.
func (v *topView) rate(name string, last, now uint64) topRate {
	r := topRate{Name: name, Count: now}
	if v.Seconds > 0 && now >= last {
		r.PerSecond = float64(now-last) / v.Seconds
	}
	return r
}

// answered splits the requests by who answered them.
func (v *topView) answered(last, now *bpf.Snapshot) {
	count := func(s *bpf.Snapshot, c bpf.Latency) uint64 { return s.Latency[c].Count() }
	v.Answered = []topAnswered{
		{topRate: v.rate("kernel", last.Kernel[bpf.KernelHit], now.Kernel[bpf.KernelHit])},
		{topRate: v.rate("daemon", count(last, bpf.LatHit), count(now, bpf.LatHit))},
		{topRate: v.rate("lookup", count(last, bpf.LatMiss), count(now, bpf.LatMiss))},
	}
	var recent, all float64
	for _, a := range v.Answered {
		recent, all = recent+a.PerSecond, all+float64(a.Count)
	}
	for i := range v.Answered {
		switch a := &v.Answered[i]; {
		case recent > 0:
			a.Share = a.PerSecond / recent
		case all > 0:
			a.Share = float64(a.Count) / all
		}
	}
}

func (v *topView) endpoint(last *bpf.Snapshot, e *bpf.EndpointCounters) {
	if e.Row == 0 && e.Counters == (bpf.Counters{}) {
		return
	}
	row := topEndpoint{
		Device: e.Device, Port: e.Port, Active: e.Active, Kernel: e.Kernel[bpf.KernelHit],
		Counters: sevenCounters(&e.Counters), values: e.Counters,
	}
	if e.Row != 0 {
		row.PKey = mad.PKey(e.PKey).String()
	}
	var before uint64
	if e.Row < len(last.Endpoints) {
		before = last.Endpoints[e.Row].Counters[bpf.CountResolve]
	}
	row.PerSecond = v.rate("", before, e.Counters[bpf.CountResolve]).PerSecond
	v.Endpoints = append(v.Endpoints, row)
}

func (v *topView) latency(name string, last, now *bpf.Histogram) {
	l := topLatency{topRate: v.rate(name, last.Count(), now.Count())}
	h := *now
	if l.PerSecond > 0 {
		h.Sub(last)
		l.Recent = true
	}
	if n := h.Count(); n > 0 {
		l.Mean = int64(h.Sum / n)
	}
	l.P50, l.P99, l.P999 = int64(h.Quantile(0.5)), int64(h.Quantile(0.99)), int64(h.Quantile(0.999))
	v.Latency = append(v.Latency, l)
}

func (v *topView) slow(now *bpf.Snapshot) {
	list := slices.Clone(now.Slow)
	slices.SortStableFunc(list, func(a, b bpf.SlowRequest) int { return cmp.Compare(b.Took, a.Took) })
	for _, r := range list[:min(len(list), slowRows)] {
		s := topSlow{When: r.When, Took: int64(r.Took), Status: r.Status, Endpoint: "-", Destination: slowKey(&r)}
		if r.Endpoint > 0 && r.Endpoint < len(now.Endpoints) {
			e := &now.Endpoints[r.Endpoint]
			s.Endpoint = fmt.Sprintf("%s/%d %v", e.Device, e.Port, mad.PKey(e.PKey))
		}
		v.Slow = append(v.Slow, s)
	}
}

// slowKey says what a slow request asked for.
func slowKey(r *bpf.SlowRequest) string {
	kind := cache.Kind(r.Kind)
	if kind == cache.KindPath && len(r.Key) == len(sa.PathRecord{}) {
		p := sa.PathRecord(r.Key)
		if gid := p.DGID(); !gid.IsZero() {
			return gid.String()
		}
		return "lid:" + p.DLID().String()
	}
	a := resolver.Addr{Kind: kind, Len: uint8(len(r.Key))}
	if copy(a.Data[:], r.Key) == 0 || kind == cache.KindPath {
		return "-"
	}
	return a.String()
}

// alive tells whether a daemon still runs, as far as its process number says. One
// that was killed may wait for its parent to look (state Z, proc(5)).
func alive(pid uint32) bool {
	if pid == 0 {
		return false
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	state := bytes.TrimSpace(stat[bytes.LastIndexByte(stat, ')')+1:]) // the name before it may be anything
	return len(state) > 0 && state[0] != 'Z' && state[0] != 'X'
}

func sevenCounters(c *bpf.Counters) map[string]uint64 { return newPerf(0, "", c[:]).Counters }
