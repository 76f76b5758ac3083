// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package madtest

import (
	"errors"
	"net"
	"slices"
	"testing"
	"time"

	"acmd/mad"
	"acmd/mad/ring"
	"acmd/mad/sa"
	"acmd/mad/transport"
)

// AnswerTime bounds the wait for anything that has to come.
const AnswerTime = 15 * time.Second

// Harness opens the transport under test and says what to expect of it.
type Harness struct {
	// New opens a fabric and names a device and an active port of it that reach
	// an SA. It is called once per case; the suite closes the fabric, New
	// registers clean-ups for everything else.
	New func(t *testing.T) (f transport.Fabric, device string, port uint8)

	// Unreachable is a unicast LID that nobody has. 0 leaves out the case of
	// undeliverable MADs: for transports that neither have timers nor report
	// what they could not deliver.
	Unreachable mad.LID

	// Poisoned says that New asks for poisoned rings, so that the suite can see
	// that released slots are overwritten.
	Poisoned bool

	// Reports says that the SA behind New sends Report 66 to subscribers when a
	// multicast group is created. It needs Caps.Reports of the port.
	Reports bool

	// Pollable says that the ports are [transport.Pollable].
	Pollable bool

	// ReportQPN is the queue pair that the port sends from and receives Reports
	// at, 0 for QP1.
	ReportQPN mad.QPN
}

// TestTransport runs the suite.
func TestTransport(t *testing.T, h Harness) {
	type kase struct {
		name string
		run  func(*testing.T, *env)
	}
	cases := []kase{
		{"Devices", testDevices},
		{"OpenUnknown", testOpenUnknown},
		{"Caps", testCaps},
		{"PathQuery", testPathQuery},
		{"Batch", testBatch},
		{"SendNothing", testSendNothing},
		{"SlotsStayTheSenders", testSlotsStayTheSenders},
		{"RecvDeadline", testRecvDeadline},
		{"WakeBeforeRecv", testWakeBeforeRecv},
		{"WakeDuringRecv", testWakeDuringRecv},
		{"CloseUnblocksRecv", testCloseUnblocksRecv},
		{"ClosedPort", testClosedPort},
		{"FabricClose", testFabricClose},
		{"Reopen", testReopen},
		{"SlotOwnership", testSlotOwnership},
		{"Concurrent", testConcurrent},
	}
	if h.Unreachable != 0 {
		cases = append(cases, kase{"Undeliverable", testUndeliverable})
	}
	if h.Pollable {
		cases = append(cases, kase{"Pollable", testPollable})
	}
	if h.Reports {
		cases = append(cases, kase{"Reports", testReports})
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			CheckLeaks(t)
			c.run(t, newEnv(t, h))
		})
	}
}

// env is one opened fabric with one opened port.
type env struct {
	h      Harness
	fabric transport.Fabric
	device string
	num    uint8
	info   transport.PortInfo
	port   transport.Port
	tid    uint32
}

func newEnv(t *testing.T, h Harness) *env {
	t.Helper()
	e := &env{h: h, tid: 0x51000000}
	e.fabric, e.device, e.num = h.New(t)
	t.Cleanup(func() { e.fabric.Close() })
	e.info = e.portInfo(t)
	port, err := e.fabric.Open(e.device, e.num)
	if err != nil {
		t.Fatalf("open %s port %d: %v", e.device, e.num, err)
	}
	e.port = port
	t.Cleanup(func() { port.Close() })
	return e
}

// portInfo finds the port under test in the list of devices.
func (e *env) portInfo(t *testing.T) transport.PortInfo {
	t.Helper()
	devices, err := e.fabric.Devices()
	if err != nil {
		t.Fatalf("devices: %v", err)
	}
	for _, d := range devices {
		for _, p := range d.Ports {
			if d.Name == e.device && p.Num == e.num {
				return p
			}
		}
	}
	t.Fatalf("%s port %d is not among the devices: %+v", e.device, e.num, devices)
	return transport.PortInfo{}
}

// slot borrows a slot.
func (e *env) slot(t *testing.T) *ring.Slot {
	t.Helper()
	s := e.port.Ring().Get()
	if s == nil {
		t.Fatalf("ring of %d slots is empty", e.port.Ring().Cap())
	}
	return s
}

// slots borrows n slots.
func (e *env) slots(t *testing.T, n int) []*ring.Slot {
	t.Helper()
	list := make([]*ring.Slot, n)
	if got := e.port.Ring().GetN(list); got != n {
		t.Fatalf("%d slots of %d wanted", got, n)
	}
	return list
}

