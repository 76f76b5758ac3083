// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package madtest

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// leakGrace is how long something that was closed may take to go away on a busy
// machine. Only a leak costs it.
var leakGrace = 10 * time.Second

// CheckLeaks notes the goroutines and the descriptors (/proc/self/fd) that exist
// now, and fails the test when others exist after all clean-ups that t registers
// later. Tests that use it must not run in parallel with others.
func CheckLeaks(t testing.TB) {
	t.Helper()
	primePoller(t)
	before, err := descriptors()
	if err != nil {
		t.Fatalf("list descriptors: %v", err)
	}
	current := goleak.IgnoreCurrent()
	t.Cleanup(func() {
		if t.Failed() {
			return // an abandoned test leaves things behind; its failure is the news
		}
		if err := newGoroutines(current); err != nil {
			t.Errorf("goroutines left: %v", err)
		}
		if left := newDescriptors(before); len(left) > 0 {
			t.Errorf("descriptors left:\n%s", strings.Join(left, "\n"))
		}
	})
}

// newGoroutines is an error while there are any that were not there before, once the
// grace is over.
func newGoroutines(before goleak.Option) (err error) {
	for end := time.Now().Add(leakGrace); ; { // goleak gives up after half a second
		if err = goleak.Find(before); err == nil || time.Now().After(end) {
			return err
		}
	}
}

// primePoller makes the Go runtime open its own epoll and event descriptors,
// which it keeps for ever and which are nobody's leak.
func primePoller(t testing.TB) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatalf("pipe: %v", err)
	}
	r.Close()
	w.Close()
}

// descriptors maps each open descriptor to what it is. The one that lists the
// directory is gone when it is read back, and so is not in the result.
func descriptors() (map[string]string, error) {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return nil, err
	}
	m := make(map[string]string, len(entries))
	for _, e := range entries {
		if to, err := os.Readlink(filepath.Join("/proc/self/fd", e.Name())); err == nil {
			m[e.Name()] = to
		}
	}
	return m, nil
}

// newDescriptors lists what is open now and was not before, sorted, once it has
// stopped shrinking to nothing or the grace is over.
func newDescriptors(before map[string]string) []string {
	for end := time.Now().Add(leakGrace); ; {
		now, err := descriptors()
		if err != nil {
			return []string{err.Error()}
		}
		var left []string
		for fd, to := range now {
			if before[fd] != to {
				left = append(left, fmt.Sprintf("%s -> %s", fd, to))
			}
		}
		if len(left) == 0 || time.Now().After(end) {
			slices.Sort(left)
			return left
		}
		time.Sleep(10 * time.Millisecond)
	}
}
