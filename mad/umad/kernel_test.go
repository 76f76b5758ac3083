//go:build linux

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package umad

import (
	"errors"
	"fmt"
	"strconv"
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

func TestKernelSoftibConformance(t *testing.T) {
	kernellab.Need(t, kernellab.Softib)
	kernellab.Control(t, "clear")
	madtest.TestTransport(t, madtest.Harness{
		New: func(t *testing.T) (transport.Fabric, string, uint8) {
			f, err := New(Config{Poison: true})
			if err != nil {
				t.Fatal(err)
			}
			return f, labDevice, 1
		},
		Unreachable: nobodysLID, Poisoned: true, Pollable: true, Reports: true,
	})
}

// What sysfs and the SMA say is what the diagnostics print; a second look sends no
// MAD as long as nothing changed.
func TestKernelSoftibDevices(t *testing.T) {
	l := newLab(t)
	list, err := l.fabric.Devices()
	if err != nil || len(list) < 4 {
		t.Fatalf("%d devices, %v", len(list), err)
	}
	for _, d := range list {
		if len(d.Ports) != 1 || d.NodeGUID == 0 {
			t.Fatalf("%+v", d)
		}
		p := d.Ports[0]
		dump := kernellab.Run(t, "smpquery", "portinfo", strconv.Itoa(int(p.LID)), "1")
		for name, want := range map[string]string{
			"Lid": p.LID.String(), "SMLid": p.SMLID.String(), "LMC": strconv.Itoa(int(p.LMC)),
			"SMSL": strconv.Itoa(int(p.SMSL)), "SubnetTimeout": strconv.Itoa(int(p.SubnetTimeout)),
			"NeighborMTU": strconv.Itoa(128 << p.MTU), "LinkState": "Active", "CapMask": fmt.Sprintf("0x%x", p.CapMask),
		} {
			if got := kernellab.Field(t, dump, name); got != want {
				t.Errorf("%s %s is %s, smpquery says %s", d.Name, name, want, got)
			}
		}
		if p.State != mad.PortActive || p.LinkLayer != transport.LinkInfiniBand || p.Rate == 0 {
			t.Errorf("%s: %+v", d.Name, p)
		}
	}
	if n := opens(t, func() { newFabric(t).Devices() }); n != len(list) {
		t.Errorf("a first look opened %d devices, want %d", n, len(list))
	}
	begin := time.Now()
	n := opens(t, func() { l.fabric.Devices() })
	t.Logf("a look at %d devices takes %v", len(list), time.Since(begin))
	if n != 0 {
		t.Errorf("a second look opened %d devices", n)
	}
}

// PathRecords by LID and by GID are the ones that saquery prints.
func TestKernelSoftibPathRecord(t *testing.T) {
	l := newLab(t)
	for _, other := range []string{"sib0", "sib1", "sib2", "sib3"} {
		to := portOf(t, l.fabric, other)
		s, r := l.query(mad.MethodGet, madtest.AnswerTime, byLID)
		r.SetDLID(to.LID)
		l.send(s)
		s.Release()
		a := l.answer(l.tid)
		lidPath := *sa.Path(a.MAD())
		a.Release()

		s, r = l.query(mad.MethodGet, madtest.AnswerTime, sa.PathSGID|sa.PathDGID|sa.PathReversible|sa.PathNumPath)
		r.SetDGID(to.GIDs[0])
		l.send(s)
		s.Release()
		a = l.answer(l.tid)
		gidPath := *sa.Path(a.MAD())
		a.Release()

		if lidPath != gidPath {
			t.Errorf("%s: paths by LID and by GID differ:\n%x\n%x", other, lidPath, gidPath)
		}
		kernellab.ComparePath(t, &lidPath, kernellab.Run(t, "saquery", "-C", labDevice, "PR", "--slid", l.info.LID.String(), "--dlid", to.LID.String()))
	}
	l.balanced()
}

// field case 31: a send that got no answer comes back with its TID and the status
// of a time-out, after its time and not before, and others are not touched.
func TestKernelSoftibTimeout(t *testing.T) {
	l := newLab(t)
	kernellab.Control(t, "drop "+questions+" count=1")
	begin := time.Now()
	lost := l.ask(300 * time.Millisecond)
	other := l.ask(madtest.AnswerTime)
	seen := map[uint32]bool{}
	for range 2 { // a slow SA answers after that time
		s := l.recv(madtest.AnswerTime)
		if s == nil {
			t.Fatalf("only %d of two came back", len(seen))
		}
		tid := s.MAD().TID().Low()
		switch seen[tid] = true; tid {
		case lost:
			l.checkReturned(s, lost)
			if d := time.Since(begin); d < 300*time.Millisecond {
				t.Errorf("back after %v, asked to wait 300ms", d)
			}
		default:
			l.checkAnswer(s, other)
		}
		s.Release()
	}
	if len(seen) != 2 {
		t.Errorf("came back: %v", seen)
	}
	l.nothing()
	// The answer is lost instead of the request: no difference.
	kernellab.Control(t, "drop "+answers+" count=1")
	l.returned(l.ask(300 * time.Millisecond))
	l.works()
	l.balanced()
}

// The kernel's own retries are ours to switch on: the second copy is answered.
func TestKernelSoftibRetries(t *testing.T) {
	l := newLab(t)
	kernellab.Control(t, "drop "+questions+" count=1")
	s, _ := l.query(mad.MethodGet, 2*time.Second, byLID)
	s.Header().SetRetries(3)
	l.send(s)
	s.Release()
	l.answer(l.tid).Release()
	l.nothing()
}

// A late answer is dropped behind its time-out, a second copy behind the first.
func TestKernelSoftibLateAndDoubled(t *testing.T) {
	l := newLab(t)
	const late = 2 * time.Second
	kernellab.Control(t, "delay "+answers+" ms=2000 count=1")
	l.returned(l.ask(200 * time.Millisecond))
	l.ruled("the answer is on its way")
	time.Sleep(late) // it passes now
	l.nothing()
	kernellab.Control(t, "clear")
	kernellab.Control(t, "dup "+answers+" ms=50 count=1")
	l.works()
	l.nothing()
	kernellab.Control(t, "clear")
	// An answer that is late, but within the time, arrives; one that was sent
	// behind it overtakes it.
	kernellab.Control(t, "delay "+answers+" ms=3000 count=1")
	slow := l.ask(madtest.AnswerTime)
	l.ruled("the answer is on its way")
	quick := l.ask(madtest.AnswerTime)
	l.answer(quick).Release()
	l.answer(slow).Release()
	l.works()
	l.balanced()
}

// The kernel owns a TID until it is answered or timed out; then it is free.
func TestKernelSoftibTIDInUse(t *testing.T) {
	l := newLab(t)
	kernellab.Control(t, "drop "+questions+" count=1")
	tid := l.ask(3 * time.Second) // the second send comes before that is over
	s, _ := l.query(mad.MethodGet, madtest.AnswerTime, byLID)
	defer s.Release()
	s.MAD().SetTID(mad.TID(tid))
	n, err := l.port.Send([]*ring.Slot{s})
	if n != 0 || !errors.Is(err, unix.EINVAL) || errors.Is(err, transport.ErrGone) || !strings.Contains(err.Error(), "outstanding") {
		t.Fatalf("second send of a TID: %d, %v; want 0 and EINVAL that says so", n, err)
	}
	l.returned(tid)
	l.send(s)
	l.answer(tid).Release()
}

// A frame that is refused in the middle of a batch ends it there: those before are
// on their way, the error is that frame's, those behind were not looked at.
func TestKernelSoftibBatchWithBadFrame(t *testing.T) {
	l := newLab(t)
	const n, bad = 8, 4
	// A request that is lost keeps its TID in use for as long as the test lasts.
	kernellab.Control(t, "drop "+questions+" count=1")
	lost := l.ask(8 * madtest.AnswerTime)
	l.ruled("the request is lost")
	for _, c := range []struct {
		name  string
		spoil func(s *ring.Slot)
		check func(error) bool
	}{
		{"unknown class", func(s *ring.Slot) { s.MAD()[1] = mad.ClassPerf }, func(err error) bool { return strings.Contains(err.Error(), "class 0x04") }},
		{"TID in use", func(s *ring.Slot) { s.MAD().SetTID(mad.TID(lost)) }, func(err error) bool { return errors.Is(err, unix.EINVAL) }},
		{"GID index beyond the table", func(s *ring.Slot) { s.Header().SetGID(l.info.GIDs[0]); s.Header().SetGIDIndex(255) }, func(err error) bool { return err != nil }},
	} {
		t.Run(c.name, func(t *testing.T) {
			var slots []*ring.Slot
			for range n {
				s, _ := l.query(mad.MethodGet, madtest.AnswerTime, byLID)
				slots = append(slots, s)
			}
			c.spoil(slots[bad])
			sent, err := l.port.Send(slots)
			if sent != bad || err == nil || !c.check(err) || errors.Is(err, transport.ErrGone) {
				t.Fatalf("send took %d with %v, want %d", sent, err, bad)
			}
			l.send(slots[bad+1:]...)
			want := map[uint32]bool{}
			for i, s := range slots {
				if i != bad {
					want[s.MAD().TID().Low()] = true
				}
				s.Release()
			}
			for len(want) > 0 {
				s := l.recv(madtest.AnswerTime)
				if s == nil || !want[s.MAD().TID().Low()] || s.Header().Status() != 0 {
					t.Fatalf("%d answers missing", len(want))
				}
				delete(want, s.MAD().TID().Low())
				s.Release()
			}
			l.balanced()
		})
	}
}

// An agent that does not exist is EIO as well, but no reason to give the port up.
func TestKernelSoftibUnknownAgentIsNotGone(t *testing.T) {
	l := newLab(t)
	l.port.saAgent = 31
	s, _ := l.query(mad.MethodGet, time.Second, byLID)
	defer s.Release()
	n, err := l.port.Send([]*ring.Slot{s})
	if n != 0 || !errors.Is(err, unix.EIO) || errors.Is(err, transport.ErrGone) {
		t.Errorf("send through an unknown agent: %d, %v; want 0, EIO", n, err)
	}
}
