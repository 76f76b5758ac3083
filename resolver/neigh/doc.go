// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

// Package neigh is the address source "neigh": it asks the kernel's neighbour
// table which GID an IPv4 or IPv6 address has. The hardware address of an IPoIB
// neighbour is 20 bytes long and the last 16 of them are the GID of its port
// (RFC 4391, 9.1.1), so that ARP and neighbour discovery do all the work and the
// peer needs no daemon.
//
// An entry counts only on an IPoIB interface of the endpoint that asks, which is
// one with a GID of the endpoint's port and with its partition: the one that has
// the source address, else those that have an address of the family. An entry that
// the kernel would use is used, and confirmed behind the answer when it is stale.
// Without one the kernel is made to ask: by NTF_USE, which took 1.0 ms where a
// datagram to the discard port took 1.8 ms (Linux 6.1, InfiniBand in software) and
// sends the peer no packet; by such a datagram where CAP_NET_ADMIN is missing. What
// is behind a router is not asked for: its neighbour entry would be the router's.
//
// One goroutine asks, since a question may wait for the kernel's own locks; another
// hears what becomes of the entries. What was told and turns out to be elsewhere now
// is reported ([Config.Moved]), so that the paths to the old place go at once.
package neigh
