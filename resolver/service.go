// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package resolver

import "acmd/bpf"

// The seven counters of the ACM protocol, in their fixed order (client protocol,
// PERF_QUERY).
const (
	CounterError      = bpf.CountError   // replies with a status other than success and no data
	CounterResolve    = bpf.CountResolve // RESOLVE requests
	CounterNoData     = bpf.CountNoData
	CounterAddrQuery  = bpf.CountAddrQuery  // questions of the address step that left the node
	CounterAddrCache  = bpf.CountAddrCache  // address known, route not
	CounterRouteQuery = bpf.CountRouteQuery // path queries sent to the SA
	CounterRouteCache = bpf.CountRouteCache // answered from the cache, loopback included
	NumCounters       = bpf.NumCounters
)

// Counters is one row of the seven, in that order.
type Counters = bpf.Counters

// Resolver is what the doors ask of the engine. All methods are safe for
// concurrent use.
type Resolver interface {
	// Lookup answers q into a if that needs no waiting, and says whether it did:
	// a cache hit, a negative entry, a local address, a failure that is certain
	// at once. It never blocks, locks or allocates; this is the hot path. Times
	// are those of Now. Nothing is counted when it returns false; the caller
	// then calls Resolve.
	Lookup(q *Query, now int64, a *Answer) bool
	// Resolve answers q through w, at the latest after the request time-out unless
	// q has OwnDeadline. A query with NoDelay that Lookup could not answer is answered StatusNoData
	// before Resolve returns, and looked up in the background. q is copied.
	Resolve(q *Query, tag uint64, w Waiter)
	// Now is the engine's clock in nanoseconds, for Lookup.
	Now() int64
	// Endpoints lists the endpoints on active ports, in device, port and P_Key
	// table order. The slice and what it points to must not be changed.
	Endpoints() []*Endpoint
	// Totals reads the service's counters, EndpointCounters those of one
	// endpoint of the current topology.
	Totals() Counters
	EndpointCounters(ep *Endpoint) Counters
	// BySource finds the endpoint that owns a local address, nil if none does.
	BySource(src *Addr) *Endpoint
}
