// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package main

import (
	"os"
	"slices"
	"testing"
	"time"
)

// work spends processor time in this process until it has spent so much more.
func work(d time.Duration) {
	for begin := ownCPU(); ownCPU()-begin < d; {
	}
}

// What a server spends while the others' figures are read is no part of the run.
// Here it is the server itself that reads them.
func TestReadingIsNoPartOfTheRun(t *testing.T) {
	const least = 100 * time.Millisecond
	self := os.Getpid()
	for n := 256; ; n *= 2 {
		before := ownCPU()
		u := startUsage(self, slices.Repeat([]int{self}, n))
		spent := ownCPU() - before
		r := u.stop()
		if spent < least {
			continue
		}
		if limit := spent.Seconds() / 4; r.CPUPer1M > limit || r.OwnCPU > limit {
			t.Errorf("%v were spent before an empty run: the server is charged with %.3f s, the load generator with %.3f s", spent, r.CPUPer1M, r.OwnCPU)
		}
		return
	}
}

// What is spent in the run counts, for the server and for the load generator.
func TestUsage(t *testing.T) {
	const spent = 50 * time.Millisecond
	self := os.Getpid()
	u := startUsage(self, []int{self, self})
	work(spent)
	r := u.stop()
	// schedstat of a thread that runs is as of the last tick, at most 10 ms ago.
	low := (spent - 20*time.Millisecond).Seconds()
	if r.CPUPer1M < low || r.OwnCPU < spent.Seconds() || len(r.AlsoCPU) != 2 || r.AlsoCPU[0] < low || r.AlsoCPU[1] < low {
		t.Errorf("%v of work: %+v", spent, r)
	}
	if r.Seconds <= 0 || r.CPURead <= 0 || r.CPUShare != r.CPUPer1M/r.Seconds || r.RSSKB == 0 || r.PeakKB < r.RSSKB {
		t.Errorf("%+v", r)
	}
	// Without a server nobody is charged but the load generator.
	if r := startUsage(0, nil).stop(); r.CPUPer1M != 0 || r.CPUShare != 0 || r.CPURead != 0 || r.Switches != 0 || r.RSSKB != 0 || r.AlsoCPU != nil {
		t.Errorf("no server: %+v", r)
	}
}

func TestSummarize(t *testing.T) {
	ws := []worker{{ok: 1500, lat: []uint32{3000, 1000}}, {ok: 500, failed: 1, lat: []uint32{2000}}}
	r := result{Seconds: 2, CPUPer1M: .004, Switches: 500}
	r.summarize(&loadConfig{}, ws)
	if r.OK != 2000 || r.Failed != 1 || r.PerSec != 1000 || r.CPUPer1M != 2 || r.Switches != .25 || r.P50us != 2 || r.MaxUs != 3 {
		t.Errorf("%+v", r)
	}
	none := result{Seconds: 2, CPUPer1M: .004, Switches: 500}
	if none.summarize(&loadConfig{}, nil); none.PerSec != 0 || none.CPUPer1M != 0 || none.Switches != 0 {
		t.Errorf("no answer: %+v", none)
	}
}
