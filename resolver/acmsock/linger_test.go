// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acmsock

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// ahead is later than any clock of a test: what came then is fresh however slow the
// machine.
const ahead = int64(24 * time.Hour)

// lingering is a loop in the middle of a burst of misses, which nobody runs, and a
// descriptor that it watches.
func lingering(t *testing.T) (*loop, int) {
	t.Helper()
	s, err := New(Config{RunDir: shortDir(t)}, newFake(), quiet())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.release)
	fd, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	l := s.loops[0]
	ev := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd), Pad: markPort}
	if err := unix.EpollCtl(l.ep, unix.EPOLL_CTL_ADD, fd, &ev); err != nil {
		t.Fatal(err)
	}
	l.driving = 1
	s.pending.Store(lingerFrom)
	l.lingerer.answered = ahead
	return l, fd
}

// yields counts, and runs do.
func (l *loop) yields(do func()) *int {
	n := new(int)
	l.lingerer.yield = func() { *n++; do() }
	return n
}

func TestLingerFindsWhatComes(t *testing.T) {
	l, fd := lingering(t)
	yields := l.yields(func() {
		if _, err := unix.Write(fd, []byte{7: 1}); err != nil {
			t.Error(err)
		}
	})
	// A machine that stands still for a moment looks like a job that computes.
	eventually(t, "an event found", func() bool {
		l.lingerer.until = 0
		return l.linger() == 1
	})
	if *yields == 0 || l.events[0].Fd != int32(fd) || l.events[0].Pad != markPort {
		t.Fatalf("after %d yields: %+v", *yields, l.events[0])
	}
}

func TestLingerEnds(t *testing.T) {
	l, _ := lingering(t)
	yields := l.yields(func() {})
	if n := l.linger(); n != 0 || *yields == 0 {
		t.Fatalf("%d events after %d yields", n, *yields)
	}
}

// A loop that has little to wait for, or waits for those that do not answer, sleeps.
func TestLingerOnlyInBursts(t *testing.T) {
	l, _ := lingering(t)
	yields := l.yields(func() {})
	for name, set := range map[string]func(){
		"few questions":     func() { l.srv.pending.Store(lingerFrom - 1) },
		"no port":           func() { l.driving = 0 },
		"nothing answered":  func() { l.lingerer.answered = l.clock() - lingerSince - 1 },
		"rests":             func() { l.lingerer.until = l.clock() + int64(time.Hour) },
		"something brought": func() { l.box.full.Store(true) },
		"poked":             func() { l.box.poked.Store(true) },
	} {
		set()
		if n := l.linger(); n != 0 || *yields != 0 {
			t.Errorf("%s: %d events, %d yields", name, n, *yields)
		}
		l.driving, l.lingerer.until, l.lingerer.answered = 1, 0, ahead
		l.srv.pending.Store(lingerFrom)
		l.box.full.Store(false)
		l.box.poked.Store(false)
	}
}

// Whoever keeps the processor for long is left alone, each time for longer.
func TestLingerRests(t *testing.T) {
	l, _ := lingering(t)
	yields := l.yields(func() { time.Sleep(2 * time.Duration(lingerLost)) })
	for i, rest := range []int64{minRest, 2 * minRest, 4 * minRest, 8 * minRest, maxRest, maxRest} {
		l.lingerer.until = 0
		if n := l.linger(); n != 0 || *yields != i+1 || l.lingerer.rest != rest {
			t.Fatalf("turn %d: %d events, %d yields, rests %v", i, n, *yields, time.Duration(l.lingerer.rest))
		}
		if left := l.lingerer.until - l.clock(); left > rest || left < rest-int64(patience) {
			t.Fatalf("turn %d: rests %v more", i, time.Duration(left))
		}
	}
}
