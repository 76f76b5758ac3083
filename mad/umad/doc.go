// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

// Package umad moves MADs through /dev/infiniband/umadN, the kernel's user MAD
// interface (include/uapi/rdma/ib_user_mad.h), with raw system calls and without
// cgo.
//
// A port holds one descriptor with two agents: the subnet administration class
// with the kernel's RMPP, which also receives Reports where no other program on
// the host took that method first, and the ACM class for answers to what we
// multicast. A slot of the ring is exactly one frame of read(2) and write(2), 64
// bytes of header and 256 of MAD, so a batch is one readv(2) or writev(2) and
// nothing is copied.
//
// The kernel keeps each request until its time-out and then hands it back with
// status ETIMEDOUT and only the 24 bytes of the MAD header; until then a second
// send of the same TID is refused ([transport.Caps].Timers). A reassembled RMPP
// message larger than a slot stays queued after ENOSPC; it is read again into
// memory of the size that its header tells and hangs on its slot.
//
// Devices, ports and their tables are read from sysfs below a root path, so that
// tests run on text fixtures. What sysfs lacks, the active MTU and the subnet
// time-out, is asked of the local port's own SMA with a directed-route SMP of no
// hops.
//
// umad itself tells nothing of ports. Events come from the asynchronous descriptor of
// each device's uverbs, made with raw ioctls, and from kobject uevents; a device whose
// uverbs cannot be opened is left to whoever polls Devices. The requests of mlx5 and
// mlx4 are from the kernel's headers and were not tried on hardware.
//
// When a device goes away every call on its descriptor fails with EIO for ever;
// that is [transport.ErrGone].
package umad
