// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acmsock

import (
	"errors"
	"os"
	"strconv"
	"testing"
	"time"
)

func TestHit(t *testing.T) {
	for _, mode := range []Mode{ModeUnix, ModeLoop} {
		for _, threads := range []int{1, 3} {
			t.Run(mode.String()+strconv.Itoa(threads), func(t *testing.T) {
				f := newFake()
				s := serve(t, f, func(c *Config) { c.Mode, c.Threads = mode, threads })
				for i := range 7 {
					c := dialServer(t, s)
					mustWrite(t, c, ask(uint64(i), 0, 100+i))
					wantAnswer(t, readReply(t, c), uint64(i), 100+i)
				}
				if n := f.resolves.Load(); n != 0 {
					t.Errorf("%d questions to the engine", n)
				}
				eventually(t, "seven requests counted", func() bool { st := s.Stats(); return st.Requests == 7 && st.BytesIn == 7*160 })
			})
		}
	}
}

// field case 11 (a), (d): pieces of any size make one request, and each reply
// to a lone request comes in one recv.
func TestSplit(t *testing.T) {
	s := serve(t, newFake(), nil)
	c := dialServer(t, s)
	req := ask(5, 0, 77)
	var buf [MaxRequest]byte
	for _, step := range []int{1, 7, 8, 15, 16, 17, 72, 88, 159} {
		for p := req; len(p) > 0; {
			n := min(step, len(p))
			mustWrite(t, c, p[:n])
			p = p[n:]
		}
		n, err := c.Read(buf[:])
		if err != nil {
			t.Fatal(err)
		}
		wantAnswer(t, buf[:n], 5, 77)
	}
}

// field case 11 (b): requests glued together are answered in order, in one
// write, also with a piece of the next behind them.
func TestPipelined(t *testing.T) {
	s := serve(t, newFake(), nil)
	c := dialServer(t, s)
	for _, n := range []int{2, 51, 64, 65, 200, 1000} {
		var b []byte
		for i := range n {
			b = append(b, ask(uint64(i), 0, i)...)
		}
		b = append(b, ask(uint64(n), 0, n)[:33]...)
		go c.Write(b) // more than the socket takes while nobody reads
		for i := range n {
			wantAnswer(t, readReply(t, c), uint64(i), i)
		}
		mustWrite(t, c, ask(uint64(n), 0, n)[33:])
		wantAnswer(t, readReply(t, c), uint64(n), n)
	}
	// tid 0 does not supersede what was answered already.
	mustWrite(t, c, append(ask(0, 0, 1), ask(0, 0, 2)...))
	var two [176]byte
	n, err := c.Read(two[:])
	if err != nil || n != len(two) {
		t.Fatalf("%d bytes in one read, %v; want both replies", n, err)
	}
	wantAnswer(t, two[:88], 0, 1)
	wantAnswer(t, two[88:], 0, 2)
}

// field case 11: hits and queries behind one miss are held in a ring that does
// not grow without end; the rest is left in the socket until the miss is over.
func TestHitsBehindMissAreBounded(t *testing.T) {
	f := newFake()
	s := serve(t, f, nil)
	c := dialServer(t, s)
	const n = 2000
	b := ask(1, 1, 1)
	for i := 2; i <= n; i++ {
		if i%2 == 0 {
			b = append(b, ask(uint64(i), 0, i)...)
		} else {
			b = AppendPerf(b, uint64(i), 0, nil)
		}
	}
	go c.Write(b) // more than the server takes
	eventually(t, "ring is full", func() bool { return s.Stats().Requests >= ringMax })
	time.Sleep(20 * time.Millisecond)
	if got := s.Stats().Requests; got != ringMax {
		t.Errorf("%d requests taken behind a miss, want %d with it", got, ringMax)
	}
	f.releaseAll()
	for i := 1; i <= n; i++ {
		if got := TID(readReply(t, c)); got != uint64(i) {
			t.Fatalf("reply to %d, want %d", got, i)
		}
	}
}

