// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package peer

import (
	"encoding/binary"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"acmd/mad"

	"golang.org/x/sys/unix"
)

// The simulator's wire as far as a relay needs it; mad/ibsim has all of it. A packet
// is a header of 32 bytes with a status in big endian, and the MAD.
const (
	simControlSize    = 80
	simControlClient  = 4
	simControlType    = 8
	simControlID      = 16 // CONNECT: the process's number in the names of its sockets
	simConnect        = 1
	simDisconnect     = 2
	simPacketHeader   = 32
	simPacketStatus   = 16
	simStatusTimedOut = 110
)

// relayWait is how long a request of the program may be unanswered. OpenSM gives
// the kernel 200 ms and three retries for an SMP.
const relayWait = time.Second

// relay stands between one preloaded program and the simulator and does what the
// kernel's MAD layer does (drivers/infiniband/core/mad.c) and the preload library
// does not: a request that nobody has answered in time comes back with status 110,
// and an answer that comes later is dropped.
//
// Two OpenSMs need that: each waits for all its requests before it goes on, and
// some are never answered. The simulator drops every TrapRepress, so the trap 144 by
// which a standby offers itself to a master of lower priority stays open; and a
// master on its way out reads requests that it does not answer.
type relay struct {
	base, sim string // socket names, of the relay and of the simulator

	control *net.UnixConn // the program's control messages come in here
	done    sync.WaitGroup

	mu      sync.Mutex
	closed  bool
	up      *net.UnixConn // control, to the simulator; nil before CONNECT
	program *net.UnixConn // packets from and to the program
	fabric  *net.UnixConn // packets to and from the simulator
	bye     []byte        // the control message that is still to be sent; nil: none
	open    map[mad.TID]*time.Timer
}

// startRelay listens for a program in front of the simulator with this socket name.
func startRelay(t testing.TB, sim, base string) *relay {
	t.Helper()
	r := &relay{base: base, sim: sim, open: map[mad.TID]*time.Timer{}}
	var err error
	if r.control, err = net.ListenUnixgram("unixgram", simAddr(base, "ctl")); err != nil {
		t.Fatalf("relay: %v", err)
	}
	r.done.Go(r.serve)
	t.Cleanup(r.close)
	return r
}

// simAddr is one of the simulator's abstract names, which end with a NUL.
func simAddr(base, what string) *net.UnixAddr {
	return &net.UnixAddr{Net: "unixgram", Name: "@" + base + ":" + what + "\x00"}
}

// serve passes control messages on, and the packets from CONNECT on.
func (r *relay) serve() {
	b := make([]byte, simControlSize)
	for {
		n, from, err := r.control.ReadFromUnix(b)
		if err != nil {
			return
		}
		if n != simControlSize {
			continue
		}
		if err := r.exchange(b); err != nil {
			continue // no answer, as from a simulator that is gone
		}
		from.Name += "\x00" // package syscall takes a NUL for the end of the name
		if _, err := r.control.WriteToUnix(b, from); err != nil {
			return
		}
	}
}

// exchange passes one control message on and puts the answer in its place.
func (r *relay) exchange(b []byte) error {
	ne := binary.NativeEndian
	r.mu.Lock()
	defer r.mu.Unlock()
	asked, id := ne.Uint32(b[simControlType:]), fmt.Sprint(ne.Uint32(b[simControlID:]))
	if asked == simConnect && r.up == nil && !r.closed {
		var err error
		if r.up, err = net.DialUnix("unixgram", simAddr(r.sim, "ctl"+id), simAddr(r.sim, "ctl")); err != nil {
			return err
		}
		// The simulator connects to it when it has read the message.
		if r.fabric, err = net.ListenUnixgram("unixgram", simAddr(r.sim, "in"+id)); err != nil {
			return err
		}
	}
	if r.up == nil || r.closed {
		return net.ErrClosed
	}
	if err := r.up.SetDeadline(time.Now().Add(stopTime)); err != nil {
		return err
	}
	if _, err := r.up.Write(b); err != nil {
		return err
	}
	if _, err := r.up.Read(b); err != nil {
		return err
	}
	if asked == simDisconnect {
		r.bye = nil
	}
	if asked != simConnect || ne.Uint32(b[simControlType:]) != simConnect {
		return nil
	}
	client := ne.Uint32(b[simControlID:])
	r.bye = make([]byte, simControlSize)
	copy(r.bye, b[:simControlClient])
	ne.PutUint32(r.bye[simControlClient:], client)
	ne.PutUint32(r.bye[simControlType:], simDisconnect)
	return r.join(id, fmt.Sprintf("out%d", client))
}

