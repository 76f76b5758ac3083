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
	l.lingerer.came = ahead
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
		unix.Read(fd, make([]byte, 8)) // what an earlier attempt left
		l.lingerer.came, l.lingerer.until, *yields = ahead, 0, 0
		return l.linger() == 1
	})
	if *yields == 0 || l.events[0].Fd != int32(fd) || l.events[0].Pad != markPort {
		t.Fatalf("after %d yields: %+v", *yields, l.events[0])
	}
}

// Nothing came: the next one is not looked for until a port has brought something.
func TestLingerEnds(t *testing.T) {
	l, _ := lingering(t)
	yields := l.yields(func() {})
	if n := l.linger(); n != 0 || *yields == 0 {
		t.Fatalf("%d events after %d yields", n, *yields)
	}
	*yields, l.lingerer.until = 0, 0
	if n := l.linger(); n != 0 || *yields != 0 {
		t.Fatalf("again: %d events, %d yields", n, *yields)
	}
	p := newFakePort(t, newFake())
	l.ports = []driven{{port: p, mine: true, readable: true, used: ahead}}
	l.turn(&l.ports[0], ahead)
	if l.linger(); *yields == 0 {
		t.Fatal("not looked for after a port brought something")
	}
}

// wait looks before it sleeps: it finds what comes by then without sleeping at all.
func TestWaitLingers(t *testing.T) {
	l, fd := lingering(t)
	l.yields(func() { unix.Write(fd, []byte{7: 1}) })
	l.ports = []driven{{mine: true, next: int64(patience)}} // wakes it should nothing come
	eventually(t, "an event found", func() bool {
		unix.Read(fd, make([]byte, 8))
		l.lingerer.came, l.lingerer.until = ahead, 0
		return l.wait() == 1
	})
}

// A loop that has little to wait for, or waits for those that do not answer, sleeps.
func TestLingerOnlyInBursts(t *testing.T) {
	l, _ := lingering(t)
	yields := l.yields(func() {})
	for name, set := range map[string]func(){
		"few questions":     func() { l.srv.pending.Store(lingerFrom - 1) },
		"no port":           func() { l.driving = 0 },
		"nothing answered":  func() { l.lingerer.came = l.clock() - lingerSince - 1 },
		"rests":             func() { l.lingerer.until = l.clock() + int64(time.Hour) },
		"something brought": func() { l.box.full.Store(true) },
		"poked":             func() { l.box.poked.Store(true) },
	} {
		set()
		if n := l.linger(); n != 0 || *yields != 0 {
			t.Errorf("%s: %d events, %d yields", name, n, *yields)
		}
		l.driving, l.lingerer.until, l.lingerer.came = 1, 0, ahead
		l.srv.pending.Store(lingerFrom)
		l.box.full.Store(false)
		l.box.poked.Store(false)
	}
}

// Whoever keeps the processor for long is left alone, each time for longer.
func TestLingerRests(t *testing.T) {
	l, _ := lingering(t)
	yields := l.yields(func() { time.Sleep(2 * time.Duration(lingerLost)) })
	for i, rest := range []int64{minRest, 2 * minRest, 4 * minRest, maxRest, maxRest} {
		l.lingerer.came, l.lingerer.until = ahead, 0
		before := l.clock()
		if n := l.linger(); n != 0 || *yields != i+1 || l.lingerer.rest != rest {
			t.Fatalf("turn %d: %d events, %d yields, rests %v", i, n, *yields, time.Duration(l.lingerer.rest))
		}
		if until := l.lingerer.until; until < before+rest || until > l.clock()+rest {
			t.Fatalf("turn %d: rests until %v, it was %v", i, until, before)
		}
	}
}
