// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package sa

import (
	"sync/atomic"

	"acmd/bpf"
)

// Stats is a snapshot of a client's counters and gauges.
type Stats struct {
	Queries    uint64 `json:"queries"`     // flights accepted
	Refused    uint64 `json:"refused"`     // flights and posts refused: queue full
	Sent       uint64 `json:"sent"`        // SA requests sent, retries included
	Retries    uint64 `json:"retries"`     // of them, tries after a flight's first
	Answers    uint64 `json:"answers"`     // answers that ended a flight, success or status
	Failures   uint64 `json:"failures"`    // flights that ended with an error
	Timeouts   uint64 `json:"timeouts"`    // tries without an answer
	Busy       uint64 `json:"busy"`        // BUSY answers
	OK         uint64 `json:"ok"`          // answers with success
	NoRecords  uint64 `json:"no_records"`  // "no records" answers
	Errors     uint64 `json:"errors"`      // answers with another status
	NoSA       uint64 `json:"no_sa"`       // answers of a node without an SA
	Mismatched uint64 `json:"mismatched"`  // answers to another question under a TID of ours
	Stray      uint64 `json:"stray"`       // late, duplicate or foreign answers
	Malformed  uint64 `json:"malformed"`   // packets of a wrong version, length or class
	Unhandled  uint64 `json:"unhandled"`   // packets that nobody takes
	Datagrams  uint64 `json:"datagrams"`   // packets sent with SendTo and Reply
	SendErrors uint64 `json:"send_errors"` // packets that the transport refused
	RecvErrors uint64 `json:"recv_errors"` // passing faults of receive
	Suspects   uint64 `json:"suspects"`    // calls of Config.Suspect

	Subscribed      int    `json:"subscribed"`       // traps that the SM reports to this port, as far as we know
	Subscriptions   uint64 `json:"subscriptions"`    // times that the whole subscription was made
	SubscribeErrors uint64 `json:"subscribe_errors"` // subscriptions that the SM did not take
	Reports         uint64 `json:"reports"`          // notices taken
	ReportsForeign  uint64 `json:"reports_foreign"`  // Reports that were not the SM's
	ReportsOver     uint64 `json:"reports_over"`     // Reports beyond what is taken in a second

	Outstanding int `json:"outstanding"` // flights in the window
	Window      int `json:"window"`      // its size now
	Queued      int `json:"queued"`      // flights in hand beyond the window
}

// counters are written by the owner goroutine, save refused, and read by any.
type counters struct {
	queries, refused, sent, retries, answers, failures, timeouts, busy, ok, noRecords,
	errors, noSA, mismatched, stray, malformed, unhandled, datagrams, sendErrors,
	recvErrors, suspects counter
	subscriptions, subscribeErrors, reports, reportsForeign, reportsOver atomic.Uint64
	outstanding, window, subscribed                                      atomic.Int64
}

// counter counts for the client and, beyond its life, for the service.
type counter struct {
	own   atomic.Uint64
	shard *bpf.Shard
	word  bpf.Word
}

func (n *counter) Add(delta uint64) {
	n.own.Add(delta)
	n.shard.Add(n.word, delta)
}

func (n *counter) Load() uint64 { return n.own.Load() }

func (n *counters) init(s *bpf.Shard) {
	for word, at := range map[bpf.Word]*counter{
		bpf.SAQueries: &n.queries, bpf.SARefused: &n.refused, bpf.SASent: &n.sent, bpf.SARetries: &n.retries,
		bpf.SAAnswers: &n.answers, bpf.SAFailures: &n.failures, bpf.SATimeouts: &n.timeouts, bpf.SABusy: &n.busy,
		bpf.SAOK: &n.ok, bpf.SANoRecords: &n.noRecords, bpf.SAErrors: &n.errors, bpf.SANoSA: &n.noSA,
		bpf.SAMismatched: &n.mismatched, bpf.SAStray: &n.stray, bpf.MADMalformed: &n.malformed,
		bpf.MADUnhandled: &n.unhandled, bpf.MADSent: &n.datagrams, bpf.MADSendErrors: &n.sendErrors,
		bpf.MADRecvErrors: &n.recvErrors, bpf.SASuspects: &n.suspects,
	} {
		at.shard, at.word = s, word
	}
}

// Stats reads the counters. Safe for concurrent use; the fields are read one by
// one, not at one moment.
func (c *Client) Stats() Stats {
	n := &c.count
	s := Stats{
		Queries: n.queries.Load(), Refused: n.refused.Load(), Sent: n.sent.Load(),
		Retries: n.retries.Load(), Answers: n.answers.Load(), Failures: n.failures.Load(),
		Timeouts: n.timeouts.Load(), Busy: n.busy.Load(), OK: n.ok.Load(), NoRecords: n.noRecords.Load(), Errors: n.errors.Load(),
		NoSA: n.noSA.Load(), Mismatched: n.mismatched.Load(), Stray: n.stray.Load(),
		Malformed: n.malformed.Load(), Unhandled: n.unhandled.Load(),
		Datagrams: n.datagrams.Load(), SendErrors: n.sendErrors.Load(),
		RecvErrors: n.recvErrors.Load(), Suspects: n.suspects.Load(),
		Subscribed: int(n.subscribed.Load()), Subscriptions: n.subscriptions.Load(), SubscribeErrors: n.subscribeErrors.Load(), Reports: n.reports.Load(),
		ReportsForeign: n.reportsForeign.Load(), ReportsOver: n.reportsOver.Load(),
		Outstanding: int(n.outstanding.Load()), Window: int(n.window.Load()),
	}
	s.Queued = max(int(c.pending.Load())-s.Outstanding, 0)
	return s
}
