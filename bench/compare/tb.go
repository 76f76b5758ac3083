// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"sync"
	"testing"
)

// tb is a testing.TB outside a test: package peer, which starts the programs on
// the other side, is made for tests. A fatal error ends run; clean-ups run in
// reverse order whatever happens.
type tb struct {
	testing.TB // never called: it has what peer does not use

	mu       sync.Mutex
	cleanups []func()
	failed   bool
}

type fatal struct{ error }

func newTB() *tb { return &tb{} }

// run calls fn, cleans up, and returns what fn died of.
func (t *tb) run(fn func()) (err error) {
	defer t.clean()
	defer func() {
		switch r := recover().(type) {
		case nil:
		case fatal:
			t.mu.Lock()
			t.failed = true
			t.mu.Unlock()
			err = r.error
		default:
			panic(r)
		}
	}()
	fn()
	return nil
}

// abort cleans up while run is still at work. It is the end of the process.
func (t *tb) abort() { t.clean() }

func (t *tb) clean() { t.cleanTo(0) }

// cleanTo runs the clean-ups that were added after the first few, last first.
func (t *tb) cleanTo(few int) {
	for {
		t.mu.Lock()
		n := len(t.cleanups)
		if n <= few {
			t.mu.Unlock()
			return
		}
		fn := t.cleanups[n-1]
		t.cleanups = slices.Delete(t.cleanups, n-1, n)
		t.mu.Unlock()
		fn()
	}
}

// scope runs fn and the clean-ups that it adds: what it starts ends with it.
func (t *tb) scope(fn func()) {
	t.mu.Lock()
	outer := len(t.cleanups)
	t.mu.Unlock()
	defer t.cleanTo(outer)
	fn()
}

func (t *tb) Helper()      {}
func (t *tb) Name() string { return "compare" }

func (t *tb) Cleanup(fn func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.cleanups = append(t.cleanups, fn)
}

func (t *tb) Failed() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.failed
}

func (t *tb) Log(args ...any)                 { fmt.Fprintln(os.Stderr, args...) }
func (t *tb) Logf(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }
func (t *tb) Fatal(args ...any)               { panic(fatal{errors.New(fmt.Sprint(args...))}) }
func (t *tb) Fatalf(f string, args ...any)    { panic(fatal{fmt.Errorf(f, args...)}) }

// Skipf is fatal: a comparison without its peer is none.
func (t *tb) Skipf(f string, args ...any) { t.Fatalf(f, args...) }

func (t *tb) TempDir() string {
	// The name is short: unix sockets live there.
	dir, err := os.MkdirTemp("", "acmd")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// command runs a program to its end and returns its standard output.
func (t *tb) command(dir, name string, args ...string) string {
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Stderr = dir, os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %v: %w", name, args, err)
	}
	return string(out)
}
