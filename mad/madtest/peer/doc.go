// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

// Package peer runs, for tests, the real programs on the other side: the fabric
// simulator ibsim, OpenSM on it, the stock ibacm on its nodes, and the stock
// clients ib_acme, rdma_getaddrinfo (through raitest) and saquery.
//
// Every fabric has a socket name and a directory of its own, so tests of several
// packages run side by side. Processes get a private directory, are stopped by
// the handle they were started with in the test's clean-up, and die with the test
// binary if that is killed. The last lines of their logs are shown when the test
// has failed.
//
// What is not Debian's lies in bench/lab/peerlab: the netlists, a preload library
// that stands in for libibverbs, and raitest. It is built with make on first use.
//
// A missing program skips the test, naming the package to install; with ACMD_CI=1
// in the environment it fails the test instead. See [Need].
//
// OpenSM and the tools reach the simulator through ibsim's preload library, which
// gives a simulator ten client slots in all; a test that starts many daemons has
// to count them.
package peer
