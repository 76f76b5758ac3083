// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acm

import "acmd/mad"

// Reason says why [Validate] refused a packet. It is an error, an index for a
// row of counters, and its text is a label.
type Reason uint8

const (
	RefusedLength   Reason          = iota + 1 // fewer than 256 bytes were received
	RefusedClass                               // not class 0x2C
	RefusedVersion                             // base or class version
	RefusedControl                             // not a resolve message
	RefusedMethod                              // neither Get nor its response
	RefusedSrcType                             // request: source type is none of the five
	RefusedDestType                            // request: destination type is none of the five
	RefusedGroups                              // no group, where one is needed
	NumReasons      = int(iota + 1)            // size of a row of counters indexed by Reason
)

var reasons = [NumReasons]string{"", "length", "class", "version", "control", "method", "src_type", "dest_type", "groups"}

// String is the reason in one word.
func (r Reason) String() string {
	if int(r) < len(reasons) {
		return reasons[r]
	}
	return "unknown"
}

func (r Reason) Error() string { return "acm packet refused: " + r.String() }

// Validate checks the form of a received packet of n bytes. The error is a
// [Reason]. A request must be a Get with known address types and at least one
// group; an answer needs a group unless its status tells of a failure. Whether
// the packet was asked for is not checked. It does not allocate.
func Validate(p *mad.Packet, n int) error {
	switch {
	case n < mad.PacketSize:
		return RefusedLength
	case p.Class() != mad.ClassACM:
		return RefusedClass
	case p.BaseVersion() != mad.BaseVersion || p.ClassVersion() != mad.ACMClassVersion:
		return RefusedVersion
	case p.Specific() != ControlResolve:
		return RefusedControl
	}
	r := View(p)
	switch p.Method() {
	case mad.MethodGet:
		switch {
		case !validType(r.SrcType()):
			return RefusedSrcType
		case !validType(r.DestType()):
			return RefusedDestType
		case r.GIDCount() == 0:
			return RefusedGroups
		}
	case mad.MethodGetResp:
		if p.Status() == 0 && r.GIDCount() == 0 {
			return RefusedGroups
		}
	default:
		return RefusedMethod
	}
	return nil
}
