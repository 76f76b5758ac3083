// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"acmd/mad"
	"acmd/mad/fabric"
	"acmd/mad/sa"
	"acmd/resolver"
	"acmd/resolver/acmsock"
)

const (
	stormNodes   = 2000
	stormPaths   = 1000
	stormClients = 64
	stormWindow  = 16 // acmd's bound of SA questions under way
)

// watcher counts on the wire what the daemon asks the SA.
type watcher struct {
	mu          sync.Mutex
	asked       map[mad.GID]int
	total       int
	outstanding int
	most        int
	first, last time.Time
}

// see is a tracer of the fabric: quick, and called from anywhere.
func (w *watcher) see(e fabric.Event) {
	if e.MAD.Class() != mad.ClassSA || e.MAD.AttrID() != sa.AttrPathRecord {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case e.Kind == fabric.Sent:
		w.asked[sa.Path(&e.MAD).DGID()]++
		w.total++
		w.outstanding++
		w.most = max(w.most, w.outstanding)
		if w.first.IsZero() {
			w.first = e.Time
		}
	case e.Kind == fabric.Delivered:
		w.outstanding--
		w.last = e.Time
	}
}

// stormRun is what one storm was like.
type stormRun struct {
	load         result
	paths, asked int // different destinations, questions in all
	repeated     int // destinations asked more than once
	most         int // questions under way at once
	took         time.Duration
	counters     []uint64
	joined       uint64 // counted under route cache as well
}

// storm lets many clients ask for the same paths at the same moment: field case 1.
func (b *bench) storm() {
	b.heading("Storm", fmt.Sprintf("%d clients, each asks for the same %d destinations by IPv4 address, 64 requests under way per client; embedded fabric of %d nodes, counted on the fabric.", stormClients, stormPaths, stormNodes),
		fmt.Sprintf("%d rounds for each delay of the SA, a fresh daemon each.", b.rounds))
	t := newTable("SA answers after", "answers", "SA questions", "destinations", "asked twice", "most under way", "window full", "route query", "route cache", "of them joined", "s", "p99 ms", "max ms")
	delays := []time.Duration{0, 20 * time.Millisecond, 50 * time.Millisecond}
	runs := make([][]stormRun, len(delays))
	turns := make([]func(), len(delays))
	for i, d := range delays {
		turns[i] = func() {
			b.scope(func() { runs[i] = append(runs[i], b.stormOnce(d)) })
		}
	}
	b.eachRound(turns...)
	for i, list := range runs {
		r := list[0]
		t.row(delays[i], r.load.OK, r.asked, r.paths, r.repeated, r.most,
			med(list, func(r *stormRun) float64 { return r.full(delays[i]) }),
			r.counters[resolver.CounterRouteQuery], r.counters[resolver.CounterRouteCache], r.joined,
			med(list, func(r *stormRun) float64 { return r.load.Seconds }),
			med(list, func(r *stormRun) float64 { return r.load.P99us / 1000 }), med(list, func(r *stormRun) float64 { return r.load.MaxUs / 1000 }))
		b.stormMarks(delays[i], list)
	}
}

// full is the share of the time that the SA's delay needs at least with the whole
// window in use.
func (r *stormRun) full(delay time.Duration) float64 {
	return float64(delay) * float64(r.asked) / stormWindow / float64(max(r.took, 1))
}

// stormMarks takes the worst of all runs: these are not medians but rules.
func (b *bench) stormMarks(delay time.Duration, list []stormRun) {
	worst := list[0]
	full := worst.full(delay)
	sums, queries := true, int64(stormPaths)
	for i := range list {
		r := &list[i]
		worst.asked, worst.most = max(worst.asked, r.asked), max(worst.most, r.most)
		full = min(full, r.full(delay))
		c := r.counters
		sums = sums && c[resolver.CounterResolve] == stormClients*stormPaths && c[resolver.CounterError] == 0 &&
			c[resolver.CounterRouteQuery]+c[resolver.CounterRouteCache] == stormClients*stormPaths
		if c[resolver.CounterRouteQuery] != stormPaths {
			queries = int64(c[resolver.CounterRouteQuery])
		}
		if r.load.OK != stormClients*stormPaths || r.paths != stormPaths {
			b.warn("storm, delay %v: %d answers, %d paths", delay, r.load.OK, r.paths)
		}
	}
	at := fmt.Sprintf(", SA delay %v", delay)
	b.exactly("SA questions for 1,000 paths"+at, int64(worst.asked), stormPaths)
	b.exactly("counter of route queries"+at, queries, stormPaths)
	b.marks = append(b.marks, mark{"route queries + route cache = resolves = 64,000, no error" + at, "in every round", fmt.Sprint(sums), sums})
	b.atMost("questions under way at once"+at, float64(worst.most), stormWindow, "")
	if delay > 0 {
		b.atLeast("window kept full, share of the time"+at, full, .9, "")
	}
}

func (b *bench) stormOnce(delay time.Duration) stormRun {
	w := &watcher{asked: map[mad.GID]int{}}
	e := b.startEmbedded(stormNodes, "", func(f *fabric.Fabric) {
		f.Trace(w.see)
		if delay > 0 {
			f.AddRule(fabric.Rule{On: fabric.Deliveries, Class: mad.ClassSA, Attr: sa.AttrPathRecord, Delay: delay})
		}
	})
	var r stormRun
	r.load = b.resolve("storm", "-s", e.sock, "-pid", strconv.Itoa(os.Getpid()), "-c", strconv.Itoa(stormClients),
		"-pipeline", "64", "-each", "-src", e.src(), "-dests", b.dests(e.fab, stormPaths))
	r.counters, r.joined = b.countersOf(e)
	w.mu.Lock()
	defer w.mu.Unlock()
	r.paths, r.asked, r.most, r.took = len(w.asked), w.total, w.most, w.last.Sub(w.first)
	for _, n := range w.asked {
		if n > 1 {
			r.repeated++
		}
	}
	return r
}

// countersOf asks as any client would, and the control socket's state for what
// the seven counters leave out.
func (b *bench) countersOf(e *embedded) ([]uint64, uint64) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	c, err := acmsock.Dial(ctx, e.sock)
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	counters, err := c.Perf(ctx, 0)
	if err != nil {
		b.Fatal(err)
	}
	var state struct {
		Engine resolver.Stats `json:"engine"`
	}
	e.state(b, &state)
	return counters, state.Engine.Joined
}
