// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//go:build verbs && cgo

package verbs

/*
#cgo LDFLAGS: -libverbs
#include "shim.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"unsafe"

	"acmd/mad/ring"
	"acmd/mad/transport"

	"golang.org/x/sys/unix"
)

// device is what all queue pairs of a port share. Each port opens the device for
// itself: a context that outlives its port could hold up the device's removal.
type device struct {
	ctx     *C.struct_ibv_context
	pd      *C.struct_ibv_pd
	mr      *C.struct_ibv_mr
	channel *C.struct_ibv_comp_channel
	rcq     *C.struct_ibv_cq // receive completions of all queue pairs
	region  C.struct_acm_region
	maxWR   int // work requests that a queue may have

	files    []*os.File
	watchers sync.WaitGroup
}

// call makes an error of what a verb left in errno.
func call(verb string, err error) error {
	if err == nil {
		err = errors.New("failed without a reason")
	}
	return fmt.Errorf("%s: %w", verb, err)
}

// status makes an error of a verb that returns an errno.
func status(verb string, e C.int) error {
	if e == 0 {
		return nil
	}
	return fmt.Errorf("%s: %w", verb, syscall.Errno(max(e, -e)))
}

// openDevice opens a device by its name and registers the slots of r. On an error
// nothing is left open.
func openDevice(name string, r *ring.Ring, completions int) (d *device, err error) {
	d = &device{}
	defer func() {
		if err != nil {
			d.close()
		}
	}()
	if d.ctx, err = openContext(name); err != nil {
		return d, err
	}
	var attr C.struct_ibv_device_attr
	if err := status("query device", C.ibv_query_device(d.ctx, &attr)); err != nil {
		return d, err
	}
	d.maxWR = int(attr.max_qp_wr)
	var e error
	if d.pd, e = C.ibv_alloc_pd(d.ctx); d.pd == nil {
		return d, call("protection domain", e)
	}
	mem := r.Region()
	d.region.base = C.uint64_t(uintptr(unsafe.Pointer(unsafe.SliceData(mem))))
	if d.mr, e = C.acm_register(d.pd, d.region.base, C.size_t(len(mem))); d.mr == nil {
		return d, call(fmt.Sprintf("register %d bytes (limit on locked memory?)", len(mem)), e)
	}
	d.region.lkey = C.uint32_t(d.mr.lkey)
	if d.channel, e = C.ibv_create_comp_channel(d.ctx); d.channel == nil {
		return d, call("completion channel", e)
	}
	if d.rcq, e = C.ibv_create_cq(d.ctx, C.int(min(completions, int(attr.max_cqe))), nil, d.channel, 0); d.rcq == nil {
		return d, call("completion queue", e)
	}
	return d, status("arm", C.ibv_req_notify_cq(d.rcq, 0))
}

func openContext(name string) (*C.struct_ibv_context, error) {
	var n C.int
	list, e := C.ibv_get_device_list(&n)
	if list == nil {
		return nil, call("list devices", e)
	}
	defer C.ibv_free_device_list(list)
	for _, dev := range unsafe.Slice(list, n) {
		if C.GoString(C.ibv_get_device_name(dev)) != name {
			continue
		}
		ctx, e := C.ibv_open_device(dev)
		if ctx == nil {
			return nil, call("open "+name, e)
		}
		return ctx, nil
	}
	return nil, fmt.Errorf("libibverbs has %d devices, %s is not among them: %w", n, name, transport.ErrNoPort)
}

// watch calls next, from a goroutine, whenever fd, which stays libibverbs', may
// have something: until it returns an error other than EAGAIN, or close.
func (d *device) watch(fd int, name string, next func() error) error {
	// Events are read by libibverbs from its own descriptor. The runtime's poller
	// gets a copy, which shares the non-blocking mode.
	if err := unix.SetNonblock(fd, true); err != nil {
		return os.NewSyscallError("fcntl", err)
	}
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("fcntl", err)
	}
	file := os.NewFile(uintptr(own), name)
	raw, err := file.SyscallConn()
	if err != nil {
		file.Close()
		return err
	}
	d.files = append(d.files, file)
	d.watchers.Go(func() {
		for {
			var failed error
			err := raw.Read(func(uintptr) bool {
				failed = next()
				return failed != syscall.EAGAIN
			})
			if err != nil || failed != nil && failed != syscall.EINTR {
				return
			}
		}
	})
	return nil
}

// close frees everything. Queue pairs must be gone.
func (d *device) close() {
	for _, f := range d.files {
		f.Close()
	}
	d.watchers.Wait()
	// What these return can only say that the device went first, or that something
	// still uses the object, which would be a fault of ours.
	if d.rcq != nil {
		C.ibv_destroy_cq(d.rcq)
	}
	if d.channel != nil {
		C.ibv_destroy_comp_channel(d.channel)
	}
	if d.mr != nil {
		C.ibv_dereg_mr(d.mr)
	}
	if d.pd != nil {
		C.ibv_dealloc_pd(d.pd)
	}
	if d.ctx != nil {
		C.ibv_close_device(d.ctx)
	}
	*d = device{}
}