// join connects both ends of the packets' way. Sockets that are connected to each
// other wait for room in the right way, and have more of it.
func (r *relay) join(id, out string) (err error) {
	if r.program, err = net.DialUnix("unixgram", simAddr(r.base, out), simAddr(r.base, "in"+id)); err != nil {
		return err
	}
	raw, err := r.fabric.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	if err := raw.Control(func(fd uintptr) {
		failed = unix.Connect(int(fd), &unix.SockaddrUnix{Name: simAddr(r.sim, out).Name})
	}); err != nil {
		return err
	}
	if failed != nil {
		return failed
	}
	r.done.Go(r.fromProgram)
	r.done.Go(r.fromFabric)
	return nil
}

func (r *relay) fromProgram() {
	b := make([]byte, simPacketHeader+mad.PacketSize)
	for {
		n, err := r.program.Read(b)
		if err != nil {
			return
		}
		if n != len(b) {
			continue
		}
		m := (*mad.Packet)(b[simPacketHeader:])
		if !m.IsResponse() && m.Method() != mad.MethodTrapRepress {
			r.sent(b)
		}
		if _, err := r.fabric.Write(b); err != nil {
			return
		}
	}
}

// fromFabric reads whether or not the program is there: the simulator stands still
// for a client that does not.
func (r *relay) fromFabric() {
	b := make([]byte, simPacketHeader+mad.PacketSize)
	for {
		n, err := r.fabric.Read(b)
		if err != nil {
			return
		}
		m := (*mad.Packet)(b[simPacketHeader:])
		status := binary.BigEndian.Uint32(b[simPacketStatus:])
		if n != len(b) || (m.IsResponse() || status != 0) && !r.answered(m.TID()) {
			continue
		}
		_, _ = r.program.Write(b) // fails for a program that is gone
	}
}

// relayKey is the part of a TID that the simulator leaves alone.
func relayKey(t mad.TID) mad.TID { return t & 0xffff_ffff_ffff }

// sent starts the time of a request.
func (r *relay) sent(packet []byte) {
	back := append([]byte(nil), packet...)
	binary.BigEndian.PutUint32(back[simPacketStatus:], simStatusTimedOut)
	key := relayKey((*mad.Packet)(back[simPacketHeader:]).TID())
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return
	}
	if before, ok := r.open[key]; ok {
		before.Stop()
	}
	r.open[key] = time.AfterFunc(relayWait, func() {
		if r.answered(key) {
			_, _ = r.program.Write(back) // fails for a program that is gone
		}
	})
}

// answered ends the time of a request; false: nobody waits for it.
func (r *relay) answered(t mad.TID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	timer, ok := r.open[relayKey(t)]
	if ok {
		timer.Stop()
		delete(r.open, relayKey(t))
	}
	return ok
}

// leave ends the relay, and the program's place at the simulator if it has not been
// given back.
func (r *relay) leave() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.bye != nil {
		_, _ = r.up.Write(r.bye) // fails when the simulator has ended before
		r.bye = nil
	}
	r.closed = true
	for _, c := range []*net.UnixConn{r.control, r.up, r.program, r.fabric} {
		if c != nil {
			c.Close()
		}
	}
	for key, timer := range r.open {
		timer.Stop()
		delete(r.open, key)
	}
}

// close is leave, and waits until everything has ended.
func (r *relay) close() {
	r.leave()
	r.done.Wait()
}
