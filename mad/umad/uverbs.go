// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package umad

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"unsafe"

	"acmd/mad/transport"

	"golang.org/x/sys/unix"
)

// Port events come from a device's asynchronous event descriptor of uverbs, which
// any process may have: a context (GET_CONTEXT) and an event descriptor
// (ASYNC_EVENT) made by ioctl(2), include/uapi/rdma/rdma_user_ioctl_cmds.h and
// ib_user_ioctl_cmds.h. All values are in host order.
const (
	ioctlVerbs = 0xc0181b01 // RDMA_VERBS_IOCTL

	objectDevice     = 0  // UVERBS_OBJECT_DEVICE
	objectAsyncEvent = 16 // UVERBS_OBJECT_ASYNC_EVENT

	methodGetContext      = 3 // UVERBS_METHOD_GET_CONTEXT
	methodAsyncEventAlloc = 0 // UVERBS_METHOD_ASYNC_EVENT_ALLOC

	attrAsyncEventFD = 0      // UVERBS_ATTR_ASYNC_EVENT_ALLOC_FD_HANDLE
	attrDriverIn     = 0x1000 // UVERBS_ATTR_UHW_IN
	attrDriverOut    = 0x1001 // UVERBS_ATTR_UHW_OUT

	attrMandatory = 1 // UVERBS_ATTR_F_MANDATORY

	verbsHeaderSize = 24 // struct ib_uverbs_ioctl_hdr
	verbsAttrSize   = 16 // struct ib_uverbs_attr
)

// Drivers whose context wants data of their own (enum rdma_driver_id).
const (
	driverMLX5 = 1
	driverMLX4 = 2
)

// verbsAttr is one attribute of an ioctl: data is the value itself up to 8 bytes,
// else the address of the memory.
type verbsAttr struct {
	id, flags uint16
	size      uint16
	data      uint64
}

// verbsRequest encodes the argument of an ioctl.
func verbsRequest(object, method uint16, driver uint32, attrs ...verbsAttr) []byte {
	he := binary.NativeEndian
	b := make([]byte, verbsHeaderSize+verbsAttrSize*len(attrs))
	he.PutUint16(b[0:], uint16(len(b)))
	he.PutUint16(b[2:], object)
	he.PutUint16(b[4:], method)
	he.PutUint16(b[6:], uint16(len(attrs)))
	he.PutUint32(b[16:], driver)
	for i, a := range attrs {
		p := b[verbsHeaderSize+verbsAttrSize*i:]
		he.PutUint16(p[0:], a.id)
		he.PutUint16(p[2:], a.size)
		he.PutUint16(p[4:], a.flags)
		he.PutUint64(p[8:], a.data)
	}
	return b
}

// driverRequest is what a driver wants with GET_CONTEXT, nil for nothing, and how
// many bytes it answers at most. Those of mlx5 and mlx4 are from the kernel's
// mlx5-abi.h and mlx4-abi.h; they were not tried on hardware.
func driverRequest(driver uint32) (in []byte, out int) {
	switch driver {
	case driverMLX5:
		// struct mlx5_ib_alloc_ucontext_req_v2, 32 bytes. No queue pair will be made:
		// the least number of doorbells that the driver takes (one page has two).
		in = make([]byte, 32)
		binary.NativeEndian.PutUint32(in[0:], 2) // total_num_bfregs
		return in, 128
	case driverMLX4:
		return nil, 64 // struct mlx4_ib_alloc_ucontext_resp, 16 bytes
	}
	return nil, 0
}

