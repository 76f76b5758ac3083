//go:build linux

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package umad

import (
	"testing"
	"time"

	"acmd/mad"
	"acmd/mad/madtest"
	"acmd/mad/ring"
	"acmd/mad/sa"
	"acmd/mad/umad/kernellab"
)

// table sends a PathRecord GetTable and returns the records of its answer.
func (l *lab) table(mask sa.ComponentMask, fill func(*sa.PathRecord)) (records []sa.PathRecord, message int) {
	l.t.Helper()
	s, r := l.query(mad.MethodGetTable, madtest.AnswerTime, mask)
	if fill != nil {
		fill(r)
	}
	l.send(s)
	s.Release()
	a := l.answer(l.tid)
	defer a.Release()
	m := sa.Message(a.Header(), a.MAD(), a.Long())
	if _, err := sa.CheckTable(m, 64); err != nil {
		l.t.Fatalf("table of %d bytes: %v", len(m), err)
	}
	if want := int(a.Header().Length()) - mad.UserHeaderSize; len(m) != want {
		l.t.Errorf("message of %d bytes, the header says %d", len(m), want)
	}
	for b := range sa.Records(m, 64) {
		records = append(records, sa.PathRecord(b))
	}
	return records, len(m)
}

// field case 31: a table that does not fit a slot is read again in its own size,
// one of a single segment is a frame shorter than a slot, and both go along with
// plain answers.
func TestKernelSoftibGetTable(t *testing.T) {
	l := newLab(t)
	list, err := l.fabric.Devices()
	if err != nil {
		t.Fatal(err)
	}
	one, size := l.table(byLID, nil)
	if len(one) != 1 || size != sa.DataOffset+64 || one[0].DLID() != l.info.SMLID || one[0].SLID() != l.info.LID {
		t.Errorf("table of one path: %d records, %d bytes", len(one), size)
	}
	t.Logf("one path: %d bytes", size)

	from, size := l.table(sa.PathSLID|sa.PathReversible, nil)
	if size <= mad.PacketSize {
		t.Fatalf("all paths of a port are %d bytes: too few to need a second read", size)
	}
	seen := map[mad.LID]bool{}
	for _, r := range from {
		if r.SLID() != l.info.LID {
			t.Errorf("path from LID %v, asked for %v", r.SLID(), l.info.LID)
		}
		seen[r.DLID()] = true
	}
	for _, d := range list {
		if !seen[d.Ports[0].LID] {
			t.Errorf("no path to %s, LID %v", d.Name, d.Ports[0].LID)
		}
	}
	t.Logf("paths of a port: %d records, %d bytes", len(from), size)

	all, size := l.table(0, nil)
	pairs := map[[2]mad.LID]int{}
	for _, r := range all {
		pairs[[2]mad.LID{r.SLID(), r.DLID()}]++
	}
	for _, a := range list {
		for _, b := range list {
			if pairs[[2]mad.LID{a.Ports[0].LID, b.Ports[0].LID}] == 0 {
				t.Errorf("no path from %s to %s", a.Name, b.Name)
			}
		}
	}
	t.Logf("all paths: %d records, %d bytes", len(all), size)
	l.works()
	l.balanced()
}

// Long, short and plain answers that wait together are all delivered, whichever
// of them ends a readv(2), and a slot's long message does not stay with the slot.
func TestKernelSoftibMixedSizes(t *testing.T) {
	l := newLab(t)
	const rounds = 12
	want := map[uint32]int{} // by TID: least size of the message
	kernellab.Control(t, "delay "+answers+" ms=400")
	for i := range rounds {
		method, mask, size := mad.MethodGet, byLID, sa.DataOffset+64
		switch i % 3 {
		case 1:
			method = mad.MethodGetTable
		case 2:
			method, mask, size = mad.MethodGetTable, sa.PathSLID|sa.PathReversible, mad.PacketSize+1
		}
		s, _ := l.query(method, madtest.AnswerTime, mask)
		l.send(s)
		s.Release()
		want[l.tid] = size
	}
	time.Sleep(silence) // until most of them are queued
	in := make([]*ring.Slot, 8)
	for len(want) > 0 {
		if l.port.Ring().GetN(in) != len(in) {
			t.Fatal("ring is empty")
		}
		n, err := l.port.Recv(in, time.Now().Add(madtest.AnswerTime))
		if err != nil || n == 0 {
			t.Fatalf("%d messages missing: %d, %v", len(want), n, err)
		}
		for _, s := range in[:n] {
			tid := s.MAD().TID().Low()
			least, ok := want[tid]
			m := sa.Message(s.Header(), s.MAD(), s.Long())
			if !ok || len(m) < least || (s.Long() != nil) != (least > mad.PacketSize) || s.Header().Status() != 0 {
				t.Errorf("TID %#x (known %v): %d bytes, long %v, status %d; want at least %d", tid, ok, len(m), s.Long() != nil, s.Header().Status(), least)
			}
			delete(want, tid)
		}
		for _, s := range in {
			s.Release()
		}
	}
	l.nothing()
	l.balanced()
}

// field case 31: after very many exchanges slots and descriptors are what they
// were before, and so are the kernel's: every TID is free again. 100,000 MADs, or
// as many as 20 s allow, but some thousand on the slowest machine.
func TestKernelSoftibManyMADs(t *testing.T) {
	l := newLab(t)
	const total, least, window, batch = 100_000, 2000, 64, 16
	var (
		sent, got int
		out       [batch]*ring.Slot
		in        [window]*ring.Slot
		begin     = time.Now()
		end       = begin.Add(20 * time.Second)
		more      = func() bool { return sent < least || sent < total && time.Now().Before(end) }
	)
	if l.port.Ring().GetN(in[:]) != window {
		t.Fatal("ring is empty")
	}
	for more() || got < sent {
		for more() && sent-got <= window-batch {
			for i := range out {
				out[i], _ = l.query(mad.MethodGet, madtest.AnswerTime, byLID)
			}
			l.send(out[:]...)
			sent += batch
			for _, s := range out {
				s.Release()
			}
		}
		n, err := l.port.Recv(in[:], time.Now().Add(madtest.AnswerTime))
		if err != nil || n == 0 {
			t.Fatalf("%d of %d answered, then %d, %v", got, sent, n, err)
		}
		for _, s := range in[:n] {
			if s.Header().Status() != 0 || s.MAD().Status() != 0 || sa.Path(s.MAD()).DLID() != l.info.SMLID {
				t.Fatalf("answer %d: packet status %d, status %#x", got, s.Header().Status(), s.MAD().Status())
			}
			got++
		}
	}
	for _, s := range in {
		s.Release()
	}
	t.Logf("%d queries answered in %v", got, time.Since(begin).Round(time.Millisecond))
	l.nothing()
	l.balanced()
}
