// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

// Package rtnl is the part of rtnetlink (rtnetlink(7), RFC 3549) that acmd needs:
// the links, addresses, neighbours and routes of the machine, and word of their
// changes.
//
// The codec is apart from the sockets. DecodeLink and its like read the body of
// one message, as the kernel sends it in host byte order; what they do not know
// they skip, what is cut short is an error. [Conn] asks and dumps, [Monitor] is
// told of changes. Both believe only what the kernel itself sent (port 0).
//
// What a look at the machine says comes from dumps alone. A notification tells
// that it is time to look, so that one which is lost ([ErrOverrun]), or which the
// kernel never sends, costs time and not truth.
package rtnl
