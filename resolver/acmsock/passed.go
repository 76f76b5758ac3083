// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acmsock

import (
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// FirstPassed is the first descriptor of the socket activation protocol
// (sd_listen_fds(3)).
const FirstPassed = 3

// maxPassed bounds LISTEN_FDS against a garbled environment.
const maxPassed = 1024

// Activation is what the service manager passed, by kind.
type Activation struct {
	Streams []int // listening unix or TCP sockets, for [Config]
	Netlink []int // NETLINK_RDMA sockets, for the kernel's door
}

// Passed sorts the sockets that the service manager passed from descriptor
// first on ([FirstPassed]), by what they are and not by their order. env is
// os.Getenv. They become close-on-exec; listeners also non-blocking. No
// LISTEN_FDS, or one that is meant for another process, is an empty result. A
// socket that no door can use is an error: the unit file asks for something
// that would silently not be served. Nothing is closed.
func Passed(env func(string) string, first int) (Activation, error) {
	return passed(env, first, unix.NETLINK_RDMA)
}

// passed has the netlink protocol as a parameter because a kernel without the
// RDMA core opens no socket of that one, and tests need some.
func passed(env func(string) string, first, protocol int) (Activation, error) {
	var a Activation
	count := env("LISTEN_FDS")
	if count == "" {
		return a, nil
	}
	if pid := env("LISTEN_PID"); pid != strconv.Itoa(os.Getpid()) {
		if _, err := strconv.ParseUint(pid, 10, 31); err != nil {
			return a, fmt.Errorf("socket activation: LISTEN_PID %q is no process", pid)
		}
		return a, nil
	}
	n, err := strconv.Atoi(count)
	if err != nil || n < 0 || n > maxPassed {
		return a, fmt.Errorf("socket activation: LISTEN_FDS %q is not in 0 to %d", count, maxPassed)
	}
	for fd := first; fd < first+n; fd++ {
		netlink, err := classify(fd, protocol)
		if err != nil {
			return Activation{}, fmt.Errorf("socket activation: descriptor %d: %w", fd, err)
		}
		unix.CloseOnExec(fd)
		if netlink {
			a.Netlink = append(a.Netlink, fd)
			continue
		}
		if err := unix.SetNonblock(fd, true); err != nil {
			return Activation{}, fmt.Errorf("socket activation: descriptor %d: %w", fd, err)
		}
		a.Streams = append(a.Streams, fd)
	}
	return a, nil
}

// classify tells a netlink socket from a listening stream socket.
func classify(fd, protocol int) (netlink bool, err error) {
	family, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	if err != nil {
		return false, fmt.Errorf("not a socket: %w", err)
	}
	typ, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
	if err != nil {
		return false, err
	}
	if family == unix.AF_NETLINK {
		proto, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PROTOCOL)
		if err != nil {
			return false, err
		}
		if proto != protocol {
			return false, fmt.Errorf("netlink protocol %d instead of %d", proto, protocol)
		}
		return true, nil
	}
	if family != unix.AF_UNIX && family != unix.AF_INET && family != unix.AF_INET6 || typ != unix.SOCK_STREAM {
		return false, fmt.Errorf("family %d type %d is neither a unix or TCP stream nor netlink", family, typ)
	}
	listens, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
	if err != nil {
		return false, err
	}
	if listens == 0 {
		return false, fmt.Errorf("stream socket of family %d does not listen", family)
	}
	return false, nil
}
