// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acmsock

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"acmd/mad/sa"
	"acmd/resolver"

	"golang.org/x/sys/unix"
)

// fakeFast is a fast path whose map is the test's to fill.
type fakeFast struct {
	mu    sync.Mutex
	conns []*fakeFastConn
	onMap bool
	auto  bool // Insert succeeds at once
}

type fakeFastConn struct {
	f    *fakeFast
	port uint16

	answered, replied uint64
	offers            []resolver.Query
	done              func(uint64, bool) // of Insert
	asked             bool
	released          bool
	late              bool // something was published after the release
}

func (f *fakeFast) Accept(port uint16) FastConn {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.conns {
		if c.port == port && !c.released {
			panic("two connections have one port")
		}
	}
	c := &fakeFastConn{f: f, port: port}
	f.conns = append(f.conns, c)
	return c
}

func (c *fakeFastConn) Publish(answered, replied uint64) {
	c.f.mu.Lock()
	defer c.f.mu.Unlock()
	c.answered, c.replied = answered, replied
	c.late = c.late || c.released
}

func (c *fakeFastConn) OnMap() bool {
	c.f.mu.Lock()
	defer c.f.mu.Unlock()
	return c.f.onMap
}

func (c *fakeFastConn) Offer(q *resolver.Query) {
	c.f.mu.Lock()
	defer c.f.mu.Unlock()
	c.offers = append(c.offers, *q)
}

func (c *fakeFastConn) Insert(done func(uint64, bool)) bool {
	c.f.mu.Lock()
	defer c.f.mu.Unlock()
	if c.asked {
		return false
	}
	c.asked, c.done = true, done
	if c.f.auto {
		go done(0, true)
	}
	return true
}

func (c *fakeFastConn) Release() {
	c.f.mu.Lock()
	defer c.f.mu.Unlock()
	c.released = true
}

// last is the newest connection, once there are n.
func (f *fakeFast) last(t *testing.T, n int) *fakeFastConn {
	t.Helper()
	var c *fakeFastConn
	eventually(t, "a connection", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		if len(f.conns) < n {
			return false
		}
		c = f.conns[n-1]
		return true
	})
	return c
}

func (c *fakeFastConn) counts() (answered, replied uint64) {
	c.f.mu.Lock()
	defer c.f.mu.Unlock()
	return c.answered, c.replied
}

func (c *fakeFastConn) wantCounts(t *testing.T, answered, replied int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d bytes answered, %d replied", answered, replied), func() bool {
		a, r := c.counts()
		return a == uint64(answered) && r == uint64(replied)
	})
}

// serveFast runs a server with a TCP listener for the fast path.
func serveFast(t *testing.T, r resolver.Resolver, f *fakeFast, edit func(*Config)) *Server {
	t.Helper()
	cfg := Config{RunDir: shortDir(t), Fast: true}
	if edit != nil {
		edit(&cfg)
	}
	s, err := New(cfg, r, quiet())
	if err != nil {
		t.Fatal(err)
	}
	s.UseFast(f)
	s.Start()
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		for _, c := range f.conns {
			if !c.released || c.late {
				t.Errorf("connection of port %d: released %v, written after that %v", c.port, c.released, c.late)
			}
		}
	})
	return s
}

func dialFast(t *testing.T, s *Server) net.Conn {
	t.Helper()
	port, err := s.FastPort()
	if err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("tcp4", "127.0.0.1:"+strconv.Itoa(int(port)))
	if err != nil {
		t.Fatal(err)
	}
	c.SetDeadline(time.Now().Add(patience))
	t.Cleanup(func() { c.Close() })
	return c
}

// What was answered and replied is told in bytes of the stream, whatever way the
// requests came and the replies went.
func TestFastPublishes(t *testing.T) {
	r, f := newFake(), &fakeFast{auto: true}
	s := serveFast(t, r, f, nil)
	c := dialFast(t, s)
	fc := f.last(t, 1)
	fc.wantCounts(t, 0, 0)
	mustWrite(t, c, ask(1, 0, 1))
	readReply(t, c)
	fc.wantCounts(t, 160, 88)
	mustWrite(t, c, bytes.Join([][]byte{ask(2, 0, 2), ask(3, 1, 3), ask(4, 0, 4), AppendEndpoint(nil, 5, 9, 0)}, nil))
	readReply(t, c)
	fc.wantCounts(t, 320, 176) // the rest waits behind the third
	mustWrite(t, c, ask(6, 0, 6)[:50])
	eventually(t, "a held question", func() bool { return r.waiting() == 1 })
	r.releaseAll()
	for range 3 {
		readReply(t, c)
	}
	fc.wantCounts(t, 4*160+16, 4*88+16)
	mustWrite(t, c, ask(6, 0, 6)[50:])
	readReply(t, c)
	fc.wantCounts(t, 5*160+16, 5*88+16)
}

