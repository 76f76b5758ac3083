// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

// Command compare measures acmd against what there is to beat: the stock ibacm,
// OpenSM alone, and a C program that answers without looking.
//
//	cached         cached resolves on the unix socket and on TCP, 1 to 64 connections
//	fastpath       the same out of the kernel's copy
//	counting       what a hit counts, of what it takes
//	clients        10,000 connections at once, each served
//	pipelined      one connection, 32 requests in each write
//	cold           600 paths by LID that nobody has cached, through OpenSM
//	cold-gid       the same paths by GID
//	cold-blocking  by LID, with clients that wait as stock ones do
//	cold-apart     both, with OpenSM and the simulator on a processor of their own
//	multicast      500 addresses of a stock peer that nobody has cached
//	storm          64 clients ask for the same 1,000 paths at the same moment
//	prefetch       all paths with one question, before anybody asks
//	scrape         how long Prometheus waits, and that nothing is asked for it
//	dead           what one destination that never answers costs the others
//	hostile        what a flood of forged datagrams costs
//	start          start-up time and memory with preloaded routes and addresses
//	gobench        the Go benchmarks of the codecs, the engine, the fabric and the cache
//	machine        processor, kernel and versions, for the head of a report
//
// The contestants of a comparison take turns, A B C A B C, five times if -rounds
// says nothing else; medians and ratios of medians are printed as Markdown tables.
// Absolute figures of a shared machine say little, ratios of one run hold. The load
// comes from acmload, a process of its own, which checks every answer: status,
// transaction ID, length, DGID and DLID. A wrong one makes compare exit with status
// 1; a mark that is missed is only reported, unless -strict is given.
//
// Servers are charged with the processor time of all their threads, from
// /proc/PID/task/*/schedstat. ibsim, OpenSM and ibacm are started by package
// acmd/mad/madtest/peer, which needs Debian's packages of these names and a C
// compiler; everything is stopped by the handle it was started with.
package main
