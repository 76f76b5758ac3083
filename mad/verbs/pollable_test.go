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

// A loop that waits for the descriptor and never in Recv gets every datagram, also
// when more come than it has slots for, and after it was away.
func TestDriven(t *testing.T) {
	w := newSimulated(t, peer.StartFabric(t, "small.net"))
	defer w.Close()
	opened, err := w.Open(fabric.DeviceName, 1)
	if err != nil {
		t.Fatal(err)
	}
	port, ok := opened.(pollable)
	if !ok {
		t.Fatalf("%T is not pollable", opened)
	}
	if err := port.JoinQP(group, mlid, 0); err != nil {
		t.Fatal(err)
	}
	lab := &lab{t: t, port: port.Port}
	u := peer.NewUD(t, os.Getenv(preloaded), 0x77, mad.MakeGID(0xfe80<<48, 0x77))
	u.Join(t, group)
	in := lab.slots(4)
	defer func() { release(in) }()
	for round := range 10 {
		const burst = 50
		for i := range uint64(burst) {
			u.Multicast(request(1 + i)[:], group)
		}
		got := 0
		if round%3 == 1 { // the goroutine that waits in Recv had a turn, and saw a flood
			n, err := port.Recv(in, time.Now().Add(madtest.AnswerTime))
			if err != nil {
				t.Fatal(err)
			}
			got = n
		}
		for got < burst {
			fds := []unix.PollFd{{Fd: int32(port.PollFD()), Events: unix.POLLIN}}
			n, err := unix.Poll(fds, int(madtest.AnswerTime.Milliseconds()))
			if err == unix.EINTR {
				continue
			}
			if n != 1 || err != nil {
				t.Fatalf("round %d: %d of %d datagrams, then %d, %v; %+v", round, got, burst, n, err, port.Stats())
			}
			if got%3 == 0 {
				port.Wake() // meant for a goroutine in Recv; it must not cost the loop its datagrams
			}
			n, err = port.Recv(in, time.Unix(1, 0))
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
