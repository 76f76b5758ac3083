// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acmsock

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"acmd/resolver"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if role := os.Getenv(roleEnv); role != "" {
		runRole(role)
		return
	}
	goleak.VerifyTestMain(m)
}

// patience bounds waits that end early when all is well.
const patience = 20 * time.Second

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// shortDir is a run directory whose socket path fits sun_path.
func shortDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "acm")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// serve runs a server on a unix socket of its own.
func serve(t testing.TB, r resolver.Resolver, edit func(*Config)) *Server {
	t.Helper()
	cfg := Config{RunDir: shortDir(t)}
	if edit != nil {
		edit(&cfg)
	}
	s, err := New(cfg, r, quiet())
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if n := s.Stats().Open; n != 0 {
			t.Errorf("%d connections after close", n)
		}
	})
	return s
}

func dialServer(t testing.TB, s *Server) net.Conn {
	t.Helper()
	a := s.Addrs()[0]
	c, err := net.Dial(a.Network(), a.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(patience))
	return c
}

func mustWrite(t testing.TB, c net.Conn, b []byte) {
	t.Helper()
	if _, err := c.Write(b); err != nil {
		t.Fatal(err)
	}
}

// readReply reads one reply by its length.
func readReply(t testing.TB, c net.Conn) []byte {
	t.Helper()
	b := make([]byte, HeaderSize, MaxRequest)
	if _, err := io.ReadFull(c, b); err != nil {
		t.Fatalf("reply: %v", err)
	}
	n := lengthOf(b)
	b = append(b, make([]byte, n-HeaderSize)...)
	if _, err := io.ReadFull(c, b[HeaderSize:]); err != nil {
		t.Fatalf("reply: %v", err)
	}
	return b
}

func wantEOF(t testing.TB, c net.Conn) {
	t.Helper()
	var b [1]byte
	if n, err := c.Read(b[:]); n != 0 || err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("read %d bytes, %v; the connection should be closed", n, err)
	}
}

// eventually polls a condition.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

// ask is a resolve of 10.group.hi.lo from 10.0.0.1.
func ask(tid uint64, group byte, dst int) []byte {
	return AppendResolve(nil, tid, SourceRecord(ip4(10, 0, 0, 1)), DestRecord(ip4(10, group, byte(dst>>8), byte(dst)), false))
}

// wantAnswer checks that b answers ask(tid, ..., dst) with a path.
func wantAnswer(t testing.TB, b []byte, tid uint64, dst int) {
	t.Helper()
	if got := TID(b); got != tid {
		t.Fatalf("reply to %#x, want %#x", got, tid)
	}
	r, err := DecodeResolve(b)
	if err != nil {
		t.Fatalf("tid %#x: %v", tid, err)
	}
	if got := int(r.Paths[0].Record.DLID()); got != dst {
		t.Fatalf("tid %#x: path to %d, want %d", tid, got, dst)
	}
}

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
		var b [MaxRequest]byte
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

// field case 11: a message that is begun must be completed in time; who sends
// nothing is left alone.
func TestPartialDeadline(t *testing.T) {
	s := serve(t, newFake(), func(c *Config) { c.PartialTimeout = 50 * time.Millisecond })
	idle := dialServer(t, s)
	slow := dialServer(t, s)
	drip := dialServer(t, s)
	begin := time.Now()
	mustWrite(t, slow, ask(1, 0, 1)[:20])
	go func() { // one byte at a time does not extend it
		for _, b := range ask(1, 0, 1) {
			drip.Write([]byte{b})
			time.Sleep(2 * time.Millisecond)
		}
	}()
	wantEOF(t, slow)
	if d := time.Since(begin); d < 50*time.Millisecond {
		t.Errorf("closed after %v", d)
	}
	wantEOF(t, drip)
	time.Sleep(60 * time.Millisecond)
	mustWrite(t, idle, ask(2, 0, 2))
	wantAnswer(t, readReply(t, idle), 2, 2)
	if st := s.Stats(); st.Closed[ClosedPartial] != 2 || st.Open != 1 {
		t.Errorf("%+v", st)
	}
}

// field case 11 (c): a client that never reads is served until its socket is
// full, then no longer read, then closed; others do not notice.
func TestNeverReads(t *testing.T) {
	for _, mode := range []Mode{ModeUnix, ModeLoop} {
		s := serve(t, newFake(), func(c *Config) { c.Mode, c.WriteTimeout = mode, 300*time.Millisecond })
		bad := dialServer(t, s)
		stalled := make(chan struct{})
		go func() {
			defer close(stalled)
			var b []byte
			for i := range 50 {
				b = append(b, ask(uint64(i+1), 0, i)...)
			}
			for range 10000 {
				if _, err := bad.Write(b); err != nil {
					return
				}
			}
			t.Error("the server took everything")
		}()
		good := dialServer(t, s)
		var worst time.Duration
		for closed := false; !closed; {
			begin := time.Now()
			mustWrite(t, good, ask(1, 0, 1))
			wantAnswer(t, readReply(t, good), 1, 1)
			worst = max(worst, time.Since(begin))
			closed = s.Stats().Closed[ClosedBlocked] == 1
			time.Sleep(time.Millisecond)
		}
		<-stalled
		if worst > time.Second { // 10 ms on a quiet machine
			t.Errorf("the other client waited %v", worst)
		}
		for _, l := range s.loops {
			if cap(l.in) > readSize {
				t.Errorf("read buffer grew to %d", cap(l.in))
			}
		}
	}
}

