// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package fabric

import (
	"slices"
	"sync/atomic"
	"time"

	"acmd/mad"
	"acmd/mad/sa"
)

// Reason says why a MAD did not arrive.
type Reason uint8

const (
	LostRule      Reason = iota + 1 // a rule dropped it
	LostPortDown                    // the sender's port is not active
	LostPKey                        // empty P_Key index, or another partition
	LostQKey                        // another Q_Key than the receiver's
	LostNoDest                      // nobody has the LID, or nobody listens there
	LostNoSA                        // an SA request to a node without master SM
	LostNoGroup                     // no such group, or GID and MLID do not fit
	LostNotMember                   // the sender did not join the group
	LostQueue                       // the receiver's queue is full
	LostUnasked                     // kernel timers: the answer is late, double or unasked
	LostSAQueue                     // the SA has too much to do
	numReasons    = int(iota + 1)
)

var reasonNames = [numReasons]string{"", "rule", "port down", "P_Key", "Q_Key", "no destination", "no SA",
	"no group", "not a member", "queue full", "unasked answer", "SA overloaded"}

func (r Reason) String() string {
	if int(r) < len(reasonNames) {
		return reasonNames[r]
	}
	return "unknown"
}

// counters are written from everywhere with atomic adds.
type counters struct {
	sent, received              atomic.Uint64
	pathGets, pathTables        atomic.Uint64
	records                     atomic.Uint64
	memberGets, joins, leaves   atomic.Uint64
	informs, classInfos         atomic.Uint64
	ignored                     atomic.Uint64
	reports, reportsGivenUp     atomic.Uint64
	reportsRefused, subsRefused atomic.Uint64
	multicasts, unicasts        atomic.Uint64
	acmRequests, acmAnswers     atomic.Uint64
	timeouts, eventsLost        atomic.Uint64
	lost                        [numReasons]atomic.Uint64
}

// Stats counts since the fabric was made. Requests count when they reach the SA,
// repeated ones each time.
type Stats struct {
	Sent, Received uint64 // MADs of local ports

	PathGets, PathTables uint64 // PathRecord Get, GetTable
	TableRecords         uint64 // records in tables of any attribute
	Joins, Leaves        uint64 // MCMemberRecord Set, Delete
	MemberGets           uint64 // MCMemberRecord Get, GetTable
	Informs, ClassInfos  uint64 // InformInfo Set, ClassPortInfo Get
	Ignored              uint64 // requests that the SA does not answer

	Reports        uint64 // Reports sent, repeated ones included
	ReportsGivenUp uint64 // never answered
	ReportsRefused uint64 // not sent, too many are outstanding
	SubsRefused    uint64 // subscriptions beyond the bound

	Multicasts, Unicasts    uint64 // datagrams of local ports that were not for the SA
	ACMRequests, ACMAnswers uint64 // at and from simulated services

	Timeouts   uint64            // requests that came back to a port with kernel timers
	EventsLost uint64            // port events that found the channel full
	Lost       map[Reason]uint64 // without zeros
}

// Stats returns the counters; each is exact, together they are no snapshot.
func (f *Fabric) Stats() Stats {
	c := &f.count
	s := Stats{
		Sent: c.sent.Load(), Received: c.received.Load(),
		PathGets: c.pathGets.Load(), PathTables: c.pathTables.Load(), TableRecords: c.records.Load(),
		Joins: c.joins.Load(), Leaves: c.leaves.Load(), MemberGets: c.memberGets.Load(),
		Informs: c.informs.Load(), ClassInfos: c.classInfos.Load(), Ignored: c.ignored.Load(),
		Reports: c.reports.Load(), ReportsGivenUp: c.reportsGivenUp.Load(),
		ReportsRefused: c.reportsRefused.Load(), SubsRefused: c.subsRefused.Load(),
		Multicasts: c.multicasts.Load(), Unicasts: c.unicasts.Load(),
		ACMRequests: c.acmRequests.Load(), ACMAnswers: c.acmAnswers.Load(),
		Timeouts: c.timeouts.Load(), EventsLost: c.eventsLost.Load(), Lost: map[Reason]uint64{},
	}
	for r := range c.lost {
		if n := c.lost[r].Load(); n > 0 {
			s.Lost[Reason(r)] = n
		}
	}
	return s
}

