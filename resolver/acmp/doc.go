// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

// Package acmp asks other nodes where a name or an address lives, by ACM
// multicast: the protocol of rdma-core's provider "ibacmp". It is an address
// source of the engine, and it answers when other nodes ask for our addresses.
//
// An endpoint joins one multicast group, given by partition, min_rate and
// min_mtu, that every node of the partition shares, and with route_prot acm a
// second one for the port's own rate and MTU, which only supplies path
// parameters. A join that fails is repeated, soon at first, until it works; SA
// service for paths does not depend on it.
//
// A [Source] has one part per port. The part's state belongs to the goroutine
// that owns the port (package resolver/sa), on which everything here runs that
// touches it: joins, requests, received datagrams, timers. Other goroutines
// post.
//
// Nothing is learned but what was asked for. A datagram can end a lookup in two
// ways: as an answer with the lookup's random TID and a group that the request
// offered, or as a request whose source is the very address that is looked for.
// Everything else leaves no trace but a counter.
package acmp