// A slow reader that does read is not closed, and gets everything in order.
func TestSlowReader(t *testing.T) {
	f := goldenEndpoints()
	f.eps[0].Addrs = make([]resolver.LocalAddr, 900) // 57 KiB each
	s := serve(t, f, func(c *Config) { c.WriteTimeout = 2 * time.Second })
	c := dialServer(t, s)
	const n = 300
	go func() {
		for i := range n {
			c.Write(AppendEndpoint(nil, uint64(i+1), 1, 0))
			c.Write(ask(uint64(i+1), 0, i))
		}
	}()
	for i := range n {
		b := readReply(t, c)
		if e, err := DecodeEndpoint(b); err != nil || len(e.Addrs) != 900 || TID(b) != uint64(i+1) {
			t.Fatal(err)
		}
		wantAnswer(t, readReply(t, c), uint64(i+1), i)
	}
}

// A framing error behind a pending reply: first that, then the error, then the
// end. What follows the error is not looked at.
func TestFaultBehindMiss(t *testing.T) {
	f := newFake()
	s := serve(t, f, nil)
	c := dialServer(t, s)
	bad := ask(3, 0, 3)
	bad[0] = 2
	mustWrite(t, c, bytes.Join([][]byte{ask(1, 1, 1), ask(2, 0, 2), bad, ask(4, 0, 4)}, nil))
	eventually(t, "held", func() bool { return f.waiting() == 1 && s.Stats().Faults[FaultVersion] == 1 })
	f.releaseAll()
	wantAnswer(t, readReply(t, c), 1, 1)
	wantAnswer(t, readReply(t, c), 2, 2)
	if b := readReply(t, c); len(b) != 16 || b[0] != 1 || b[1] != 0x81 || b[2] != 2 || TID(b) != 3 {
		t.Errorf("% x", b)
	}
	wantEOF(t, c)
	eventually(t, "counted", func() bool { return s.Stats().Closed[ClosedFraming] == 1 })
}

// The bound on questions in the engine holds across clients, and those of
// clients that left count until they are answered.
func TestMaxPending(t *testing.T) {
	f := newFake()
	s := serve(t, f, func(c *Config) { c.MaxPending = 3 })
	gone := dialServer(t, s)
	mustWrite(t, gone, append(ask(1, 1, 1), ask(2, 1, 2)...))
	eventually(t, "held", func() bool { return f.waiting() == 2 })
	gone.Close()
	eventually(t, "gone", func() bool { return s.Stats().Open == 0 })
	c := dialServer(t, s)
	mustWrite(t, c, append(ask(3, 1, 3), ask(4, 1, 4)...))
	eventually(t, "refused", func() bool { return s.Stats().Refused == 1 })
	if w := f.releaseAll(); w != 3 {
		t.Errorf("%d held", w)
	}
	wantAnswer(t, readReply(t, c), 3, 3)
	if b := readReply(t, c); b[1] != 0x81 || b[2] != byte(resolver.StatusNoMemory) {
		t.Errorf("% x", b)
	}
	mustWrite(t, c, ask(5, 0, 5))
	wantAnswer(t, readReply(t, c), 5, 5)
	mustWrite(t, c, AppendPerf(nil, 6, 0, nil))
	p, err := DecodePerf(readReply(t, c))
	if err != nil || p[resolver.CounterError] != 1 || p[resolver.CounterResolve] != 1 {
		t.Errorf("the refused request is not in the totals: %v %v", p, err)
	}
}

func TestMaxClients(t *testing.T) {
	s := serve(t, newFake(), func(c *Config) { c.MaxClients = 2 })
	a, b := dialServer(t, s), dialServer(t, s)
	for i, c := range []net.Conn{a, b} {
		mustWrite(t, c, ask(1, 0, i))
		wantAnswer(t, readReply(t, c), 1, i)
	}
	wantEOF(t, dialServer(t, s))
	a.Close()
	eventually(t, "room", func() bool { return s.Stats().Open == 1 })
	c := dialServer(t, s)
	mustWrite(t, c, ask(1, 0, 5))
	wantAnswer(t, readReply(t, c), 1, 5)
	if st := s.Stats(); st.Rejected[RejectedClients] != 1 || st.Accepted != 3 {
		t.Errorf("%+v", st)
	}
}

