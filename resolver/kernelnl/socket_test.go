// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package kernelnl

import (
	"errors"
	"os"
	"testing"
	"time"

	"acmd/mad/madtest"

	"golang.org/x/sys/unix"
)

// adopted is a Socket on a netlink protocol that every kernel has and that user
// programs may send to each other on: all but the kernel's side can be tried there.
func adopted(t *testing.T) (s *Socket, port uint32) {
	t.Helper()
	madtest.CheckLeaks(t)
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_USERSOCK)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		t.Fatal(err)
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	s, err = Adopt(fd)
	if errors.Is(err, unix.EPERM) && os.Getenv("ACMD_CI") != "1" {
		t.Skip("needs CAP_NET_ADMIN to join a netlink group: ", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s, name.(*unix.SockaddrNetlink).Pid
}

// talk sends to a port from another socket, and returns that one's port.
func talk(t *testing.T, to uint32, messages ...[]byte) (from uint32) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_USERSOCK)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	for _, b := range messages {
		if err := unix.Sendto(fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Pid: to}); err != nil {
			t.Fatal(err)
		}
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	return name.(*unix.SockaddrNetlink).Pid
}

func TestSocketRecv(t *testing.T) {
	s, port := adopted(t)
	b := make([]byte, 8)
	if _, _, err := s.Recv(b); !errors.Is(err, ErrEmpty) {
		t.Errorf("nothing there: %v", err)
	}
	from := talk(t, port, []byte("hello"), []byte("a longer one"))
	if err := s.Wait(time.Time{}); err != nil {
		t.Fatal(err)
	}
	n, who, err := s.Recv(b)
	if err != nil || string(b[:n]) != "hello" || who != from || who == 0 {
		t.Errorf("%q from %d (want %d), %v", b[:n], who, from, err)
	}
	// Of one that is too long the length is told.
	if n, _, err := s.Recv(b); err != nil || n != 12 || string(b) != "a longer" {
		t.Errorf("%d bytes, %q, %v", n, b, err)
	}
	if _, _, err := s.Recv(b); !errors.Is(err, ErrEmpty) {
		t.Errorf("nothing left: %v", err)
	}
}

// field case 18: after lost messages there is one error, and then what was kept.
func TestSocketOverrun(t *testing.T) {
	s, port := adopted(t)
	if err := unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 1); err != nil { // the least there is
		t.Fatal(err)
	}
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_USERSOCK)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	// A message to the group is dropped where there is no room, and the sender goes
	// on. It goes to port 0 too, where nobody is.
	for range 100 {
		err := unix.Sendto(fd, make([]byte, 512), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1 << (groupLS - 1)})
		if err != nil && !errors.Is(err, unix.ECONNREFUSED) && !errors.Is(err, unix.ENOBUFS) {
			t.Fatal(err)
		}
	}
	overruns, kept := 0, 0
	b := make([]byte, 1024)
	for {
		n, _, err := s.Recv(b)
		if errors.Is(err, ErrEmpty) {
			break
		}
		switch {
		case errors.Is(err, ErrOverrun):
			overruns++
		case err != nil:
			t.Fatal(err)
		case n == 512:
			kept++
		}
	}
	if overruns != 1 || kept == 0 || kept == 100 {
		t.Errorf("%d overruns, %d of 100 kept", overruns, kept)
	}
	talk(t, port, []byte("again"))
	if n, _, err := s.Recv(b); err != nil || string(b[:n]) != "again" {
		t.Errorf("afterwards: %q, %v", b[:n], err)
	}
}

// Wait returns for a message, a wake before and during it, and the deadline.
func TestSocketWait(t *testing.T) {
	s, port := adopted(t)
	// A wait without an end would hang. A signal to the thread ends it early, so
	// nothing is said about how long it takes.
	for _, d := range []time.Duration{20 * time.Millisecond, 0, -time.Hour} {
		if err := s.Wait(time.Now().Add(d)); err != nil {
			t.Fatal(err)
		}
	}
	s.Wake()
	s.Wake()
	if err := s.Wait(time.Time{}); err != nil {
		t.Fatal(err)
	}
	for range 1000 {
		woken := make(chan struct{})
		go func() { s.Wake(); close(woken) }()
		if err := s.Wait(time.Time{}); err != nil { // would hang if a wake were lost
			t.Fatal(err)
		}
		<-woken
	}
	talk(t, port, []byte("x"))
	for range 2 {
		if err := s.Wait(time.Time{}); err != nil { // level triggered
			t.Fatal(err)
		}
	}
}

// Open says what a kernel without RDMA lacks, so that its door can be tried later.
func TestOpen(t *testing.T) {
	madtest.CheckLeaks(t)
	s, err := Open()
	switch {
	case errors.Is(err, ErrNoRDMA), errors.Is(err, unix.EPERM):
		t.Log(err)
	case err != nil:
		t.Error(err)
	default:
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}
