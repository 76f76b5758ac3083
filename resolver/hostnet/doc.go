// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

// Package hostnet is what the engine asks of the machine's own network
// configuration: which IP addresses belong to InfiniBand ports, and which local
// address routing chooses towards a destination.
//
// [Host] reads the kernel: IPoIB interfaces are those of ARP type 32; bytes 4 to
// 19 of their 20-byte hardware address are the port GID (RFC 4391, 9.1.1) and the
// pkey attribute in sysfs is the partition. The choice of a source is that of a
// connected datagram socket; no packet is sent. Nothing is cached beyond what
// [Host.Generation] needs: the engine looks at each poll and remembers choices
// itself.
//
// [Static] is the same for fabrics that exist only in memory.
//
// Interface names are for display. Labels such as ib0:1 do not exist here, since
// addresses are listed by interface index; renamed interfaces, child interfaces
// and bonds are found by what sysfs says about them now.
package hostnet
