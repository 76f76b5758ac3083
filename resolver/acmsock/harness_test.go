// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acmsock

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
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
