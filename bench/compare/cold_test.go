// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package main

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"acmd/mad"
)

func TestColdMark(t *testing.T) {
	run := func(rate, cpu, busy float64) []result {
		return []result{{OK: 600, PerSec: rate, CPUPer1M: cpu, OwnCPU: busy * float64(runtime.NumCPU()), Busy: 1, Seconds: 1}}
	}
	for _, tc := range []struct {
		own  []result
		want []bool
	}{
		{run(90, 50, 0), []bool{true, true}},
		{run(89, 50, 1), []bool{true, false}},
		{run(80, 20, .95), []bool{true, true}},
		{run(80, 20, .94), []bool{true, false}},
		{run(80, 20.1, 1), []bool{true, false}},
		{run(60, 20, 1), []bool{false, true}},
	} {
		b := &bench{}
		b.coldMarks("LID", run(100, 0, 0), run(50, 0, 0), tc.own, nil)
		if got := []bool{b.marks[0].ok, b.marks[1].ok}; !slices.Equal(got, tc.want) {
			t.Errorf("%+v: %v, want %v", tc.own[0], got, tc.want)
		}
	}
}

// With the SA apart each side has to be busy, whatever the machine says.
func TestColdMarkApart(t *testing.T) {
	a, err := apartOf(setOf(0, 1, 2))
	if err != nil {
		t.Fatal(err)
	}
	// In a second 100,000 paths: 15 s per 1M are 1.5 s of the 2 that its processors have.
	run := func(rate, cpu, load, opensm, ibsim float64) []result {
		return []result{{OK: 100_000, PerSec: rate, CPUPer1M: cpu, RSSKB: 1, OwnCPU: load, AlsoCPU: []float64{opensm, ibsim}, Busy: 1, Seconds: 1}}
	}
	alone, stock := run(100, 0, 0, 1, 0), run(50, 0, 0, 1, 0)
	for _, tc := range []struct {
		own  []result
		want bool
	}{
		{run(90, 50, 0, 0, 0), true},
		{run(80, 15, .4, .6, .35), true},
		{run(80, 15, .4, .6, .34), false},
		{run(80, 15, .39, .6, .4), false},
		{run(80, 20.1, .4, .6, .4), false},
	} {
		b := &bench{}
		b.coldMarks("GID", alone, stock, tc.own, a)
		if !b.marks[0].ok || b.marks[1].ok != tc.want {
			t.Errorf("%+v: %+v, want %v", tc.own[0], b.marks, tc.want)
		}
	}
	if got := a.restBusy(&run(0, 15, .4, 0, 0)[0]); got != .95 {
		t.Errorf("daemon's side busy: %v", got)
	}
	// Asked directly, OpenSM has no daemon before it: its asker counts once.
	direct := result{OK: 100_000, CPUPer1M: 5, OwnCPU: .5, AlsoCPU: []float64{.25, .25}, Seconds: 1}
	if daemonCPU(&direct) != 0 || a.restBusy(&direct) != .25 || a.saBusy(&direct) != .5 {
		t.Errorf("asked directly: daemon %v, busy %v, %v", daemonCPU(&direct), a.restBusy(&direct), a.saBusy(&direct))
	}
	if got, want := busyThese(&direct), 1/float64(runtime.NumCPU()); got != want {
		t.Errorf("asked directly: %v busy, want %v", got, want)
	}
}

func TestReadingNote(t *testing.T) {
	runs := []result{{CPURead: .0005, Seconds: .02}, {CPURead: .0004, Seconds: .01}, {CPURead: .0006, Seconds: .02}}
	if got, want := readingNote(runs), "takes 0.50 ms just before and after a pass of acmd, 3.0 % of it"; !strings.Contains(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// Both spellings name the same adapters in the same order: no switch, and not the
// one that asks.
func TestColdDests(t *testing.T) {
	lids := map[mad.GUID]mad.LID{0x100003: 2, 0x100001: 7, 0x100005: 3, 0x200000: 9}
	byLID, byGID := coldDests(lids, 3)
	if want := []string{"lid:7 fe80::10:1 7\n", "lid:2 fe80::10:3 2\n"}; !slices.Equal(byLID, want) {
		t.Errorf("by LID: %q, want %q", byLID, want)
	}
	if want := []string{"gid:fe80::10:1 fe80::10:1 7\n", "gid:fe80::10:3 fe80::10:3 2\n"}; !slices.Equal(byGID, want) {
		t.Errorf("by GID: %q, want %q", byGID, want)
	}
}

func setOf(processors ...int) (set unix.CPUSet) {
	for _, n := range processors {
		set.Set(n)
	}
	return set
}

func TestApart(t *testing.T) {
	a, err := apartOf(setOf(1, 3, 4))
	if err != nil || a.sa != setOf(1) || a.rest != setOf(3, 4) {
		t.Errorf("%v, %v", a, err)
	}
	if _, err := apartOf(setOf(2)); err == nil || !strings.Contains(err.Error(), "two processors, here is 1") {
		t.Errorf("one processor: %v", err)
	}
}

// Pinned are a process that runs, the threads of this one and what they start; all
// of ours are put back.
func TestPin(t *testing.T) {
	child := func() (pid int) {
		cmd := exec.Command("cat")
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		cmd.Stdout = io.Discard
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			in.Close()
			cmd.Wait()
		})
		return cmd.Process.Pid
	}
	elsewhere := child()
	b := &bench{tb: newTB()}
	all := b.processors()
	one := setOf(firstOf(&all))
	err := b.run(func() {
		b.pinAll(one, elsewhere)
		onlyOn(t, one, elsewhere)
		onlyOn(t, all, os.Getpid())
		b.pinOwn(one)
		onlyOn(t, one, os.Getpid())
		onlyOn(t, one, child())
	})
	if err != nil || len(b.wrong) > 0 {
		t.Fatal(err, b.wrong)
	}
	onlyOn(t, all, os.Getpid())
	onlyOn(t, all, child())
	if err := b.run(func() { b.pinAll(unix.CPUSet{}, elsewhere) }); err == nil {
		t.Error("no error for no processor")
	}
}

// onlyOn looks at every thread of a process.
func onlyOn(t *testing.T, want unix.CPUSet, pid int) {
	t.Helper()
	tasks, _ := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/task/*")
	looked := 0
	for _, task := range tasks {
		tid, err := strconv.Atoi(filepath.Base(task))
		if err != nil {
			t.Fatal(err)
		}
		var got unix.CPUSet
		if err := unix.SchedGetaffinity(tid, &got); err != nil {
			continue // it has ended
		}
		looked++
		if got != want {
			t.Errorf("thread %d of process %d is on %v, want %v", tid, pid, got, want)
		}
	}
	if looked == 0 {
		t.Errorf("no threads of process %d", pid)
	}
}
