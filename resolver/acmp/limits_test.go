// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acmp

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"acmd/mad"
	"acmd/mad/fabric"
	"acmd/resolver"
)

// A name that nobody has: tries, their times, the error; the wait is the
// clamped one. Waiters of one address share the request, each with its own
// deadline.
func TestNobodyAnswers(t *testing.T) {
	inBubble(t, fabric.Config{Nodes: 4}, func(t *testing.T, f *fabric.Fabric) {
		log, stop := watch(f)
		defer stop()
		nd := start(t, f, 0, Config{Timeout: 2 * time.Second, Retries: 2})
		defer nd.stop()
		begin := time.Now()
		dead := resolver.NameAddr("nobody")
		long := nd.locate(dead, 0)
		short := nd.locate(dead, 700*time.Millisecond)
		late := nd.locate(dead, -time.Second)
		for _, w := range []struct {
			ch   <-chan found
			at   time.Duration
			text string
		}{{late, 0, "no time left"}, {short, 700 * time.Millisecond, "2 multicast requests"}, {long, 4524 * time.Millisecond, "3 multicast requests"}} {
			got := <-w.ch
			if !errors.Is(got.err, resolver.ErrTimeout) || got.at.Sub(begin) != w.at || !strings.Contains(got.err.Error(), w.text) {
				t.Errorf("after %v: %v", got.at.Sub(begin), got.err)
			}
		}
		time.Sleep(time.Minute)
		sent := log.sent()
		if len(sent) != 3 {
			t.Fatalf("%d requests", len(sent))
		}
		for i, want := range []time.Duration{0, 500 * time.Millisecond, 1500 * time.Millisecond} {
			if d := sent[i].Time.Sub(begin); d != want || sent[i].MAD != sent[0].MAD {
				t.Errorf("try %d after %v", i, d)
			}
		}
		if st := nd.stats(); st.Lookups != 1 || st.Timeouts != 1 {
			t.Errorf("%+v", st)
		}
	})
}

// A lost request is made good before a client gives up, a lost answer too.
func TestLoss(t *testing.T) {
	for _, where := range []fabric.Where{fabric.Requests, fabric.Deliveries} {
		inBubble(t, fabric.Config{Nodes: 4, Delay: time.Millisecond}, func(t *testing.T, f *fabric.Fabric) {
			nd := start(t, f, 0, Config{Retries: 2})
			defer nd.stop()
			time.Sleep(time.Second) // the join has a delay too
			f.AddRule(fabric.Rule{Class: mad.ClassACM, On: where, Do: fabric.Drop, Count: 1})
			begin := time.Now()
			if got := nd.must(v4(2), 2); got.at.Sub(begin) > 600*time.Millisecond {
				t.Errorf("found after %v", got.at.Sub(begin))
			}
		})
	}
}

// Many dead destinations do not keep live ones waiting longer than the first
// gaps of those before them; one dead one costs nothing.
func TestDeadAmongLive(t *testing.T) {
	inBubble(t, fabric.Config{Nodes: 100}, func(t *testing.T, f *fabric.Fabric) {
		nd := start(t, f, 0, Config{Retries: 2})
		defer nd.stop()
		begin := time.Now()
		var dead []<-chan found
		for i := range 3 * AutoDepth {
			if i == 1 {
				if got := nd.must(v4(50), 50); got.at != begin {
					t.Errorf("beside one dead: %v", got.at.Sub(begin))
				}
			}
			a := v4(1)
			a.Data[0], a.Data[3] = 192, byte(i)
			dead = append(dead, nd.locate(a, 0))
		}
		if got := nd.must(v4(51), 51); got.at.Sub(begin) > 1600*time.Millisecond {
			t.Errorf("behind 48 dead: %v", got.at.Sub(begin))
		}
		for _, ch := range dead {
			if got := <-ch; !errors.Is(got.err, resolver.ErrTimeout) {
				t.Error(got.err)
			}
		}
	})
}

// Bounds: lookups of an endpoint, waiters of a lookup.
func TestBounds(t *testing.T) {
	inBubble(t, fabric.Config{Nodes: 4}, func(t *testing.T, f *fabric.Fabric) {
		nd := start(t, f, 0, Config{})
		defer nd.stop()
		var all []<-chan found
		for i := range MaxLookups + 3 {
			a := v4(1)
			a.Data[0], a.Data[2], a.Data[3] = 192, byte(i>>8), byte(i)
			all = append(all, nd.locate(a, 10*time.Second))
		}
		a := v4(1)
		a.Data[0], a.Data[2], a.Data[3] = 192, 0, 0
		for range MaxWaiters {
			all = append(all, nd.locate(a, 10*time.Second))
		}
		over := 0
		for _, ch := range all {
			if got := <-ch; errors.Is(got.err, resolver.ErrOverload) {
				over++
			} else if !errors.Is(got.err, resolver.ErrTimeout) {
				t.Fatal(got.err)
			}
		}
		if over != 4 || nd.stats().Overload != 4 {
			t.Errorf("%d refused, want 3 lookups and 1 waiter", over)
		}
		synctest.Wait()
		m := (*nd.src.byKey.Load())[portKey{fabric.DeviceName, 1}].members[0]
		if len(m.lookups) != 0 || len(m.seats) != 0 || len(m.port.byTID) != 0 || len(m.queue) > 100 {
			t.Errorf("left %d lookups, %d seats, %d TIDs, queue of %d", len(m.lookups), len(m.seats), len(m.port.byTID), len(m.queue))
		}
	})
}
