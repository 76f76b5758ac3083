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
			m.noted(1, 0, now)
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

// Floods that are not worth an answer are looked at less often, however many come;
// one datagram in four that is answered is enough to be served as ever.
func TestModerationRests(t *testing.T) {
	for _, tc := range []struct {
		name    string
		answers int // of 100
		want    time.Duration
	}{{"none", 0, restEvery}, {"few", 5, restEvery}, {"a third", 33, lookEvery}, {"all", 100, lookEvery}} {
		var m moderation
		now, sent := time.Now(), uint64(7)
		if m.noted(floodCount, sent, now); m.pause() != lookEvery {
			t.Errorf("%s: a flood that just began rests", tc.name)
		}
		for range 10 {
			now = now.Add(floodWindow / 2)
			m.noted(100, sent, now)
			sent += uint64(tc.answers)
		}
		if !m.flood(now) || m.pause() != tc.want {
			t.Errorf("%s answered: flood %v, %v between looks, want %v", tc.name, m.flood(now), m.pause(), tc.want)
		}
	}
}

// Whatever comes, and whether or not answers to us may be among it, no more than
// lookMost are taken within lookEvery; and what is put off is looked at in time.
func TestModerationBound(t *testing.T) {
	for _, asking := range []bool{false, true} {
		var m moderation
		now := time.Now()
		begin, taken, looks := now, 0, 0
		const step = 10 * time.Microsecond
		for range int(time.Second / step) {
			if look, _ := m.decide(now, true, asking); look {
				looks++
				for n := m.room(ringful, now); n > 0; n = m.room(ringful, now) {
					m.noted(n, 0, now) // the queue is never empty
					taken += n
				}
			}
			now = now.Add(step)
			if most := lookMost * (1 + int(now.Sub(begin)/lookEvery)); taken > most {
				t.Fatalf("asking %v: %d taken in %v, no more than %d may be", asking, taken, now.Sub(begin), most)
			}
		}
		want := int(time.Second / restEvery)
		if asking {
			want = int(time.Second / lookEvery)
		}
		if taken < lookMost*want*9/10 || looks < want*9/10 {
			t.Errorf("asking %v: %d taken in %d looks, want about %d looks", asking, taken, looks, want)
		}
	}
}

// ringful is what is asked for at a time in tests of the bound.
const ringful = 32

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
