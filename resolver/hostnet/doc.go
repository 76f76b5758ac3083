// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

// Package hostnet is what the engine asks of the machine's own network
// configuration: which IP addresses belong to InfiniBand ports, and which local
// address routing chooses towards a destination.
//
// [Host] asks the kernel by rtnetlink. IPoIB interfaces are those of ARP type 32:
// bytes 4 to 19 of the 20-byte hardware address are the port GID, bytes 8 and 9 of
// the broadcast address are the partition (RFC 4391, 4 and 9.1.1). Everything goes
// by interface index and holds for child interfaces and bonds as well; names are
// for display, and labels such as ib0:1 do not exist here. Whether a link is up
// makes no difference to who owns an address (field case 23).
//
// Each look is a dump. [Host.Watch] has the kernel tell when to look, and raises
// the generation under which the engine remembers choices of sources whenever a
// link, an address, a route or a rule changed: at once, before anybody looks.
// Notifications that were lost are a reason to look like any other. The choice of
// a source is that of a connected datagram socket; no packet is sent.
//
// [Static] is the same for fabrics that exist only in memory.
package hostnet
