// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

// Package resolver is the engine: it maps a question to a local endpoint,
// answers it from the path cache, or runs the address step and the route step
// once for all who ask the same.
//
// The engine knows nothing of sockets or files. Doors (resolver/acmsock,
// resolver/kernelnl) bring it a [Query] and take an [Answer]; transports below
// mad/ move MADs for it; address sources and providers plug in through the
// interfaces of provider.go and provide.go; [Config] lists what an [Engine] is
// made of.
//
// A hit reads one immutable snapshot of the topology and one cache entry. A miss
// joins the flight for its key or starts one; flights and waiters are bounded,
// a waiter's deadline never ends its flight, and failures are remembered for a
// short time. A path that is hit past its refresh age is served and looked up
// behind the answer, so many a second and no more; a reregistration or another
// SM makes all paths of the port due, a changed LID or GID drops them.
//
// What may be served is decided in one place. A flight takes the cache's epoch
// before it looks at anything, and cache.Put refuses what concerns something
// that was invalidated since; the flight then asks again. Publishing and leaving
// the flight table are one step, so that nobody can join a flight whose answer
// was published before an invalidation and receive it after.
package resolver
