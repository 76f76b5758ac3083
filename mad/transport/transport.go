// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

// Package transport is the boundary between what wants MADs moved and what moves
// them. A [Fabric] lists local devices and opens their ports; a [Port] moves
// MADs in batches between the slots of a ring and the fabric. mad/umad,
// mad/ibsim and mad/fabric implement it, mad/verbs adds a queue pair to any of
// them, and mad/madtest has the conformance suite that each of them must pass.
//
// A transport knows nothing of paths, time-outs or retries: it does not resend,
// and beyond handing back what it could not deliver it does not keep what it
// sent.
package transport

import (
	"errors"
	"time"

	"acmd/mad"
	"acmd/mad/ring"
)

var (
	// ErrGone is returned by a port whose device was removed. The port stays
	// unusable; close it and open the device again when it is back.
	ErrGone = errors.New("device is gone")
	// ErrNoPort is returned for a device or port that does not exist.
	ErrNoPort = errors.New("no such port")
	// ErrInUse is returned when another agent owns what was asked for, such as
	// the Report method of a port (umad: one agent per port, class and method).
	ErrInUse = errors.New("another agent owns it")
)

// Fabric is one way to reach a fabric. All methods are safe for concurrent use.
type Fabric interface {
	// Name is the word of the command line: "umad", "ibsim" or "embedded".
	Name() string
	// Devices returns the local devices as they are now. No device is no error.
	// The result belongs to the caller.
	Devices() ([]Device, error)
	// Open opens a port whatever its state.
	Open(device string, port uint8) (Port, error)
	// Events tells what the transport notices by itself. The channel is bounded
	// and lossy: an event says "look again", Devices says what is true. nil when
	// the transport notices nothing. It is closed by Close.
	Events() <-chan Event
	// Close ends the fabric; ports that are still open fail with net.ErrClosed.
	Close() error
}

// Device is a local adapter. Identity is the name: node GUIDs are not unique
// (virtual functions share one) and may be zero.
type Device struct {
	Name     string
	NodeGUID mad.GUID
	Ports    []PortInfo // by port number, from 1; holes are possible
}

// LinkLayer tells InfiniBand ports from Ethernet ones.
type LinkLayer uint8

const (
	LinkInfiniBand LinkLayer = iota
	LinkEthernet
	LinkOther
)

// PortInfo is a snapshot of one port. Values are in host order.
type PortInfo struct {
	Num           uint8
	LinkLayer     LinkLayer
	State         mad.State
	LID           mad.LID // base LID
	LMC           uint8
	SMLID         mad.LID
	SMSL          uint8
	CapMask       uint32
	MTU           mad.MTU    // active
	Rate          mad.Rate   // active, 0 when unknown
	SubnetTimeout uint8      // 5 bits: 4.096 us x 2^n
	GIDs          []mad.GID  // the whole table; empty entries are zero or have a zero GUID
	PKeys         []mad.PKey // the whole table, holes included
}

// SAPKeyIndex returns the table index to use towards the SA: that of 0xFFFF,
// else of 0x7FFF, else 0.
func (p *PortInfo) SAPKeyIndex() uint16 {
	limited := -1
	for i, k := range p.PKeys {
		if k == mad.DefaultPKey {
			return uint16(i)
		}
		if k == 0x7fff && limited < 0 {
			limited = i
		}
	}
	return uint16(max(limited, 0))
}

// EventType numbers port events as enum ibv_event_type does.
type EventType uint8

const (
	EventDeviceFatal  EventType = 8
	EventPortActive   EventType = 9
	EventPortError    EventType = 10
	EventLIDChange    EventType = 11
	EventPKeyChange   EventType = 12
	EventSMChange     EventType = 13
	EventReregister   EventType = 17
	EventGIDChange    EventType = 18
	EventDeviceAdd    EventType = 128 // ours: a device came
	EventDeviceRemove EventType = 129 // ours: a device went
)

// Event is a hint that something about a port or device changed.
type Event struct {
	Type   EventType
	Device string
	Port   uint8 // 0 for the device
}

// SourcePoll is the source of a device that tells nothing: it is looked at.
const SourcePoll = "poll"

