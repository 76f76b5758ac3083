// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

// Package resolver is the engine: it maps a question to a local endpoint,
// answers it from the path cache, or runs the address step and the route step
// once for all who ask the same.
//
// The engine knows nothing of sockets or files. Doors (resolver/acmsock,
// resolver/kernelnl) bring it a [Query] and take an [Answer]; transports below
// mad/ move MADs for it; address sources and providers plug in through the
// interfaces of provider.go.
package resolver
