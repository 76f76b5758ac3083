// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"time"
	"unsafe"
)

// Two ways to do socket I/O. The raw one issues blocking system calls without
// telling the Go scheduler, on a thread of its own: that is what a C client
// such as librdmacm does and costs the least. It needs GOMAXPROCS above the
// number of connections and no garbage collection during the run.
var errTimeout = errors.New("timed out")

type stream interface {
	io.ReadWriteCloser
}

type rawConn struct {
	fd      int
	timeout time.Duration
}

func (c rawConn) Read(b []byte) (int, error) {
	// A signal restarts the kernel's receive timeout, hence the second clock.
	for begin := time.Now(); time.Since(begin) < c.timeout; {
		n, _, e := syscall.RawSyscall(syscall.SYS_READ, uintptr(c.fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)))
		switch e {
		case 0:
			if n == 0 {
				return 0, io.EOF
			}
			return int(n), nil
		case syscall.EINTR, syscall.EAGAIN:
		default:
			return 0, e
		}
	}
	return 0, errTimeout
}

func (c rawConn) Write(b []byte) (int, error) {
	for begin := time.Now(); time.Since(begin) < c.timeout; {
		n, _, e := syscall.RawSyscall(syscall.SYS_WRITE, uintptr(c.fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)))
		switch e {
		case 0:
			if int(n) != len(b) {
				return int(n), io.ErrShortWrite
			}
			return int(n), nil
		case syscall.EINTR, syscall.EAGAIN:
		default:
			return 0, e
		}
	}
	return 0, errTimeout
}

func (c rawConn) Close() error { return syscall.Close(c.fd) }

// dial connects to "/path" (unix) or "host:port" (TCP). A unix listener whose
// backlog is full refuses a non-blocking connect with EAGAIN, and stock ibacm
// listens with a backlog of 0: keep trying for a while.
func dial(addr string) (net.Conn, error) {
	network := "tcp"
	if strings.HasPrefix(addr, "/") || strings.HasPrefix(addr, ".") {
		network = "unix"
	}
	for end := time.Now().Add(5 * time.Second); ; {
		c, err := net.Dial(network, addr)
		if !errors.Is(err, syscall.EAGAIN) || time.Now().After(end) {
			return c, err
		}
		time.Sleep(time.Millisecond)
	}
}

func dialRaw(addr string, timeout time.Duration) (rawConn, error) {
	var (
		fd  int
		err error
		sa  syscall.Sockaddr
	)
	if strings.HasPrefix(addr, "/") || strings.HasPrefix(addr, ".") {
		fd, err = syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
		sa = &syscall.SockaddrUnix{Name: addr}
	} else {
		a, rerr := net.ResolveTCPAddr("tcp4", addr)
		if rerr != nil {
			return rawConn{}, rerr
		}
		fd, err = syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
		sa4 := &syscall.SockaddrInet4{Port: a.Port}
		copy(sa4.Addr[:], a.IP.To4())
		sa = sa4
	}
	if err != nil {
		return rawConn{}, err
	}
	tv := syscall.NsecToTimeval(timeout.Nanoseconds())
	syscall.SetsockoptTimeval(fd, syscall.SOL_SOCKET, syscall.SO_RCVTIMEO, &tv)
	syscall.SetsockoptTimeval(fd, syscall.SOL_SOCKET, syscall.SO_SNDTIMEO, &tv) // connect too
	if err = syscall.Connect(fd, sa); err != nil {
		syscall.Close(fd)
		return rawConn{}, fmt.Errorf("connect: %w", err)
	}
	return rawConn{fd, timeout}, nil
}
