// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package neigh

import (
	"log/slog"
	"sync/atomic"
	"time"

	"acmd/mad"
	"acmd/resolver"
	"acmd/resolver/hostnet"
)

// Name is the word of this source in addr_prot and in answers.
const Name = "neigh"

// Bounds of what clients can make grow.
const (
	// MaxLookups bounds the lookups under way, of all endpoints.
	MaxLookups = 4096
	// MaxTold bounds the answers that are remembered to notice moves. Beyond it some
	// other one is forgotten, and a move of that address shows when its path is
	// looked up again.
	MaxTold = 1 << 16
)

// Config says what a Source is made of.
type Config struct {
	// Interfaces lists the host's IPoIB interfaces, from memory.
	Interfaces func() []hostnet.Interface
	// Moved is told the GID that an address had when it was last asked for, once it
	// has another one. It is called from the source's goroutine and must not block
	// for long. nil: nobody wants to know.
	Moved func(was mad.GID)
	// Timeout bounds a lookup, so that a source behind this one has its turn while
	// the client still waits. 0: the caller's deadline alone.
	Timeout time.Duration
	Log     *slog.Logger // nil: slog.Default
}

// Stats counts what a Source did.
type Stats struct {
	Pending  int    `json:"pending"`  // lookups under way
	Lookups  uint64 `json:"lookups"`  // all that were begun
	Known    uint64 `json:"known"`    // the table had the entry
	Asked    uint64 `json:"asked"`    // times that the kernel was made to ask
	Found    uint64 `json:"found"`    // lookups that were answered
	Timeouts uint64 `json:"timeouts"` // lookups that nobody answered
	Unknown  uint64 `json:"unknown"`  // lookups of what is no neighbour
	Overload uint64 `json:"overload"` // lookups that were refused
	Moved    uint64 `json:"moved"`    // addresses that turned out to be elsewhere
	Told     int    `json:"told"`     // answers remembered
	Forgot   uint64 `json:"forgot"`   // answers forgotten because of the bound
	Overruns uint64 `json:"overruns"` // times that notifications were lost
}

type counters struct {
	lookups, known, asked, found, timeouts, unknown, overload, moved, forgot, overruns atomic.Uint64
}

// Stats returns the counters.
func (s *Source) Stats() Stats {
	c := &s.count
	s.mu.Lock()
	pending, told := len(s.live), len(s.told)
	s.mu.Unlock()
	return Stats{
		Pending: pending, Lookups: c.lookups.Load(), Known: c.known.Load(), Asked: c.asked.Load(), Found: c.found.Load(),
		Timeouts: c.timeouts.Load(), Unknown: c.unknown.Load(), Overload: c.overload.Load(), Moved: c.moved.Load(),
		Told: told, Forgot: c.forgot.Load(), Overruns: c.overruns.Load(),
	}
}

var _ resolver.AddressSource = (*Source)(nil)
