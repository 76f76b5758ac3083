// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//go:build verbs && cgo

package verbs

import (
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"acmd/mad"
	"acmd/mad/madtest"
	"acmd/mad/madtest/peer"
	"acmd/mad/ring"
	"acmd/mad/transport"
)

// serve is what an SA client does: one goroutine in Recv, slots given back.
func (l *lab) serve(batch int, got func(*ring.Slot)) (stop func()) {
	in := l.slots(batch)
	done := make(chan struct{})
	var over atomic.Bool
	go func() {
		defer close(done)
		for !over.Load() {
			n, err := l.port.Recv(in, time.Time{})
			if err != nil {
				if !over.Load() {
					l.t.Errorf("recv: %v", err)
				}
				break
			}
			for _, s := range in[:n] {
				got(s)
			}
		}
		release(in)
	}()
	return func() {
		over.Store(true)
		l.port.Wake()
		<-done
	}
}

// eventually waits for a condition that other goroutines bring about.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(madtest.AnswerTime); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within %v", what, madtest.AnswerTime)
		}
	}
}

// heard sends until something is heard: what comes while a queue pair is reset is
// lost, as with every datagram.
func (l *lab) heard(count *atomic.Int64) {
	l.t.Helper()
	was := count.Load()
	eventually(l.t, "hearing again", func() bool {
		l.peer.Multicast(request(1)[:], group)
		return count.Load() > was
	})
}

// Receive errors bring every buffer back, and each is used again: after many of
// them the queue pair hears as much in one burst as before.
func TestReceiveErrors(t *testing.T) {
	l := newLab(t, Config{RecvDepth: 32})
	l.join()
	var count atomic.Int64
	stop := l.serve(8, func(*ring.Slot) { count.Add(1) })
	l.heard(&count)
	for i := range 4 {
		l.peer.Fault(t, l.inner.LID(0, 1), peer.FaultReceive)
		eventually(t, "reset", func() bool { return l.port.Stats().Resets > uint64(i) })
		l.heard(&count)
	}
	st := l.port.Stats()
	if st.RecvErrors < 32 || st.Resets != 4 {
		t.Errorf("%+v", st)
	}
	stop()
	// Nobody takes anything now: all 32 buffers have to be with the adapter.
	for i := range uint64(64) {
		l.peer.Multicast(request(100 + i)[:], group)
	}
	in := l.slots(64)
	seen := 0
	eventually(t, "the burst", func() bool {
		n, err := l.port.Recv(in[seen:], time.Now().Add(10*time.Millisecond))
		if err != nil {
			t.Fatal(err)
		}
		seen += n
		return seen >= 32
	})
	release(in)
	l.port.Close()
	if r := l.port.Ring(); r.Free() != 0 { // unmapped, so that all slots were back
		t.Errorf("%d slots of a closed ring", r.Free())
	}
}

// A failed send stops the sends of a datagram queue pair until it is reset. No
// credit is lost: after many of them as many sends are possible as before.
func TestSendErrors(t *testing.T) {
	l := newLab(t, Config{SendDepth: 4})
	l.join()
	var count atomic.Int64
	stop := l.serve(8, func(*ring.Slot) { count.Add(1) })
	defer stop()
	out := l.slots(1)
	defer release(out)
	send := func(tid uint64) error {
		l.to(out[0], request(tid))
		out[0].Header().SetQPN(l.peer.QPN + 1) // nobody: the peer's socket is small
		_, err := l.port.Send(out)
		return err
	}
	for i := range 8 {
		l.peer.Fault(t, l.inner.LID(0, 1), peer.FaultSend)
		l.heard(&count) // the fault is taken before the datagram
		if err := send(1); err != nil {
			t.Fatal(err)
		}
		eventually(t, "reset", func() bool {
			err := send(2) // completions of sends are seen by the next send
			if err != nil && !errors.Is(err, errResetting) && !errors.Is(err, errFull) {
				t.Fatal(err)
			}
			return l.port.Stats().Resets > uint64(i)
		})
		for range 16 {
			if err := send(3); err != nil && !errors.Is(err, errResetting) {
				t.Fatal(err)
			}
		}
	}
	if st := l.port.Stats(); st.SendErrors < 8 {
		t.Errorf("%+v", st)
	}
}