// A superseded request counts as answered, though nothing is written for it.
func TestFastSuperseded(t *testing.T) {
	r, f := newFake(), &fakeFast{auto: true}
	s := serveFast(t, r, f, nil)
	c := dialFast(t, s)
	fc := f.last(t, 1)
	mustWrite(t, c, ask(0, 1, 1))
	eventually(t, "a held question", func() bool { return r.waiting() == 1 })
	mustWrite(t, c, ask(0, 1, 2))
	eventually(t, "another held question", func() bool { return r.waiting() == 2 })
	fc.wantCounts(t, 160, 0)
	r.releaseAll()
	wantAnswer(t, readReply(t, c), 0, 2)
	fc.wantCounts(t, 320, 88)
}

// The first path for tid 0 leaves when the socket is on the map and all was read
// that the client sent before: a question among it supersedes the first.
func TestFastHoldsTheFirstPath(t *testing.T) {
	for _, waits := range []bool{false, true} { // for the engine, or answered at once
		for _, again := range []bool{false, true} {
			t.Run(fmt.Sprintf("waits %v, again %v", waits, again), func(t *testing.T) {
				r, f := newFake(), &fakeFast{}
				s := serveFast(t, r, f, nil)
				c := dialFast(t, s)
				fc := f.last(t, 1)
				group := byte(0)
				if waits {
					group = 3
				}
				mustWrite(t, c, ask(0, group, 1))
				eventually(t, "the question for the map", func() bool {
					f.mu.Lock()
					defer f.mu.Unlock()
					return fc.done != nil
				})
				if a, _ := fc.counts(); a != 0 {
					t.Error("answered before the socket is on the map")
				}
				if !again {
					fc.done(160, true)
					wantAnswer(t, readReply(t, c), 0, 1)
					return
				}
				// The client gave up and asked again, and the socket was taken over
				// behind that.
				fc.done(320, true)
				mustWrite(t, c, ask(0, 0, 2))
				wantAnswer(t, readReply(t, c), 0, 2)
				fc.wantCounts(t, 320, 88)
				if n := s.Stats().Superseded; n != 1 {
					t.Errorf("%d superseded", n)
				}
			})
		}
	}
}

// A reply that is held does not wait for what cannot be read because of it: behind
// it there is room for so many replies, and the client has sent more than that. It
// makes no difference whether the socket is on the map before that is seen or later.
func TestFastHeldInAFlood(t *testing.T) {
	for name, first := range map[string]int{"map first": 1, "flood first": 4 * ringMax} {
		t.Run(name, func(t *testing.T) {
			f := &fakeFast{}
			s := serveFast(t, newFake(), f, nil)
			c := dialFast(t, s)
			fc := f.last(t, 1)
			const flood = 4 * ringMax
			b := ask(0, 0, 1)
			size := len(b)
			for i := 1; i < flood; i++ {
				b = append(b, ask(uint64(i), 0, i+1)...)
			}
			mustWrite(t, c, b[:first*size])
			eventually(t, "the question for the map", func() bool {
				f.mu.Lock()
				defer f.mu.Unlock()
				return fc.done != nil
			})
			fc.done(uint64(len(b)), true)
			if first < flood {
				time.Sleep(10 * time.Millisecond) // mostly enough for the loop to see it
				mustWrite(t, c, b[first*size:])
			}
			for i := range flood {
				wantAnswer(t, readReply(t, c), uint64(i), i+1)
			}
			fc.wantCounts(t, len(b), flood*88)
		})
	}
}

// A connection that cannot get onto the map is served as one without a fast path.
func TestFastRefused(t *testing.T) {
	f := &fakeFast{}
	s := serveFast(t, newFake(), f, nil)
	c := dialFast(t, s)
	fc := f.last(t, 1)
	mustWrite(t, c, ask(0, 0, 1))
	eventually(t, "the question for the map", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return fc.done != nil
	})
	fc.done(0, false)
	for i := 1; i < 5; i++ {
		wantAnswer(t, readReply(t, c), 0, i)
		mustWrite(t, c, ask(0, 0, i+1))
	}
}

// Nobody waits on a connection of the map, unless that is wanted.
func TestFastMiss(t *testing.T) {
	for _, wait := range []bool{false, true} {
		r, f := newFake(), &fakeFast{auto: true}
		s := serveFast(t, r, f, func(c *Config) { c.FastWait = wait })
		c := dialFast(t, s)
		mustWrite(t, c, ask(1, 1, 1)) // not on the map yet
		eventually(t, "a held question", func() bool { return r.waiting() == 1 })
		r.releaseAll()
		wantAnswer(t, readReply(t, c), 1, 1)
		f.mu.Lock()
		f.onMap = true
		f.mu.Unlock()
		mustWrite(t, c, ask(2, 1, 2))
		if wait {
			eventually(t, "a held question", func() bool { return r.waiting() == 1 })
			r.releaseAll()
			wantAnswer(t, readReply(t, c), 2, 2)
			continue
		}
		if b := readReply(t, c); len(b) != HeaderSize || b[offStatus] != byte(resolver.StatusNoData) {
			t.Errorf("reply % x", b)
		}
	}
}

