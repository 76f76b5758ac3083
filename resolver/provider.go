// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package resolver

import (
	"errors"
	"net/netip"
	"time"

	"acmd/mad"
	"acmd/mad/sa"
	"acmd/mad/transport"
)

// Errors that address sources and SA clients wrap to say what kind of failure it
// was; anything else counts as "not known" in the address step and as a time-out
// in the route step.
var (
	// ErrUnknown: the source does not know the address. Clients see
	// StatusNoData if no source failed otherwise.
	ErrUnknown = errors.New("address is not known")
	// ErrTimeout: somebody was asked and did not answer (StatusTimedOut).
	ErrTimeout = errors.New("no answer")
	// ErrOverload: a bound was hit (StatusNoMemory); it is not remembered.
	ErrOverload = errors.New("too many requests")
	// ErrDown: the port, its SM or its SA is not there (StatusNotConn).
	ErrDown = errors.New("not connected")
)

// SourceACM is the name of the address source that asks other nodes. Its answers
// are kept for the address lifetime, those of other sources are not: they cost
// nothing and follow their tables.
const SourceACM = "acm"

// Endpoint is a local (device, port, partition): what a source address maps to.
// It is immutable; a change of the port makes a new one with the same slot.
type Endpoint struct {
	Slot      uint16             // stable for the life of the process per (device, port, partition)
	Device    string             // "mlx5_0"
	NodeGUID  mad.GUID           //
	Port      transport.PortInfo // as of the snapshot this endpoint belongs to
	PhysPorts uint8              // ports of the device
	PKey      mad.PKey           // as in the table, membership bit included
	PKeyIndex uint16
	GID       mad.GID     // GID 0 of the port, the default source GID
	Addrs     []LocalAddr // in the order they were found
	Provider  string      // name of the provider that serves it
}

// LocalAddr is one address of an endpoint.
type LocalAddr struct {
	Addr Addr
	Text string  // as configured: wire form of a name keeps its case
	GID  mad.GID // source GID of this address when the interface has its own (alias GUID); zero: the endpoint's
}

// AddressSource is one way of the address step: which GID is that name or IP?
// Sources are asked in the configured order, the first answer wins.
//
// All methods are safe for concurrent use.
type AddressSource interface {
	// Name is the configuration word: "preload", "neigh", "acm".
	Name() string
	// Locate asks for the address of dst as seen from ep on behalf of src. It
	// must not block; done is called exactly once, from any goroutine, possibly
	// before Locate returns, at the latest at the deadline. On an error the next
	// source is asked; it wraps one of ErrUnknown, ErrTimeout, ErrOverload,
	// ErrDown and says what was tried.
	Locate(ep *Endpoint, src, dst *Addr, deadline time.Time, done func(Location, error))
}

// Location is the outcome of an address step.
type Location struct {
	GID    mad.GID
	LID    mad.LID        // 0 when not known
	Source string         // name of the source that answered
	Route  *sa.PathRecord // a complete route where the source has one (preloaded, group parameters)
	Origin Origin         // of Route
	Expiry time.Duration  // how long the address may be kept; 0: the configured lifetime
}

// Host is what the engine asks of the machine's own network configuration.
// resolver/hostnet implements it on the kernel; the embedded fabric brings a
// static one. All methods are safe for concurrent use.
type Host interface {
	// Addresses lists the IP addresses that belong to InfiniBand ports.
	Addresses() ([]HostAddr, error)
	// Source tells which local address the host's routing chooses towards dst.
	Source(dst netip.Addr) (netip.Addr, error)
	// Generation changes whenever what Source says may have changed; whoever
	// remembers what Source said compares it, or follows it.
	Generation() *Generation
}

// HostAddr is an IP address of an IPoIB interface: it belongs to the endpoint
// whose port has GID in its table and whose partition is PKey.
type HostAddr struct {
	IP     netip.Addr
	Ifname string // for display
	GID    mad.GID
	PKey   mad.PKey
	// Device and Port name the port directly where GID is zero.
	Device string
	Port   uint8
}