// A flood of datagrams does not keep the SA's answers away, and what is lost of
// it is lost before it costs a buffer.
func TestFlood(t *testing.T) {
	l := newLab(t, Config{RecvDepth: 64})
	l.join()
	var datagrams, answers atomic.Int64
	stop := l.serve(16, func(s *ring.Slot) {
		if s.MAD().Class() == mad.ClassACM {
			datagrams.Add(1)
		} else {
			answers.Add(1)
		}
	})
	defer stop()
	quit := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-quit:
				return
			default:
				l.peer.Multicast(request(1)[:], group)
			}
		}
	}()
	devs, _ := l.inner.Devices()
	info := devs[0].Ports[0]
	out := l.slots(1)
	for i := range int64(200) {
		s := out[0]
		pathQuery(s, &info, mad.TID(1000+i))
		if _, err := l.port.Send(out); err != nil {
			t.Fatal(err)
		}
		eventually(t, "answer of the SA", func() bool { return answers.Load() > i })
	}
	eventually(t, "the flood", func() bool { return datagrams.Load() > 1000 })
	release(out)
	close(quit)
	<-done
}

// Neighbours can make us need any number of address handles; few are kept.
func TestAddressHandles(t *testing.T) {
	l := newLab(t, Config{})
	l.join()
	out := l.slots(1)
	defer release(out)
	for i := range 4 * ahGeneration {
		l.to(out[0], request(1))
		out[0].Header().SetQPN(l.peer.QPN + 1) // nobody: the peer's socket is small
		out[0].Header().SetFlowLabel(uint32(i))
		if _, err := l.port.Send(out); err != nil {
			t.Fatal(err)
		}
	}
	if c := &l.port.first.ahs; len(c.young) > ahGeneration || len(c.old) > ahGeneration || len(c.young)+len(c.old) < ahGeneration {
		t.Errorf("%d and %d handles", len(c.young), len(c.old))
	}
	// One that is used stays.
	l.to(out[0], request(1))
	h := *out[0].Header()
	kept, err := l.port.first.ahs.get(l.port, &h)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 4 * ahGeneration {
		other := h
		other.SetFlowLabel(uint32(i + 1))
		if _, err := l.port.first.ahs.get(l.port, &other); err != nil {
			t.Fatal(err)
		}
		if again, err := l.port.first.ahs.get(l.port, &h); err != nil || again != kept {
			t.Fatal("a handle in use was made anew", err)
		}
	}
}

// A fatal event ends the port, and closing it leaves nothing behind.
func TestDeviceFatal(t *testing.T) {
	l := newLab(t, Config{})
	l.join()
	got := make(chan error, 1)
	in := l.slots(1)
	go func() {
		_, err := l.port.Recv(in, time.Time{})
		got <- err
	}()
	l.peer.Event(t, l.inner.LID(0, 1), uint32(transport.EventDeviceFatal), 0)
	select {
	case err := <-got:
		if !errors.Is(err, transport.ErrGone) {
			t.Error(err)
		}
	case <-time.After(madtest.AnswerTime):
		t.Fatal("recv goes on")
	}
	release(in)
	if err := l.port.Close(); err != nil {
		t.Error(err)
	}
	if _, err := l.port.Send(nil); !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
	if e := <-l.fabric.Events(); e.Type != transport.EventDeviceFatal || e.Device == "" {
		t.Errorf("%+v", e)
	}
}

// Neither way allocates.
func TestAllocations(t *testing.T) {
	l := newLab(t, Config{})
	l.join()
	in, out := l.slots(4), l.slots(1)
	defer func() { release(in); release(out) }()
	m := request(1)
	if n := testing.AllocsPerRun(200, func() {
		l.to(out[0], m)
		out[0].Header().SetQPN(l.peer.QPN + 1)
		if _, err := l.port.Send(out); err != nil {
			t.Fatal(err)
		}
	}); n > 0 {
		t.Errorf("%v allocations per send", n)
	}
	for range 64 {
		l.peer.Multicast(m[:], group)
	}
	eventually(t, "completions", l.port.fresh.Load)
	if n := testing.AllocsPerRun(8, func() {
		if _, err := l.port.Recv(in, time.Unix(1, 0)); err != nil {
			t.Fatal(err)
		}
	}); n > 0 {
		t.Errorf("%v allocations per receive", n)
	}
}
