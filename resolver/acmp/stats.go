// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acmp

import (
	"cmp"
	"slices"
	"sync/atomic"

	"acmd/mad"
	"acmd/mad/acm"
)

// Stats is a snapshot of a source's counters.
type Stats struct {
	Lookups    uint64 `json:"lookups"`     // lookups started
	Requests   uint64 `json:"requests"`    // multicast requests sent, retries included
	Responses  uint64 `json:"responses"`   // answers to them
	Found      uint64 `json:"found"`       // lookups that found their address, by answer or by overhearing
	Timeouts   uint64 `json:"timeouts"`    // lookups that nobody answered
	Overload   uint64 `json:"overload"`    // lookups refused: a bound was hit
	Heard      uint64 `json:"heard"`       // well-formed requests of other nodes
	Answered   uint64 `json:"answered"`    // answers sent to them
	Joins      uint64 `json:"joins"`       // joins sent to the SA
	JoinErrors uint64 `json:"join_errors"` // joins that did not work
	Conflicts  uint64 `json:"conflicts"`   // datagrams that showed an address to be claimed by two nodes
	// Refused counts received datagrams that led to nothing, by reason.
	Refused map[string]uint64 `json:"refused"`
}

type counters struct {
	lookups, requests, responses, found, timeouts, overload, heard, answered, joins, joinErrors, conflicts atomic.Uint64
	refused                                                                                                [numReasons]atomic.Uint64
}

var reasonNames = map[acm.Reason]string{
	refusedSender: "sender", refusedAddress: "address", refusedGroup: "no_common_group",
	refusedStray: "stray", refusedOther: "not_ours", refusedRate: "rate",
	refusedPartition: "partition", refusedEcho: "echo",
}

// Stats reads the counters. All reasons are in Refused, also those with 0.
func (s *Source) Stats() Stats {
	c := &s.count
	st := Stats{
		Lookups: c.lookups.Load(), Requests: c.requests.Load(), Responses: c.responses.Load(), Found: c.found.Load(),
		Timeouts: c.timeouts.Load(), Overload: c.overload.Load(), Heard: c.heard.Load(), Answered: c.answered.Load(),
		Joins: c.joins.Load(), JoinErrors: c.joinErrors.Load(), Conflicts: c.conflicts.Load(), Refused: make(map[string]uint64, numReasons),
	}
	for r := acm.Reason(1); r < numReasons; r++ {
		name, ok := reasonNames[r]
		if !ok {
			name = r.String()
		}
		st.Refused[name] = c.refused[r].Load()
	}
	return st
}

// GroupStatus is what an endpoint's membership of one group looks like.
type GroupStatus struct {
	Device string
	Port   uint8
	PKey   mad.PKey
	MGID   mad.GID
	MTU    mad.MTU
	Rate   mad.Rate
	Joined bool
	MLID   mad.LID // 0 when never joined
	Err    error   // of the last join; a membership from before may still hold
}

// publish makes the port's groups visible to Groups.
func (p *port) publish() {
	var list []GroupStatus
	for _, m := range p.members {
		for _, g := range m.groups {
			list = append(list, GroupStatus{
				Device: p.key.device, Port: p.key.num, PKey: m.ep.PKey, MGID: g.mgid, MTU: g.mtu, Rate: g.rate,
				Joined: g.joined, MLID: g.rec.MLID(), Err: g.err,
			})
		}
	}
	p.status.Store(&list)
}

// Groups lists the groups of all endpoints, by device and port.
func (s *Source) Groups() []GroupStatus {
	var list []GroupStatus
	for _, p := range *s.byKey.Load() {
		if l := p.status.Load(); l != nil {
			list = append(list, *l...)
		}
	}
	slices.SortStableFunc(list, func(a, b GroupStatus) int {
		return cmp.Or(cmp.Compare(a.Device, b.Device), cmp.Compare(a.Port, b.Port))
	})
	return list
}
