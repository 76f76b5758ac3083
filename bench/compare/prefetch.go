// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package main

import (
	"fmt"
	"os"
	"strconv"

	"acmd/mad/fabric"
)

const (
	prefetchNodes   = 40000
	prefetchClients = 16
)

// prefetchRun is one start of a job that needs a path to every node.
type prefetchRun struct {
	load         result
	gets, tables uint64 // that the SA was asked
}

// prefetch lets clients ask for the path to each node of a large fabric once, with and
// without having asked the SA for all of them before.
func (b *bench) prefetch() {
	b.heading("All paths at once", fmt.Sprintf("%d clients ask for the path to each of %d nodes, by GID, as at the start of a job; embedded fabric, whose SA counts what it is asked.", prefetchClients, prefetchNodes),
		fmt.Sprintf("%d rounds in turn, a fresh daemon each; medians.", b.rounds))
	names := [2]string{"route_preload none", "route_preload sa"}
	var runs [2][]prefetchRun
	b.eachRound(func() { b.scope(func() { runs[0] = append(runs[0], b.prefetchOnce("none")) }) },
		func() { b.scope(func() { runs[1] = append(runs[1], b.prefetchOnce("sa")) }) })
	t := newTable("setting", "paths/s", "p50 us", "p99 us", "Get, most", "GetTable, most")
	var rate [2]float64
	var gets, tables [2]uint64
	for i, rs := range runs {
		for _, r := range rs {
			gets[i], tables[i] = max(gets[i], r.gets), max(tables[i], r.tables)
		}
		rate[i] = med(rs, func(r *prefetchRun) float64 { return r.load.PerSec })
		t.row(names[i], rate[i], med(rs, func(r *prefetchRun) float64 { return r.load.P50us }), med(rs, func(r *prefetchRun) float64 { return r.load.P99us }), gets[i], tables[i])
	}
	bench := b.command(b.root, "go", "test", "-run", "^$", "-bench", "PathTable/build", "-benchtime", "300ms", "-count", strconv.Itoa(b.rounds), "./resolver")
	list := parseBench(bench)
	if len(list) != 1 || len(list[0].values["ns/path"]) == 0 {
		b.Fatalf("no figure in\n%s", bench)
	}
	b.exactly("questions for a single path", int64(gets[1]), 0)
	b.exactly("questions for a table", int64(tables[1]), 1)
	b.atMost("processor time for a path of the table, once it is there", median(list[0].values["ns/path"])/1000, 0.15, " us")
	b.atLeast("rate, of that without", ratio(rate[1], rate[0]), 1, "x")
}

func (b *bench) prefetchOnce(preload string) (r prefetchRun) {
	e := b.startEmbedded(prefetchNodes, "route_preload "+preload+"\n", func(*fabric.Fabric) {})
	e.waitSubscribed(b)
	if preload == "sa" {
		e.await(b, "table of all paths", func() bool {
			var st struct {
				Engine struct {
					TablePaths int `json:"table_paths"`
				}
			}
			e.state(b, &st)
			return st.Engine.TablePaths == prefetchNodes
		})
	}
	file := b.destsBy(e.fab, prefetchNodes-1, func(n int) string { return fmt.Sprintf("gid:%v", e.fab.GID(n, 1)) })
	r.load = b.resolve("prefetch", "-s", e.sock, "-pid", strconv.Itoa(os.Getpid()), "-c", strconv.Itoa(prefetchClients), "-once", "-dests", file)
	if r.load.OK != prefetchNodes-1 {
		b.warn("route_preload %s: %d of %d paths", preload, r.load.OK, prefetchNodes-1)
	}
	st := e.fab.Stats()
	r.gets, r.tables = st.PathGets, st.PathTables
	return r
}