// Only what the kernel's program can parse is offered.
func TestFastOffers(t *testing.T) {
	f := &fakeFast{auto: true}
	s := serveFast(t, newFake(), f, nil)
	c := dialFast(t, s)
	fc := f.last(t, 1)
	var p sa.PathRecord
	p.SetDLID(7)
	dst, src := DestRecord(ip4(10, 0, 0, 1), true), SourceRecord(ip4(10, 0, 0, 1))
	flagged := dst
	flagged.Flags |= 4
	good := [][]byte{AppendResolve(nil, 1, dst), AppendResolve(nil, 1, src, dst), AppendResolve(nil, 1, PathQuery(p, 0)), AppendResolve(nil, 1, PathQuery(p, FlagNoDelay))}
	for _, b := range append(good, AppendResolve(nil, 1, dst, src), AppendResolve(nil, 1, flagged), AppendResolve(nil, 1, src, dst, PathQuery(p, 0)), AppendResolve(nil, 1, PathQuery(p, FlagQuerySA))) {
		mustWrite(t, c, b)
		readReply(t, c)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(fc.offers) != len(good) {
		t.Fatalf("%d offers, want %d", len(fc.offers), len(good))
	}
	if q := fc.offers[1]; q.Dst != ip4(10, 0, 0, 1) || q.Src != ip4(10, 0, 0, 1) {
		t.Errorf("offered %+v", q)
	}
}

// With several loops all connections of one port are of one loop, so that they
// follow each other.
func TestFastPortsFollowEachOther(t *testing.T) {
	f := &fakeFast{auto: true}
	s := serveFast(t, newFake(), f, func(c *Config) { c.Threads = 3 })
	port, _ := s.FastPort()
	reuse := func(_, _ string, c syscall.RawConn) (err error) {
		return errors.Join(c.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
		}), err)
	}
	var from net.Addr
	again := 0
	for i := range 60 {
		d := net.Dialer{LocalAddr: from, Control: reuse}
		c, err := d.Dial("tcp4", "127.0.0.1:"+strconv.Itoa(int(port)))
		if err != nil && from != nil { // somebody else has the port now
			from = nil
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if from != nil {
			again++
		}
		from = c.LocalAddr()
		if i%2 == 0 {
			mustWrite(t, c, ask(1, 1, 1)) // an answer is owed at the end
		} else {
			mustWrite(t, c, ask(1, 0, 1))
			readReply(t, c)
		}
		c.(*net.TCPConn).SetLinger(0) // a reset: the port is free at once
		c.Close()
	}
	if again == 0 {
		t.Error("no port was used twice")
	}
}

// Who comes from another loopback address, or by the unix socket, has no part in it.
func TestFastOthers(t *testing.T) {
	f := &fakeFast{auto: true}
	s := serveFast(t, newFake(), f, nil)
	port, _ := s.FastPort()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
	far, err := d.Dial("tcp4", "127.0.0.1:"+strconv.Itoa(int(port)))
	if err != nil {
		t.Fatal(err)
	}
	defer far.Close()
	for _, c := range []net.Conn{far, dialServer(t, s)} {
		mustWrite(t, c, ask(0, 0, 1))
		wantAnswer(t, readReply(t, c), 0, 1)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.conns) != 0 {
		t.Errorf("%d connections", len(f.conns))
	}
}

// The port file of the fast path comes and goes with it; that of a TCP mode stays.
func TestFastAnnounce(t *testing.T) {
	for _, tc := range []struct {
		name    string
		edit    func(*Config)
		on, off bool // the link is there
		file    bool // the port file is there while it is on
	}{
		{"unix", nil, true, false, true},
		{"no links", func(c *Config) { c.NoLinks = true }, false, false, true},
		{"loop", func(c *Config) { c.Mode = ModeLoop }, true, true, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var dir string
			s := serveFast(t, newFake(), &fakeFast{}, func(c *Config) {
				if tc.edit != nil {
					tc.edit(c)
				}
				dir = c.RunDir
			})
			there := func(name string) bool {
				_, err := os.Stat(filepath.Join(dir, name))
				if err != nil && !errors.Is(err, os.ErrNotExist) {
					t.Fatal(err)
				}
				return err == nil
			}
			for range 2 {
				if err := s.Announce(true); err != nil {
					t.Fatal(err)
				}
				if there(portLinkName) != tc.on || there(portFileName) != tc.file {
					t.Errorf("on: link %v, file %v", there(portLinkName), there(portFileName))
				}
				if err := s.Announce(false); err != nil {
					t.Fatal(err)
				}
				if there(portLinkName) != tc.off || there(portFileName) != tc.off {
					t.Errorf("off: link %v, file %v", there(portLinkName), there(portFileName))
				}
			}
			if err := s.Announce(true); err != nil {
				t.Fatal(err)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			if there(portFileName) || there(portLinkName) {
				t.Error("files are left")
			}
			if err := s.Announce(true); err != nil || there(portFileName) {
				t.Errorf("announced after the end: %v", err)
			}
		})
	}
}
