// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package umad

import (
	"encoding/binary"
	"errors"
	"fmt"
	"unsafe"

	"acmd/mad"
	"acmd/mad/transport"

	"golang.org/x/sys/unix"
)

// ioctls of include/uapi/rdma/ib_user_mad.h, magic 0x1B.
const (
	ioctlUnregisterAgent = 0x40041b02
	ioctlEnablePKey      = 0x00001b03
	ioctlRegisterAgent2  = 0xc0281b04
)

// registerRequest is struct ib_user_mad_reg_req2, 40 bytes.
type registerRequest [40]byte

// newRegisterRequest asks for an agent of a class on QP qpn. methods lists the
// unsolicited methods to receive; none makes an agent for answers only.
func newRegisterRequest(qpn uint32, class, classVersion, rmpp uint8, methods ...uint8) (r registerRequest) {
	he := binary.NativeEndian
	he.PutUint32(r[4:], qpn)
	r[8], r[9] = class, classVersion
	for _, m := range methods {
		w := r[16+m/64*8:]
		he.PutUint64(w, he.Uint64(w)|1<<(m%64))
	}
	r[36] = rmpp
	return r
}

// id is the agent that the kernel gave out, per descriptor.
func (r *registerRequest) id() uint32 { return binary.NativeEndian.Uint32(r[0:]) }

func ioctl(fd int, req uint, arg unsafe.Pointer) error {
	for {
		_, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(req), uintptr(arg))
		switch e {
		case 0:
			return nil
		case unix.EINTR:
		default:
			return e
		}
	}
}

// register makes an agent and returns its id.
func register(fd int, r registerRequest) (uint32, error) {
	err := ioctl(fd, ioctlRegisterAgent2, unsafe.Pointer(&r))
	if errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ENODEV) {
		return 0, transport.ErrGone
	}
	if err != nil {
		return 0, fmt.Errorf("register agent for class 0x%02x: %w", r[8], err)
	}
	return r.id(), nil
}

// registerSA makes the SA agent, with Reports if nobody on this host has them
// yet: the kernel allows one agent per port, class, version and method.
func registerSA(fd int) (id uint32, reports bool, err error) {
	id, err = register(fd, newRegisterRequest(1, mad.ClassSA, mad.SAClassVersion, 1, mad.MethodReport))
	if err == nil {
		return id, true, nil
	}
	if !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.EBUSY) {
		return 0, false, err
	}
	id, err = register(fd, newRegisterRequest(1, mad.ClassSA, mad.SAClassVersion, 1))
	return id, false, err
}