// Replies keep the order of the requests, whatever order the engine answers in.
func TestOrderBehindMisses(t *testing.T) {
	f := goldenEndpoints()
	s := serve(t, f, nil)
	c := dialServer(t, s)
	var b []byte
	b = append(b, ask(1, 0, 1)...) // leaves at once
	b = append(b, ask(2, 1, 2)...) // miss
	b = append(b, ask(3, 0, 3)...) // hit behind it
	b = append(b, ask(4, 1, 4)...) // miss
	b = AppendPerf(b, 5, 0, nil)
	b = AppendEndpoint(b, 6, 1, 0)
	b = append(b, AppendResolve(nil, 7)...)                                                  // body error
	b = append(b, AppendResolve(nil, 8, PathQuery(examplePath(), FlagQuerySA), Record{})...) // long error
	b = append(b, AppendResolve(nil, 9, PathQuery(examplePath(), FlagQuerySA))...)           // SA, from a goroutine
	b = append(b, ask(10, 3, 10)...)
	b = append(b, ask(11, 2, 11)...) // answered inside Resolve
	mustWrite(t, c, b)
	wantAnswer(t, readReply(t, c), 1, 1)
	eventually(t, "two held", func() bool { return f.waiting() == 2 })
	f.release(1)
	if err := c.SetReadDeadline(time.Now().Add(30 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	var one [1]byte
	if n, err := c.Read(one[:]); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("a reply overtook: %d, %v", n, err)
	}
	c.SetReadDeadline(time.Now().Add(patience))
	f.release(0)
	wantAnswer(t, readReply(t, c), 2, 2)
	wantAnswer(t, readReply(t, c), 3, 3)
	wantAnswer(t, readReply(t, c), 4, 4)
	if _, err := DecodePerf(readReply(t, c)); err != nil {
		t.Error(err)
	}
	if e, err := DecodeEndpoint(readReply(t, c)); err != nil || e.Provider != "ibacmp" {
		t.Error(e, err)
	}
	if r := readReply(t, c); r[offStatus] != 10 || TID(r) != 7 || len(r) != 16 {
		t.Errorf("% x", r)
	}
	if r := readReply(t, c); r[offStatus] != 2 || TID(r) != 8 || len(r) != 160 {
		t.Errorf("% x", r)
	}
	if p, err := DecodeSA(readReply(t, c)); err != nil || p.SLID() != 0x77 {
		t.Error(p, err)
	}
	wantAnswer(t, readReply(t, c), 10, 10)
	wantAnswer(t, readReply(t, c), 11, 11)
	if st := s.Stats(); st.Pending != 0 || st.BodyErrors != 2 {
		t.Errorf("%+v", st)
	}
}

// With 64 replies owed the server stops reading; it goes on where it stopped.
func TestBackPressure(t *testing.T) {
	f := newFake()
	s := serve(t, f, nil)
	c := dialServer(t, s)
	const n = 1000
	go func() {
		var b []byte
		for i := range n {
			b = append(b, ask(uint64(i+1), byte(i&1), i)...)
		}
		c.Write(b)
	}()
	eventually(t, "ring is full", func() bool { return f.waiting() >= ringMax/2-1 })
	time.Sleep(20 * time.Millisecond)
	if w := f.waiting(); w > ringMax {
		t.Fatalf("%d questions of one client in the engine", w)
	}
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
				if w := f.releaseAll(); w > ringMax {
					t.Errorf("%d questions of one client in the engine", w)
				}
				time.Sleep(100 * time.Microsecond)
			}
		}
	}()
	for i := range n {
		wantAnswer(t, readReply(t, c), uint64(i+1), i)
	}
	close(stop)
	<-done
}

// A request with tid 0 overtakes the one that is owed: exactly one reply.
func TestSupersede(t *testing.T) {
	f := newFake()
	s := serve(t, f, nil)
	c := dialServer(t, s)
	held := func(n int) { t.Helper(); eventually(t, "held", func() bool { return f.waiting() == n }) }

	mustWrite(t, c, ask(0, 1, 1))
	held(1)
	mustWrite(t, c, ask(0, 0, 2)) // hit
	wantAnswer(t, readReply(t, c), 0, 2)
	mustWrite(t, c, ask(0, 1, 3))
	held(2)
	f.release(0) // late answer to the first: nobody may see it
	mustWrite(t, c, ask(9, 0, 4))
	f.release(0)
	wantAnswer(t, readReply(t, c), 0, 3)
	wantAnswer(t, readReply(t, c), 9, 4)

	// Behind a miss of another tid, both a pending and a ready reply give way.
	mustWrite(t, c, ask(7, 1, 5))
	held(1)
	mustWrite(t, c, ask(0, 1, 6))
	held(2)
	mustWrite(t, c, ask(0, 0, 7))
	mustWrite(t, c, AppendPerf(nil, 0, 0, nil))
	mustWrite(t, c, ask(0, 0, 8))
	mustWrite(t, c, ask(8, 0, 9))
	eventually(t, "superseded", func() bool { return s.Stats().Superseded == 4 })
	f.releaseAll()
	wantAnswer(t, readReply(t, c), 7, 5)
	wantAnswer(t, readReply(t, c), 0, 8)
	wantAnswer(t, readReply(t, c), 8, 9)
	eventually(t, "nothing pending", func() bool { return s.Stats().Pending == 0 })
}

