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
// is true now and writes that. What is no longer true is void before that, with one
// store that the program sees: of the answer's own version, of the generation of its
// port where all of a port is dropped, of the host's generation where its source was
// chosen. Each answer carries their values, read before the engine was asked; so an
// answer dies with the next change, however late it is written, and an invalidation
// waits for no system call.
//
// Use. The program stamps what it answers. The stamps keep paths from eviction and
// make those that are due be looked up again, as hits in the daemon do.
package fastpath
