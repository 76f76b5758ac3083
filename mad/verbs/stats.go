// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package verbs

// Stats counts what a port's queue pairs did, in datagrams but for Resets.
type Stats struct {
	Received   uint64
	Sent       uint64
	Foreign    uint64 // dropped: of another class, which no queue pair is for
	RecvErrors uint64 // receive buffers that came back with an error
	SendErrors uint64 // sends that came back with an error
	Stale      uint64 // completions from before a reset
	Resets     uint64 // queue pairs taken out of an error state
	Full       uint64 // sends refused as the queue stayed full
	Capped     uint64 // times that so much came at once that the rest was put off
}

// Counted is a port with queue pairs; its method is safe for concurrent use.
type Counted interface{ Stats() Stats }
