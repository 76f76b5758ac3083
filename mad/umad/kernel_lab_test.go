//go:build linux

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package umad

import (
	"encoding/binary"
	"errors"
	"strings"
	"testing"
	"time"

	"acmd/mad"
	"acmd/mad/madtest"
	"acmd/mad/ring"
	"acmd/mad/sa"
	"acmd/mad/transport"
	"acmd/mad/umad/kernellab"

	"golang.org/x/sys/unix"
)

const (
	labDevice  = "sib1" // the adapter under test
	nobodysLID = mad.LID(0x0bad)
	// silence is how long a test waits for what must not come.
	silence = 700 * time.Millisecond
)

// lab is an open port of the adapter under test.
type lab struct {
	t      *testing.T
	fabric *Fabric
	port   *Port
	info   transport.PortInfo
	tid    uint32
}

func newLab(t *testing.T) *lab {
	t.Helper()
	kernellab.Need(t, kernellab.Softib)
	madtest.CheckLeaks(t)
	kernellab.Control(t, "clear")
	t.Cleanup(func() { kernellab.Control(t, "clear") })
	l := &lab{t: t, tid: 0x11000000, fabric: newFabric(t)}
	l.info = portOf(t, l.fabric, labDevice)
	l.port = l.open()
	return l
}

func newFabric(t *testing.T) *Fabric {
	t.Helper()
	f, err := New(Config{Poison: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func (l *lab) open() *Port {
	l.t.Helper()
	p, err := l.fabric.Open(labDevice, 1)
	if err != nil {
		l.t.Fatalf("open %s: %v", labDevice, err)
	}
	return p.(*Port)
}

// portOf returns port 1 of a device.
func portOf(t *testing.T, f *Fabric, device string) transport.PortInfo {
	t.Helper()
	list, err := f.Devices()
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range list {
		if d.Name == device && len(d.Ports) > 0 {
			return d.Ports[0]
		}
	}
	t.Fatalf("%s is not among %+v", device, list)
	return transport.PortInfo{}
}

// query writes an SA request to the SM with a new TID and returns the slot.
func (l *lab) query(method uint8, timeout time.Duration, mask sa.ComponentMask) (*ring.Slot, *sa.PathRecord) {
	l.t.Helper()
	s := l.port.Ring().Get()
	if s == nil {
		l.t.Fatal("ring is empty")
	}
	l.tid++
	h := s.Header()
	*h = mad.UserHeader{}
	h.SetLID(l.info.SMLID)
	h.SetSL(l.info.SMSL)
	h.SetQPN(mad.QP1)
	h.SetQKey(mad.WellKnownQKey)
	h.SetPKeyIndex(l.info.SAPKeyIndex())
	h.SetTimeoutMS(uint32(timeout.Milliseconds()))
	sa.Init(s.MAD(), method, sa.AttrPathRecord, mask)
	s.MAD().SetTID(mad.TID(l.tid))
	r := sa.Path(s.MAD())
	r.SetSLID(l.info.LID)
	r.SetSGID(l.info.GIDs[0])
	r.SetDLID(l.info.SMLID)
	r.SetReversibleNumPath(true, 1)
	return s, r
}

// Words of the laboratory's rules: path questions of the adapter under test, and the
// SA's answers. The kernel asks for ClassPortInfo by itself, a second after a port
// came up.
const (
	questions = "class=3 method=0x1 attr=0x35 from=" + labDevice
	answers   = "class=3 method=0x81 attr=0x35"
)

const byLID = sa.PathSLID | sa.PathDLID | sa.PathReversible | sa.PathNumPath

// send sends slots, which the caller still owns.
func (l *lab) send(slots ...*ring.Slot) {
	l.t.Helper()
	if n, err := l.port.Send(slots); n != len(slots) || err != nil {
		l.t.Fatalf("send took %d of %d: %v", n, len(slots), err)
	}
}

// ask sends one path query by LID and returns its TID.
func (l *lab) ask(timeout time.Duration) uint32 {
	l.t.Helper()
	s, _ := l.query(mad.MethodGet, timeout, byLID)
	defer s.Release()
	l.send(s)
	return l.tid
}

// recv returns the next message, which the caller releases, or nil after limit.
func (l *lab) recv(limit time.Duration) *ring.Slot {
	l.t.Helper()
	s := l.port.Ring().Get()
	if s == nil {
		l.t.Fatal("ring is empty")
	}
	for end := time.Now().Add(limit); time.Now().Before(end); {
		n, err := l.port.Recv([]*ring.Slot{s}, end)
		if err != nil {
			l.t.Fatalf("recv: %v", err)
		}
		if n == 1 {
			return s
		}
	}
	s.Release()
	return nil
}

// answer waits for the answer to tid and returns its slot.
func (l *lab) answer(tid uint32) *ring.Slot {
	l.t.Helper()
	s := l.recv(madtest.AnswerTime)
	if s == nil {
		l.t.Fatalf("no answer to TID %#x", tid)
	}
	l.checkAnswer(s, tid)
	return s
}

func (l *lab) checkAnswer(s *ring.Slot, tid uint32) {
	l.t.Helper()
	h, m := s.Header(), s.MAD()
	if m.TID().Low() != tid || h.Status() != 0 || !m.IsResponse() || m.Status() != 0 {
		l.t.Fatalf("TID %#x method %#x packet status %d status %#x; want the answer to %#x",
			m.TID().Low(), m.Method(), h.Status(), m.Status(), tid)
	}
}

// returned waits for tid to come back as timed out.
func (l *lab) returned(tid uint32) {
	l.t.Helper()
	s := l.recv(madtest.AnswerTime)
	if s == nil {
		l.t.Fatalf("TID %#x did not come back", tid)
	}
	defer s.Release()
	l.checkReturned(s, tid)
}

func (l *lab) checkReturned(s *ring.Slot, tid uint32) {
	l.t.Helper()
	h, m := s.Header(), s.MAD()
	if h.Status() != mad.StatusTimeout || m.TID().Low() != tid || m.IsResponse() {
		l.t.Fatalf("TID %#x method %#x packet status %d; want %#x timed out", m.TID().Low(), m.Method(), h.Status(), tid)
	}
	if m[mad.HeaderSize] != 0 || m[mad.PacketSize-1] != 0 {
		l.t.Error("what lay in the slot before is still behind the 24 bytes")
	}
}

// nothing fails when anything is received within silence.
func (l *lab) nothing() {
	l.t.Helper()
	if s := l.recv(silence); s != nil {
		l.t.Errorf("received TID %#x method %#x packet status %d, want nothing",
			s.MAD().TID().Low(), s.MAD().Method(), s.Header().Status())
		s.Release()
	}
}

// ruled waits until a rule with a count has been applied that often.
func (l *lab) ruled(what string) {
	l.t.Helper()
	kernellab.Eventually(l.t, what, func() bool { return strings.Contains(kernellab.State(l.t), " left 0 ") })
}

// works does one exchange.
func (l *lab) works() {
	l.t.Helper()
	l.answer(l.ask(madtest.AnswerTime)).Release()
}

// balanced fails unless every slot is back.
func (l *lab) balanced() {
	l.t.Helper()
	if r := l.port.Ring(); r.Free() != r.Cap() {
		l.t.Errorf("%d of %d slots are back", r.Free(), r.Cap())
	}
}

// opens counts what is opened below /dev/infiniband while fn runs.
func opens(t *testing.T, fn func()) int {
	t.Helper()
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		t.Fatalf("inotify: %v", err)
	}
	defer unix.Close(fd)
	if _, err := unix.InotifyAddWatch(fd, "/dev/infiniband", unix.IN_OPEN); err != nil {
		t.Fatalf("inotify: %v", err)
	}
	fn()
	var buf [4096]byte
	n, err := unix.Read(fd, buf[:])
	if errors.Is(err, unix.EAGAIN) {
		return 0
	}
	if err != nil {
		t.Fatalf("inotify: %v", err)
	}
	count := 0
	for b := buf[:n]; len(b) >= unix.SizeofInotifyEvent; count++ {
		if binary.NativeEndian.Uint32(b[4:])&unix.IN_ISDIR != 0 {
			count--
		}
		b = b[unix.SizeofInotifyEvent+int(binary.NativeEndian.Uint32(b[12:])):]
	}
	return count
}
