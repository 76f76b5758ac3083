// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acmsock

import (
	"io"
	"net"
	"testing"

	"acmd/bpf"
	"acmd/resolver"

	"golang.org/x/sys/unix"
)

// notTaken is how much memory of what a client of a unix socket has sent the server
// has not taken (SIOCOUTQ); bytes and the kernel's own.
func notTaken(t *testing.T, c net.Conn) (n int) {
	t.Helper()
	raw, err := c.(*net.UnixConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if cerr := raw.Control(func(fd uintptr) { n, err = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) }); cerr != nil || err != nil {
		t.Fatal(cerr, err)
	}
	return n
}

// A request that is not answered at once is left in the socket of a client that
// waits for it, and taken when the reply is out; so is every hit.
func TestRequestLeft(t *testing.T) {
	f := newFake()
	s := serve(t, f, nil)
	c := dialServer(t, s)
	missOnce(t, c)
	for tid := uint64(1); tid < 4; tid++ {
		leave(t, f, c, tid)
		f.release(0)
		wantAnswer(t, readReply(t, c), tid, int(tid))
		eventually(t, "question taken", func() bool { return notTaken(t, c) == 0 })
	}
	for tid := uint64(1); tid < 4; tid++ {
		mustWrite(t, c, ask(tid, 0, int(tid)))
		wantAnswer(t, readReply(t, c), tid, int(tid))
		eventually(t, "hit taken", func() bool { return notTaken(t, c) == 0 })
	}
}

// missOnce makes the server leave the next question of c, also if it comes with
// something else.
func missOnce(t *testing.T, c net.Conn) {
	t.Helper()
	mustWrite(t, c, ask(9, 3, 9))
	wantAnswer(t, readReply(t, c), 9, 9)
	eventually(t, "first question taken", func() bool { return notTaken(t, c) == 0 })
}

// leave asks what is held, and sees that the server leaves it.
func leave(t *testing.T, f *fakeResolver, c net.Conn, tid uint64) {
	t.Helper()
	mustWrite(t, c, ask(tid, 1, int(tid)))
	eventually(t, "held", func() bool { return f.waiting() == 1 })
	if notTaken(t, c) == 0 {
		t.Error("a question was taken before it was answered")
	}
}

// What is more than one question, or not a whole one, is taken at once: its client
// does not wait, or could be kept from sending the rest.
func TestMoreIsTaken(t *testing.T) {
	f := newFake()
	s := serve(t, f, nil)
	c := dialServer(t, s)
	two := append(ask(1, 1, 1), ask(2, 1, 2)...)
	mustWrite(t, c, two)
	eventually(t, "both held", func() bool { return f.waiting() == 2 })
	eventually(t, "both taken", func() bool { return notTaken(t, c) == 0 })
	f.releaseAll()
	wantAnswer(t, readReply(t, c), 1, 1)
	wantAnswer(t, readReply(t, c), 2, 2)

	mustWrite(t, c, two[:30])
	eventually(t, "part taken", func() bool { return notTaken(t, c) == 0 })
	mustWrite(t, c, two[30:])
	eventually(t, "both held", func() bool { return f.waiting() == 2 })
	f.releaseAll()
	wantAnswer(t, readReply(t, c), 1, 1)
	wantAnswer(t, readReply(t, c), 2, 2)
}

// A question that was left is not read again with those that come after it.
func TestNextBehindLeft(t *testing.T) {
	f := newFake()
	s := serve(t, f, nil)
	c := dialServer(t, s)
	missOnce(t, c)
	leave(t, f, c, 1)
	mustWrite(t, c, ask(2, 0, 2))
	mustWrite(t, c, ask(3, 1, 3))
	eventually(t, "third held", func() bool { return f.waiting() == 2 })
	f.releaseAll()
	for tid := range 3 {
		wantAnswer(t, readReply(t, c), uint64(tid+1), tid+1)
	}
	if n := f.lookups.Load(); n != 4 {
		t.Errorf("%d questions for 4", n)
	}
}

// withLeft is a client whose question was left, and its end.
func withLeft(t *testing.T, tid uint64) (*loop, *conn, int) {
	t.Helper()
	l, _ := lingering(t)
	c, fd := l.connected(t)
	l.alone = true
	l.asked(t, c, fd, ask(tid, 1, 1))
	if c.left == 0 {
		t.Fatal("the question was taken")
	}
	return l, c, fd
}

// While an answer is outstanding, part of the next question is not left: the client
// must have room for the rest of it.
func TestPartBehindLeft(t *testing.T) {
	l, c, fd := withLeft(t, 1)
	next := ask(2, 0, 2)
	l.asked(t, c, fd, next[:30])
	if c.left > 0 || len(c.in) != 30 {
		t.Errorf("of part of a question %d bytes were left, %d read", c.left, len(c.in))
	}
	if l.asked(t, c, fd, next[30:]); c.tail != 2 {
		t.Errorf("%d questions of 2", c.tail)
	}
}