// countRequest counts a request by its operation; false if the SA has none such.
func (f *Fabric) countRequest(op request) bool {
	c := &f.count
	var n *atomic.Uint64
	switch op {
	case request{sa.AttrPathRecord, mad.MethodGet}:
		n = &c.pathGets
	case request{sa.AttrPathRecord, mad.MethodGetTable}:
		n = &c.pathTables
	case request{sa.AttrMCMemberRecord, mad.MethodGet}, request{sa.AttrMCMemberRecord, mad.MethodGetTable}:
		n = &c.memberGets
	case request{sa.AttrMCMemberRecord, mad.MethodSet}:
		n = &c.joins
	case request{sa.AttrMCMemberRecord, mad.MethodDelete}:
		n = &c.leaves
	case request{sa.AttrInformInfo, mad.MethodSet}:
		n = &c.informs
	case request{sa.AttrClassPortInfo, mad.MethodGet}:
		n = &c.classInfos
	default:
		c.ignored.Add(1)
		return false
	}
	n.Add(1)
	return true
}

// EventKind is what happened to a MAD.
type EventKind uint8

const (
	Sent      EventKind = iota + 1 // a local port sent it
	Delivered                      // it is in a local port's receive queue
	Lost                           // it will not arrive, see Reason
	TimedOut                       // it came back to its sender, status 110
)

// Event is one step of a MAD at a local port. Header and MAD are copies: of the
// slot as it was sent, or as it is received.
type Event struct {
	Time   time.Time
	Kind   EventKind
	Reason Reason // of Lost
	Node   int    // the local node that sent it or was to receive it
	Port   uint8
	Header mad.UserHeader
	MAD    mad.Packet
}

type tracer struct{ fn func(Event) }

// Trace calls fn for every MAD at a local port until stop is called. fn runs
// inside Send, Recv's timers and locks: it may be called concurrently, must be
// quick and must not call the fabric or its ports.
func (f *Fabric) Trace(fn func(Event)) (stop func()) {
	t := &tracer{fn}
	f.setTracers(func(l []*tracer) []*tracer { return append(l, t) })
	return func() {
		f.setTracers(func(l []*tracer) []*tracer {
			return slices.DeleteFunc(l, func(o *tracer) bool { return o == t })
		})
	}
}

func (f *Fabric) setTracers(edit func([]*tracer) []*tracer) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var list []*tracer
	if p := f.tracers.Load(); p != nil {
		list = slices.Clone(*p)
	}
	if list = edit(list); len(list) == 0 {
		f.tracers.Store(nil)
		return
	}
	f.tracers.Store(&list)
}

func (f *Fabric) trace(p *port, kind EventKind, why Reason, m *message) {
	if ts := f.tracers.Load(); ts != nil {
		traceTo(*ts, p, kind, why, m.header(), m.mad())
	}
}

func traceTo(ts []*tracer, p *port, kind EventKind, why Reason, h *mad.UserHeader, m *mad.Packet) {
	e := Event{Time: time.Now(), Kind: kind, Reason: why, Node: p.node, Port: p.num, Header: *h, MAD: *m}
	for _, t := range ts {
		t.fn(e)
	}
}

// lost counts a message that does not reach p.
func (f *Fabric) lost(p *port, m *message, why Reason) {
	f.count.lost[why].Add(1)
	f.trace(p, Lost, why, m)
}

// lostSend counts what p sent and does not get anywhere.
func (f *Fabric) lostSend(p *port, h *mad.UserHeader, m *mad.Packet, why Reason) {
	f.count.lost[why].Add(1)
	if ts := f.tracers.Load(); ts != nil {
		traceTo(*ts, p, Lost, why, h, m)
	}
}

// delivered counts a message that is in p's queue.
func (f *Fabric) delivered(p *port, m *message) {
	f.count.received.Add(1)
	f.trace(p, Delivered, 0, m)
}
