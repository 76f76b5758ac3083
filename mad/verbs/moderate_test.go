// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//go:build verbs && cgo

package verbs

import (
	"sync/atomic"
	"testing"
	"time"

	"acmd/mad"
	"acmd/mad/madtest"
	"acmd/mad/ring"
)

// What a flood is: its rate, from the first window on, and for no longer than it
// lasts.
func TestModeration(t *testing.T) {
	var m moderation
	now := time.Now()
	rate := func(every time.Duration, n int) (flood int) {
		for range n {
			now = now.Add(every)
			m.noted(1, now)
			if m.flood(now) {
				flood++
			}
		}
		return flood
	}
	if n := rate(5*time.Millisecond, 1000); n != 0 {
		t.Errorf("200 a second: %d of 1000 looks saw a flood", n)
	}
	if n := rate(100*time.Microsecond, 10_000); n < 9_900 {
		t.Errorf("10,000 a second: %d of 10,000 looks saw a flood", n)
	}
	if n := rate(5*time.Millisecond, 1000); n > 10 {
		t.Errorf("200 a second again: %d of 1000 looks saw a flood", n)
	}
	rate(100*time.Microsecond, 1000)
	if m.flood(now.Add(time.Second)) {
		t.Error("a flood that is over for a second")
	}
}

// In a flood the queue is looked at by the clock; nothing is missed behind it, and
// the answer to a question of ours is not kept waiting for the clock.
func TestFloodEnds(t *testing.T) {
	l := newLab(t, Config{RecvDepth: maxPosted}) // a buffer for each
	l.join()
	var last, answers atomic.Int64
	stop := l.serve(16, func(s *ring.Slot) {
		if s.MAD().IsResponse() {
			answers.Add(1)
		} else {
			last.Store(int64(s.MAD().TID()))
		}
	})
	defer stop()
	const n = 5000
	for i := range int64(n) {
		l.peer.Multicast(request(uint64(i + 1))[:], group)
	}
	eventually(t, "the end of a flood", func() bool { return last.Load() == n })
	out := l.slots(1)
	defer release(out)
	l.to(out[0], request(7))
	h := out[0].Header()
	h.SetLID(mlid)
	h.SetQPN(mad.MulticastQPN)
	h.SetGID(group)
	if _, err := l.port.Send(out); err != nil {
		t.Fatal(err)
	}
	got, err := l.peer.Recv(madtest.AnswerTime)
	if err != nil {
		t.Fatal(err)
	}
	m := mad.Packet(got.Data)
	m.SetMethod(mad.MethodGetResp)
	if err := l.peer.Send(m[:], got.LID, got.QPN, got.GID); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the answer", func() bool { return answers.Load() == 1 })
	// And one datagram alone, long after.
	time.Sleep(3 * floodWindow)
	l.peer.Multicast(request(n + 1)[:], group)
	eventually(t, "one more", func() bool { return last.Load() == n+1 })
}
