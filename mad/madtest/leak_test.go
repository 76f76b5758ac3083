// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package madtest

import (
	"os"
	"strings"
	"testing"
	"time"
)

// recorder is a test that keeps what is reported to it.
type recorder struct {
	testing.TB
	errors   []string
	cleanups []func()
}

func (r *recorder) Helper()          {}
func (r *recorder) Failed() bool     { return len(r.errors) > 0 }
func (r *recorder) Cleanup(f func()) { r.cleanups = append(r.cleanups, f) }
func (r *recorder) Errorf(format string, args ...any) {
	r.errors = append(r.errors, format)
}

func (r *recorder) end() {
	for _, f := range r.cleanups {
		f()
	}
}

// TestCheckLeaks: the helper sees what is left, and nothing where nothing is.
func TestCheckLeaks(t *testing.T) {
	defer func(d time.Duration) { leakGrace = d }(leakGrace)
	leakGrace = time.Second
	r := &recorder{TB: t}
	CheckLeaks(r)
	f, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	r.end()
	if len(r.errors) != 0 {
		t.Errorf("nothing was left, but %q", r.errors)
	}

	r = &recorder{TB: t}
	CheckLeaks(r)
	f, err = os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r.end()
	if len(r.errors) != 1 || !strings.Contains(r.errors[0], "descriptors") {
		t.Errorf("a descriptor was left: %q", r.errors)
	}

	r = &recorder{TB: t}
	CheckLeaks(r)
	stop, done := make(chan struct{}), make(chan struct{})
	go func() { defer close(done); <-stop }()
	r.end()
	close(stop)
	<-done
	if len(r.errors) != 1 || !strings.Contains(r.errors[0], "goroutines") {
		t.Errorf("a goroutine was left: %q", r.errors)
	}
}
