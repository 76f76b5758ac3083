//go:build linux

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package umad

import (
	"encoding/binary"
	"errors"
	"testing"
	"time"

	"acmd/mad"
	"acmd/mad/acm"
	"acmd/mad/madtest"
	"acmd/mad/ring"
	"acmd/mad/sa"
	"acmd/mad/transport"
	"acmd/mad/umad/kernellab"

	"golang.org/x/sys/unix"
)

const labPeer = "sib2" // the adapter of whoever answers

// responder is an agent on another adapter that receives requests.
type responder struct {
	t     *testing.T
	fd    int
	agent uint32
	info  transport.PortInfo
}

func newResponder(t *testing.T, f *Fabric, class, version, rmpp uint8, methods ...uint8) *responder {
	t.Helper()
	name, err := f.sys.umadName(labPeer, 1)
	if err != nil {
		t.Fatal(err)
	}
	r := &responder{t: t, info: portOf(t, f, labPeer)}
	if r.fd, err = openUmad("/dev/infiniband/" + name); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(r.fd) })
	if r.agent, err = register(r.fd, newRegisterRequest(1, class, version, rmpp, methods...)); err != nil {
		t.Fatal(err)
	}
	return r
}

// frame waits for a frame of one packet, nil after limit.
func (r *responder) frame(limit time.Duration) []byte {
	r.t.Helper()
	fds := []unix.PollFd{{Fd: int32(r.fd), Events: unix.POLLIN}}
	if n, err := unix.Poll(fds, int(limit.Milliseconds())); err != nil || n == 0 {
		return nil
	}
	b := make([]byte, ring.SlotSize)
	n, err := unix.Read(r.fd, b)
	if err != nil || n != len(b) {
		r.t.Fatalf("responder read %d bytes: %v", n, err)
	}
	return b
}

// reply writes a MAD of any length back to where a frame came from.
func (r *responder) reply(to, packet []byte, timeout time.Duration) {
	r.t.Helper()
	b := append(make([]byte, 0, mad.UserHeaderSize+len(packet)), to[:mad.UserHeaderSize]...)
	h := (*mad.UserHeader)(b[:mad.UserHeaderSize])
	h.SetAgent(r.agent)
	h.SetQKey(mad.WellKnownQKey)
	h.SetTimeoutMS(uint32(timeout.Milliseconds()))
	h.SetRetries(3)
	h.SetGIDIndex(0)
	if _, err := unix.Write(r.fd, append(b, packet...)); err != nil {
		r.t.Fatalf("responder wrote: %v", err)
	}
}

// acmRequest is a request of the ACM class to QP1 of a port, with GRH.
func (l *lab) acmRequest(to *transport.PortInfo, timeout time.Duration) *ring.Slot {
	l.t.Helper()
	s := l.port.Ring().Get()
	if s == nil {
		l.t.Fatal("ring is empty")
	}
	l.tid++
	h := s.Header()
	*h = mad.UserHeader{}
	h.SetLID(to.LID)
	h.SetQPN(mad.QP1)
	h.SetQKey(mad.WellKnownQKey)
	h.SetGID(to.GIDs[0])
	h.SetTimeoutMS(uint32(timeout.Milliseconds()))
	if err := acm.InitRequest(s.MAD(), mad.TID(l.tid), acm.TypeName, []byte("nodeD"), acm.TypeName, []byte("nodeC"), acm.MGID(mad.DefaultPKey, 0, 3, 4)); err != nil {
		l.t.Fatal(err)
	}
	return s
}

// The ACM class between two ports: what arrives is what was sent, the answer
// comes back with its sender's addresses, a second copy of it does not, and a
// request without one comes back when its time is over.
func TestKernelSoftibACM(t *testing.T) {
	l := newLab(t)
	r := newResponder(t, l.fabric, mad.ClassACM, mad.ACMClassVersion, 0, mad.MethodGet)
	for range 3 {
		s := l.acmRequest(&r.info, madtest.AnswerTime)
		l.send(s)
		f := r.frame(madtest.AnswerTime)
		if f == nil {
			t.Fatal("request did not arrive")
		}
		h, m := (*mad.UserHeader)(f[:mad.UserHeaderSize]), (*mad.Packet)(f[mad.UserHeaderSize:])
		want := *s.MAD()
		want.SetTID(m.TID()) // the kernel has the upper half of it
		if *m != want || m.TID().Low() != l.tid || h.LID() != l.info.LID || h.QPN() != mad.QP1 || h.GID() != l.info.GIDs[0] || !h.HasGRH() {
			t.Errorf("arrived: % x\n%x", h[:], m[:])
		}
		s.Release()
		var a mad.Packet
		acm.InitResponse(&a, m.TID(), acm.MGID(mad.DefaultPKey, 0, 3, 4))
		kernellab.Control(t, "dup class=0x2c method=0x81 ms=50 count=1")
		r.reply(f, a[:], 0)
		got := l.answer(l.tid)
		if h := got.Header(); h.LID() != r.info.LID || h.GID() != r.info.GIDs[0] || h.QPN() != mad.QP1 || !h.HasGRH() || *got.MAD() != a {
			t.Errorf("answer: % x\n%x", h[:], got.MAD()[:])
		}
		if int(got.Header().PKeyIndex()) >= len(l.info.PKeys) || l.info.PKeys[got.Header().PKeyIndex()] != mad.DefaultPKey {
			t.Errorf("P_Key index %d", got.Header().PKeyIndex())
		}
		got.Release()
		l.nothing()
	}
	s := l.acmRequest(&r.info, 300*time.Millisecond)
	l.send(s)
	s.Release()
	l.returned(l.tid)
	l.balanced()
}

