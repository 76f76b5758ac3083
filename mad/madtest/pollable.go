// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package madtest

import (
	"testing"
	"time"

	"acmd/mad/ring"
	"acmd/mad/transport"

	"golang.org/x/sys/unix"
)

// testPollable: a loop that waits for the descriptor and never in Recv gets its
// answers.
func testPollable(t *testing.T, e *env) {
	p := e.port.(transport.Pollable)
	in := e.slots(t, 4)
	defer release(in)
	past := time.Unix(1, 0)
	for round := range 20 {
		if round%5 == 4 { // as if a goroutine had waited in between
			p.Drive(false)
		}
		p.Drive(true)
		if n, err := p.Recv(in, past); n != 0 || err != nil {
			t.Fatalf("recv before anything was asked: %d, %v", n, err)
		}
		s := e.slot(t)
		tid := e.nextTID()
		e.pathQuery(s, tid, e.info.SMLID, e.info.SMLID, AnswerTime)
		if n, err := p.TrySend(in[:0]); n != 0 || err != nil {
			t.Fatalf("send of nothing: %d, %v", n, err)
		}
		if n, err := p.TrySend(append(in[:0:0], s)); n != 1 || err != nil {
			t.Fatalf("send: %d, %v", n, err)
		}
		s.Release()
		for got := 0; got == 0; {
			var fds []unix.PollFd
			for _, fd := range p.PollFDs() {
				fds = append(fds, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
			}
			n, err := unix.Poll(fds, int(AnswerTime.Milliseconds()))
			if err == unix.EINTR {
				continue
			}
			if n < 1 || err != nil {
				t.Fatalf("poll: %d, %v", n, err)
			}
			if got, err = p.Recv(in, past); err != nil {
				t.Fatal(err)
			}
			if got > 1 || got == 1 && in[0].MAD().TID().Low() != tid.Low() {
				t.Fatalf("%d messages, the first with TID %v, want one with %v", got, in[0].MAD().TID(), tid)
			}
		}
		e.checkPath(t, in[0], e.info.SMLID)
	}
	// What comes after the loop has given the port back wakes a goroutine.
	s, tid := e.slot(t), e.nextTID()
	defer s.Release()
	e.pathQuery(s, tid, e.info.SMLID, e.info.SMLID, AnswerTime)
	if n, err := p.TrySend([]*ring.Slot{s}); n != 1 || err != nil {
		t.Fatalf("send: %d, %v", n, err)
	}
	p.Drive(false)
	for end := time.Now().Add(AnswerTime); ; {
		n, err := p.Recv(in, end)
		switch {
		case err != nil || n > 1 || n == 0 && time.Now().After(end):
			t.Fatalf("after the loop: %d, %v", n, err)
		case n == 1 && in[0].MAD().TID().Low() != tid.Low():
			t.Fatalf("after the loop: TID %v, want %v", in[0].MAD().TID(), tid)
		case n == 1:
			return
		}
	}
}
