// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime"
	"strconv"
	"time"

	"acmd/bpf"
	"acmd/bpf/bpftest"
	"acmd/mad/madtest/peer"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// counting compares what is spent on counting a hit with the whole hit, in the
// daemon and in the kernel.
func (b *bench) counting() {
	f := peer.StartFabric(b, "small.net")
	port := b.freePort()
	d := b.acmdOnNodeC(f, "fast_path kernel", fmt.Sprint("fast_path_port ", port))
	daemon := server{"acmd", d.sock, d.pid(), destB(b, f, "10.77.0.3")}
	m, err := bpf.Open(bpf.Options{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.Fatalf("counters: %v", err)
	}
	defer m.Close()
	b.heading("Counting", "What a hit counts, done in a loop, against whole hits, one connection, one request in flight.",
		fmt.Sprintf("Counters in %v. %d rounds of %v, in turns; medians.", memoryOf(m), b.rounds, b.slice))
	t := newTable("hit", "counting ns", "whole hit ns", "of", "share")
	var hits []result
	var counts []float64
	b.eachRound(
		func() { hits = append(hits, daemon.run(b, 1, b.slice)) },
		func() { counts = append(counts, b.countHits(m)) },
	)
	cpu, count := 1000*med(hits, cpu1M), median(counts)
	t.row("daemon, unix socket", count, cpu, "server's CPU time", percent(count/cpu))
	t.row("", count, 1000*med(hits, p50), "p50", percent(count/(1000*med(hits, p50))))
	b.atMost("counting, of the CPU time of a daemon hit", 100*count/cpu, 1, "%")
	if err := b.fastOn(d); err != nil {
		t.row("kernel", "-", "-", err, "-")
		return
	}
	kernel := server{"kernel", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), d.pid(), daemon.dest}
	programs := b.countPrograms(m)
	hits, counts = nil, nil
	b.eachRound(
		func() { hits = append(hits, kernel.run(b, 1, b.slice)) },
		func() { counts = append(counts, programs()) },
	)
	count = median(counts)
	t.row("kernel, TCP", count, 1000*med(hits, p50), "p50", percent(count/(1000*med(hits, p50))))
	b.atMost("counting, of the p50 of a kernel hit", 100*count/(1000*med(hits, p50)), 3, "%")
}

// fastOn tells why the kernel does not answer.
func (b *bench) fastOn(d *daemon) error {
	var st struct {
		On     bool
		Reason string
	}
	err := d.control.Do(context.Background(), "GET", "fast-path", nil, &st)
	if err == nil && !st.On {
		err = errors.New(st.Reason)
	}
	return err
}

// countPrograms loads the program that counts as a hit in the kernel does, and
// returns what measures it: ns over those of an empty program.
func (b *bench) countPrograms(m *bpf.Maps) func() float64 {
	spec, err := bpftest.LoadCount()
	if err != nil {
		b.Fatalf("%v", err)
	}
	opts, err := m.Share(spec)
	if err != nil {
		b.Fatalf("%v", err)
	}
	c, err := ebpf.NewCollectionWithOptions(spec, opts)
	if err != nil {
		b.Fatalf("%v", err)
	}
	b.Cleanup(c.Close)
	run := func(name string) float64 {
		_, d, err := c.Programs[name].Benchmark(make([]byte, 64), 1<<20, nil)
		if err != nil {
			b.Fatalf("%s: %v", name, err)
		}
		return float64(d.Nanoseconds())
	}
	return func() float64 { return run("count_hit") - run("count_nothing") }
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
