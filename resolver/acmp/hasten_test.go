// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acmp

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"acmd/mad"
	"acmd/mad/acm"
	"acmd/mad/fabric"
	"acmd/resolver"
)

// Of several requests one is answered; what the others' answers are late by is
// measured by that, not by the gap between tries. Copies are few, and a lookup
// that nobody answers ends when it would have ended without them.
func TestHasten(t *testing.T) {
	inBubble(t, fabric.Config{Nodes: 8, Silent: 8}, func(t *testing.T, f *fabric.Fabric) {
		log, stop := watch(f)
		defer stop()
		nd := start(t, f, 0, Config{Retries: 2})
		defer nd.stop()
		begin := time.Now()
		first, second, dead := nd.locate(v4(3), 0), nd.locate(v4(4), 0), nd.locate(resolver.NameAddr("nobody"), 0)
		synctest.Wait()
		tids := map[mad.TID]int{}
		var order []mad.TID
		copies := func() []int {
			clear(tids)
			order = order[:0]
			for _, e := range log.sent() {
				if e.MAD.IsResponse() {
					continue
				}
				if tids[e.MAD.TID()]++; tids[e.MAD.TID()] == 1 {
					order = append(order, e.MAD.TID())
				}
			}
			var n []int
			for _, tid := range order {
				n = append(n, tids[tid])
			}
			return n
		}
		want := func(when string, n ...int) {
			t.Helper()
			got := copies()
			if len(got) != len(n) {
				t.Fatalf("%s: %v copies", when, got)
			}
			for i := range n {
				if got[i] != n[i] {
					t.Errorf("%s: %v copies, want %v", when, got, n)
				}
			}
		}
		answer := func(from int, tid mad.TID) {
			t.Helper()
			var m mad.Packet
			acm.InitResponse(&m, tid, fabric.ACMGroup(0xffff))
			if err := f.Unicast(from, 1, f.LID(0, 1), nd.client.Caps().QPN, &m); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		want("at first", 1, 1, 1)
		time.Sleep(5 * time.Millisecond)
		answer(3, order[0])
		if got := <-first; got.err != nil {
			t.Error(got.err)
		}
		time.Sleep(4 * time.Millisecond) // of 5, which the answer took
		want("before it is late", 1, 1, 1)
		time.Sleep(2 * time.Millisecond)
		want("late", 1, 2, 2)
		answer(4, order[1])
		if got := <-second; got.err != nil {
			t.Error(got.err)
		}
		// Two answers made two early copies; the tries are three as ever, and so is
		// their time (TestNobodyAnswers).
		got := <-dead
		if d := got.at.Sub(begin); !errors.Is(got.err, resolver.ErrTimeout) || d != 4524*time.Millisecond {
			t.Errorf("after %v: %v", d, got.err)
		}
		want("in the end", 1, 2, 5)
	})
}

// However many answers others get, extra copies of one request are few.
func TestHastenBound(t *testing.T) {
	inBubble(t, fabric.Config{Nodes: 40, Silent: 0}, func(t *testing.T, f *fabric.Fabric) {
		log, stop := watch(f)
		defer stop()
		nd := start(t, f, 0, Config{Retries: 2, Depth: 4})
		defer nd.stop()
		dead := nd.locate(resolver.NameAddr("nobody"), 0)
		for n := range 30 {
			nd.must(v4(n+2), n+2)
			time.Sleep(10 * time.Millisecond)
		}
		if got := <-dead; !errors.Is(got.err, resolver.ErrTimeout) {
			t.Error(got.err)
		}
		n := 0
		for _, e := range log.sent() {
			if d := acm.View(&e.MAD).Dest(); string(d[:6]) == "nobody" {
				n++
			}
		}
		if n != 3+maxQuick {
			t.Errorf("%d copies of the request for the dead name", n)
		}
	})
}
