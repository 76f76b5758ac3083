// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package transport

import (
	"strconv"

	"acmd/mad"
)

// GIDType says what packets with a GID are, as the kernel's enum ib_gid_type.
type GIDType uint8

const (
	GIDTypeIB     GIDType = 0
	GIDTypeRoCEv1 GIDType = 1
	GIDTypeRoCEv2 GIDType = 2
)

func (t GIDType) String() string {
	switch t {
	case GIDTypeIB:
		return "IB"
	case GIDTypeRoCEv1:
		return "RoCE v1"
	case GIDTypeRoCEv2:
		return "RoCE v2"
	}
	return "type " + strconv.Itoa(int(t))
}

// GIDEntry is an entry of a port's GID table with its attributes.
type GIDEntry struct {
	Index     uint16
	GID       mad.GID
	Type      GIDType
	Interface string // network interface; "": there is none, or it is not known
}
