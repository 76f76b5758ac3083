// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package madtest

import (
	"errors"
	"reflect"
	"sync/atomic"
	"testing"
	"time"

	"acmd/mad"
	"acmd/mad/ring"
	"acmd/mad/transport"
)

func testDevices(t *testing.T, e *env) {
	p := e.info
	if p.LinkLayer != transport.LinkInfiniBand || p.State != mad.PortActive || !p.LID.IsUnicast() || !p.SMLID.IsUnicast() {
		t.Errorf("port under test is not usable: %+v", p)
	}
	if len(p.GIDs) == 0 || p.GIDs[0].GUID() == 0 || p.GIDs[0].Prefix() == 0 {
		t.Errorf("GID table %v", p.GIDs)
	}
	if int(p.SAPKeyIndex()) >= len(p.PKeys) || !p.PKeys[p.SAPKeyIndex()].IsValid() {
		t.Errorf("P_Key table %v", p.PKeys)
	}
	if p.MTU < 1 || p.MTU > 5 {
		t.Errorf("MTU code %d", p.MTU)
	}
	// The result belongs to the caller: spoiling it must not show the next time.
	first, err := e.fabric.Devices()
	if err != nil {
		t.Fatalf("devices: %v", err)
	}
	for i := range first {
		first[i].Name = "spoilt"
		for j := range first[i].Ports {
			clear(first[i].Ports[j].GIDs)
			clear(first[i].Ports[j].PKeys)
			first[i].Ports[j].LID = 0
		}
	}
	if again := e.portInfo(t); !reflect.DeepEqual(again, p) {
		t.Errorf("port changed with the caller's copy:\n%+v\n%+v", again, p)
	}
	if e.fabric.Name() == "" {
		t.Error("fabric has no name")
	}
}

func testOpenUnknown(t *testing.T, e *env) {
	for _, c := range []struct {
		device string
		port   uint8
	}{{e.device, 0}, {e.device, 253}, {"no-such-device", e.num}, {"", e.num}} {
		p, err := e.fabric.Open(c.device, c.port)
		if !errors.Is(err, transport.ErrNoPort) {
			t.Errorf("open %q port %d: %v, want ErrNoPort", c.device, c.port, err)
		}
		if err == nil {
			p.Close()
		}
	}
}

func testCaps(t *testing.T, e *env) {
	c := e.port.Caps()
	if c != e.port.Caps() {
		t.Error("capabilities change")
	}
	if c.Listens && c.QPN == 0 {
		t.Error("port listens but has no queue pair number")
	}
	if e.h.Reports && !c.Reports {
		t.Error("harness promises Reports, the port does not")
	}
	if r := e.port.Ring(); r != e.port.Ring() || r.Cap() < 64 {
		t.Errorf("ring of %d slots: want one ring of at least 64", r.Cap())
	}
}

func testPathQuery(t *testing.T, e *env) {
	for range 3 {
		tid := e.nextTID()
		s := e.slot(t)
		e.pathQuery(s, tid, e.info.SMLID, e.info.SMLID, AnswerTime)
		e.send(t, s)
		s.Release()
		in := e.slots(t, 1)
		e.recv(t, in)
		if got := in[0].MAD().TID().Low(); got != tid.Low() {
			t.Fatalf("answer to TID %#x, asked %#x", got, tid.Low())
		}
		e.checkPath(t, in[0], e.info.SMLID)
		release(in)
	}
}

func testBatch(t *testing.T, e *env) {
	const n = 16
	out := e.slots(t, n)
	want := map[uint32]mad.LID{}
	for i, s := range out {
		tid, dlid := e.nextTID(), e.info.SMLID
		if i%2 == 1 {
			dlid = e.info.LID // the path of a port to itself
		}
		e.pathQuery(s, tid, e.info.SMLID, dlid, AnswerTime)
		want[tid.Low()] = dlid
	}
	e.send(t, out...)
	in := e.slots(t, n)
	for len(want) > 0 {
		for _, s := range in[:e.recv(t, in)] {
			tid := s.MAD().TID().Low()
			dlid, ok := want[tid]
			if !ok {
				t.Fatalf("answer to TID %#x, which is not outstanding", tid)
			}
			delete(want, tid)
			e.checkPath(t, s, dlid)
		}
	}
	release(out)
	release(in)
}

