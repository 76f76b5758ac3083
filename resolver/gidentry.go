// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package resolver

import (
	"strconv"

	"acmd/mad"
	"acmd/mad/sa"
)

// GIDType says how packets with a GID look, as enum ib_gid_type of the kernel.
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
	Interface string // network interface; "" where there is none or it is not known
}

// Listener is what a connection manager listens on. The zero value is bound to no
// device.
type Listener struct {
	Device string
	Port   uint8 // 0: any of the device
}

// AcquireRequest is a connection that is to be set up.
type AcquireRequest struct {
	Listener Listener
	// Incoming: Path is as the peer sees it, in the direction of the request, so
	// that its DGID and DLID are ours. Otherwise its SGID and SLID are.
	Incoming bool
	Path     sa.PathRecord
	// Source is our own address: IPv4, IPv6, GID or a name of the address file.
	// Zero: the path's GID is.
	Source Addr
	// Service is the service ID. One of IPoIB's port space is for InfiniBand ports
	// only.
	Service uint64
}

// Acquired is the answer to an AcquireRequest.
type Acquired struct {
	Device string
	Port   uint8
	SGID   GIDEntry
}
