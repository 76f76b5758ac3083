// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

// Package acm has the messages that resolver services exchange on the fabric:
// MADs of class 0x2C, 256 bytes, sent as unreliable datagrams to a multicast
// group that every node of a partition joins, and answered by unicast.
//
// A request asks "who owns this name, IP address, GID or LID?", tells the
// asker's own address and offers the groups that the asker is a member of. The
// owner answers with the one group that both share and that is best; LID, GID
// and queue pair of the owner are those of the datagram itself.
//
// The protocol is that of the provider "ibacmp" of rdma-core, and the packets
// are byte for byte what that one sends and takes. Its structure declares ten
// groups of which six fit into the packet: counts are clamped to six here.
//
// Everything a packet says is a claim of whoever sent it. [Validate] checks the
// form and nothing else; what may be learned from a request or an answer is for
// the provider to decide.
package acm