// A client that keeps overtaking itself cannot fill the engine.
func TestSupersedeIsBounded(t *testing.T) {
	f := newFake()
	s := serve(t, f, nil)
	c := dialServer(t, s)
	const n = 500
	go func() {
		for i := range n {
			c.Write(ask(0, 1, i))
		}
	}()
	eventually(t, "engine has as many as it may", func() bool { return f.waiting() == ringMax })
	time.Sleep(20 * time.Millisecond)
	if w := f.waiting(); w != ringMax {
		t.Fatalf("%d questions in the engine", w)
	}
	last := -1
	for last != n-1 {
		f.releaseAll()
		c.SetReadDeadline(time.Now().Add(5 * time.Millisecond))
		var b [ringMax * 88]byte
		if m, err := c.Read(b[:]); err == nil {
			for p := b[:m]; len(p) > 0; p = p[88:] {
				r, err := DecodeResolve(p[:88])
				if err != nil {
					t.Fatal(err)
				}
				got := int(r.Paths[0].Record.DLID())
				if got <= last {
					t.Fatalf("answer to %d after %d", got, last)
				}
				last = got
			}
		}
	}
	eventually(t, "nothing pending", func() bool { return s.Stats().Pending == 0 })
}

// After a shutdown of its sending side a client still gets what it asked for.
func TestHalfClose(t *testing.T) {
	for _, mode := range []Mode{ModeUnix, ModeLoop} {
		f := newFake()
		s := serve(t, f, func(c *Config) { c.Mode = mode })
		c := dialServer(t, s)
		mustWrite(t, c, append(append(ask(1, 1, 1), ask(2, 0, 2)...), 1, 1))
		if err := c.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "held", func() bool { return f.waiting() == 1 })
		time.Sleep(5 * time.Millisecond)
		f.releaseAll()
		wantAnswer(t, readReply(t, c), 1, 1)
		wantAnswer(t, readReply(t, c), 2, 2)
		wantEOF(t, c)
	}
}

// What a client sent before it left or shut down is answered, and its end seen,
// however much of it one read takes: epoll tells the loop of neither a second time.
func TestEndBehindData(t *testing.T) {
	// One read takes 92 resolves and 6 counter queries exactly.
	for _, mode := range []Mode{ModeUnix, ModeLoop} {
		for _, n := range []struct{ resolves, queries int }{{0, 0}, {1, 0}, {92, 5}, {92, 6}, {92, 7}, {93, 0}, {94, 0}, {184, 12}, {500, 0}} {
			for _, leave := range []bool{false, true} {
				f := newFake()
				s := serve(t, f, func(c *Config) { c.Mode = mode })
				other, c := dialServer(t, s), dialServer(t, s)
				mustWrite(t, c, ask(1, 0, 1))
				wantAnswer(t, readReply(t, c), 1, 1)
				f.mu.Lock() // the loop waits for it
				mustWrite(t, other, ask(1, 1, 1))
				eventually(t, "the loop is busy", func() bool { return f.resolves.Load() == 1 })
				var b []byte
				for i := range n.resolves {
					b = append(b, ask(uint64(i+2), 0, i+2)...)
				}
				for i := range n.queries {
					b = AppendPerf(b, uint64(n.resolves+i+2), 0, nil)
				}
				mustWrite(t, c, b)
				if leave {
					c.Close()
				} else if err := c.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
					t.Fatal(err)
				}
				f.mu.Unlock()
				if !leave {
					for i := range n.resolves + n.queries {
						if got := TID(readReply(t, c)); got != uint64(i+2) {
							t.Fatalf("%v %+v: reply to %d, want %d", mode, n, got, i+2)
						}
					}
					wantEOF(t, c)
				}
				eventually(t, "one connection is left", func() bool { return s.Stats().Open == 1 })
				f.releaseAll()
			}
		}
	}
}
