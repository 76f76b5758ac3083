// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// apart gives the SA (OpenSM and the simulator, with all their threads) one
// processor, and everybody else the others. Left to the scheduler the programs of
// a pass of 25 ms often lie on one processor while another is idle.
type apart struct{ sa, rest unix.CPUSet }

// apartOf takes the first processor of a set for the SA.
func apartOf(all unix.CPUSet) (*apart, error) {
	if n := all.Count(); n < 2 {
		return nil, fmt.Errorf("the SA apart from the daemon needs two processors, here is %d", n)
	}
	a := &apart{rest: all}
	first := firstOf(&all)
	a.sa.Set(first)
	a.rest.Clear(first)
	return a, nil
}

// firstOf is the least processor of a set that is not empty.
func firstOf(set *unix.CPUSet) (n int) {
	for !set.IsSet(n) {
		n++
	}
	return n
}

func (a *apart) String() string {
	return fmt.Sprintf("OpenSM and ibsim have processor %d for themselves; daemon and load generator run on the rest (%d).", firstOf(&a.sa), a.rest.Count())
}

// saBusy is the share of its processor's time that the SA used, restBusy that of
// the other processors' which daemon and load generator did. Both are of the
// scheduler's clock, where /proc/stat counts ticks, and exact but for what
// [readingNote] says.
func (a *apart) saBusy(r *result) float64 { return (openSMCPU(r) + ibsimCPU(r)) / r.Seconds }

func (a *apart) restBusy(r *result) float64 {
	return (daemonCPU(r) + loadCPU(r)) / r.Seconds / float64(a.rest.Count())
}

// processors are those that this process may use.
func (b *bench) processors() unix.CPUSet {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		b.Fatalf("processors: %w", err)
	}
	return set
}

// pinOwn has this process, and with it what it starts, run on the processors of a
// set, until it is put back at the end.
func (b *bench) pinOwn(set unix.CPUSet) {
	before := b.processors()
	b.Cleanup(func() {
		if err := pin(os.Getpid(), before); err != nil {
			b.warn("processors are not put back: %v", err)
		}
	})
	b.pinAll(set, os.Getpid())
}

func (b *bench) pinAll(set unix.CPUSet, pids ...int) {
	for _, pid := range pids {
		if err := pin(pid, set); err != nil {
			b.Fatal(err)
		}
	}
}

// pinLimit bounds how often pin looks for threads that were started meanwhile.
const pinLimit = 100

// pin has all threads of a process run on the processors of a set. A thread starts
// on those of the one that started it: when all are found pinned, later ones are.
func pin(pid int, set unix.CPUSet) error {
	for range pinLimit {
		tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
		if err != nil {
			return fmt.Errorf("pin: %w", err)
		}
		changed := false
		for _, t := range tasks {
			tid, err := strconv.Atoi(t.Name())
			if err != nil {
				return fmt.Errorf("pin: %w", err)
			}
			var now unix.CPUSet
			if err := unix.SchedGetaffinity(tid, &now); err == nil && now == set {
				continue
			}
			// One that has ended is not in the next listing.
			if err := unix.SchedSetaffinity(tid, &set); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("pin thread %d of process %d: %w", tid, pid, err)
			}
			changed = true
		}
		if !changed {
			return nil
		}
	}
	return fmt.Errorf("pin: not all threads of process %d are on the processors that were asked for", pid)
}
