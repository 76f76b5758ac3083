// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

// Package kernelnl is the kernel's door: it answers the path requests that the
// kernel's SA client sends to the group RDMA_NL_GROUP_LS of NETLINK_RDMA
// (include/uapi/rdma/rdma_netlink.h, drivers/infiniband/core/sa_query.c and
// addr.c) before it asks the SA itself. rdma_cm and IPoIB ask that way, so
// storage clients and sockets over InfiniBand share the cache and the flights of
// the programs that ask over resolver/acmsock.
//
// A RESOLVE is answered once: by one path record as soon as there is one, or by
// the error flag as soon as the failure is known. The kernel waits for a limited
// time and then asks the SA; it is told "no" before that is over, and never
// after it. An IP_RESOLVE, for a destination behind a gateway, is answered from
// what is at hand: peers beyond a router hear no multicast.
//
// Only messages whose sender is port 0 are believed, as any process with
// CAP_NET_ADMIN may send to the group. What is outstanding is bounded; what is
// beyond the bound gets the error flag at once, and the kernel helps itself.
//
// [Decode] and the Append functions are the codec, apart from the socket. A
// [Door] serves a [Conn]: a [Socket], or the kernel of kernelfake in tests, as
// nobody but the kernel can send from port 0.
package kernelnl