func release(slots []*ring.Slot) {
	for _, s := range slots {
		s.Release()
	}
}

// nextTID returns a TID that this port has not used: a transport with timers
// refuses a second one.
func (e *env) nextTID() mad.TID { e.tid++; return mad.TID(e.tid) }

// address makes the slot's header one towards QP1 of a LID, with an answer
// expected within timeout.
func (e *env) address(s *ring.Slot, lid mad.LID, timeout time.Duration) {
	h := s.Header()
	*h = mad.UserHeader{}
	h.SetLID(lid)
	h.SetSL(e.info.SMSL)
	h.SetQPN(mad.QP1)
	h.SetQKey(mad.WellKnownQKey)
	h.SetPKeyIndex(e.info.SAPKeyIndex())
	h.SetTimeoutMS(uint32(timeout.Milliseconds()))
}

// pathQuery writes PathRecord Get from this port to dlid, both by LID.
func (e *env) pathQuery(s *ring.Slot, tid mad.TID, to, dlid mad.LID, timeout time.Duration) {
	e.address(s, to, timeout)
	p := s.MAD()
	sa.Init(p, mad.MethodGet, sa.AttrPathRecord, sa.PathSLID|sa.PathDLID|sa.PathReversible|sa.PathNumPath)
	p.SetTID(tid)
	r := sa.Path(p)
	r.SetSLID(e.info.LID)
	r.SetDLID(dlid)
	r.SetReversibleNumPath(true, 1)
}

// send sends all slots or fails.
func (e *env) send(t *testing.T, slots ...*ring.Slot) {
	t.Helper()
	for done := 0; done < len(slots); {
		n, err := e.port.Send(slots[done:])
		if err != nil {
			t.Fatalf("send slot %d of %d: %v", done+n, len(slots), err)
		}
		if n == 0 {
			t.Fatalf("send took no slot and gave no reason")
		}
		done += n
	}
}

// recv waits for at least one message in slots.
func (e *env) recv(t *testing.T, slots []*ring.Slot) int {
	t.Helper()
	for end := time.Now().Add(AnswerTime); time.Now().Before(end); {
		n, err := e.port.Recv(slots, end)
		if err != nil {
			t.Fatalf("recv: %v", err)
		}
		if n > len(slots) {
			t.Fatalf("recv filled %d of %d slots", n, len(slots))
		}
		if n > 0 {
			return n
		}
	}
	t.Fatalf("no message within %v", AnswerTime)
	return 0
}

// checkPath checks the answer to a path query by LIDs.
func (e *env) checkPath(t *testing.T, s *ring.Slot, dlid mad.LID) {
	t.Helper()
	h, p := s.Header(), s.MAD()
	if h.Status() != 0 || h.LID() != e.info.SMLID || h.QPN() != mad.QP1 {
		t.Fatalf("answer's header: status %d, LID %v, QP %d; want 0, %v, 1", h.Status(), h.LID(), h.QPN(), e.info.SMLID)
	}
	// Some fabrics say how much of the MAD is payload, others that it is a MAD.
	if got := h.Length(); got < mad.UserHeaderSize+sa.DataOffset+uint32(len(sa.PathRecord{})) || got > ring.SlotSize {
		t.Errorf("answer's length %d", got)
	}
	if p.Class() != mad.ClassSA || p.Method() != mad.MethodGetResp || p.AttrID() != sa.AttrPathRecord || p.Status() != 0 {
		t.Fatalf("answer: class %#x method %#x attribute %#x status %#x", p.Class(), p.Method(), p.AttrID(), p.Status())
	}
	r := sa.Path(p)
	if r.SLID() != e.info.LID || r.DLID() != dlid {
		t.Errorf("path %v -> %v, want %v -> %v", r.SLID(), r.DLID(), e.info.LID, dlid)
	}
	if !slices.Contains(e.info.GIDs, r.SGID()) {
		t.Errorf("path's SGID %v is not one of the port's %v", r.SGID(), e.info.GIDs)
	}
}

// wantClosed fails unless err says that the port is closed.
func wantClosed(t *testing.T, what string, n int, err error) {
	t.Helper()
	if n != 0 || !errors.Is(err, net.ErrClosed) {
		t.Errorf("%s: %d, %v; want 0, net.ErrClosed", what, n, err)
	}
}
