// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package main

import (
	"fmt"
	"log/slog"
	"runtime"
	"time"

	"acmd/bpf"

	"golang.org/x/sys/unix"
)

// counting compares what the daemon spends on counting a hit with the whole hit.
func (b *bench) counting() {
	_, acmd := b.acmdAlone()
	m, err := bpf.Open(bpf.Options{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.Fatalf("counters: %v", err)
	}
	defer m.Close()
	b.heading("Counting", "What a hit of the daemon counts, done in a loop, against whole hits over the unix socket, one connection.",
		fmt.Sprintf("Counters in %v. %d rounds of %v, in turns; medians.", memoryOf(m), b.rounds, b.slice))
	var hits []result
	var counts []float64
	b.eachRound(
		func() { hits = append(hits, acmd.run(b, 1, b.slice)) },
		func() { counts = append(counts, b.countHits(m)) },
	)
	cpu, count := 1000*med(hits, cpu1M), median(counts)
	t := newTable("of a hit", "ns", "share of its CPU time", "share of its p50")
	t.row("all counting", count, percent(count/cpu), percent(count/(1000*med(hits, p50))))
	t.row("CPU time of the server", cpu, percent(1), "")
	b.atMost("counting, of the CPU time of a hit", 100*count/cpu, 1, "%")
}

func memoryOf(m *bpf.Maps) string {
	if m.Place() == bpf.InMemory {
		return "ordinary memory: this user may not make BPF maps"
	}
	return "mapped BPF arrays"
}

func percent(share float64) string { return fmt.Sprintf("%.2f %%", 100*share) }

// countHits returns the ns that counting takes for one request: what acmsock and
// the engine do from its arrival to the write of its reply. The two readings of
// the clock are left out: the daemon makes as many without counting, one for the
// age of the path and one for its turn.
func (b *bench) countHits(m *bpf.Maps) float64 {
	const n = 1 << 20
	door, ep := m.OwnShard(), m.Endpoint("bench", 1, 0xffff, 0)
	var before, after bpf.Snapshot
	m.Read(&before)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	began := threadTime()
	for i := range int64(n) {
		door.Add(bpf.RequestWord(bpf.DoorUnix, bpf.KindAddress), 1)
		ep.Add(1, bpf.CountResolve, 1)
		ep.Add(1, bpf.CountRouteCache, 1)
		door.Add(bpf.ReplyWord(bpf.DoorUnix, 0), 1)
		door.Observe(bpf.LatHit, 200+i&1023)
		door.Add(bpf.BytesIn, 160)
		door.Add(bpf.BytesOut, 88)
	}
	took := threadTime() - began
	m.Read(&after)
	if got := after.Totals[bpf.CountResolve] - before.Totals[bpf.CountResolve]; got != n {
		b.warn("%d requests counted of %d", got, n)
	}
	return float64(took.Nanoseconds()) / n
}

// threadTime is the processor time of this thread.
func threadTime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
		return 0 // every Linux has it
	}
	return time.Duration(ts.Nano())
}
