// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

// Package mad has the wire types of InfiniBand management datagrams (IBTA
// Architecture Specification, volume 1, chapter 13): the 256-byte packet, its
// common header, and the identifiers that travel in it.
//
// Identifiers are distinct types that hold values in host byte order, or, for a
// GID, the 16 bytes as they are on the wire. The accessors of [Packet] and
// [UserHeader] are the only places where byte order changes; everything above
// works on values.
//
// Nothing here allocates, nothing here is safe for concurrent writes, and every
// accessor works in place on the memory that a transport filled.
//
// The attributes of the subnet administration class are in mad/sa, the messages
// of the ACM class in mad/acm, the memory that packets live in in mad/ring, and
// what moves them in mad/transport.
package mad
