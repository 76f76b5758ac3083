// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package main

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"acmd/mad"
)

func main() {
	sizes := flag.String("sizes", "1000,40000,1000000", "numbers of `entries`")
	workers := flag.String("goroutines", "1,2", "numbers of readers")
	writes := flag.String("writes", "0,1", "`percent` of operations that are writes")
	rounds := flag.Int("rounds", 9, "measurements of each table")
	slice := flag.Duration("slice", 60*time.Millisecond, "length of one measurement")
	modes := flag.String("chained", "0,1", "1: each lookup needs the result of the one before (latency); 0: they may overlap")
	rss := flag.Bool("rss", false, "print the memory per entry instead")
	flag.Parse()
	if *rss {
		if err := memory(40_000); err != nil {
			fmt.Fprintln(os.Stderr, "cachebench:", err)
			os.Exit(1)
		}
		return
	}
	var lists [4][]int
	for i, s := range []string{*sizes, *workers, *writes, *modes} {
		var err error
		if lists[i], err = ints(s); err != nil {
			fmt.Fprintln(os.Stderr, "cachebench:", err)
			os.Exit(2)
		}
	}
	fmt.Printf("ns per operation and goroutine (processor time), median of %d rounds (least)\n", *rounds)
	bad := 0
	for _, n := range lists[0] {
		gids := makeGIDs(n)
		for _, w := range lists[2] {
			// New tables for each cell: one that was written to lies differently in memory.
			tables := fill(gids)
			for _, g := range lists[1] {
				for _, m := range lists[3] {
					bad += cell(tables, gids, load{g, w, m != 0}, *rounds, *slice)
				}
			}
		}
	}
	if bad > 0 {
		fmt.Fprintf(os.Stderr, "cachebench: %d lookups missed or got a wrong record\n", bad)
		os.Exit(1)
	}
}

func ints(s string) (list []int, err error) {
	for f := range strings.SplitSeq(s, ",") {
		v, err := strconv.Atoi(f)
		if err != nil || v < 0 {
			return nil, fmt.Errorf("%q is not a list of numbers", s)
		}
		list = append(list, v)
	}
	return list, nil
}

// makeGIDs counts GUIDs up under one prefix, as a fabric of one vendor does.
func makeGIDs(n int) []mad.GID {
	gids := make([]mad.GID, n)
	for i := range gids {
		gids[i] = mad.MakeGID(0xfe80000000000000, mad.GUID(0x0002c90300000000+uint64(i)*8))
	}
	return gids
}

func fill(gids []mad.GID) (tables []table) {
	for _, mk := range makers() {
		t := mk(len(gids))
		for i := range gids {
			t.put(&gids[i], uint64(i))
		}
		tables = append(tables, t)
	}
	runtime.GC()
	return tables
}

// load is what is done to a table.
type load struct {
	workers, percent int // readers; share of writes
	chained          bool
}

// cell measures all tables at one size, number of goroutines and share of writes,
// and returns the number of failed lookups.
func cell(tables []table, gids []mad.GID, l load, rounds int, slice time.Duration) (bad int) {
	costs := make([][]float64, len(tables))
	ops := make([]int, len(tables))
	for i, t := range tables { // how many operations fill a slice; warms up as well
		const probe = 20_000
		ns, b := measure(t, gids, l, probe)
		bad += b
		ops[i] = max(1000, int(float64(slice)/ns))
	}
	for range rounds {
		for i, t := range tables {
			ns, b := measure(t, gids, l, ops[i])
			bad += b
			costs[i] = append(costs[i], ns)
		}
	}
	mode := "overlapping"
	if l.chained {
		mode = "chained"
	}
	fmt.Printf("%8d entries  %d goroutines  %d%% writes  %-11s", len(gids), l.workers, l.percent, mode)
	for i, t := range tables {
		slices.Sort(costs[i])
		fmt.Printf("  %s %.1f (%.1f)", t.name(), costs[i][len(costs[i])/2], costs[i][0])
	}
	fmt.Println()
	return bad
}

// measure runs about n operations in each of some goroutines and returns the
// processor time of one.
func measure(t table, gids []mad.GID, l load, n int) (ns float64, bad int) {
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex
		spent time.Duration
		done  int
	)
	for w := range l.workers {
		wg.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			x := uint32(time.Now().UnixNano()) + uint32(w)<<20
			start := threadTime()
			b, ops := 0, 0
			if l.percent == 0 {
				b, ops = t.read(gids, n, x, l.chained), n
			} else {
				// One write after so many reads, at a place of its own.
				for y := x * 747796405; ops < n; ops += 100 / l.percent {
					b += t.read(gids, 100/l.percent-1, x, l.chained)
					x = x*22695477 + 1
					t.put(&gids[pick(&y, len(gids))], uint64(y))
				}
			}
			d := threadTime() - start
			mu.Lock()
			defer mu.Unlock()
			spent, done, bad = spent+d, done+ops, bad+b
		})
	}
	wg.Wait()
	return float64(spent) / float64(done), bad
}
