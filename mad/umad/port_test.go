// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package umad

import (
	"errors"
	"net"
	"testing"
	"time"

	"acmd/mad"
	"acmd/mad/madtest"
	"acmd/mad/ring"
	"acmd/mad/transport"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

func take(t testing.TB, p *Port, n int) []*ring.Slot {
	t.Helper()
	s := make([]*ring.Slot, n)
	if got := p.Ring().GetN(s); got != n {
		t.Fatalf("%d slots of %d", got, n)
	}
	return s
}

func giveBack(slots []*ring.Slot) {
	for _, s := range slots {
		s.Release()
	}
}

var soon = madtest.AnswerTime

// field case 76: removal wakes a Recv that waits, and every call after that says so
// without touching the device.
func TestGone(t *testing.T) {
	for name, act := range map[string]func(*Port, []*ring.Slot) (int, error){
		"recv": func(p *Port, in []*ring.Slot) (int, error) { return p.Recv(in, time.Time{}) },
		"send": func(p *Port, in []*ring.Slot) (int, error) {
			*in[0].MAD() = mad.Packet{1, mad.ClassSA}
			return p.Send(in[:1])
		},
	} {
		t.Run(name, func(t *testing.T) {
			madtest.CheckLeaks(t)
			p, m := newModel(t, 8)
			in := take(t, p, 2)
			defer giveBack(in)
			timer := time.AfterFunc(30*time.Millisecond, m.unplug)
			defer timer.Stop()
			if name == "send" {
				m.unplug()
			}
			if n, err := act(p, in); n != 0 || !errors.Is(err, transport.ErrGone) {
				t.Fatalf("%d, %v; want ErrGone", n, err)
			}
			reads := m.reads
			for range 3 {
				if n, err := p.Recv(in, time.Time{}); n != 0 || !errors.Is(err, transport.ErrGone) {
					t.Errorf("recv: %d, %v", n, err)
				}
				if n, err := p.Send(in); n != 0 || !errors.Is(err, transport.ErrGone) {
					t.Errorf("send: %d, %v", n, err)
				}
				p.Wake()
			}
			if m.reads != reads || len(m.sent) != 0 {
				t.Errorf("%d more reads, %d writes on a dead descriptor", m.reads-reads, len(m.sent))
			}
			if err := p.Close(); err != nil {
				t.Error(err)
			}
			if n, err := p.Recv(in, time.Time{}); n != 0 || !errors.Is(err, net.ErrClosed) {
				t.Errorf("recv after close: %d, %v; want net.ErrClosed", n, err)
			}
		})
	}
}

// A batch of any size goes out in order; a frame that the kernel refuses ends it
// there with the kernel's reason.
func TestSendBatches(t *testing.T) {
	madtest.CheckLeaks(t)
	p, m := newModel(t, 256)
	p.saAgent, p.acmAgent = 4, 9
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 200).Draw(t, "n")
		bad := rapid.IntRange(-1, n).Draw(t, "bad") // -1 and n: none
		errno := rapid.SampledFrom([]unix.Errno{unix.EINVAL, unix.ENOMEM, unix.EIO}).Draw(t, "errno")
		m.sent, m.refuse = nil, map[uint32]unix.Errno{uint32(bad): errno}
		slots := make([]*ring.Slot, n)
		p.Ring().GetN(slots)
		defer giveBack(slots)
		for i, s := range slots {
			class := mad.ClassSA
			if i%3 == 0 {
				class = mad.ClassACM
			}
			s.MAD().Init(class, 1, mad.MethodGet)
			s.MAD().SetTID(mad.TID(i))
		}
		want := n
		if bad >= 0 && bad < n {
			want = bad
		}
		sent, err := p.Send(slots)
		if sent != want || (err != nil) != (want < n) || err != nil && !errors.Is(err, errno) || errors.Is(err, transport.ErrGone) {
			t.Fatalf("%d of %d sent, %v; want %d, %v", sent, n, err, want, errno)
		}
		for i, b := range m.sent {
			agent := uint32(4)
			if i%3 == 0 {
				agent = 9
			}
			if (*mad.Packet)(b[64:]).TID() != mad.TID(i) || (*mad.UserHeader)(b).Agent() != agent {
				t.Fatalf("frame %d: %x", i, b[:88])
			}
		}
		if len(m.sent) != want {
			t.Fatalf("%d frames written, want %d", len(m.sent), want)
		}
	})
	// A class without an agent is refused before anything is written of it.
	s := take(t, p, 3)
	defer giveBack(s)
	m.sent = nil
	for i := range s {
		s[i].MAD().Init(mad.ClassSA, 2, mad.MethodGet)
		s[i].MAD().SetTID(mad.TID(1000 + i))
	}
	s[1].MAD()[1] = mad.ClassSubnLID
	if n, err := p.Send(s); n != 1 || err == nil || len(m.sent) != 1 {
		t.Errorf("send: %d, %v, %d written; want 1 and an error", n, err, len(m.sent))
	}
}

// Closing gives the ring's memory back when the last slot is, and a port closed
// again and again is closed once.
func TestCloseRetiresRing(t *testing.T) {
	madtest.CheckLeaks(t)
	p, _ := newModel(t, 8)
	in := take(t, p, 1)
	for range 3 {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
	in[0].Bytes()[0] = 1 // still valid
	if p.Ring().Get() != nil {
		t.Error("the ring of a closed port lends slots")
	}
	giveBack(in)
	if err := p.Ring().Close(); err != nil || p.Ring().Free() != 0 {
		t.Errorf("ring is still mapped: %v, %d free", err, p.Ring().Free())
	}
}

// A batch in either direction allocates nothing.
func TestNoAllocation(t *testing.T) {
	p, m := newModel(t, 64)
	in := take(t, p, 8)
	defer giveBack(in)
	p.dev = still{m} // the model itself allocates
	for _, s := range in {
		s.MAD().Init(mad.ClassSA, 2, mad.MethodGet)
	}
	if n := testing.AllocsPerRun(100, func() {
		if k, err := p.Send(in); k != len(in) || err != nil {
			t.Fatalf("send: %d, %v", k, err)
		}
	}); n != 0 {
		t.Errorf("send allocates %v times", n)
	}
	if n := testing.AllocsPerRun(100, func() {
		if k, err := p.Recv(in, time.Time{}); k != len(in) || err != nil {
			t.Fatalf("recv: %d, %v", k, err)
		}
	}); n != 0 {
		t.Errorf("recv allocates %v times", n)
	}
}

// still moves every frame without looking.
type still struct{ *model }

func (still) readv(_ int, iov []unix.Iovec) (int, error)  { return len(iov) * ring.SlotSize, nil }
func (still) writev(_ int, iov []unix.Iovec) (int, error) { return len(iov) * ring.SlotSize, nil }
