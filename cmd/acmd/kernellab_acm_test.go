// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package main

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"acmd/mad"
	"acmd/mad/acm"
	"acmd/mad/ring"
	"acmd/mad/umad/kernellab"
	"acmd/resolver/acmsock"
)

// Without a queue pair of its own the daemon asks other nodes out of QP1: it joins
// the group through the SA and multicasts, and the answer comes to QP1. Nobody
// can hear the request here, as that would take a queue pair; so the test takes it
// from the fabric's trace and answers from another adapter with the bytes of a
// stock ibacm.
func TestKernelDaemonMulticast(t *testing.T) {
	l := startLab(t, "request_timeout 50000", "timeout 15000") // a guest may be slow to answer
	group := acm.MGID(mad.DefaultPKey, 0, 3, 4)
	if n := len(l.state().Groups); n != len(labDevices) { // startLab has waited until all are joined
		t.Fatalf("%d groups", n)
	}
	if n := strings.Count(l.out.String(), "out of QP1"); n != 1 {
		t.Errorf("the log says %d times how this node asks:\n%s", n, l.out)
	}
	peer, err := l.fabric.Open("sib2", 1)
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	kernellab.ClearTrace(t)

	type outcome struct {
		r   acmsock.Resolved
		err error
	}
	done := make(chan outcome, 1)
	go func() {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		r, err := l.client.ResolveName(ctx, "node1", "stranger", false)
		done <- outcome{r, err}
	}()
	// A copy can be answered for as long as the kernel waits for that: each is.
	sent := regexp.MustCompile(`sib1/1 > (?:\S+ )?LID (0x[0-9a-f]+)>(0x[0-9a-f]+) QP 0x1>0xffffff SL 0 GRH 256 bytes class 0x2c method 0x1 .* tid ([0-9a-f]{16})`)
	answered := 0
	var o outcome
	kernellab.Eventually(t, "name is resolved", func() bool {
		list := sent.FindAllStringSubmatch(kernellab.Trace(t), -1)
		if len(list) > 0 {
			kernellab.ClearTrace(t)
			m := list[len(list)-1]
			if slid, _ := strconv.ParseUint(m[1], 0, 16); mad.LID(slid) != l.info(labSource).LID {
				t.Errorf("request from LID %s, want %v", m[1], l.info(labSource).LID)
			}
			if mlid, _ := strconv.ParseUint(m[2], 0, 16); mlid < 0xc000 {
				t.Errorf("request went to LID %s, which is no group's", m[2])
			}
			tid, _ := strconv.ParseUint(m[3], 16, 64)
			l.answerFrom(peer, mad.TID(tid), group)
			answered++
		}
		select {
		case o = <-done:
			return true
		default:
			return false
		}
	})
	if o.err != nil || len(o.r.Paths) != 1 {
		t.Fatalf("%d answers; %+v, %v", answered, o.r, o.err)
	}
	if answered == 0 {
		t.Fatal("resolved without an answer")
	}
	l.same("sib2", o.r.Paths[0].Record, l.labQuery("sib2", false))
	kernellab.Eventually(t, "the answer is counted", func() bool { return l.state().ACM.Found == 1 })
}

// sender is the part of a port that answers need.
type sender interface {
	Ring() *ring.Ring
	Send([]*ring.Slot) (int, error)
}

// answerFrom sends what a stock ibacm would answer with, to QP1 of the daemon's
// port.
func (l *kernelLab) answerFrom(p sender, tid mad.TID, group mad.GID) {
	l.t.Helper()
	s := p.Ring().Get()
	defer s.Release()
	to := l.info(labSource)
	h := s.Header()
	*h = mad.UserHeader{}
	h.SetLID(to.LID)
	h.SetQPN(mad.QP1)
	h.SetQKey(mad.WellKnownQKey)
	h.SetGID(to.GIDs[0])
	acm.InitResponse(s.MAD(), tid, group)
	if want := fmt.Sprintf("012c018100000001%016x0000000001", uint64(tid)); !strings.HasPrefix(fmt.Sprintf("%x", s.MAD()[:]), want) {
		l.t.Fatalf("answer %x, want %s...", s.MAD()[:32], want)
	}
	if _, err := p.Send([]*ring.Slot{s}); err != nil {
		l.t.Fatalf("answer: %v", err)
	}
}
