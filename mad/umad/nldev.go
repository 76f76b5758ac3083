// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package umad

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// RDMA netlink, client NLDEV (include/uapi/rdma/rdma_netlink.h): what tells the
// driver of a device, which uverbs wants to know. In host order.
const (
	netlinkRDMA = 20

	nldevGet        = 5<<10 | 1  // RDMA_NLDEV_CMD_GET
	nldevGetChardev = 5<<10 | 15 // RDMA_NLDEV_CMD_GET_CHARDEV

	nldevAttrIndex       = 1  // u32
	nldevAttrName        = 2  // string with a NUL
	nldevAttrChardevType = 69 // string with a NUL
	nldevAttrDriverID    = 73 // u32

	nldevPatience = 2 * time.Second
)

var errNoDriver = errors.New("the kernel names no driver")

// nldevMessage encodes a request of one message.
func nldevMessage(typ, flags uint16, seq uint32, attrs ...[]byte) []byte {
	he := binary.NativeEndian
	b := make([]byte, unix.NLMSG_HDRLEN)
	for _, a := range attrs {
		b = append(b, a...)
	}
	he.PutUint32(b[0:], uint32(len(b)))
	he.PutUint16(b[4:], typ)
	he.PutUint16(b[6:], flags)
	he.PutUint32(b[8:], seq)
	return b
}

// nldevAttr encodes an attribute, padded to four bytes.
func nldevAttr(typ uint16, value []byte) []byte {
	n := unix.NLA_HDRLEN + len(value)
	b := make([]byte, (n+3)&^3)
	binary.NativeEndian.PutUint16(b[0:], uint16(n))
	binary.NativeEndian.PutUint16(b[2:], typ)
	copy(b[unix.NLA_HDRLEN:], value)
	return b
}

func nldevNumber(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }

// nldevDevice is what is used of an answer.
type nldevDevice struct {
	name          string
	index, driver uint32
	hasDriver     bool
}

// parseNLDev reads the answers in a datagram. done: the dump is over, or the kernel
// refused with err.
func parseNLDev(b []byte, seq uint32) (list []nldevDevice, done bool, err error) {
	he := binary.NativeEndian
	for len(b) >= unix.NLMSG_HDRLEN {
		n := int(he.Uint32(b))
		if n < unix.NLMSG_HDRLEN || n > len(b) {
			return list, true, fmt.Errorf("netlink message of %d bytes in %d", n, len(b))
		}
		body := b[unix.NLMSG_HDRLEN:n]
		typ, s := he.Uint16(b[4:]), he.Uint32(b[8:])
		b = b[min(len(b), (n+3)&^3):]
		switch {
		case s != seq:
		case typ == unix.NLMSG_DONE:
			return list, true, nil
		case typ == unix.NLMSG_ERROR:
			if len(body) >= 4 {
				if e := -int32(he.Uint32(body)); e != 0 {
					return list, true, unix.Errno(e)
				}
			}
			return list, true, nil
		default:
			list = append(list, parseNLDevAttrs(body))
		}
	}
	return list, false, nil
}

func parseNLDevAttrs(b []byte) (d nldevDevice) {
	he := binary.NativeEndian
	for len(b) >= unix.NLA_HDRLEN {
		n := int(he.Uint16(b))
		if n < unix.NLA_HDRLEN || n > len(b) {
			return d
		}
		v := b[unix.NLA_HDRLEN:n]
		switch typ := he.Uint16(b[2:]) &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER); {
		case typ == nldevAttrName:
			d.name = unix.ByteSliceToString(v)
		case typ == nldevAttrIndex && len(v) == 4:
			d.index = he.Uint32(v)
		case typ == nldevAttrDriverID && len(v) == 4:
			d.driver, d.hasDriver = he.Uint32(v), true
		}
		b = b[min(len(b), (n+3)&^3):]
	}
	return d
}

// driverID asks the kernel for the driver of a device (enum rdma_driver_id).
func driverID(device string) (uint32, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, netlinkRDMA)
	if err != nil {
		return 0, fmt.Errorf("RDMA netlink: %w", err)
	}
	defer unix.Close(fd)
	tv := unix.NsecToTimeval(int64(nldevPatience))
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv); err != nil {
		return 0, fmt.Errorf("RDMA netlink: %w", err)
	}
	list, err := nldevAsk(fd, nldevMessage(nldevGet, unix.NLM_F_REQUEST|unix.NLM_F_DUMP, 1), 1, true)
	if err != nil {
		return 0, fmt.Errorf("RDMA netlink: devices: %w", err)
	}
	for _, d := range list {
		if d.name != device {
			continue
		}
		ask := nldevMessage(nldevGetChardev, unix.NLM_F_REQUEST, 2,
			nldevAttr(nldevAttrIndex, nldevNumber(d.index)), nldevAttr(nldevAttrChardevType, []byte("uverbs\x00")))
		got, err := nldevAsk(fd, ask, 2, false)
		if err != nil {
			return 0, fmt.Errorf("RDMA netlink: uverbs of %s: %w", device, err)
		}
		if len(got) == 0 || !got[0].hasDriver {
			// RDMA_DRIVER_UNKNOWN is left out by some kernels.
			return 0, nil
		}
		return got[0].driver, nil
	}
	return 0, fmt.Errorf("%s: %w", device, errNoDriver)
}

// nldevAsk sends a request and collects its answers: all of a dump, else one.
func nldevAsk(fd int, req []byte, seq uint32, dump bool) (list []nldevDevice, err error) {
	if err := unix.Sendto(fd, req, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, err
	}
	buf := make([]byte, 1<<16)
	for {
		n, _, err := unix.Recvfrom(fd, buf, 0)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return nil, err
		}
		more, done, err := parseNLDev(buf[:n], seq)
		list = append(list, more...)
		if err != nil || done || !dump && len(list) > 0 {
			return list, err
		}
	}
}