// A question that was answered is taken, whether the engine still has one that it
// superseded or not.
func TestSupersedingTaken(t *testing.T) {
	l, c, fd := withLeft(t, 0)
	l.asked(t, c, fd, ask(0, 0, 2))
	if c.left > 0 || c.waiting != 1 || !c.idle() {
		t.Errorf("left %d, waiting %d, owed %d", c.left, c.waiting, c.owed())
	}
}

// The smallest send buffer has room for the next question behind one that was left.
func TestSmallestSendBuffer(t *testing.T) {
	f := newFake()
	s := serve(t, f, nil)
	c := dialServer(t, s)
	if err := c.(*net.UnixConn).SetWriteBuffer(1); err != nil {
		t.Fatal(err)
	}
	const questions = 200
	go func() {
		for tid := range questions {
			if _, err := c.Write(ask(uint64(tid+1), 3, tid)); err != nil {
				t.Error(err)
				return
			}
		}
	}()
	for tid := range questions {
		wantAnswer(t, readReply(t, c), uint64(tid+1), tid)
	}
}

// A server that closes with something left in the socket would be an error to the
// client where the end is meant.
func TestEndAfterLeft(t *testing.T) {
	s := serve(t, newFake(), nil)
	c := dialServer(t, s)
	missOnce(t, c)
	bad := ask(1, 0, 1)
	bad[0]++ // version
	mustWrite(t, c, bad)
	if st := resolver.Status(readReply(t, c)[offStatus]); st != resolver.StatusInvalid {
		t.Errorf("status %d", st)
	}
	if b, err := io.ReadAll(c); len(b) > 0 || err != nil {
		t.Errorf("read %d bytes, %v; want the end", len(b), err)
	}
}

// In a crowd the question of a client whose last one was a hit is taken at once.
func TestReceive(t *testing.T) {
	l, _ := lingering(t)
	for _, tc := range []struct {
		name          string
		door          bpf.Door
		alone, missed bool
		left          bool
	}{
		{"in a crowd", bpf.DoorUnix, false, false, false},
		{"alone", bpf.DoorUnix, true, false, true},
		{"in a crowd, after a miss", bpf.DoorUnix, false, true, true},
		{"alone over TCP", bpf.DoorTCP, true, true, false}, // the kernel wakes nobody there
	} {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		c := &conn{loop: l, handoff: handoff{fd: int32(fds[0]), door: tc.door}, missed: tc.missed}
		l.alone = tc.alone
		const asked = mostLeft + 20 // more than may stay
		if _, err := unix.Write(fds[1], make([]byte, asked)); err != nil {
			t.Fatal(err)
		}
		n, errno := l.receive(c, l.in)
		if n != asked || errno != 0 || (c.left > 0) != tc.left {
			t.Errorf("%s: %d bytes, %v, left %d", tc.name, n, errno, c.left)
		}
		if !l.take(c) || c.left != 0 {
			t.Errorf("%s: %d not taken", tc.name, c.left)
		}
		if n, errno = recv(c.fd, l.in, 0); errno != unix.EAGAIN {
			t.Errorf("%s: %d more bytes, %v", tc.name, n, errno)
		}
		if c.left = 1; l.take(c) {
			t.Errorf("%s: took what is not there", tc.name)
		}
		unix.Close(fds[0])
		unix.Close(fds[1])
	}
}

// connected is a client of a loop that nobody runs, and the client's end.
func (l *loop) connected(t *testing.T) (*conn, int) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fds[1]) })
	l.adopt(handoff{fd: int32(fds[0]), door: bpf.DoorUnix})
	c := l.conns[fds[0]]
	t.Cleanup(func() { l.close(c, ClosedShutdown) })
	return c, fds[1]
}

// asked has the loop read b of a client.
func (l *loop) asked(t *testing.T, c *conn, fd int, b []byte) {
	t.Helper()
	if _, err := unix.Write(fd, b); err != nil {
		t.Fatal(err)
	}
	l.read(c, false)
}

// Whether a client's question is left depends on how its last one was answered.
func TestLeftAfterMiss(t *testing.T) {
	l, _ := lingering(t)
	c, fd := l.connected(t)
	for i, q := range []struct {
		group byte // of the destination, see fakeResolver
		left  bool
	}{{0, false}, {1, false}, {1, true}, {0, false}, {0, false}} {
		l.asked(t, c, fd, ask(1, q.group, i))
		if got := c.left > 0; got != q.left {
			t.Errorf("question %d: left %v, want %v", i, got, q.left)
		}
		if miss := q.group == 1; c.missed != miss {
			t.Errorf("question %d: missed %v, want %v", i, c.missed, miss)
		}
		c.waiting, c.head = 0, c.tail // as if it were answered
		l.settle(c, true)
	}
}
