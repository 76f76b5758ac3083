// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package ibsim_test

import (
	"errors"
	"net"
	"syscall"
	"testing"
	"time"

	"acmd/mad"
	"acmd/mad/ibsim"
	"acmd/mad/madtest"
	"acmd/mad/madtest/peer"
	"acmd/mad/ring"
	"acmd/mad/transport"
)

// waitEvents reads events until every wanted type was seen.
func waitEvents(t *testing.T, f *ibsim.Fabric, want ...transport.EventType) {
	t.Helper()
	missing := map[transport.EventType]bool{}
	for _, w := range want {
		missing[w] = true
	}
	for end := time.After(madtest.AnswerTime); len(missing) > 0; {
		select {
		case e, open := <-f.Events():
			if !open {
				t.Fatalf("channel closed, events %v missing", missing)
			}
			if e.Device != "ibsim0" || (e.Port == 1) == (e.Type >= transport.EventDeviceAdd) {
				t.Errorf("event %+v", e)
			}
			delete(missing, e.Type)
		case <-end:
			t.Fatalf("events %v did not come", missing)
		}
	}
}

// TestPortComesUp attaches before there is a subnet manager: what it configures
// shows as events, though the simulator tells its clients nothing.
func TestPortComesUp(t *testing.T) {
	f := peer.StartFabric(t, "small.net", peer.WithoutSM())
	madtest.CheckLeaks(t)
	cfg := config(f, "node-a")
	cfg.Poll = 20 * time.Millisecond
	fab, port, info := open(t, cfg)
	if info.State == mad.PortActive || info.LID != 0 || info.SMLID != 0 || info.GIDs[0] != mad.MakeGID(0xfe80<<48, guidA) {
		t.Errorf("port without a subnet manager: %+v", info)
	}
	f.StartSM(t)
	waitEvents(t, fab, transport.EventPortActive, transport.EventLIDChange, transport.EventSMChange)
	list, err := fab.Devices()
	if err != nil || len(list) != 1 {
		t.Fatalf("devices: %+v, %v", list, err)
	}
	info = list[0].Ports[0]
	if info.State != mad.PortActive || info.LID != f.LID(t, guidA) || list[0].NodeGUID != guidA-1 {
		t.Errorf("configured port: %+v", list[0])
	}
	// The port was open all the time.
	if _, p := ask(t, port, info.SMLID, pathQuery(1, info.LID, info.SMLID)); p.Status() != 0 {
		t.Errorf("query: status %#x", p.Status())
	}
	f.OpenSM.Stop() // before the leak check, which counts its goroutine
	port.Close()
	fab.Close()
}

// TestSimulatorRestarts: an open port fails with ErrGone, the device is not there
// while the simulator is not, and both can be had again when it is back.
func TestSimulatorRestarts(t *testing.T) {
	f := peer.StartFabric(t, "small.net")
	cfg := config(f, "node-a")
	cfg.Poll = 20 * time.Millisecond
	fab, port, _ := open(t, cfg)

	slots := make([]*ring.Slot, 1)
	port.Ring().GetN(slots)
	done := make(chan error, 1)
	go func() {
		_, err := port.Recv(slots, time.Time{})
		done <- err
	}()
	f.OpenSM.Stop()
	f.Ibsim.Kill()
	select {
	case err := <-done:
		if !errors.Is(err, transport.ErrGone) {
			t.Errorf("recv: %v, want ErrGone", err)
		}
	case <-time.After(madtest.AnswerTime):
		t.Fatal("recv did not notice")
	}
	waitEvents(t, fab, transport.EventDeviceRemove)
	if n, err := port.Send(slots); n != 0 || !errors.Is(err, transport.ErrGone) {
		t.Errorf("send: %d, %v, want ErrGone", n, err)
	}
	if list, err := fab.Devices(); err != nil || len(list) != 0 {
		t.Errorf("devices: %+v, %v; want none", list, err)
	}
	if _, err := fab.Open("ibsim0", 1); !errors.Is(err, transport.ErrNoPort) {
		t.Errorf("open: %v, want ErrNoPort", err)
	}
	slots[0].Release()
	if err := port.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	if n, err := port.Recv(nil, time.Time{}); n != 0 || !errors.Is(err, net.ErrClosed) {
		t.Errorf("recv after close: %d, %v, want net.ErrClosed", n, err)
	}

	peer.StartFabric(t, "small.net", peer.SockName(f.SockName))
	waitEvents(t, fab, transport.EventDeviceAdd)
	again, err := fab.Open("ibsim0", 1)
	if err != nil {
		t.Fatalf("open again: %v", err)
	}
	list, err := fab.Devices()
	if err != nil || len(list) != 1 {
		t.Fatalf("devices: %+v, %v", list, err)
	}
	info := list[0].Ports[0]
	if _, p := ask(t, again, info.SMLID, pathQuery(1, info.LID, info.SMLID)); p.Status() != 0 {
		t.Errorf("query: status %#x", p.Status())
	}
}

