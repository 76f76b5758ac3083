// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acmsock

import (
	"io"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// letPass has the clients that connect from now on pass descriptors, as all of them can
// before Linux 6.16.
func letPass(t *testing.T, s *Server) {
	t.Helper()
	fd := s.rdv.listeners[0].fd
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PASSRIGHTS, 1); err != nil && err != unix.ENOPROTOOPT {
		t.Fatal(err)
	}
}

// slowToClose is a TCP socket whose last close takes until release, or two minutes: its
// peer does not read what it has sent.
func slowToClose(t *testing.T) (fd int, release func()) {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp4", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	peer, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	f, err := c.(*net.TCPConn).File()
	c.Close()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if fd, err = unix.Dup(int(f.Fd())); err != nil {
		t.Fatal(err)
	}
	if err := unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: 120}); err != nil {
		t.Fatal(err)
	}
	unix.SetNonblock(fd, true)
	for block := make([]byte, 1<<20); ; {
		if _, err := unix.Write(fd, block); err != nil {
			break
		}
	}
	release = func() { peer.(*net.TCPConn).SetLinger(0); peer.Close() }
	t.Cleanup(release)
	return fd, release
}

// pass sends b with a descriptor, of which nothing is left here.
func pass(t *testing.T, c net.Conn, b []byte, fd int) {
	t.Helper()
	raw, err := c.(*net.UnixConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var sent error
	if err := raw.Control(func(sock uintptr) { sent = unix.Sendmsg(int(sock), b, unix.UnixRights(fd), nil, 0) }); err != nil || sent != nil {
		t.Fatal(err, sent)
	}
	unix.Close(fd)
}

func wantClosed(t *testing.T, c net.Conn) {
	t.Helper()
	// With something left in the socket it is a reset.
	if n, err := io.Copy(io.Discard, c); n != 0 || os.IsTimeout(err) {
		t.Errorf("%d bytes, %v, want the end", n, err)
	}
}

// later makes a server that does not serve yet: what is passed is closed here first, so
// that the last close is the server's.
func later(t *testing.T, edit func(*Config)) *Server {
	t.Helper()
	cfg := Config{RunDir: shortDir(t)}
	edit(&cfg)
	s, err := New(cfg, newFake(), quiet())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	letPass(t, s)
	return s
}

// wantServed asks while somebody holds up a close.
func wantServed(t *testing.T, c net.Conn) {
	t.Helper()
	for tid := uint64(1); tid < 50; tid++ {
		mustWrite(t, c, ask(tid, 0, int(tid)))
		wantAnswer(t, readReply(t, c), tid, int(tid))
	}
}

// Whoever passes descriptors whose close takes for ever is closed, and nobody else
// notices; the connection counts until it is gone. The end of the server waits for it,
// but not for long.
func TestDescriptorPassed(t *testing.T) {
	for name, first := range map[string][]byte{
		"with a request": ask(1, 0, 1), "with part of one": ask(1, 0, 1)[:10], "with more than one read": make([]byte, 3*readSize),
	} {
		t.Run(name, func(t *testing.T) {
			s := later(t, func(*Config) {})
			other, bad := dialServer(t, s), dialServer(t, s)
			fd, release := slowToClose(t)
			pass(t, bad, first, fd)
			s.Start()
			wantServed(t, other)
			wantClosed(t, bad)
			if st := s.Stats(); st.Closed[ClosedPassed] != 1 || st.Open != 2 {
				t.Errorf("%+v", st)
			}
			if name == "with a request" {
				begin := time.Now()
				if err := s.Close(); err != nil || time.Since(begin) > patience/2 {
					t.Errorf("%v after %v", err, time.Since(begin))
				}
			}
			release()
			other.Close()
			eventually(t, "gone", func() bool { return s.Stats().Open == 0 })
		})
	}
}

// Descriptors may also lie in a socket that is closed for another reason: one that is
// turned away, or whose client takes no replies and is not read any more.
func TestDescriptorLeft(t *testing.T) {
	s := later(t, func(c *Config) { c.MaxPerUID = 1 })
	other, bad := dialServer(t, s), dialServer(t, s)
	fd, release := slowToClose(t)
	pass(t, bad, ask(3, 0, 3), fd)
	s.Start()
	wantServed(t, other)
	wantClosed(t, bad)
	if st := s.Stats(); st.Rejected[RejectedUser] != 1 || st.Open != 2 {
		t.Errorf("%+v", st)
	}
	release()
	eventually(t, "gone", func() bool { return s.Stats().Open == 1 })

	// Until nothing more is read of it.
	for left := 0; left < 10; {
		mustWrite(t, other, ask(2, 0, 2))
		if time.Sleep(time.Millisecond); notTaken(t, other) == 0 {
			left = 0
			continue
		}
		left++
	}
	fd, release = slowToClose(t)
	pass(t, other, ask(3, 0, 3), fd)
	begin := time.Now()
	if err := s.Close(); err != nil || time.Since(begin) > patience/2 {
		t.Errorf("%v after %v", err, time.Since(begin))
	}
	release()
	eventually(t, "gone", func() bool { return s.Stats().Open == 0 })
}

// Who can pass descriptors and does not is served as all others are, alone and in a
// crowd.
func TestDescriptorsNotPassed(t *testing.T) {
	f := newFake()
	s := serve(t, f, nil)
	letPass(t, s)
	var crowd []net.Conn
	for range 8 {
		crowd = append(crowd, dialServer(t, s))
	}
	for tid := uint64(1); tid < 200; tid++ {
		for _, c := range crowd {
			mustWrite(t, c, append(ask(tid, 0, int(tid)), ask(tid+1000, 0, int(tid))...))
		}
		for _, c := range crowd {
			wantAnswer(t, readReply(t, c), tid, int(tid))
			wantAnswer(t, readReply(t, c), tid+1000, int(tid))
		}
	}
	for _, c := range crowd {
		missOnce(t, c)
		c.Close()
	}
	eventually(t, "gone", func() bool { return s.Stats().Open == 0 })
	if n := s.Stats().Closed[ClosedByClient]; n != 8 {
		t.Errorf("%d closed by their clients", n)
	}
}