func testSendNothing(t *testing.T, e *env) {
	if n, err := e.port.Send(nil); n != 0 || err != nil {
		t.Errorf("send of no slot: %d, %v", n, err)
	}
}

// A slot is the sender's again when Send returns: what is written to it then
// must not reach the fabric.
func testSlotsStayTheSenders(t *testing.T, e *env) {
	tid := e.nextTID()
	s := e.slot(t)
	e.pathQuery(s, tid, e.info.SMLID, e.info.SMLID, AnswerTime)
	e.send(t, s)
	b := s.Bytes()
	for i := range b {
		b[i] = 0xff
	}
	s.Release()
	in := e.slots(t, 1)
	e.recv(t, in)
	if got := in[0].MAD().TID().Low(); got != tid.Low() {
		t.Fatalf("answer to TID %#x, asked %#x", got, tid.Low())
	}
	e.checkPath(t, in[0], e.info.SMLID)
	release(in)
}

// What cannot be delivered comes back with the time-out status, the TID and the
// slot's MAD header intact, so that the owner of the transaction can match it.
func testUndeliverable(t *testing.T, e *env) {
	tid := e.nextTID()
	s := e.slot(t)
	e.pathQuery(s, tid, e.h.Unreachable, e.h.Unreachable, 100*time.Millisecond)
	e.send(t, s)
	s.Release()
	in := e.slots(t, 1)
	e.recv(t, in)
	h, p := in[0].Header(), in[0].MAD()
	if h.Status() != mad.StatusTimeout || p.TID().Low() != tid.Low() || p.Method() != mad.MethodGet || p.IsResponse() {
		t.Errorf("read back: status %d TID %#x method %#x; want %d, %#x, the request's method",
			h.Status(), p.TID().Low(), p.Method(), mad.StatusTimeout, tid.Low())
	}
	release(in)
	// and the port still works
	testPathQuery(t, e)
}

// testConcurrent has one sender and one receiver, coupled by a window only: with
// the race detector it shows what Send and Recv share.
func testConcurrent(t *testing.T, e *env) {
	const total, window = 400, 16
	var (
		credits  = make(chan struct{}, window)
		failed   = make(chan error, 1)
		stop     = make(chan struct{})
		answered [total]atomic.Uint32
		base     = e.tid + 1
	)
	go func() {
		for i := range total {
			select {
			case credits <- struct{}{}:
			case <-stop:
				failed <- errors.New("stopped")
				return
			}
			s := e.port.Ring().Get()
			if s == nil {
				failed <- errors.New("no slot for a query inside the window")
				return
			}
			e.pathQuery(s, mad.TID(base+uint32(i)), e.info.SMLID, e.info.SMLID, AnswerTime)
			n, err := e.port.Send([]*ring.Slot{s})
			s.Release()
			if n != 1 {
				failed <- err
				return
			}
		}
		failed <- nil
	}()
	defer close(stop)
	in := e.slots(t, window)
	for got := 0; got < total; {
		n := e.recv(t, in)
		for _, s := range in[:n] {
			i := s.MAD().TID().Low() - base
			if i >= total || answered[i].Add(1) != 1 {
				t.Fatalf("answer to TID %#x: unknown or seen before", s.MAD().TID().Low())
			}
			e.checkPath(t, s, e.info.SMLID)
			<-credits
		}
		got += n
	}
	if err := <-failed; err != nil {
		t.Fatalf("sender: %v", err)
	}
	release(in)
	if r := e.port.Ring(); r.Free() != r.Cap() {
		t.Errorf("%d of %d slots are back", r.Free(), r.Cap())
	}
}