// field case 31: an answer of 1 MiB, which the kernels of both sides cut up and
// put together, is read in one piece, every byte in its place.
func TestKernelSoftibMegabyte(t *testing.T) {
	l := newLab(t)
	r := newResponder(t, l.fabric, mad.ClassSA, mad.SAClassVersion, 1, mad.MethodGetTable)
	const records = 1 << 20 / 64
	s, _ := l.query(mad.MethodGetTable, 2*time.Minute, 0)
	s.Header().SetLID(r.info.LID)
	l.send(s)
	s.Release()
	f := r.frame(madtest.AnswerTime)
	if f == nil {
		t.Fatal("request did not arrive")
	}
	table := make([]byte, sa.DataOffset+64*records)
	m := (*mad.Packet)(table)
	sa.Init(m, mad.MethodTableResp, sa.AttrPathRecord, 0)
	m.SetTID((*mad.Packet)(f[mad.UserHeaderSize:]).TID())
	binary.BigEndian.PutUint16(table[44:], 64/8)           // AttributeOffset (IBTA vol. 1, 15.2.1.1)
	table[24], table[25], table[26] = 1, 1, 0x01|(0x1f<<3) // RMPP version 1, DATA, active, response time not given
	for i := range records {
		binary.BigEndian.PutUint64(table[sa.DataOffset+64*i+8*(i%8):], uint64(i)*0x9e3779b97f4a7c15|1)
	}
	begin := time.Now()
	r.reply(f, table, 10*time.Second)
	got := l.recv(2 * time.Minute)
	if got == nil {
		t.Fatal("no answer")
	}
	defer got.Release()
	message := sa.Message(got.Header(), got.MAD(), got.Long())
	if len(message) != len(table) || got.Header().Status() != 0 || got.MAD().TID().Low() != l.tid {
		t.Fatalf("%d bytes, packet status %d; want %d", len(message), got.Header().Status(), len(table))
	}
	if string(message[sa.DataOffset:]) != string(table[sa.DataOffset:]) {
		t.Error("records are not those that were sent")
	}
	t.Logf("%d bytes in %v", len(message), time.Since(begin).Round(time.Millisecond))
}

// field case 76: requests of the ACM class are on their way to a node that does
// not answer when the device is pulled; every call ends with ErrGone, and the port
// of the device that comes back asks again.
func TestKernelSoftibACMUnplug(t *testing.T) {
	l := newLab(t)
	t.Cleanup(func() { kernellab.Settled(t, labDevice) })
	peer := portOf(t, l.fabric, labPeer)
	for range 64 {
		s := l.acmRequest(&peer, 2*time.Minute)
		l.send(s)
		s.Release()
	}
	kernellab.Control(t, "unplug "+labDevice)
	in := l.port.Ring().Get()
	kernellab.Eventually(t, "receive ends", func() bool {
		_, err := l.port.Recv([]*ring.Slot{in}, time.Now().Add(time.Second))
		return errors.Is(err, transport.ErrGone)
	})
	if _, err := l.port.Send([]*ring.Slot{in}); !errors.Is(err, transport.ErrGone) {
		t.Errorf("send: %v", err)
	}
	in.Release()
	l.balanced()
	l.port.Close()
	kernellab.Plug(t, labDevice)
	kernellab.Eventually(t, "port opens again", func() bool {
		p, err := l.fabric.Open(labDevice, 1)
		if err != nil {
			return false
		}
		l.port, l.info = p.(*Port), portOf(t, l.fabric, labDevice)
		return true
	})
	r := newResponder(t, l.fabric, mad.ClassACM, mad.ACMClassVersion, 0, mad.MethodGet)
	s := l.acmRequest(&r.info, madtest.AnswerTime)
	l.send(s)
	s.Release()
	f := r.frame(madtest.AnswerTime)
	if f == nil {
		t.Fatal("request did not arrive")
	}
	var a mad.Packet
	acm.InitResponse(&a, (*mad.Packet)(f[mad.UserHeaderSize:]).TID(), acm.MGID(mad.DefaultPKey, 0, 3, 4))
	r.reply(f, a[:], 0)
	l.answer(l.tid).Release()
	l.port.Close()
}
