// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

// Package ibsim is the transport to the InfiniBand fabric simulator of
// ibsim-utils, over the simulator's own client protocol: with it acmd talks to a
// real OpenSM on a machine that has no adapter and no kernel module. It is not
// the preload library of ibsim; a static binary needs none.
//
// A client of the simulator has two datagram sockets. Control messages of 80
// bytes attach it to a node and read the node's attributes; packets of 288 bytes
// carry one MAD each. Both sockets are unix sockets with abstract names in local
// mode and UDP sockets in remote mode. Requests and replies are in host byte
// order apart from the attributes and packet headers inside them, so both sides
// must have the same.
//
// There is one device, ibsim0, with port 1. A [Fabric] occupies one of the
// simulator's ten client slots: as long as no port is open it attaches as a plain
// client, to which nothing is ever sent; Open attaches the way [Config] asks for,
// and closing a port detaches it, so that answers which are still under way find
// nobody. That matters because the simulator stops for a client that does not read.
//
// The simulator has no timers, does not carry P_Key, Q_Key, SL or GRH, and does
// not replicate multicast. What it cannot deliver it returns at once with status
// 110, which becomes a message with [mad.StatusTimeout]. It overwrites bits 63 to
// 48 of the TID of a request. It never segments: a table response is cut to 200
// bytes of data.
package ibsim
