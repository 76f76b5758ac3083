// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

// Package sa has the wire forms of the subnet administration class (IBTA vol. 1,
// chapter 15): the SA header inside a [mad.Packet], the attributes that acmd
// asks for or serves, their component masks, and the RMPP fields.
//
// Attributes are byte arrays in wire form with accessors in host order; an
// attribute is copied as a whole, never converted. Functions named after an
// attribute ([Path], [Member], [Inform], [Event], [ClassInfo]) look at it where it
// lies in a packet; they are for packets of the SA class and check nothing else.
//
// A reply with several records is walked with [Records] over what [Message]
// returned. Neither trusts a length that came from the fabric.
//
// Codes of rate and MTU that are not known here pass through unchanged.
package sa
