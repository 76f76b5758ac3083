// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package main

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"time"

	"golang.org/x/sys/unix"

	"acmd/cache"
)

// threadTime is the calling thread's processor time.
func threadTime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
		panic(err) // the clock exists on every Linux
	}
	return time.Duration(ts.Nano())
}

func resident() (int, error) {
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0, err
	}
	var size, pages int
	if _, err := fmt.Sscan(string(b), &size, &pages); err != nil {
		return 0, fmt.Errorf("/proc/self/statm: %w", err)
	}
	return pages * os.Getpagesize(), nil
}

// memory prints what n entries take in a cache of default capacity and in one
// just large enough.
func memory(n int) error {
	gids := makeGIDs(n)
	for _, capacity := range []int{1 << 16, n + n/16} {
		debug.FreeOSMemory()
		before, err := resident()
		if err != nil {
			return err
		}
		t := &acmdTable{cache.New(cache.Config{Capacity: capacity})}
		for i := range gids {
			t.put(&gids[i], 1)
		}
		after, err := resident()
		if err != nil {
			return err
		}
		fmt.Printf("capacity %d, %d entries: %d bytes resident per entry\n", capacity, t.c.Len(), (after-before)/t.c.Len())
		runtime.KeepAlive(t)
	}
	return nil
}
