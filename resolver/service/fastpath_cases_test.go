// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package service

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"acmd/bpf"
	"acmd/resolver/acmsock"

	"golang.org/x/sys/unix"
)

// fastModes are the two ways in: of accepted connections, and of all.
var fastModes = []string{"kernel", "kernel-all"}

// fastCase is something that a client may do on a connection that the kernel
// answers. Replies are compared byte by byte with the daemon's.
type fastCase struct {
	name string
	f    func(s *fastSite, k *fastClient, h shape)
}

var fastCases = []fastCase{
	{"two in one segment", func(s *fastSite, k *fastClient, h shape) {
		a, b := s.get(h, 1), s.get(h, 2)
		k.send(a, b)
		s.replies(k, a, b)
	}},
	{"three with a miss in one segment", func(s *fastSite, k *fastClient, h shape) {
		a, b, c := s.get(h, 1), s.miss(h, 2), s.get(h, 3)
		k.send(a, b, c)
		s.replies(k, a, b, c)
	}},
	{"split", func(s *fastSite, k *fastClient, h shape) {
		a := s.get(h, 5)
		k.send(a[:40])
		time.Sleep(5 * time.Millisecond)
		k.send(a[40:])
		s.replies(k, a)
	}},
	{"split header", func(s *fastSite, k *fastClient, h shape) {
		a, b := s.get(h, 5), s.get(h, 6)
		for _, piece := range [][]byte{a[:7], a[7:16], append(bytes.Clone(a[16:]), b...)} {
			k.send(piece)
			time.Sleep(2 * time.Millisecond)
		}
		s.replies(k, a, b)
	}},
	{"one and a half, the other half", func(s *fastSite, k *fastClient, h shape) {
		a, b := s.get(h, 1), s.get(h, 2)
		both := append(bytes.Clone(a), b...)
		k.send(both[:len(a)+len(b)/2])
		time.Sleep(2 * time.Millisecond)
		k.send(both[len(a)+len(b)/2:])
		s.replies(k, a, b)
	}},
	{"miss, then hits", func(s *fastSite, k *fastClient, h shape) {
		a, b, c := s.miss(h, 1), s.get(h, 2), s.get(h, 3)
		k.send(a)
		k.send(b)
		k.send(c)
		s.replies(k, a, b, c)
	}},
	{"hit, miss, hit", func(s *fastSite, k *fastClient, h shape) {
		for i := 1; i < 30; i += 3 {
			a, b, c := s.get(h, i), s.miss(h, i+1), s.get(h, i+2)
			k.send(a)
			k.send(b)
			k.send(c)
			s.replies(k, a, b, c)
		}
	}},
	{"unread miss, then a hit", func(s *fastSite, k *fastClient, h shape) {
		a, b := s.miss(h, 1), s.get(h, 2)
		k.send(a)
		k.wait()
		k.send(b)
		s.replies(k, a, b)
	}},
	{"read in pieces", func(s *fastSite, k *fastClient, h shape) {
		for i := 1; i < 50; i++ {
			a := s.get(h, i)
			want := s.want(a)
			k.send(a)
			got := append(append(k.recv(16, 0), k.recv(50, 0)...), k.recv(1024, 0)...)
			if !bytes.Equal(got, want) {
				k.t.Fatalf("got %x\nwant %x", got, want)
			}
		}
	}},
	{"peek", func(s *fastSite, k *fastClient, h shape) {
		a := s.get(h, 1)
		k.send(a)
		seen := k.recv(1024, unix.MSG_PEEK)
		if got := k.message(); !bytes.Equal(seen, got) {
			k.t.Fatalf("peeked %x, read %x", seen, got)
		}
	}},
	{"select and epoll", func(s *fastSite, k *fastClient, h shape) {
		a := s.get(h, 1)
		k.send(a)
		for {
			var fds unix.FdSet
			fds.Set(k.fd)
			n, err := unix.Select(k.fd+1, &fds, nil, nil, &unix.Timeval{Sec: int64(patience / time.Second)})
			if errors.Is(err, unix.EINTR) {
				continue // by a signal of the Go runtime
			}
			if err != nil || n != 1 {
				k.t.Fatalf("select: %d, %v", n, err)
			}
			break
		}
		s.replies(k, a)
		k.send(a)
		k.epoll(unix.EPOLLIN, func() {})
		s.replies(k, a)
	}},
	{"edge armed before the send", func(s *fastSite, k *fastClient, h shape) {
		a := s.get(h, 1)
		k.epoll(unix.EPOLLIN|unix.EPOLLET, func() { k.send(a) })
		s.replies(k, a)
	}},
	{"receive time-out", func(s *fastSite, k *fastClient, h shape) {
		tv := unix.NsecToTimeval(int64(20 * time.Millisecond))
		if err := unix.SetsockoptTimeval(k.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv); err != nil {
			k.t.Fatal(err)
		}
		err := error(unix.EINTR)
		for errors.Is(err, unix.EINTR) {
			_, _, err = unix.Recvfrom(k.fd, make([]byte, 1), 0)
		}
		if !errors.Is(err, unix.EAGAIN) {
			k.t.Fatalf("receive: %v", err)
		}
		s.mustHit(k, s.get(h, 1))
	}},
	{"vector", func(s *fastSite, k *fastClient, h shape) {
		a := s.get(h, 4)
		if n, err := unix.Writev(k.fd, [][]byte{a[:16], a[16:60], a[60:]}); err != nil || n != len(a) {
			k.t.Fatalf("writev: %d, %v", n, err)
		}
		s.replies(k, a)
	}},
	{"another operation", func(s *fastSite, k *fastClient, h shape) {
		k.send(acmsock.AppendEndpoint(nil, 4, 99, 0))
		if got := k.message(); got[1] != 0x83 {
			k.t.Fatalf("reply %x", got)
		}
		s.mustHit(k, s.get(h, 5))
	}},
	{"shutdown behind a hit", func(s *fastSite, k *fastClient, h shape) {
		a := s.get(h, 1)
		k.send(a)
		if err := unix.Shutdown(k.fd, unix.SHUT_WR); err != nil {
			k.t.Fatal(err)
		}
		s.replies(k, a)
		if b := k.recv(1, 0); len(b) != 0 {
			k.t.Fatalf("%x instead of the end of file", b)
		}
	}},
	{"shutdown of both", func(s *fastSite, k *fastClient, h shape) {
		s.mustHit(k, s.get(h, 1))
		if err := unix.Shutdown(k.fd, unix.SHUT_RDWR); err != nil {
			k.t.Fatal(err)
		}
	}},
	{"close with a hit unread", func(s *fastSite, k *fastClient, h shape) {
		k.send(s.get(h, 1))
		k.close()
		s.warm(s.dial(k.t), s.get(h, 2))
	}},
	{"pipeline without reading", func(s *fastSite, k *fastClient, h shape) {
		a := s.get(h, 7)
		want := s.want(a)
		if err := unix.SetNonblock(k.fd, true); err != nil {
			k.t.Fatal(err)
		}
		sent, rest := 0, []byte(nil)
		for sent < 5000 && rest == nil {
			n, err := unix.SendmsgN(k.fd, a, nil, nil, unix.MSG_NOSIGNAL)
			switch {
			case errors.Is(err, unix.EAGAIN):
				rest = []byte{}
			case err != nil:
				k.t.Fatal(err)
			default:
				sent++
				if n < len(a) {
					rest = a[n:]
				}
			}
		}
		if err := unix.SetNonblock(k.fd, false); err != nil {
			k.t.Fatal(err)
		}
		go func() {
			for len(rest) > 0 {
				n, err := unix.SendmsgN(k.fd, rest, nil, nil, unix.MSG_NOSIGNAL)
				if err != nil && !errors.Is(err, unix.EINTR) {
					return // then replies are missing
				}
				rest = rest[max(n, 0):]
			}
		}()
		for range sent {
			if got := k.message(); !bytes.Equal(got, want) {
				k.t.Fatalf("got %x\nwant %x", got, want)
			}
		}
	}},
	{"unread hits are one", func(s *fastSite, k *fastClient, h shape) {
		before := s.hits()
		var all [][]byte
		for i := range 5 {
			all = append(all, s.get(h, i+1))
			k.send(all[i])
		}
		s.replies(k, all...)
		if n := s.hits() - before; n != 1 {
			k.t.Fatalf("%d hits were given while a reply lay unread", n-1)
		}
		s.mustHit(k, s.get(h, 9))
	}},
	{"tid 0 behind an open request", func(s *fastSite, k *fastClient, h shape) {
		a := s.miss(h, 0)
		k.send(a)
		drops := s.counts(bpf.KernelDropTID)
		if err := k.trySend(s.request(h, 0, 1)); !errors.Is(err, unix.EACCES) {
			k.t.Fatalf("send: %v", err)
		}
		if n := s.counts(bpf.KernelDropTID); n != drops+1 {
			k.t.Errorf("%d refused sends counted, want 1", n-drops)
		}
		s.replies(k, a)
	}},
}

