// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acmsock

import (
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// fakePort answers what the fake resolver holds, in the loop's turns only: its
// owner never does anything.
type fakePort struct {
	f  *fakeResolver
	fd int // eventfd

	mu     sync.Mutex
	wanted bool
	lent   bool
	wake   func()
	turns  int
	taken  int
	given  int
	refuse bool // Turn asks to be given back
}

func newFakePort(t *testing.T, f *fakeResolver) *fakePort {
	fd, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return &fakePort{f: f, fd: fd}
}

func (p *fakePort) PollFDs() []int { return []int{p.fd} }
func (p *fakePort) Busy() bool     { return p.f.waiting() > 0 }

func (p *fakePort) Want(wake func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.wanted || p.lent {
		return
	}
	p.wanted, p.wake = true, wake
	go wake()
}

func (p *fakePort) Take() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.wanted {
		return false
	}
	p.wanted, p.lent = false, true
	p.taken++
	return true
}

func (p *fakePort) Turn(readable bool) (time.Time, bool) {
	p.mu.Lock()
	p.turns++
	refuse := p.refuse
	p.mu.Unlock()
	if readable && !refuse {
		var b [8]byte
		unix.Read(p.fd, b[:])
		p.f.releaseAll()
	}
	return time.Time{}, !refuse
}

func (p *fakePort) GiveBack() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lent {
		p.given++
	}
	p.wanted, p.lent = false, false
}

// arrive makes the port readable.
func (p *fakePort) arrive() { unix.Write(p.fd, []byte{1, 0, 0, 0, 0, 0, 0, 0}) }

func (p *fakePort) state() (turns, taken, given int, lent bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.turns, p.taken, p.given, p.lent
}

// miss sends requests that miss, close together whatever the machine does.
func miss(t *testing.T, s *Server, f *fakeResolver) (got func()) {
	t.Helper()
	const count = 16 // however the loop is interrupted, some are close together
	c := dialServer(t, s)
	before := f.resolves.Load()
	var b []byte
	for i := range count {
		b = append(b, ask(uint64(1+i), 1, 100+i)...)
	}
	mustWrite(t, c, b)
	eventually(t, "all wait", func() bool { return f.resolves.Load() >= before+count })
	return func() {
		for i := range count {
			wantAnswer(t, readReply(t, c), uint64(1+i), 100+i)
		}
	}
}

// The loop takes a port whose answers it waits for, receives them itself, and
// gives it back when it has nothing in hand any more.
func TestDrive(t *testing.T) {
	f := newFake()
	p := newFakePort(t, f)
	s := serve(t, f, nil)
	s.Drive(p)
	for i := range 3 {
		got := miss(t, s, f)
		eventually(t, "the port is taken", func() bool { _, taken, _, _ := p.state(); return taken == i+1 })
		p.arrive()
		got()
		eventually(t, "the port is given back", func() bool { _, _, given, _ := p.state(); return given == i+1 })
	}
	turns, _, _, _ := p.state()
	time.Sleep(20 * time.Millisecond)
	if n, _, _, _ := p.state(); n != turns {
		t.Error("the loop goes on with a port that it gave back")
	}
}

// A loop with a port in hand sleeps while nothing comes.
func TestDriveSleeps(t *testing.T) {
	f := newFake()
	p := newFakePort(t, f)
	s := serve(t, f, nil)
	s.Drive(p)
	p.mu.Lock()
	p.wanted = true // so that the loop has it before it is readable
	p.mu.Unlock()
	got := miss(t, s, f)
	eventually(t, "an answer or the port", func() bool { _, taken, _, _ := p.state(); return taken > 0 })
	before, _, _, _ := p.state()
	time.Sleep(300 * time.Millisecond)
	// It looks again whenever it would give an idle port back.
	if n, _, _, _ := p.state(); n-before > 100 {
		t.Errorf("%d turns in 300 ms without work", n-before)
	}
	p.arrive()
	got()
}

// A port that refuses is given back, and goes on by itself.
func TestDriveRefused(t *testing.T) {
	f := newFake()
	p := newFakePort(t, f)
	p.refuse = true
	s := serve(t, f, nil)
	s.Drive(p)
	got := miss(t, s, f)
	eventually(t, "the port is given back", func() bool { _, _, given, lent := p.state(); return given > 0 && !lent })
	f.releaseAll()
	got()
}

// Of several loops only the first wants ports, which one of them can have.
func TestDriveFirstLoop(t *testing.T) {
	f := newFake()
	p := newFakePort(t, f)
	s := serve(t, f, func(c *Config) { c.Threads = 2 })
	s.Drive(p)
	dialServer(t, s) // has the first loop
	got := miss(t, s, f)
	f.releaseAll()
	got() // the loop looks at its ports before it writes replies
	p.mu.Lock()
	wanted := p.wanted || p.taken > 0
	p.mu.Unlock()
	if wanted {
		t.Error("the second loop wants the port")
	}
}

// Neither the server's end nor Undrive keeps a port.
func TestDriveEnds(t *testing.T) {
	for name, end := range map[string]func(*Server, *fakePort){
		"close":   func(s *Server, _ *fakePort) { s.Close() },
		"undrive": func(s *Server, p *fakePort) { s.Undrive(p); p.wake() },
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake()
			p := newFakePort(t, f)
			s := serve(t, f, nil)
			s.Drive(p)
			miss(t, s, f)
			eventually(t, "the port is taken", func() bool { _, _, _, lent := p.state(); return lent })
			end(s, p)
			eventually(t, "the port is given back", func() bool { _, _, given, lent := p.state(); return given == 1 && !lent })
			f.releaseAll()
		})
	}
}

// Ports may come and go while the server waits for the answers that it owes.
func TestDriveDuringDrain(t *testing.T) {
	f := newFake()
	p := newFakePort(t, f)
	s := serve(t, f, nil)
	got := miss(t, s, f)
	drained := make(chan error, 1)
	go func() { drained <- s.Drain(t.Context()) }()
	path := s.Addrs()[0].String()
	eventually(t, "the server drains", func() bool { _, err := os.Lstat(path); return err != nil })
	gone := make(chan struct{})
	go func() { s.Drive(p); s.Undrive(p); close(gone) }()
	select {
	case <-gone:
	case <-time.After(20 * time.Second):
		t.Error("it waits for Drain")
	}
	f.releaseAll()
	got()
	if err := <-drained; err != nil {
		t.Error(err)
	}
	<-gone
}
