// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//go:build verbs && cgo

package verbs

import (
	"errors"
	"os"
	"testing"
	"time"

	"acmd/mad"
	"acmd/mad/fabric"
	"acmd/mad/ibsim"
	"acmd/mad/madtest"
	"acmd/mad/madtest/peer"
	"acmd/mad/transport"

	"golang.org/x/sys/unix"
)

// simulated is ibsim under the name of the device that libibverbs has here.
type simulated struct{ *ibsim.Fabric }

func (s simulated) Devices() ([]transport.Device, error) {
	list, err := s.Fabric.Devices()
	for i := range list {
		list[i].Name = fabric.DeviceName
	}
	return list, err
}

func (s simulated) Open(device string, port uint8) (transport.Port, error) {
	if device == fabric.DeviceName {
		device = "ibsim0"
	}
	return s.Fabric.Open(device, port)
}

func newSimulated(t *testing.T, f *peer.Fabric) transport.Fabric {
	t.Helper()
	sim, err := ibsim.New(ibsim.Config{Base: f.SockName, Node: "node-c", Poison: true})
	if err != nil {
		t.Fatal(err)
	}
	w, err := Wrap(simulated{sim}, Config{Poison: true})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// A port over a pollable one is pollable, too.
func TestConformancePollable(t *testing.T) {
	f := peer.StartFabric(t, "small.net")
	madtest.TestTransport(t, madtest.Harness{
		Poisoned: true, Pollable: true, Unreachable: f.FreeLID(),
		New: func(t *testing.T) (transport.Fabric, string, uint8) { return newSimulated(t, f), fabric.DeviceName, 1 },
	})
}

// openDriven opens a port that a loop can have, and somebody to send to it.
func openDriven(t *testing.T) (pollable, *lab, *peer.UD) {
	t.Helper()
	w := newSimulated(t, peer.StartFabric(t, "small.net"))
	t.Cleanup(func() { w.Close() })
	opened, err := w.Open(fabric.DeviceName, 1)
	if err != nil {
		t.Fatal(err)
	}
	port, ok := opened.(pollable)
	if !ok {
		t.Fatalf("%T is not pollable", opened)
	}
	return port, &lab{t: t, port: port.Port}, peer.NewUD(t, os.Getenv(preloaded), 0x77, mad.MakeGID(0xfe80<<48, 0x77))
}

// readable waits for one of the descriptors.
func readable(t *testing.T, port pollable) {
	t.Helper()
	var fds []unix.PollFd
	for _, fd := range port.PollFDs() {
		fds = append(fds, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
	}
	for {
		n, err := unix.Poll(fds, int(madtest.AnswerTime.Milliseconds()))
		if err == unix.EINTR {
			continue
		}
		if n < 1 || err != nil {
			t.Fatalf("not readable: %d, %v; %+v", n, err, port.Stats())
		}
		return
	}
}

// A loop that waits for the descriptor and never in Recv gets every datagram, also
// when more come than it has slots for, and after it was away.
func TestDriven(t *testing.T) {
	port, lab, u := openDriven(t)
	if err := port.JoinQP(group, mlid, 0); err != nil {
		t.Fatal(err)
	}
	u.Join(t, group)
	in := lab.slots(4)
	defer func() { release(in) }()
	port.Drive(true)
	for round := range 10 {
		const burst = 50
		for i := range uint64(burst) {
			u.Multicast(request(1 + i)[:], group)
		}
		got := 0
		if round%3 == 1 { // the goroutine that waits in Recv had a turn, and saw a flood
			port.Drive(false)
			for end := time.Now().Add(madtest.AnswerTime); got == 0; { // a wake-up that was meant for the loop may come first
				n, err := port.Recv(in, end)
				if err != nil || n == 0 && time.Now().After(end) {
					t.Fatalf("round %d: %d, %v; %+v, fresh %v, more %v, look %v", round, n, err, port.Stats(), port.fresh.Load(), port.rx.more, port.rx.calm.look)
				}
				got = n
			}
			port.Drive(true)
			n, err := port.Recv(in, time.Unix(1, 0)) // what a loop begins with
			if err != nil {
				t.Fatal(err)
			}
			got += n
		}
		for got < burst {
			readable(t, port)
			if got%3 == 0 {
				port.Wake() // meant for a goroutine in Recv; it must not cost the loop its datagrams
			}
			n, err := port.Recv(in, time.Unix(1, 0))
			if err != nil {
				t.Fatal(err)
			}
			got += n
		}
	}
	// Full, it says so instead of waiting.
	out := lab.slots(1)
	defer release(out)
	*out[0].MAD(), *out[0].Header() = *request(1), mad.UserHeader{}
	out[0].Header().SetLID(0x77)
	out[0].Header().SetQPN(u.QPN + 1)
	port.first.busy.Store(busySend)
	if n, err := port.TrySend(out); n != 0 || !errors.Is(err, errResetting) {
		t.Errorf("%d, %v", n, err)
	}
	port.first.busy.Store(busyNot)
	port.first.idle = nil
	begin := time.Now()
	if n, err := port.TrySend(out); n != 0 || !errors.Is(err, unix.EAGAIN) {
		t.Errorf("%d, %v", n, err)
	}
	if d := time.Since(begin); d > time.Second {
		t.Errorf("waited %v", d)
	}
}

// A fatal event reaches a loop that waits for the descriptor and has nothing to send.
func TestDrivenFatal(t *testing.T) {
	port, lab, u := openDriven(t)
	in := lab.slots(1)
	defer func() { release(in) }()
	port.Drive(true)
	f, err := fabric.New(testFabric) // knows our LID
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	u.Event(t, f.LID(0, 1), uint32(transport.EventDeviceFatal), 0)
	for err == nil {
		readable(t, port)
		_, err = port.Recv(in, time.Unix(1, 0))
	}
	if !errors.Is(err, transport.ErrGone) {
		t.Error(err)
	}
}
