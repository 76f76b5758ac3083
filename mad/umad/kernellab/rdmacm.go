// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package kernellab

import (
	"encoding/binary"
	"net/netip"
	"runtime"
	"testing"
	"time"
	"unsafe"

	"acmd/mad"
	"acmd/mad/sa"

	"golang.org/x/sys/unix"
)

// Commands, events and constants of include/uapi/rdma/rdma_user_cm.h and ib.h.
const (
	cmCreateID     = 0
	cmResolveRoute = 4
	cmGetEvent     = 12
	cmQuery        = 19
	cmResolveAddr  = 21

	CMAddrResolved  = 0
	CMAddrError     = 1
	CMRouteResolved = 2
	CMRouteError    = 3

	cmEventLen  = 336
	cmQueryPath = 1
	portSpaceIB = 0x013f
	qpTypeRC    = 2
	familyIB    = 27
	sockaddrIB  = 48
	sockaddrIn  = 16
	storageLen  = 128 // struct __kernel_sockaddr_storage
)

// CM is one id of the kernel's connection manager (rdma_cm), used through its
// device without librdmacm. It goes as far as a route: no queue pair is needed.
type CM struct {
	t  testing.TB
	fd int
	id uint32
}

// OpenCM makes an id; it is closed at the end of the test.
func OpenCM(t testing.TB) *CM {
	t.Helper()
	fd, err := unix.Open("/dev/infiniband/rdma_cm", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatalf("rdma_cm: %v", err)
	}
	c := &CM{t: t, fd: fd}
	t.Cleanup(c.Close)
	in := binary.NativeEndian.AppendUint64(nil, 1) // uid; with 0 the kernel drops every event
	out := c.command(cmCreateID, in, 4, func(in []byte) []byte {
		in = binary.NativeEndian.AppendUint16(in, portSpaceIB)
		return append(in, qpTypeRC, 0, 0, 0, 0, 0)
	})
	c.id = binary.NativeEndian.Uint32(out)
	return c
}

// Close ends the id.
func (c *CM) Close() {
	if c.fd >= 0 {
		unix.Close(c.fd)
		c.fd = -1
	}
}

// write sends a command.
func (c *CM) write(cmd uint32, in []byte, out int) error {
	ne := binary.NativeEndian
	b := ne.AppendUint32(nil, cmd)
	b = ne.AppendUint16(b, uint16(len(in)))
	b = ne.AppendUint16(b, uint16(out))
	_, err := unix.Write(c.fd, append(b, in...))
	return err
}

// command sends a command whose answer the kernel writes to a pointer that stands
// between what in has and what rest appends.
func (c *CM) command(cmd uint32, in []byte, out int, rest func([]byte) []byte) []byte {
	c.t.Helper()
	answer := make([]byte, out)
	var pin runtime.Pinner
	pin.Pin(&answer[0])
	defer pin.Unpin()
	in = binary.NativeEndian.AppendUint64(in, uint64(uintptr(unsafe.Pointer(&answer[0]))))
	if err := c.write(cmd, rest(in), out); err != nil {
		c.t.Fatalf("rdma_cm command %d: %v", cmd, err)
	}
	return answer
}

// ResolveAddr binds the id to the port that has src and waits until the address
// is resolved.
func (c *CM) ResolveAddr(src, dst mad.GID, service uint64) {
	c.t.Helper()
	c.resolveAddr(sockaddrIB, sockaddrIB, ibAddress(src, 0), ibAddress(dst, service), 2*time.Second)
	if event, status := c.Event(); event != CMAddrResolved {
		c.t.Fatalf("rdma_cm: address: event %d, status %d", event, status)
	}
}

// ResolveIP has the kernel find the port towards an IPv4 address and the GID
// behind it; Event tells the outcome.
func (c *CM) ResolveIP(dst netip.AddrPort, timeout time.Duration) {
	c.t.Helper()
	b := make([]byte, storageLen)
	binary.NativeEndian.PutUint16(b, unix.AF_INET)
	binary.BigEndian.PutUint16(b[2:], dst.Port())
	copy(b[4:], dst.Addr().AsSlice())
	c.resolveAddr(0, sockaddrIn, make([]byte, storageLen), b, timeout)
}

func (c *CM) resolveAddr(srcLen, dstLen uint16, src, dst []byte, timeout time.Duration) {
	c.t.Helper()
	ne := binary.NativeEndian
	in := ne.AppendUint32(nil, c.id)
	in = ne.AppendUint32(in, uint32(timeout.Milliseconds()))
	in = ne.AppendUint16(in, srcLen)
	in = ne.AppendUint16(in, dstLen)
	in = ne.AppendUint32(in, 0)
	if err := c.write(cmResolveAddr, append(append(in, src...), dst...), 0); err != nil {
		c.t.Fatalf("rdma_cm: resolve address: %v", err)
	}
}

// ibAddress makes a struct sockaddr_ib with the default partition.
func ibAddress(g mad.GID, service uint64) []byte {
	b := make([]byte, storageLen)
	binary.NativeEndian.PutUint16(b, familyIB)
	binary.BigEndian.PutUint16(b[2:], uint16(mad.DefaultPKey))
	copy(b[8:], g[:])
	binary.BigEndian.PutUint64(b[24:], service)
	if service != 0 {
		binary.BigEndian.PutUint64(b[32:], ^uint64(0)) // mask
	}
	return b
}

// ResolveRoute has the kernel look for a path; Event tells the outcome. The SA is
// given the time-out once the local service has had its turn.
func (c *CM) ResolveRoute(timeout time.Duration) {
	c.t.Helper()
	in := binary.NativeEndian.AppendUint32(nil, c.id)
	in = binary.NativeEndian.AppendUint32(in, uint32(timeout.Milliseconds()))
	if err := c.write(cmResolveRoute, in, 0); err != nil {
		c.t.Fatalf("rdma_cm: resolve route: %v", err)
	}
}

// Event waits for the next event and returns it with its status, 0 or a negative
// errno.
func (c *CM) Event() (event uint32, status int32) {
	c.t.Helper()
	p := []unix.PollFd{{Fd: int32(c.fd), Events: unix.POLLIN}}
	for end := time.Now().Add(Patience); p[0].Revents == 0; {
		if _, err := unix.Poll(p, 100); err != nil && err != unix.EINTR {
			c.t.Fatalf("rdma_cm: poll: %v", err)
		}
		if time.Now().After(end) {
			c.t.Fatalf("rdma_cm: no event within %v", Patience)
		}
	}
	out := c.command(cmGetEvent, nil, cmEventLen, func(in []byte) []byte { return in })
	return binary.NativeEndian.Uint32(out[12:]), int32(binary.NativeEndian.Uint32(out[16:]))
}

// Path returns the record that the kernel goes by after CMRouteResolved.
func (c *CM) Path() sa.PathRecord {
	c.t.Helper()
	const record = 8 + len(sa.PathRecord{}) // flags, reserved
	out := c.command(cmQuery, nil, 8+record, func(in []byte) []byte {
		in = binary.NativeEndian.AppendUint32(in, c.id)
		return binary.NativeEndian.AppendUint32(in, cmQueryPath)
	})
	if n := binary.NativeEndian.Uint32(out); n != 1 {
		c.t.Fatalf("rdma_cm: %d paths", n)
	}
	return sa.PathRecord(out[16:])
}