// epoll waits for an event; before is run once the descriptor is watched.
func (k *fastClient) epoll(events uint32, before func()) {
	k.t.Helper()
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		k.t.Fatal(err)
	}
	defer unix.Close(ep)
	if err := unix.EpollCtl(ep, unix.EPOLL_CTL_ADD, k.fd, &unix.EpollEvent{Events: events}); err != nil {
		k.t.Fatal(err)
	}
	var got [1]unix.EpollEvent
	_, _ = unix.EpollWait(ep, got[:], 0)
	before()
	for end := time.Now().Add(patience); ; {
		n, err := unix.EpollWait(ep, got[:], int(time.Until(end)/time.Millisecond))
		if n == 1 {
			return
		}
		if !errors.Is(err, unix.EINTR) || time.Now().After(end) {
			k.t.Fatalf("epoll: %d, %v", n, err)
		}
	}
}

// cases has clients do everything in fastCases with requests of these shapes.
func (s *fastSite) cases(t *testing.T, shapes []shape) {
	for _, h := range shapes {
		s.t = t
		s.warmAll(h)
		for _, c := range fastCases {
			t.Run(h.name+"/"+c.name, func(t *testing.T) {
				k := s.dial(t)
				s.warm(k, s.get(h, 77))
				c.f(s, k, h)
			})
		}
	}
	s.t = t
}

// Whatever a client does, the kernel's answers are the daemon's, in the order of
// the requests, and none is lost.
func TestFastPathCases(t *testing.T) {
	for _, mode := range fastModes {
		t.Run(mode, func(t *testing.T) {
			// So that a reply is owed while the next request comes.
			s := startFast(t, mode, "fast_path_miss wait")
			s.cases(t, shapes)
			if s.counts(bpf.KernelSplit) == 0 {
				t.Error("no message ever lay in two pages")
			}
		})
	}
}

// FIONREAD tells of a hit as of any other bytes, where the kernel has that right
// (6.12.117 has, 6.12.43 and 6.1 say 0).
func TestFastPathFIONREAD(t *testing.T) {
	s := startFast(t, "kernel")
	k := s.dial(t)
	a := s.get(shapes[2], 1)
	s.warm(k, a)
	k.send(a)
	n, err := unix.IoctlGetInt(k.fd, unix.TIOCINQ)
	if err != nil || n != 0 && n != 88 {
		t.Errorf("FIONREAD %d, %v", n, err)
	}
	s.replies(k, a)
}
