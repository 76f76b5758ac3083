// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package umad

import (
	"bytes"
	"errors"
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
