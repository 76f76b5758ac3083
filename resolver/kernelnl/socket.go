// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package kernelnl

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Netlink's own numbers (include/uapi/linux/netlink.h).
const (
	flagRequest = unix.NLM_F_REQUEST
	flagAck     = unix.NLM_F_ACK
	typeError   = unix.NLMSG_ERROR
)

// receiveBuffer holds the requests of a mass reconnect: one takes about 1 kB of
// it. The kernel does not notice when it drops one, and waits in vain.
const receiveBuffer = 4 << 20

// ErrNoRDMA is returned by Open on a kernel whose RDMA core (ib_core) is not there.
var ErrNoRDMA = errors.New("the kernel has no RDMA netlink")

// Socket is a [Conn] to the running kernel.
type Socket struct {
	fd  int
	efd int // wakes Wait

	sleeping atomic.Bool // Wait is about to block, or blocks
	woken    atomic.Bool

	polled [2]unix.PollFd
	from   unix.RawSockaddrNetlink
	kernel unix.RawSockaddrNetlink // port 0, where answers go
}

// Open opens a socket in the group. It needs CAP_NET_ADMIN, as do answers.
func Open() (*Socket, error) {
	fd, err := open()
	if err != nil {
		return nil, err
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("bind RDMA netlink: %w", err)
	}
	return Adopt(fd)
}

func open() (int, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_RDMA)
	if errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.EAFNOSUPPORT) {
		return -1, ErrNoRDMA
	}
	if err != nil {
		return -1, fmt.Errorf("RDMA netlink: %w", err)
	}
	return fd, nil
}

// Adopt takes over a NETLINK_RDMA socket that the service manager opened, and
// puts it into the group if it is not. fd is closed on an error.
func Adopt(fd int) (*Socket, error) {
	s := &Socket{fd: fd, efd: -1}
	if err := s.prepare(); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

func (s *Socket) prepare() (err error) {
	if unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer) != nil {
		// Without the privilege it ends at net.core.rmem_max, which is better than
		// nothing.
		_ = unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_RCVBUF, receiveBuffer)
	}
	if err := unix.SetsockoptInt(s.fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, groupLS); err != nil {
		return fmt.Errorf("join the group of path requests: %w", err)
	}
	if s.efd, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return fmt.Errorf("eventfd: %w", err)
	}
	s.kernel.Family = unix.AF_NETLINK
	s.polled = [2]unix.PollFd{{Fd: int32(s.fd), Events: unix.POLLIN}, {Fd: int32(s.efd), Events: unix.POLLIN}}
	return nil
}

// Wait implements [Conn].
func (s *Socket) Wait(deadline time.Time) error {
	s.sleeping.Store(true)
	defer s.sleeping.Store(false)
	// Either this sees woken, or Wake sees sleeping.
	if s.woken.Swap(false) {
		return nil
	}
	var limit *unix.Timespec
	if !deadline.IsZero() {
		ts := unix.NsecToTimespec(int64(max(time.Until(deadline), 0)))
		limit = &ts
	}
	_, err := unix.Ppoll(s.polled[:], limit, nil)
	s.woken.Store(false)
	if err != nil && !errors.Is(err, unix.EINTR) {
		return fmt.Errorf("poll: %w", err)
	}
	if s.polled[1].Revents != 0 {
		var b [8]byte
		_, _ = unix.Read(s.efd, b[:]) // non-blocking; it only has to be emptied
	}
	return nil
}

// Wake implements [Conn].
func (s *Socket) Wake() {
	s.woken.Store(true)
	if s.sleeping.CompareAndSwap(true, false) {
		var one [8]byte
		binary.NativeEndian.PutUint64(one[:], 1)
		_, _ = unix.Write(s.efd, one[:]) // fails only when it is full, which wakes as well
	}
}

// Recv implements [Conn]. The pointers are converted inside the call expression,
// as package unsafe asks for. RawSyscall, as it does not block.
func (s *Socket) Recv(b []byte) (n int, from uint32, err error) {
	size := uint32(unsafe.Sizeof(s.from))
	r, _, e := syscall.RawSyscall6(unix.SYS_RECVFROM, uintptr(s.fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)),
		unix.MSG_DONTWAIT|unix.MSG_TRUNC, uintptr(unsafe.Pointer(&s.from)), uintptr(unsafe.Pointer(&size)))
	switch e {
	case 0:
		return int(r), s.from.Pid, nil
	case unix.EAGAIN, unix.EINTR:
		return 0, 0, ErrEmpty
	case unix.ENOBUFS:
		return 0, 0, ErrOverrun
	}
	return 0, 0, fmt.Errorf("receive: %w", e)
}

// Send implements [Conn]. The kernel takes the message in within the call.
func (s *Socket) Send(b []byte) error {
	for {
		_, _, e := syscall.Syscall6(unix.SYS_SENDTO, uintptr(s.fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)),
			unix.MSG_DONTWAIT, uintptr(unsafe.Pointer(&s.kernel)), unsafe.Sizeof(s.kernel))
		switch e {
		case 0:
			return nil
		case unix.EINTR:
			continue
		}
		return fmt.Errorf("send: %w", e)
	}
}

// SetWait implements [Conn]. The kernel keeps the value when the socket is
// closed, and takes what is outside 100 ms to 200 s for the nearer of the two. It
// is asked on a socket of its own, so that its answer is not between requests.
func (s *Socket) SetWait(d time.Duration) error {
	fd, err := open()
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	tv := unix.NsecToTimeval(int64(5 * time.Second)) // the kernel answers within the send
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv); err != nil {
		return fmt.Errorf("set the kernel's wait: %w", err)
	}
	const seq = 1
	to := &unix.SockaddrNetlink{Family: unix.AF_NETLINK}
	if err := unix.Sendto(fd, appendSetTimeout(nil, seq, d), 0, to); err != nil {
		return fmt.Errorf("set the kernel's wait: %w", err)
	}
	b := make([]byte, 256)
	n, _, err := unix.Recvfrom(fd, b, 0)
	if err != nil {
		return fmt.Errorf("set the kernel's wait: %w", err)
	}
	h, body, _, err := Split(b[:n])
	if err != nil || h.Seq != seq {
		return fmt.Errorf("set the kernel's wait: unexpected answer %x", b[:n])
	}
	if e, ok := netlinkError(&h, body); !ok || e != 0 {
		return fmt.Errorf("set the kernel's wait: %w", e)
	}
	return nil
}

// netlinkError reads an NLMSG_ERROR; an errno of 0 acknowledges.
func netlinkError(h *Header, body []byte) (e syscall.Errno, ok bool) {
	if h.Type != typeError || len(body) < 4 {
		return unix.EPROTO, false
	}
	return syscall.Errno(-int32(binary.NativeEndian.Uint32(body))), true
}

// Close implements [Conn].
func (s *Socket) Close() error {
	if s.efd >= 0 {
		unix.Close(s.efd)
	}
	return unix.Close(s.fd)
}
