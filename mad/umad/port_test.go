// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package umad

import (
	"bytes"
	"errors"
	"net"
	"sync"
	"sync/atomic"
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

// Any mix of plain, short, timed-out and long frames is delivered once each, whole
// and in order, for any number of slots. field case 31.
func TestRecvAnyMix(t *testing.T) {
	madtest.CheckLeaks(t)
	p, m := newModel(t, 128)
	tid := uint32(0)
	rapid.Check(t, func(t *rapid.T) {
		sizes := rapid.SliceOfN(rapid.OneOf(
			rapid.Just(256), rapid.Just(256), rapid.Just(0), rapid.IntRange(36, 256), rapid.IntRange(257, 5000),
		), 0, 90).Draw(t, "sizes")
		first := tid
		var want [][]byte
		for _, size := range sizes {
			tid++
			if size == 0 {
				want = append(want, timedOut(tid))
			} else {
				want = append(want, frame(tid, size))
			}
		}
		m.push(want...)
		for len(want) > 0 {
			slots := make([]*ring.Slot, rapid.IntRange(1, 80).Draw(t, "slots"))
			if p.Ring().GetN(slots) != len(slots) {
				t.Fatal("slots are lost")
			}
			n, err := p.Recv(slots, time.Now().Add(soon))
			if err != nil || n < 1 || n > len(want) {
				t.Fatalf("recv with %d slots, %d queued: %d, %v", len(slots), len(want), n, err)
			}
			for i, s := range slots[:n] {
				checkSlot(t, s, want[i])
			}
			want = want[n:]
			giveBack(slots)
		}
		if p.Ring().Free() != p.Ring().Cap() {
			t.Fatalf("%d slots after TIDs %d to %d", p.Ring().Free(), first, tid)
		}
	})
	s := take(t, p, 1)
	defer giveBack(s)
	if n, err := p.Recv(s, time.Now().Add(-1)); n != 0 || err != nil {
		t.Errorf("recv of an empty queue: %d, %v", n, err)
	}
}

// checkSlot compares a slot with the frame that was queued.
func checkSlot(t *rapid.T, s *ring.Slot, want []byte) {
	t.Helper()
	got := s.Bytes()
	short := min(len(want), len(got))
	if !bytes.Equal(got[:short], want[:short]) {
		t.Fatalf("slot has %x, want %x", got[:88], want[:88])
	}
	for _, b := range got[short:] {
		if b != 0 {
			t.Fatalf("behind a frame of %d bytes is %#x", len(want), b)
		}
	}
	if len(want) <= ring.SlotSize {
		if s.Long() != nil {
			t.Fatalf("frame of %d bytes has a long message", len(want))
		}
	} else if !bytes.Equal(s.Long(), want[mad.UserHeaderSize:]) {
		t.Fatalf("long message of %d bytes, want %d", len(s.Long()), len(want)-mad.UserHeaderSize)
	}
}

// A message beyond the bound is taken off the queue and fails its transaction; what
// comes behind it is received.
func TestRecvTooLong(t *testing.T) {
	madtest.CheckLeaks(t)
	p, m := newModel(t, 8)
	big := frame(7, maxMessage)
	m.push(big, frame(8, 256))
	in := take(t, p, 2)
	if n, err := p.Recv(in, time.Now().Add(soon)); n != 1 || err != nil {
		t.Fatalf("recv: %d, %v", n, err)
	}
	s := in[0]
	if s.Header().Status() != uint32(unix.EMSGSIZE) || s.MAD().TID().Low() != 7 || s.Long() != nil {
		t.Errorf("status %d, TID %v, %d bytes; want EMSGSIZE, 7, none", s.Header().Status(), s.MAD().TID(), len(s.Long()))
	}
	if n, err := p.Recv(in, time.Now().Add(soon)); n != 1 || err != nil || in[0].MAD().TID().Low() != 8 || in[0].Header().Status() != 0 {
		t.Errorf("behind it: %d, %v, TID %v", n, err, in[0].MAD().TID())
	}
	giveBack(in)
}

// A single MAD larger than a slot would be refused for ever: it is dropped, and it
// alone.
func TestRecvJumbo(t *testing.T) {
	p, m := newModel(t, 8)
	jumbo := frame(7, 2048)
	jumbo[mad.UserHeaderSize] = 0x80 // Omni-Path's base version
	in := take(t, p, 4)
	defer giveBack(in)
	m.push(jumbo, frame(8, 256), jumbo)
	if n, err := p.Recv(in, time.Now().Add(soon)); n != 1 || err != nil || in[0].MAD().TID().Low() != 8 {
		t.Errorf("recv: %d, %v, TID %v; want the MAD behind it", n, err, in[0].MAD().TID())
	}
	if n, err := p.Recv(in, time.Now().Add(50*time.Millisecond)); n != 0 || err != nil {
		t.Errorf("recv: %d, %v; want nothing", n, err)
	}
}

// field case 31: what cannot be read ends the port instead of being tried for ever.
func TestRecvStuck(t *testing.T) {
	for name, spoil := range map[string]func(*model){
		"read fails":        func(m *model) { m.readErr = unix.ENOMEM; m.push(frame(1, 4096)) },
		"header says small": func(m *model) { f := frame(1, 4096); (*mad.UserHeader)(f).SetLength(320); m.push(f) },
		"too long and read fails": func(m *model) {
			m.readErr = unix.ENOMEM
			f := frame(1, 4096)
			(*mad.UserHeader)(f).SetLength(maxMessage + 1)
			m.push(f)
		},
		"jumbo beyond any": func(m *model) { f := frame(1, 9000); f[64] = 0x80; m.push(f) },
	} {
		t.Run(name, func(t *testing.T) {
			madtest.CheckLeaks(t)
			p, m := newModel(t, 8)
			spoil(m)
			in := take(t, p, 2)
			defer giveBack(in)
			for range 3 {
				if n, err := p.Recv(in, time.Now().Add(soon)); n != 0 || !errors.Is(err, transport.ErrGone) {
					t.Errorf("recv: %d, %v; want ErrGone", n, err)
				}
			}
			if m.reads > 2 {
				t.Errorf("read %d times", m.reads)
			}
		})
	}
}

// A deadline that is over does not hide what is queued: a caller with timers that
// are always due must not starve.
func TestRecvPastDeadline(t *testing.T) {
	p, m := newModel(t, 8)
	m.push(frame(1, 256))
	in := take(t, p, 1)
	defer giveBack(in)
	if n, err := p.Recv(in, time.Now().Add(-time.Hour)); n != 1 || err != nil {
		t.Errorf("recv: %d, %v; want the MAD that is queued", n, err)
	}
	if n, err := p.Recv(in, time.Now().Add(-time.Hour)); n != 0 || err != nil {
		t.Errorf("recv: %d, %v; want nothing", n, err)
	}
}

func TestRecvWithoutSlot(t *testing.T) {
	p, _ := newModel(t, 8)
	if n, err := p.Recv(nil, time.Time{}); n != 0 || err == nil {
		t.Errorf("recv: %d, %v", n, err)
	}
}

// Wakes, deadlines and messages from all sides: every message arrives, each wake
// ends a Recv, and no Recv sleeps over either.
func TestWakeUnderLoad(t *testing.T) {
	madtest.CheckLeaks(t)
	p, m := newModel(t, 64)
	const messages, wakes = 2000, 2000
	var (
		producers sync.WaitGroup
		returned  atomic.Uint64 // Recvs so far
		finished  atomic.Bool
	)
	producers.Go(func() {
		for i := range messages {
			m.push(frame(uint32(i+1), 256))
		}
	})
	producers.Go(func() {
		for i := range wakes {
			before, end := returned.Load(), time.Now().Add(soon)
			p.Wake()
			for returned.Load() == before {
				if time.Now().After(end) {
					t.Errorf("wake %d ended no Recv", i)
					m.unplug() // ends the test
					return
				}
				time.Sleep(10 * time.Microsecond)
			}
		}
		finished.Store(true)
		p.Wake()
	})
	in := take(t, p, 16)
	for got := 0; got < messages || !finished.Load(); {
		n, err := p.Recv(in, time.Time{})
		if err != nil {
			t.Fatalf("recv after %d messages: %v", got, err)
		}
		returned.Add(1)
		for _, s := range in[:n] {
			if got++; s.MAD().TID().Low() != uint32(got) {
				t.Fatalf("TID %v, want %d", s.MAD().TID(), got)
			}
		}
	}
	producers.Wait()
	giveBack(in)
}

// An old Wake whose second half comes late must not end a later Recv early.
func TestStaleWake(t *testing.T) {
	p, _ := newModel(t, 8)
	in := take(t, p, 1)
	defer giveBack(in)
	stop, hammer := make(chan struct{}), sync.WaitGroup{}
	hammer.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				_ = p.file.SetReadDeadline(time.Unix(1, 0)) // without the flag
				time.Sleep(time.Millisecond)
			}
		}
	})
	begin, wait := time.Now(), 100*time.Millisecond
	n, err := p.Recv(in, begin.Add(wait))
	close(stop)
	hammer.Wait()
	if n != 0 || err != nil || time.Since(begin) < wait {
		t.Errorf("recv: %d, %v after %v; want 0, nil after %v", n, err, time.Since(begin), wait)
	}
}

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
