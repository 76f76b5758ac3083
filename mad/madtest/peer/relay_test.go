// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package peer

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"acmd/mad"
)

// relayLab is a relay between a made-up program and a made-up simulator.
type relayLab struct {
	t                  *testing.T
	relay              *relay
	control, simulator *net.UnixConn // control sockets of the program and of the simulator
	program, fabric    *net.UnixConn // packets
}

const relayClient = 3 // the number that the simulator gives

func newRelayLab(t *testing.T) *relayLab {
	t.Helper()
	base := fmt.Sprintf("relay-%d-%08x", os.Getpid(), rand.Uint32())
	l := &relayLab{t: t}
	must := func(c *net.UnixConn, err error) *net.UnixConn {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		return c
	}
	l.simulator = must(net.ListenUnixgram("unixgram", simAddr(base, "ctl")))
	l.relay = startRelay(t, base, base+"-1")
	l.control = must(net.DialUnix("unixgram", simAddr(base+"-1", "ctl77"), simAddr(base+"-1", "ctl")))
	in := must(net.ListenUnixgram("unixgram", simAddr(base+"-1", "in77")))

	connect := l.message(simConnect)
	binary.NativeEndian.PutUint32(connect[simControlID:], 77)
	if _, err := l.control.Write(connect); err != nil {
		t.Fatal(err)
	}
	asked, from := l.command()
	if asked != simConnect {
		t.Fatalf("the simulator is sent type %d", asked)
	}
	l.fabric = must(net.DialUnix("unixgram", simAddr(base, fmt.Sprintf("out%d", relayClient)), simAddr(base, "in77")))
	answer := l.message(simConnect)
	binary.NativeEndian.PutUint32(answer[simControlID:], relayClient)
	from.Name += "\x00"
	if _, err := l.simulator.WriteToUnix(answer, from); err != nil {
		t.Fatal(err)
	}
	if _, err := l.control.Read(answer); err != nil || binary.NativeEndian.Uint32(answer[simControlID:]) != relayClient {
		t.Fatalf("answer to CONNECT: %x, %v", answer, err)
	}
	l.program = in
	return l
}

func (l *relayLab) message(kind uint32) []byte {
	b := make([]byte, simControlSize)
	binary.NativeEndian.PutUint32(b, 0xdeadbeef)
	binary.NativeEndian.PutUint32(b[simControlType:], kind)
	return b
}

// command is the next control message that reaches the simulator.
func (l *relayLab) command() (kind uint32, from *net.UnixAddr) {
	l.t.Helper()
	b := make([]byte, simControlSize)
	_, from, err := l.simulator.ReadFromUnix(b)
	if err != nil {
		l.t.Fatal(err)
	}
	if kind = binary.NativeEndian.Uint32(b[simControlType:]); kind == simDisconnect {
		if n := binary.NativeEndian.Uint32(b[simControlClient:]); n != relayClient {
			l.t.Errorf("client %d is disconnected", n)
		}
	}
	return kind, from
}

func relayPacket(method uint8, tid mad.TID) []byte {
	b := make([]byte, simPacketHeader+mad.PacketSize)
	b[simPacketHeader+3] = method
	(*mad.Packet)(b[simPacketHeader:]).SetTID(tid)
	return b
}

// toFabric sends a packet of the program.
func (l *relayLab) toFabric(b []byte) {
	l.t.Helper()
	if _, err := l.program.WriteToUnix(b, simAddr(l.relay.base, fmt.Sprintf("out%d", relayClient))); err != nil {
		l.t.Fatal(err)
	}
	l.next(l.fabric, b)
}

// toProgram sends a packet of the simulator.
func (l *relayLab) toProgram(b []byte) {
	l.t.Helper()
	if _, err := l.fabric.Write(b); err != nil {
		l.t.Fatal(err)
	}
}

// next wants b as the next packet.
func (l *relayLab) next(c *net.UnixConn, b []byte) {
	l.t.Helper()
	got := make([]byte, 2*len(b))
	n, err := c.Read(got)
	if err != nil {
		l.t.Fatal(err)
	}
	if !bytes.Equal(got[:n], b) {
		l.t.Errorf("packet\n%x, want\n%x", got[:n], b)
	}
}

// What is answered passes; what is not comes back as timed out; an answer after
// that, and a second one, are nobody's.
func TestRelay(t *testing.T) {
	l := newRelayLab(t)
	l.toFabric(relayPacket(mad.MethodGet, 1))
	answer := relayPacket(mad.MethodGetResp, 1|relayClient<<48)
	l.toProgram(answer)
	l.next(l.program, answer)

	begin := time.Now()
	lost := relayPacket(mad.MethodTrap, 2)
	l.toFabric(lost)
	l.toFabric(relayPacket(mad.MethodTrapRepress, 3)) // nothing answers it
	l.toFabric(relayPacket(mad.MethodGetResp, 4))
	binary.BigEndian.PutUint32(lost[simPacketStatus:], simStatusTimedOut)
	l.next(l.program, lost)
	if d := time.Since(begin); d < relayWait {
		t.Errorf("timed out after %v", d)
	}
	l.toProgram(answer)
	l.toProgram(relayPacket(mad.MethodGetResp, 2|relayClient<<48))
	request := relayPacket(mad.MethodGet, 5)
	l.toProgram(request) // a neighbour's
	l.next(l.program, request)
}

// A program that was killed gives its place back, one that said good-bye does not
// do so twice.
func TestRelayLeaves(t *testing.T) {
	l := newRelayLab(t)
	l.relay.leave()
	if kind, _ := l.command(); kind != simDisconnect {
		t.Errorf("the simulator is sent type %d", kind)
	}

	l = newRelayLab(t)
	bye := l.message(simDisconnect)
	binary.NativeEndian.PutUint32(bye[simControlClient:], relayClient)
	if _, err := l.control.Write(bye); err != nil {
		t.Fatal(err)
	}
	kind, from := l.command()
	from.Name += "\x00"
	if _, err := l.simulator.WriteToUnix(bye, from); err != nil || kind != simDisconnect {
		t.Fatal(kind, err)
	}
	if _, err := l.control.Read(bye); err != nil {
		t.Fatal(err)
	}
	l.relay.leave()
	if err := l.simulator.SetDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if n, _, err := l.simulator.ReadFromUnix(bye); err == nil {
		t.Errorf("another message of %d bytes", n)
	}
}

// Two OpenSMs: the better one takes over when it comes, and the other one when the
// better one ends, in order or not, whatever was under way between them.
func TestSeveralSMs(t *testing.T) {
	f := StartFabric(t, "small.net", WithoutSM())
	low := f.JoinSM(t, "node-d", 1)
	low.WaitMaster(t)
	for _, end := range []func(*Process){(*Process).Stop, (*Process).Kill, (*Process).Stop} {
		high := f.JoinSM(t, "sm-host", 5)
		high.WaitMaster(t)
		low.WaitStandby(t)
		if out := f.Tool(t, "node-a", "sminfo"); !strings.Contains(out, "priority 5 state 3 SMINFO_MASTER") {
			t.Errorf("sminfo: %s", out)
		}
		time.Sleep(time.Duration(rand.IntN(700)) * time.Millisecond) // between two polls of the standby
		end(high.Process)
		low.WaitMaster(t)
	}
}