// TestCloseWithAnswersUnread: the simulator waits for clients that do not read.
// A port that is closed with answers under way must not leave it waiting.
func TestCloseWithAnswersUnread(t *testing.T) {
	f := peer.StartFabric(t, "small.net")
	other, otherPort, info := open(t, config(f, "node-b"))
	_ = other
	for range 5 {
		fab, port, mine := open(t, config(f, "node-a"))
		slots := make([]*ring.Slot, 64)
		if n := port.Ring().GetN(slots); n != len(slots) {
			t.Fatalf("%d slots", n)
		}
		for i, s := range slots {
			*s.Header() = mad.UserHeader{}
			s.Header().SetLID(mine.SMLID)
			s.Header().SetQPN(mad.QP1)
			pathQuery(mad.TID(i+1), mine.LID, mine.SMLID)(s.MAD())
		}
		// Fewer than the simulator can hold: with more it spins, and may for ever if
		// it has OpenSM's answers to return.
		for range 3 {
			sendAll(t, port, slots)
		}
		for _, s := range slots {
			s.Release()
		}
		begin := time.Now()
		if err := port.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		if err := fab.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		if d := time.Since(begin); d > madtest.AnswerTime {
			t.Errorf("closing took %v", d)
		}
		if _, p := ask(t, otherPort, info.SMLID, pathQuery(1, info.LID, info.SMLID)); p.Status() != 0 {
			t.Errorf("another client's query: status %#x", p.Status())
		}
	}
	if list, err := other.Devices(); err != nil || len(list) != 1 {
		t.Errorf("devices: %+v, %v", list, err)
	}
}

// sendAll sends however long the simulator, which may be kept from running, has no
// room for more.
func sendAll(t *testing.T, port transport.Port, slots []*ring.Slot) {
	t.Helper()
	for end := time.Now().Add(madtest.AnswerTime); len(slots) > 0; {
		n, err := port.Send(slots)
		slots = slots[n:]
		if err == nil || errors.Is(err, syscall.EAGAIN) && time.Now().Before(end) {
			time.Sleep(time.Millisecond)
			continue
		}
		t.Errorf("%d not sent: %v", len(slots), err)
		return
	}
}

// TestSimulatorPauses stops the simulator for longer than a round trip may take.
// It must survive the attempts to attach that were made meanwhile: it aborts when
// it handles the CONNECT of a client whose data socket is gone.
func TestSimulatorPauses(t *testing.T) {
	f := peer.StartFabric(t, "small.net")
	cfg := config(f, "node-a")
	cfg.Poll = 20 * time.Millisecond
	fab, _, _ := open(t, cfg)
	if err := f.Ibsim.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	waitEvents(t, fab, transport.EventDeviceRemove)
	for range 2 { // each waits for an answer in vain
		if list, err := fab.Devices(); err != nil || len(list) != 0 {
			t.Errorf("devices: %+v, %v; want none", list, err)
		}
	}
	if err := f.Ibsim.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	waitEvents(t, fab, transport.EventDeviceAdd)
	port, err := fab.Open("ibsim0", 1)
	if err != nil {
		t.Fatal(err)
	}
	list, err := fab.Devices()
	if err != nil || len(list) != 1 {
		t.Fatalf("devices: %+v, %v", list, err)
	}
	info := list[0].Ports[0]
	if _, p := ask(t, port, info.SMLID, pathQuery(1, info.LID, info.SMLID)); p.Status() != 0 {
		t.Errorf("query: status %#x", p.Status())
	}
}
