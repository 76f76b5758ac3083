// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package main

import (
	"fmt"
	"runtime"
)

// column is what a table says of the runs of one contestant.
type column struct {
	name string
	cell func([]result) any
}

// middle is a column of medians.
func middle(name string, get func(*result) float64) column {
	return column{name, func(r []result) any { return med(r, get) }}
}

// per1M is processor time for a million paths.
func per1M(cpu func(*result) float64) func(*result) float64 {
	return func(r *result) float64 { return cpu(r) * 1e6 / float64(max(r.OK, 1)) }
}

func openSMCPU(r *result) float64   { return r.AlsoCPU[0] }
func ibsimCPU(r *result) float64    { return r.AlsoCPU[1] }
func loadCPU(r *result) float64     { return r.OwnCPU }
func machineBusy(r *result) float64 { return r.Busy }

// daemonCPU is 0 where there is none: acmload takes itself for the server when it
// asks OpenSM directly, but gives no memory of it.
func daemonCPU(r *result) float64 {
	if r.RSSKB == 0 {
		return 0
	}
	return r.CPUPer1M * float64(r.OK) / 1e6
}

// busyThese is the share of the machine's processor time that went into the
// programs of the comparison.
func busyThese(r *result) float64 {
	cpu := r.OwnCPU + daemonCPU(r)
	for _, c := range r.AlsoCPU {
		cpu += c
	}
	return cpu / r.Seconds / float64(runtime.NumCPU())
}

func printCold(names []string, runs [][]result, apart *apart) {
	list := []column{
		middle("paths/s", perSec),
		{"mean", func(r []result) any { return mean(r, perSec) }},
		{"quartiles", func(r []result) any { return quartiles(r, perSec, "%.0f") }},
		{"all runs", func(r []result) any { return spread(r, perSec, "%.0f") }},
		middle("p50 us", p50),
		middle("p99 us", p99),
		middle("daemon CPU s/1M", per1M(daemonCPU)),
		middle("OpenSM s/1M", per1M(openSMCPU)),
		middle("ibsim s/1M", per1M(ibsimCPU)),
		middle("load generator s/1M", per1M(loadCPU)),
		middle("processors busy (these)", busyThese),
		middle("(machine)", machineBusy),
	}
	if apart != nil {
		list = append(list, middle("SA's side busy", apart.saBusy), middle("daemon's side busy", apart.restBusy))
	}
	list = append(list, middle("switches per path", switches))
	heads := []string{"who"}
	for _, c := range list {
		heads = append(heads, c.name)
	}
	t := newTable(heads...)
	for i, name := range names {
		row := []any{name}
		for _, c := range list {
			row = append(row, c.cell(runs[i]))
		}
		t.row(row...)
	}
	fmt.Println("\n" + readingNote(runs[2]))
}

// readingNote says what shares of time can be wrong by.
func readingNote(runs []result) string {
	took := func(r *result) float64 { return r.CPURead }
	share := func(r *result) float64 { return r.CPURead / r.Seconds }
	return fmt.Sprintf("To read a daemon's processor time takes %.2f ms just before and after a pass of acmd, %.1f %% of it (medians). What the daemon does meanwhile counts, so a share can be above 1 by that.",
		1e3*med(runs, took), 100*med(runs, share))
}

// coldMarks: either the daemon is hardly slower than nobody in its place, or what
// limits both is the processors, and its own part is small. With the SA apart both
// sides have to be busy for that: one that waits is not what limits.
func (b *bench) coldMarks(by string, alone, stock, own []result, apart *apart) {
	b.atLeast("by "+by+": rate, of ibacm's with sa_depth 16", ratio(med(own, perSec), med(stock, perSec)), 1.3, "x")
	share, cpu := ratio(med(own, perSec), med(alone, perSec)), med(own, cpu1M)
	busy := med(own, busyThese) // what the machine says is two or three of its clock's ticks for a pass
	what, said := "all processors", fmt.Sprintf("%.0f %% busy", 100*busy)
	if apart != nil {
		sa, rest := med(own, apart.saBusy), med(own, apart.restBusy)
		busy = min(sa, rest)
		what, said = "the processors of daemon and SA", fmt.Sprintf("%.0f and %.0f %% busy", 100*rest, 100*sa)
	}
	b.marks = append(b.marks, mark{
		"by " + by + ": rate, of OpenSM's alone; or own CPU per 1M with " + what + " busy", ">= 0.90x; or <= 20 s",
		fmt.Sprintf("%.2fx; %.1f s, %s", share, cpu, said),
		share >= .9 || cpu <= 20 && busy >= .95,
	})
}
