// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package resolver

import (
	"sync/atomic"
	"time"

	"acmd/cache"
	"acmd/mad"
	"acmd/mad/sa"
	"acmd/mad/transport"
)

// Provider is what resolves on behalf of ports: the twelve callbacks of ibacm's
// plug-in interface in Go's shape, where each open returns the object that the
// later calls are methods of. The engine keeps one provider per port, chosen by
// the subnet prefix of its GID 0.
//
// Opens, closes, address changes and events come from one goroutine, in the
// order: device, port, endpoint, address; closing runs backwards. They should
// not block for long: nothing else that changes is looked at meanwhile, though
// hits are served. An open that fails leaves the object closed and is tried
// again at the next poll.
type Provider interface {
	// Name is the configuration word.
	Name() string
	// OpenDevice is called before the first port of the device opens with this
	// provider.
	OpenDevice(dev *transport.Device) (ProviderDevice, error)
}

// ProviderDevice is an open device.
type ProviderDevice interface {
	// OpenPort is called when a port becomes active, and again after a change of
	// its LID or GID 0.
	OpenPort(port *OpenPort) (ProviderPort, error)
	Close()
}

// OpenPort is what a provider gets of a port. SA stays open until after the
// provider's port was closed.
type OpenPort struct {
	Device string
	Info   transport.PortInfo
	SA     SA
}

// ProviderPort is an open port.
type ProviderPort interface {
	OpenEndpoint(ep *Endpoint) (ProviderEndpoint, error)
	// HandleEvent tells of client reregistration.
	HandleEvent(t transport.EventType)
	Close()
}

// ProviderEndpoint is an open endpoint. Resolve, Query and Perf are called from
// any goroutine, also in the moment after Close.
type ProviderEndpoint interface {
	AddAddress(a *LocalAddr) (ProviderAddress, error)
	// Resolve looks for the path that ask wants. It must not block; done is
	// called exactly once, from any goroutine, possibly before Resolve returns,
	// and takes its argument as its own. The engine asks the same question once
	// at a time and caches what comes.
	Resolve(ask *Ask, done func(*Resolution))
	// Query passes a path query to the SA: what it says about exactly these
	// values. Rules are those of Resolve.
	Query(mask sa.ComponentMask, path *sa.PathRecord, done func(SAResult))
	// Perf returns the provider's own counters of the endpoint; false: the
	// engine's are used.
	Perf() (Counters, bool)
	Close()
}

// ProviderAddress is an address that was added.
type ProviderAddress interface{ Remove() }

// Ask is one question to a provider. It is immutable.
type Ask struct {
	Endpoint *Endpoint
	SGID     mad.GID // of the source address
	// Src and Dst of a question by address; Dst is zero for a path.
	Src, Dst Addr
	// Path has all constraints, those of the source filled in; of a question by
	// address only sgid, slid, P_Key, reversible and number of paths.
	Path sa.PathRecord
	Mask sa.ComponentMask
	// Refresh tells that nobody waits: a known path is checked.
	Refresh bool

	slot  uint16 // of the cache key: endpoint and source GID
	port  *portView
	since cache.Epoch // before port was looked up
	step  *stepMark
}

// Resolution is a provider's answer.
type Resolution struct {
	Path   sa.PathRecord
	Status Status // 0: Path is the answer
	Origin Origin
	// Err says on failure which step failed and why.
	Err error
	// Step is where it failed.
	Step Step
	// Lifetime bounds how long the answer may be kept; 0: as configured.
	Lifetime time.Duration

	// Where the answer rests on something older than the flight: the time and the
	// point in the order of invalidations at which that began. asked 0: it does not.
	asked int64
	since cache.Epoch
}

// Step names a part of a lookup.
type Step uint8

const (
	StepNone Step = iota
	StepAddress
	StepRoute
)

func (s Step) String() string {
	switch s {
	case StepAddress:
		return "address step"
	case StepRoute:
		return "route step"
	}
	return "lookup"
}

// stepMark tells which step a lookup is in, for the waiters that give up on it.
type stepMark struct{ atomic.Uint32 }

func (m *stepMark) set(s Step) {
	if m != nil {
		m.Store(uint32(s))
	}
}
