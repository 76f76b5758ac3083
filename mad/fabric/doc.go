// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

// Package fabric is an InfiniBand subnet inside the process: a generated
// topology of up to 40,000 nodes, a subnet administrator that answers as OpenSM
// does, multicast groups, simulated ACM services on the other nodes, and faults
// on demand. It implements [transport.Fabric], so whatever works on adapters
// works on it without hardware, privileges or a second process.
//
// [New] builds a [Fabric] from a [Config]; [ParseOptions] reads the form of the
// command line. The Fabric itself is the transport as node 0 sees it, and
// [Fabric.Host] gives the view of any other node, so that several daemons can
// share one subnet. Nodes without a view are simulated: each is an ACM service
// that answers for its name and addresses.
//
// Everything about a node follows from its index and the seed, by formula: see
// [NodeName], [IPv4], [IPv6] and the methods of Fabric. Paths follow from the
// topology: hops give the lifetime, the crossed datelines of a torus the service
// level. [Fabric.SAPath] says what the SA would answer, for tests to compare.
//
// Time comes from the time package alone and there is no goroutine at rest:
// requests are answered inside Send, what is late is delivered by timers. So a
// Fabric works inside a bubble of testing/synctest, if it is made there.
//
// The run-time state is an immutable snapshot that changes replace as a whole;
// queries take no lock that they share. Queues, groups, subscriptions and
// reports are bounded and what does not fit is counted, see [Stats].
package fabric
