// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package kernelnl

import (
	"sync/atomic"
	"time"
)

// Stats is what the door counts. Every message of the kernel is in exactly one of
// Resolves, IPResolves, Malformed, Unknown, Control, Rejected and Unreadable. Each
// of the first two has one outcome, Answered, Failed, Expired, Busy, Late or
// SendErrors, or it is Pending.
type Stats struct {
	Resolves   uint64 `json:"resolves"`    // requests for a path
	IPResolves uint64 `json:"ip_resolves"` // requests for the GID of an IP address
	Malformed  uint64 `json:"malformed"`   // refused: not as they should be
	Unknown    uint64 `json:"unknown"`     // refused: another operation or client
	Control    uint64 `json:"control"`     // messages of netlink itself, ignored
	Rejected   uint64 `json:"rejected"`    // answers that the kernel refused
	Unreadable uint64 `json:"unreadable"`  // too long, or without a header; ignored

	Hits       uint64 `json:"hits"`        // of Answered: without a lookup
	Answered   uint64 `json:"answered"`    // with a path or a GID
	Failed     uint64 `json:"failed"`      // told that there is none
	Expired    uint64 `json:"expired"`     // told so because the kernel's wait was nearly over
	Busy       uint64 `json:"busy"`        // told so because too many were outstanding
	Late       uint64 `json:"late"`        // not told anything, as its wait was over
	SendErrors uint64 `json:"send_errors"` // not told anything, as nothing could be sent

	Foreign  uint64 `json:"foreign"`  // messages not from the kernel, ignored
	Overruns uint64 `json:"overruns"` // times that the kernel dropped messages

	Pending int   `json:"pending"` // requests that wait
	WaitMS  int64 `json:"wait_ms"` // how long the kernel waits
}

// counters are written by the door's goroutine and read by any.
type counters struct {
	resolves, ipResolves, malformed, unknown, control, rejected, unreadable atomic.Uint64
	hits, answered, failed, expired, busy, late, sendErrors                 atomic.Uint64
	foreign, overruns                                                       atomic.Uint64
	pending                                                                 atomic.Int64
}

// Stats returns a snapshot.
func (d *Door) Stats() Stats {
	c := &d.count
	return Stats{
		Resolves: c.resolves.Load(), IPResolves: c.ipResolves.Load(), Malformed: c.malformed.Load(), Unknown: c.unknown.Load(),
		Control: c.control.Load(), Rejected: c.rejected.Load(), Unreadable: c.unreadable.Load(), Hits: c.hits.Load(), Answered: c.answered.Load(), Failed: c.failed.Load(),
		Expired: c.expired.Load(), Busy: c.busy.Load(), Late: c.late.Load(), SendErrors: c.sendErrors.Load(), Foreign: c.foreign.Load(),
		Overruns: c.overruns.Load(),
		Pending:  int(c.pending.Load()), WaitMS: int64(d.cfg.Wait / time.Millisecond),
	}
}
