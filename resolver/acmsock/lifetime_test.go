// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acmsock

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"acmd/resolver"
)

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
