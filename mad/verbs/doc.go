// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

// Package verbs gives the ports of another transport an unreliable-datagram
// queue pair through libibverbs. Only an attached queue pair hears the multicast
// requests of other nodes, and only one can answer them; everything else goes on
// through the port that is wrapped.
//
// It is the one room with cgo. With the build tag verbs it is linked against
// libibverbs, whose provider libraries drive the adapter; without it [Wrap] fails
// with [ErrNotBuilt].
//
// A port has one queue pair per partition, made when the partition's group is
// joined, all with the well-known Q_Key of the class. The slots of the port's ring
// are the receive buffers: the ring is one registered region, and a buffer begins
// 40 bytes before the slot's MAD, in the second part of its header. There the
// adapter writes the global routing header (IBTA vol. 1, 8.3), which is read
// before the header is made of it; the MAD stays where the adapter put it. Recv
// exchanges: the caller gets the slot that was filled, and the one that it
// brought is posted.
//
// A buffer or a send credit that an adapter's error brings back is used again. A
// queue pair that fell into an error state is taken through reset, and everything
// that was posted on it is posted anew.
package verbs