// EventSource says how a transport learns what happens to a device.
type EventSource struct {
	Device string `json:"device"`
	Source string `json:"source"` // "uverbs" ..., or SourcePoll
	Reason string `json:"reason,omitempty"`
	Events uint64 `json:"events"` // told by the source so far
	Lost   uint64 `json:"lost"`   // of them, dropped as nobody took them in time
}

// Watcher is a Fabric that can say how it learns what happens. Devices without an
// entry are looked at.
type Watcher interface {
	// EventSources lists the devices that are watched or could not be, in the order
	// of Devices.
	EventSources() []EventSource
}

// Caps says what a port can do beyond unicast MADs.
type Caps struct {
	// Multicast: MADs to a multicast LID and GID with QPN 0xFFFFFF go to the
	// members of the group.
	Multicast bool
	// Listens: MADs of the ACM class that were multicast to a group which this
	// port joined, or sent to QPN, are received.
	Listens bool
	// QPN is where unicast answers to this port's ACM requests arrive, in the
	// default partition where each has a queue pair of its own.
	QPN mad.QPN
	// Reports: unsolicited SA Reports (method 6) are received.
	Reports bool
	// Timers: a send with a time-out that gets no answer comes back from Recv
	// with status mad.StatusTimeout when the header's time-out is over, and no
	// second send of the same TID is possible before that. Without it nothing
	// comes back, except what could not be delivered at all.
	Timers bool
}

// Port is an open port. Send and Recv may run at the same time; each of them is
// for one goroutine at a time. Wake, Close, Ring and Caps are safe from any.
type Port interface {
	// Ring is where slots for this port come from. Its size bounds what is
	// in hand at any time.
	Ring() *ring.Ring
	Caps() Caps
	// Send transmits slots in order and returns how many were taken. The slots
	// stay the caller's, who may reuse or release them at once. Header fields
	// used: LID, SL, PathBits, QPN, QKey, PKeyIndex, GRH fields, TimeoutMS (0
	// for what expects no answer) and Retries (0 for ours). With n < len(slots)
	// err says why slot n was refused.
	Send(slots []*ring.Slot) (n int, err error)
	// Recv fills the slots that the caller provides, and returns as soon as it
	// has at least one message. It may exchange slots instead: put the one of the
	// ring that the adapter filled into the caller's list, and keep the caller's
	// to be filled. So it is slots[:n] as they are afterwards that is the caller's.
	// It returns 0, nil at the deadline (zero: none) and after Wake. Errors:
	// net.ErrClosed, ErrGone, or a passing fault.
	Recv(slots []*ring.Slot, deadline time.Time) (n int, err error)
	// Wake makes the Recv in progress, or the next one, return at once. Any
	// number of calls before that Recv count as one.
	Wake()
	// JoinQP tells the port that the SA made it a member of a group, so that a
	// port that Listens can attach the queue pair of the partition, which is named
	// by its index in the P_Key table; LeaveQP undoes it. Both are for the
	// goroutine that is in Send at other times. A repeated JoinQP does nothing.
	JoinQP(mgid mad.GID, mlid mad.LID, pkeyIndex uint16) error
	LeaveQP(mgid mad.GID, mlid mad.LID) error
	// Close ends the port. A Recv in progress returns net.ErrClosed. Slots that
	// are out stay valid until released.
	Close() error
}

// Pollable is a Port that an event loop can serve beside its other descriptors,
// without a goroutine that waits in Recv.
type Pollable interface {
	Port
	// PollFDs are descriptors, one of which is readable while Recv would not wait.
	// They are the port's: they go away with Close, and are not to be read from.
	// They are not one, for a wake-up through an epoll descriptor of the port's own
	// would not say any more that the waker is about to sleep, and the kernel would
	// look for another processor.
	PollFDs() []int
	// Drive tells that a loop waits for the descriptors from now on, and calls Recv
	// with deadlines in the past only; or, with false, that a goroutine waits in
	// Recv again. It belongs to whoever may call Recv.
	Drive(loop bool)
	// TrySend is Send without waiting for room: it fails with EAGAIN instead.
	TrySend(slots []*ring.Slot) (n int, err error)
}
