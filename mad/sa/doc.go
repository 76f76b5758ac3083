// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

// Package sa has the wire forms of the subnet administration class (IBTA vol. 1,
// chapter 15): the SA header inside a [mad.Packet], the attributes that acmd
// asks for or serves, their component masks, and the RMPP fields.
//
// Attributes are byte arrays in wire form with accessors in host order; an
// attribute is copied as a whole, never converted.
package sa
