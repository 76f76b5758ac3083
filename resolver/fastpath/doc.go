// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

// Package fastpath keeps the kernel's copy of the path cache, from which a
// program on the client's own socket answers inside the client's send() (package
// bpf). It decides what is copied, keeps the copy true, and puts clients' sockets
// onto the map.
//
// What is copied. A question that a client of the TCP door asks is offered here;
// from then on the answer is mirrored whenever the cache has one. The mirror is
// bounded and evicts what was not used for longest.
//
// How it stays true. The copy follows the level, not the events: the cache tells
// which key changed, and the one goroutine that owns the copy asks the engine what
// is true now and writes that. Before an invalidation is acknowledged the engine
// calls Settle, which waits until everything that changed before was written. A
// dropped port is one store: each answer names a generation and its value, which is
// read before the engine is asked; an answer that was true then dies with the next
// drop, however late it is written.
//
// Use. The program stamps what it answers. The stamps keep paths from eviction and
// make those that are due be looked up again, as hits in the daemon do.
package fastpath