// getContext makes the context of an open uverbs device. The memory that the
// request names stays where it is during the call.
func getContext(fd int, driver uint32) error {
	var pin runtime.Pinner
	defer pin.Unpin()
	in, out := driverRequest(driver)
	var attrs []verbsAttr
	address := func(b []byte) uint64 {
		pin.Pin(&b[0])
		return uint64(uintptr(unsafe.Pointer(&b[0])))
	}
	if len(in) > 0 {
		attrs = append(attrs, verbsAttr{id: attrDriverIn, size: uint16(len(in)), data: address(in)})
	}
	if out > 0 {
		attrs = append(attrs, verbsAttr{id: attrDriverOut, size: uint16(out), data: address(make([]byte, out))})
	}
	req := verbsRequest(objectDevice, methodGetContext, driver, attrs...)
	return ioctl(fd, ioctlVerbs, unsafe.Pointer(&req[0]))
}

// asyncEvents makes the event descriptor of a context.
func asyncEvents(fd int, driver uint32) (int, error) {
	req := verbsRequest(objectAsyncEvent, methodAsyncEventAlloc, driver,
		verbsAttr{id: attrAsyncEventFD, flags: attrMandatory})
	if err := ioctl(fd, ioctlVerbs, unsafe.Pointer(&req[0])); err != nil {
		return -1, err
	}
	return int(int64(binary.NativeEndian.Uint64(req[verbsHeaderSize+8:]))), nil
}

// asyncEventSize is struct ib_uverbs_async_event_desc: element (the port, or an
// object of the process), type, reserved.
const asyncEventSize = 16

// parseAsyncEvent reads one event. False: it is not about a port or the device.
func parseAsyncEvent(device string, b []byte) (transport.Event, bool) {
	element, typ := binary.NativeEndian.Uint64(b[0:]), binary.NativeEndian.Uint32(b[8:])
	ev := transport.Event{Device: device}
	switch t := transport.EventType(typ); {
	case typ > 255:
		return ev, false
	case t == transport.EventDeviceFatal:
		ev.Type = t
		return ev, true
	case t >= transport.EventPortActive && t <= transport.EventSMChange, t == transport.EventReregister, t == transport.EventGIDChange:
		ev.Type, ev.Port = t, uint8(element)
		return ev, element > 0 && element < 256
	}
	return ev, false
}

// async is a device's event descriptor and the context that it belongs to.
type async struct {
	device  string
	context int
	file    *os.File // of events, in the runtime's poller
}

// openAsync opens the event descriptor of a device, which holds its uverbs device
// open: some drivers cannot remove a device while that is so.
func openAsync(sys sysfs, devRoot, device string) (*async, error) {
	name, err := sys.uverbsName(device)
	if err != nil {
		return nil, err
	}
	driver, err := driverID(device)
	if err != nil {
		return nil, err
	}
	path := filepath.Join(devRoot, "infiniband", name)
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	if err := getContext(fd, driver); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("%s: context of driver %d: %w", name, driver, err)
	}
	events, err := asyncEvents(fd, driver)
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("%s: event descriptor: %w", name, err)
	}
	unix.CloseOnExec(events)
	if err := unix.SetNonblock(events, true); err != nil {
		unix.Close(events)
		unix.Close(fd)
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return &async{device, fd, os.NewFile(uintptr(events), asyncName(name))}, nil
}

// read waits for events. An event is 16 bytes, and a read never splits one.
func (a *async) read(buf []byte) ([]byte, error) {
	n, err := a.file.Read(buf)
	if err == nil && n%asyncEventSize != 0 {
		err = fmt.Errorf("%d bytes of events", n)
	}
	return buf[:max(n, 0)], err
}

func (a *async) close() {
	a.file.Close()
	unix.Close(a.context)
}

// uverbsName finds the uverbs device of an adapter.
func (s sysfs) uverbsName(device string) (string, error) {
	entries, err := os.ReadDir(s.path("infiniband_verbs"))
	if err != nil {
		return "", err
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), "uverbs") {
			continue
		}
		if dev, err := s.text("infiniband_verbs", e.Name(), "ibdev"); err == nil && dev == device {
			return e.Name(), nil
		}
	}
	return "", errNoUverbs
}

var errNoUverbs = errors.New("no uverbs device (is the module ib_uverbs loaded?)")
