// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acmsock

import (
	"encoding/json"
	"fmt"
	"sync/atomic"
)

// CloseReason says why a connection ended.
type CloseReason uint8

const (
	ClosedByClient  CloseReason = iota // end of file, hang-up or reset
	ClosedByError                      // another failure of the socket
	ClosedPartial                      // message not completed in time
	ClosedBlocked                      // replies not taken in time
	ClosedFraming                      // no valid message header
	ClosedShutdown                     // the server ended
	ClosedPassed                       // it passed a descriptor
	numCloseReasons = iota
)

func (r CloseReason) String() string {
	return [...]string{"client", "error", "partial", "blocked", "framing", "shutdown", "descriptor"}[r]
}

// RejectReason says why a connection was closed as soon as it was accepted.
type RejectReason uint8

const (
	RejectedClients     RejectReason = iota // max_clients reached
	RejectedUser                            // bound of one user reached
	RejectedDescriptors                     // no descriptor left
	RejectedKernel                          // the kernel refused to register it
	numRejectReasons    = iota
)

func (r RejectReason) String() string {
	return [...]string{"clients", "user", "descriptors", "kernel"}[r]
}

// Counts by reason. Their JSON form is an object with the reasons' names.
type (
	RejectCounts [numRejectReasons]uint64 // by RejectReason
	CloseCounts  [numCloseReasons]uint64  // by CloseReason
	FaultCounts  [numFaults]uint64        // by Fault
)

// MarshalJSON implements [json.Marshaler].
func (c RejectCounts) MarshalJSON() ([]byte, error) { return named[RejectReason](c[:]) }

// MarshalJSON implements [json.Marshaler].
func (c CloseCounts) MarshalJSON() ([]byte, error) { return named[CloseReason](c[:]) }

// MarshalJSON implements [json.Marshaler]. There is no count of FaultNone.
func (c FaultCounts) MarshalJSON() ([]byte, error) { return named[Fault](c[:]) }

// named encodes counts under the names of their indices.
func named[R interface {
	~uint8
	fmt.Stringer
}](counts []uint64) ([]byte, error) {
	m := make(map[string]uint64, len(counts))
	for i, n := range counts {
		if name := R(i).String(); name != "none" {
			m[name] = n
		}
	}
	return json.Marshal(m)
}

// Stats is a reading of the server's counters. They never go back, apart from
// Open and Pending.
type Stats struct {
	Open     int64        `json:"open"`    // connections now
	Pending  int64        `json:"pending"` // questions in the engine now, also of clients that left
	Accepted uint64       `json:"accepted"`
	Rejected RejectCounts `json:"rejected"`
	Closed   CloseCounts  `json:"closed"`

	Requests   uint64      `json:"requests"` // framed requests
	BytesIn    uint64      `json:"bytes_in"`
	BytesOut   uint64      `json:"bytes_out"`
	Faults     FaultCounts `json:"faults"`
	BodyErrors uint64      `json:"body_errors"` // RESOLVE requests refused by the parser
	Refused    uint64      `json:"refused"`     // refused because too many questions wait
	Superseded uint64      `json:"superseded"`  // requests with tid 0 overtaken by another
	Paused     uint64      `json:"paused"`      // times that accepting had to pause
}

// cell is a counter with one writer, the loop, and any number of readers.
type cell struct{ v atomic.Uint64 }

func (c *cell) add(n uint64) { c.v.Store(c.v.Load() + n) }

// loopStats is the part of [Stats] that one loop counts.
type loopStats struct {
	accepted, paused    cell
	rejected            [numRejectReasons]cell
	closed              [numCloseReasons]cell
	faults              [numFaults]cell
	bodyErrors, refused cell
	superseded          cell
}

// Stats reads the counters; safe for concurrent use.
func (s *Server) Stats() Stats {
	out := Stats{Open: s.open.Load(), Pending: s.pending.Load()}
	for _, l := range s.loops {
		c := &l.stats
		t := l.traffic()
		out.Requests += t.requests - l.before.requests
		out.BytesIn += t.in - l.before.in
		out.BytesOut += t.out - l.before.out
		out.Accepted += c.accepted.v.Load()
		out.Paused += c.paused.v.Load()
		out.BodyErrors += c.bodyErrors.v.Load()
		out.Refused += c.refused.v.Load()
		out.Superseded += c.superseded.v.Load()
		for i := range c.rejected {
			out.Rejected[i] += c.rejected[i].v.Load()
		}
		for i := range c.closed {
			out.Closed[i] += c.closed[i].v.Load()
		}
		for i := range c.faults {
			out.Faults[i] += c.faults[i].v.Load()
		}
	}
	return out
}
