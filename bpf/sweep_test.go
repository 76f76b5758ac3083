// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package bpf

import (
	"log/slog"
	"os"
	"testing"

	"acmd/bpf/bpftest"

	"golang.org/x/sys/unix"
)

// A daemon that starts is not kept from its pins by another one that sweeps just then:
// the lock of a directory that is not to go is never taken.
func TestSweepTakesNoLock(t *testing.T) {
	root, run := bpftest.Mount(t), t.TempDir()
	dir, log := PinDir(root, run), slog.New(slog.DiscardHandler)
	m, err := Open(Options{Dir: dir, RunDir: run, Log: log})
	if err != nil || m.Place() != Pinned {
		t.Fatal(err, m.Reason())
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	lock, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	swept := make(chan struct{})
	go func() {
		defer close(swept)
		for range 2000 {
			sweep(root, log)
		}
	}()
	defer func() { <-swept }()
	for {
		if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			t.Errorf("the daemon's own lock: %v", err)
			return
		}
		if err := unix.Flock(int(lock.Fd()), unix.LOCK_UN); err != nil {
			t.Fatal(err)
		}
		select {
		case <-swept:
			return
		default:
		}
	}
}