func TestMaxPerUID(t *testing.T) {
	s := serve(t, newFake(), func(c *Config) { c.MaxPerUID = 1 })
	a := dialServer(t, s)
	mustWrite(t, a, ask(1, 0, 1))
	wantAnswer(t, readReply(t, a), 1, 1)
	wantEOF(t, dialServer(t, s))
	a.Close()
	eventually(t, "room", func() bool { return s.Stats().Open == 0 })
	b := dialServer(t, s)
	mustWrite(t, b, ask(1, 0, 2))
	wantAnswer(t, readReply(t, b), 1, 2)
	if st := s.Stats(); st.Rejected[RejectedUser] != 1 {
		t.Errorf("%+v", st)
	}
}

// A destination that is a GID or LID is asked for as a path from the source's
// endpoint, instead of by multicast, where nobody would answer.
func TestAddressOfPathKind(t *testing.T) {
	f := goldenEndpoints()
	example := examplePath()
	f.eps[0].GID = example.SGID()
	f.eps[0].Addrs = append(f.eps[0].Addrs, resolver.LocalAddr{Addr: ip4(10, 0, 0, 1)})
	s := serve(t, f, nil)
	c := NewClient(dialServer(t, s))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for _, dst := range []resolver.Addr{resolver.LIDAddr(700), resolver.GIDAddr(example.DGID())} {
		r, err := c.Resolve(ctx, SourceRecord(ip4(10, 0, 0, 1)), DestRecord(dst, false))
		if err != nil {
			t.Fatal(err)
		}
		p := r.Paths[0].Record
		if p.SGID() != example.SGID() || p.PKey() != 0xffff || !p.Reversible() || p.NumPath() != 1 {
			t.Errorf("asked for %x", p)
		}
		if _, err = c.Resolve(ctx, DestRecord(dst, false)); err != nil {
			t.Error(err)
		}
		_, err = c.Resolve(ctx, SourceRecord(ip4(10, 9, 9, 9)), DestRecord(dst, false))
		var se *StatusError
		if !errors.As(err, &se) || se.Status != resolver.StatusSrcAddr || !se.Core {
			t.Error(err)
		}
	}
}

// Drain answers what was sent before it, accepts nobody new and removes files.
func TestDrain(t *testing.T) {
	for _, threads := range []int{1, 2} {
		f := newFake()
		s := serve(t, f, func(c *Config) { c.Threads = threads })
		idle, busy := dialServer(t, s), dialServer(t, s)
		mustWrite(t, busy, ask(1, 1, 1))
		eventually(t, "held", func() bool { return f.waiting() == 1 })
		mustWrite(t, busy, ask(2, 0, 2))
		done := make(chan error, 1)
		go func() { done <- s.Drain(t.Context()) }()
		wantEOF(t, idle)
		if _, err := os.Lstat(filepath.Join(s.cfg.RunDir, unixSocketName)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("socket file: %v", err)
		}
		f.releaseAll()
		wantAnswer(t, readReply(t, busy), 1, 1)
		wantAnswer(t, readReply(t, busy), 2, 2)
		wantEOF(t, busy)
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// Drain gives up at its deadline; an answer that comes later hurts nobody.
func TestDrainDeadline(t *testing.T) {
	f := newFake()
	s := serve(t, f, nil)
	c := dialServer(t, s)
	mustWrite(t, c, ask(1, 1, 1))
	eventually(t, "held", func() bool { return f.waiting() == 1 })
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := s.Drain(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("drain: %v", err)
	}
	wantEOF(t, c)
	f.releaseAll()
	if n := s.Stats().Pending; n != 0 {
		t.Errorf("%d pending", n)
	}
}

// A client that connected before Start gets its reply (field case 30).
func TestConnectBeforeStart(t *testing.T) {
	s, err := New(Config{RunDir: shortDir(t)}, newFake(), quiet())
	if err != nil {
		t.Fatal(err)
	}
	c := dialServer(t, s)
	mustWrite(t, c, ask(1, 0, 1))
	s.Start()
	wantAnswer(t, readReply(t, c), 1, 1)
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// The length of a reply to a fault is in the order of the masked opcode.
func TestFaultByteOrder(t *testing.T) {
	s := serve(t, newFake(), nil)
	for _, c := range []struct {
		opcode, back byte
		native       bool
	}{{0x81, 0x81, true}, {0x11, 0x91, true}, {0x82, 0x82, false}, {0, 0x80, false}, {4, 0x84, false}, {0x0f, 0x8f, false}, {0xff, 0xff, false}} {
		req := ask(0x0102, 0, 1)
		req[1] = c.opcode
		conn := dialServer(t, s)
		mustWrite(t, conn, req)
		b, err := io.ReadAll(conn)
		if len(b) != 16 || b[1] != c.back || b[2] != 2 || TID(b) != 0x0102 {
			t.Fatalf("opcode %#x: % x, %v", c.opcode, b, err)
		}
		n := binary.BigEndian.Uint16(b[6:])
		if c.native {
			n = binary.NativeEndian.Uint16(b[6:])
		}
		if n != 16 {
			t.Errorf("opcode %#x: length % x", c.opcode, b[6:8])
		}
	}
}
