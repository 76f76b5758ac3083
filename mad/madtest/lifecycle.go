// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package madtest

import (
	"errors"
	"net"
	"testing"
	"time"

	"acmd/mad"
	"acmd/mad/ring"
)

// briefly is long enough for another goroutine to block and short enough to
// wait for nothing.
const briefly = 60 * time.Millisecond

type recvResult struct {
	n   int
	err error
}

// background starts a Recv without deadline and gives it time to block.
func (e *env) background(slots []*ring.Slot) <-chan recvResult {
	c := make(chan recvResult, 1)
	go func() {
		n, err := e.port.Recv(slots, time.Time{})
		c <- recvResult{n, err}
	}()
	time.Sleep(briefly)
	return c
}

func await(t *testing.T, c <-chan recvResult) recvResult {
	t.Helper()
	select {
	case r := <-c:
		return r
	case <-time.After(AnswerTime):
		t.Fatal("recv did not return")
		return recvResult{}
	}
}

func testRecvDeadline(t *testing.T, e *env) {
	in := e.slots(t, 4)
	begin := time.Now()
	if n, err := e.port.Recv(in, begin.Add(briefly)); n != 0 || err != nil {
		t.Fatalf("recv: %d, %v; want 0, nil at the deadline", n, err)
	}
	if d := time.Since(begin); d < briefly || d > AnswerTime {
		t.Errorf("recv with a deadline of %v returned after %v", briefly, d)
	}
	begin = time.Now()
	if n, err := e.port.Recv(in, begin.Add(-time.Hour)); n != 0 || err != nil {
		t.Fatalf("recv: %d, %v; want 0, nil with a deadline that is over", n, err)
	}
	if d := time.Since(begin); d > AnswerTime {
		t.Errorf("recv with a deadline that is over took %v", d)
	}
	release(in)
	// a deadline is of one call: the next one waits for its message
	testPathQuery(t, e)
}

func testWakeBeforeRecv(t *testing.T, e *env) {
	in := e.slots(t, 1)
	for range 3 {
		e.port.Wake()
	}
	begin := time.Now()
	if n, err := e.port.Recv(in, begin.Add(AnswerTime)); n != 0 || err != nil {
		t.Fatalf("recv after wake: %d, %v; want 0, nil", n, err)
	}
	if d := time.Since(begin); d >= AnswerTime {
		t.Errorf("recv did not see the wake that came before it")
	}
	// three calls counted as one
	begin = time.Now()
	if n, err := e.port.Recv(in, begin.Add(briefly)); n != 0 || err != nil {
		t.Fatalf("second recv: %d, %v; want 0, nil", n, err)
	}
	if d := time.Since(begin); d < briefly {
		t.Errorf("second recv returned after %v: wakes were counted one by one", d)
	}
	release(in)
	testPathQuery(t, e)
}

func testWakeDuringRecv(t *testing.T, e *env) {
	in := e.slots(t, 1)
	for range 3 {
		c := e.background(in)
		e.port.Wake()
		if r := await(t, c); r.n != 0 || r.err != nil {
			t.Fatalf("woken recv: %d, %v; want 0, nil", r.n, r.err)
		}
	}
	release(in)
	testPathQuery(t, e)
}

func testCloseUnblocksRecv(t *testing.T, e *env) {
	in := e.slots(t, 2)
	c := e.background(in)
	if err := e.port.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	r := await(t, c)
	wantClosed(t, "recv in progress", r.n, r.err)
	// Slots that are out stay valid until released.
	for _, s := range in {
		b := s.Bytes()
		for i := range b {
			b[i] = byte(i)
		}
	}
	release(in)
}

func testClosedPort(t *testing.T, e *env) {
	s := e.slot(t)
	e.pathQuery(s, e.nextTID(), e.info.SMLID, e.info.SMLID, AnswerTime)
	if err := e.port.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	n, err := e.port.Send([]*ring.Slot{s})
	wantClosed(t, "send", n, err)
	n, err = e.port.Recv([]*ring.Slot{s}, time.Time{})
	wantClosed(t, "recv", n, err)
	s.Release()
	e.port.Wake() // must not block, fail or touch a descriptor of somebody else
	if err := e.port.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		t.Errorf("second close: %v", err)
	}
}

// testFabricClose closes the fabric under an open port.
func testFabricClose(t *testing.T, e *env) {
	in := e.slots(t, 1)
	c := e.background(in)
	events := e.fabric.Events()
	if err := e.fabric.Close(); err != nil {
		t.Errorf("close fabric: %v", err)
	}
	r := await(t, c)
	wantClosed(t, "recv in progress", r.n, r.err)
	n, err := e.port.Send(in)
	wantClosed(t, "send", n, err)
	release(in)
	for deadline := time.After(AnswerTime); events != nil; {
		select {
		case _, open := <-events:
			if !open {
				events = nil
			}
		case <-deadline:
			t.Fatal("channel of events was not closed")
		}
	}
	if p, err := e.fabric.Open(e.device, e.num); err == nil {
		p.Close()
		t.Error("a closed fabric opened a port")
	}
	if err := e.fabric.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		t.Errorf("second close: %v", err)
	}
}

// testReopen closes and opens the port many times: what a port takes of the
// fabric it gives back.
func testReopen(t *testing.T, e *env) {
	for range 16 {
		if err := e.port.Close(); err != nil {
			t.Fatalf("close: %v", err)
		}
		port, err := e.fabric.Open(e.device, e.num)
		if err != nil {
			t.Fatalf("open again: %v", err)
		}
		e.port = port
		t.Cleanup(func() { port.Close() })
	}
	testPathQuery(t, e)
}

func testSlotOwnership(t *testing.T, e *env) {
	r := e.port.Ring()
	if r.Free() != r.Cap() {
		t.Errorf("a fresh port has %d of %d slots", r.Free(), r.Cap())
	}
	all := make([]*ring.Slot, r.Cap()+1)
	if n := r.GetN(all); n != r.Cap() {
		t.Fatalf("%d slots of %d", n, r.Cap())
	}
	all = all[:r.Cap()]
	if r.Get() != nil {
		t.Fatal("an empty ring lent a slot")
	}
	// All are out: traffic works with the slots in hand.
	tid := e.nextTID()
	e.pathQuery(all[0], tid, e.info.SMLID, e.info.SMLID, AnswerTime)
	e.send(t, all[0])
	in := all[1:]
	if n := e.recv(t, in); n != 1 || in[0].MAD().TID().Low() != tid.Low() {
		t.Fatalf("%d messages, TID %v, want 1, %v", n, in[0].MAD().TID(), tid)
	}
	// A second Recv may not have kept a slot of the first.
	for _, s := range in {
		*s.MAD() = mad.Packet{0: 0xa5}
	}
	if n, err := e.port.Recv(all[:1], time.Now().Add(briefly)); n != 0 || err != nil {
		t.Fatalf("recv: %d, %v; want 0, nil", n, err)
	}
	for _, s := range in {
		if *s.MAD() != (mad.Packet{0: 0xa5}) {
			t.Fatalf("slot %d was written outside of Recv", s.Index())
		}
	}
	first := all[0].Bytes()
	release(all)
	if r.Free() != r.Cap() {
		t.Errorf("%d of %d slots are back", r.Free(), r.Cap())
	}
	if e.h.Poisoned {
		for i, b := range first {
			if b != ring.PoisonByte {
				t.Fatalf("released slot has %#x at %d", b, i)
			}
		}
	}
}
