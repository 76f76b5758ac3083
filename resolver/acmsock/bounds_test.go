// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acmsock

import (
	"bytes"
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"acmd/bpf"
	"acmd/resolver"
)

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

// neverRead writes requests until the server takes no more for so long, and returns
// why.
func neverRead(t *testing.T, c net.Conn, patience time.Duration) error {
	var b []byte
	for i := range 50 {
		b = append(b, ask(uint64(i+1), 0, i)...)
	}
	for range 10000 {
		c.SetWriteDeadline(time.Now().Add(patience))
		if _, err := c.Write(b); err != nil {
			return err
		}
	}
	t.Error("the server took everything")
	return nil
}

// field case 11 (c): a client that never reads is served until its socket is
// full, then no longer read, then closed; others do not notice.
func TestNeverReads(t *testing.T) {
	for _, mode := range []Mode{ModeUnix, ModeLoop} {
		// It is not closed before the other client would have given up.
		s := serve(t, newFake(), func(c *Config) { c.Mode, c.WriteTimeout = mode, 10*patience })
		good := dialServer(t, s)
		if err := neverRead(t, dialServer(t, s), 100*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("closed too early: %v", err)
		}
		for i := range 100 {
			mustWrite(t, good, ask(uint64(1+i), 0, i))
			wantAnswer(t, readReply(t, good), uint64(1+i), i)
		}

		s = serve(t, newFake(), func(c *Config) { c.Mode, c.WriteTimeout = mode, 100*time.Millisecond })
		if err := neverRead(t, dialServer(t, s), patience); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("not closed: %v", err)
		}
		eventually(t, "counted", func() bool { return s.Stats().Closed[ClosedBlocked] == 1 })
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
	s := serve(t, f, func(c *Config) { c.WriteTimeout = patience })
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
	f.counts = bpf.NewMemory()
	s := serve(t, f, func(c *Config) { c.MaxPending, c.Counters = 3, f.counts })
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
