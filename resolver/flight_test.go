// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package resolver

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"acmd/mad"
	"acmd/mad/sa"
	"acmd/mad/transport"
)

// field case 1: 64 clients ask the same 1,000 destinations at once; the SA is
// asked 1,000 times.
func TestCoalescing(t *testing.T) {
	bubble(t, func(l *lab, _ *Config) { l.sa.delay = 50 * time.Millisecond }, func(t *testing.T, l *lab) {
		const clients, dests = 64, 1000
		for i := range dests {
			l.knows(IPAddr(netip.AddrFrom4([4]byte{10, 0, byte(1 + i/250), byte(1 + i%250)})), uint64(1000+i))
		}
		b := newInbox()
		for c := range clients {
			for i := range dests {
				q := Query{Kind: ByAddress, Src: ip("10.0.0.1"), Dst: IPAddr(netip.AddrFrom4([4]byte{10, 0, byte(1 + i/250), byte(1 + i%250)}))}
				l.submit(q, uint64(c*dests+i), b)
			}
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if b.len() != clients*dests {
			t.Fatalf("%d answers, want %d", b.len(), clients*dests)
		}
		for tag := range uint64(clients * dests) {
			if a := b.one(t, tag); a.Status != StatusSuccess || a.Path.DLID() != mad.LID(1000+tag%dests) {
				t.Fatalf("answer %d: %v %v, LID %v", tag, a.Status, a.Err, a.Path.DLID())
			}
		}
		if n := l.sa.count(); n != dests {
			t.Errorf("%d SA asks, want %d", n, dests)
		}
		if n := l.acm.count(); n != dests {
			t.Errorf("%d address asks, want %d", n, dests)
		}
		want := Counters{CounterResolve: clients * dests, CounterAddrQuery: dests, CounterRouteQuery: dests,
			CounterRouteCache: (clients - 1) * dests}
		if got := l.e.Totals(); got != want {
			t.Errorf("counters %v, want %v", got, want)
		}
		if got := l.e.EndpointCounters(l.e.Endpoints()[0]); got != want {
			t.Errorf("endpoint's counters %v, want %v", got, want)
		}
	})
}

// field case 64: 1,500 clients ask 1,500 destinations of an SA that serves 20,000
// a second; everybody is answered in time.
func TestFanIn(t *testing.T) {
	bubble(t, nil, func(t *testing.T, l *lab) {
		const n = 1500
		served := 0
		l.sa.respond = func(_ sa.ComponentMask, rec *sa.PathRecord) (SAResult, time.Duration) {
			served++
			return SAResult{Path: *rec, Valid: true}, time.Duration(served) * 50 * time.Microsecond
		}
		for i := range n {
			l.acm.gids[IPAddr(netip.AddrFrom4([4]byte{10, 1, byte(i / 250), byte(i % 250)}))] = gidOf(uint64(5000 + i))
		}
		b := newInbox()
		start := time.Now()
		for c := range 10 {
			for i := range n {
				l.submit(Query{Src: ip("10.0.0.1"), Dst: IPAddr(netip.AddrFrom4([4]byte{10, 1, byte(i / 250), byte(i % 250)}))}, uint64(c*n+i), b)
			}
		}
		time.Sleep(3 * time.Second)
		synctest.Wait()
		for tag, at := range b.at {
			if a := b.one(t, tag); a.Status != StatusSuccess || at.Sub(start) >= 2*time.Second {
				t.Fatalf("tag %d: %v after %v", tag, a.Status, at.Sub(start))
			}
		}
		if len(b.at) != 10*n || served != n {
			t.Errorf("%d answers, %d SA asks", len(b.at), served)
		}
	})
}

// field case 3: nobody answers. The first asker is told so when its time is over,
// the next one at once, and nobody is asked again before the negative lifetime
// ends.
func TestDeadline(t *testing.T) {
	bubble(t, nil, func(t *testing.T, l *lab) {
		q := byIP("", "192.168.50.39")
		l.host.choose = func(netip.Addr) (netip.Addr, error) { return netip.MustParseAddr("10.0.0.1"), nil }
		a, took := l.ask(q)
		if a.Status != StatusTimedOut || took != 2*time.Second {
			t.Fatalf("%v after %v", a.Status, took)
		}
		if !strings.HasPrefix(a.Err.Error(), "address step:") || a.Core {
			t.Errorf("error %q, core %v", a.Err, a.Core)
		}
		if a.Src != ip("10.0.0.1") {
			t.Errorf("source %v", a.Src)
		}
		time.Sleep(100 * time.Millisecond)
		a, took = l.ask(q)
		if a.Status != StatusTimedOut || took > 5*time.Millisecond {
			t.Errorf("second ask: %v after %v", a.Status, took)
		}
		time.Sleep(950 * time.Millisecond)
		// The negative lifetime is over, the flight still is not: who asks now
		// waits for it and starts nothing.
		l.want(q, StatusTimedOut)
		if n := l.acm.count(); n != 1 {
			t.Errorf("%d multicast asks, want 1", n)
		}
		// The flight ends at the step's deadline, 12 s after its start.
		time.Sleep(12*time.Second - time.Duration(l.e.Now()-l.e.base) + 10*time.Millisecond)
		a, took = l.ask(q)
		if a.Status != StatusTimedOut || took != 0 || l.acm.count() != 1 {
			t.Errorf("after the flight: %v in %v, %d asks", a.Status, took, l.acm.count())
		}
		time.Sleep(time.Second)
		l.knows(q.Dst, 9)
		l.want(q, StatusSuccess)
		if n := l.acm.count(); n != 2 {
			t.Errorf("%d multicast asks, want 2", n)
		}
	})
}

// An asker with a deadline of its own is told how the flight ends, whatever those
// of others did: none of them is told earlier or later for it.
func TestOwnDeadline(t *testing.T) {
	bubble(t, func(l *lab, _ *Config) { l.sa.delay = 5 * time.Second }, func(t *testing.T, l *lab) {
		l.sa.set(func() { l.sa.lids[gidOf(7)], l.sa.lids[gidOf(8)] = 7, 8 })
		b := newInbox()
		start := time.Now()
		own := byGID(gidOf(7))
		own.OwnDeadline = true
		l.submit(own, 1, b) // its flight, which others join
		l.submit(byGID(gidOf(7)), 2, b)
		l.submit(byGID(gidOf(8)), 3, b)
		time.Sleep(2500 * time.Millisecond)
		l.submit(own, 4, b) // though a waiter of this flight gave up a moment ago
		own.Path.SetDGID(gidOf(9))
		l.submit(own, 5, b) // there is no such path
		time.Sleep(10 * time.Second)
		for tag, want := range map[uint64]struct {
			status Status
			after  time.Duration
		}{
			1: {StatusSuccess, 5 * time.Second}, 2: {StatusTimedOut, 2 * time.Second}, 3: {StatusTimedOut, 2 * time.Second},
			4: {StatusSuccess, 5 * time.Second}, 5: {StatusNoData, 7500 * time.Millisecond},
		} {
			if a, at := b.one(t, tag), b.at[tag].Sub(start); a.Status != want.status || at != want.after {
				t.Errorf("answer %d: %v after %v, want %v after %v", tag, a.Status, at, want.status, want.after)
			}
		}
		if s := l.e.Stats(); s.Waiters != 0 || s.Flights != 0 {
			t.Errorf("%d waiters and %d flights are left", s.Waiters, s.Flights)
		}
	})
}

// A waiter's deadline does not end the flight, whose answer is there for the next.
func TestLateAnswerFillsCache(t *testing.T) {
	bubble(t, func(l *lab, _ *Config) { l.sa.delay = 2500 * time.Millisecond }, func(t *testing.T, l *lab) {
		l.knows(ip("10.0.0.9"), 9)
		q := byIP("10.0.0.1", "10.0.0.9")
		a := l.want(q, StatusTimedOut)
		if !strings.HasPrefix(a.Err.Error(), "route step:") {
			t.Errorf("error %q", a.Err)
		}
		time.Sleep(time.Second)
		a, took := l.ask(q)
		if a.Status != StatusSuccess || took != 0 || l.sa.count() != 1 {
			t.Errorf("%v after %v, %d asks", a.Status, took, l.sa.count())
		}
		if s := l.e.Stats(); s.Waiters != 0 || s.Flights != 0 || s.LateWaiters != 1 {
			t.Errorf("stats %+v", s)
		}
	})
}

// field case 26: a failure is remembered for its short life, and not beyond a
// reregistration.
func TestNegative(t *testing.T) {
	bubble(t, nil, func(t *testing.T, l *lab) {
		q := byGID(gidOf(77))
		a := l.want(q, StatusNoData)
		if a.Err.Error() != "route step: SA: status 0x0300 (no records)" {
			t.Errorf("error %q", a.Err)
		}
		if a = l.want(q, StatusNoData); a.Err != errRemembered[StepRoute] || l.sa.count() != 1 {
			t.Errorf("error %q, %d asks", a.Err, l.sa.count())
		}
		l.event(transport.EventReregister, "mlx5_0", 1)
		time.Sleep(time.Millisecond)
		l.want(q, StatusNoData)
		if l.sa.count() != 2 {
			t.Errorf("%d asks after the reregistration, want 2", l.sa.count())
		}
		l.knows(ip("10.0.0.77"), 77)
		l.want(q, StatusNoData)
		time.Sleep(time.Second)
		l.want(q, StatusSuccess)
	})
}

// The SA does not have the route to an address that another node told: it may
// have moved, so that the next asker asks the nodes again.
func TestNoRecordsForgetsAddress(t *testing.T) {
	bubble(t, nil, func(t *testing.T, l *lab) {
		q := byIP("10.0.0.1", "10.0.0.9")
		l.acm.gids[q.Dst] = gidOf(8) // unknown to the SA
		l.want(q, StatusNoData)
		l.knows(q.Dst, 9)
		time.Sleep(time.Second)
		if a := l.want(q, StatusSuccess); a.Path.DGID() != gidOf(9) {
			t.Errorf("path to %v", a.Path.DGID())
		}
	})
}

func TestNoDelay(t *testing.T) {
	bubble(t, nil, func(t *testing.T, l *lab) {
		l.knows(ip("10.0.0.9"), 9)
		q := byIP("10.0.0.1", "10.0.0.9")
		q.NoDelay = true
		a, took := l.ask(q)
		if a.Status != StatusNoData || took != 0 || a.Core {
			t.Fatalf("%v after %v, core %v", a.Status, took, a.Core)
		}
		time.Sleep(10 * time.Millisecond)
		l.want(q, StatusSuccess)
		q.Dst = ip("10.0.0.10") // dead: a remembered time-out is "no data" here
		l.want(q, StatusNoData)
		time.Sleep(12*time.Second + 10*time.Millisecond)
		l.want(q, StatusNoData)
		if n := l.acm.count(); n != 2 {
			t.Errorf("%d asks", n)
		}
	})
}

// field case 79: 10 that succeed, 3 that time out, 2 that do not want to wait.
func TestCounterSums(t *testing.T) {
	bubble(t, nil, func(t *testing.T, l *lab) {
		l.knows(ip("10.0.0.9"), 9)
		for range 10 {
			l.want(byIP("10.0.0.1", "10.0.0.9"), StatusSuccess)
		}
		for i := range 3 {
			l.want(byIP("10.0.0.1", fmt.Sprintf("10.0.7.%d", i)), StatusTimedOut)
		}
		for i := range 2 {
			q := byIP("10.0.0.1", fmt.Sprintf("10.0.8.%d", i))
			q.NoDelay = true
			l.want(q, StatusNoData)
		}
		want := Counters{CounterError: 3, CounterResolve: 15, CounterNoData: 2, CounterAddrQuery: 6, CounterRouteQuery: 1, CounterRouteCache: 9}
		if got := l.e.Totals(); got != want {
			t.Errorf("counters %v, want %v", got, want)
		}
		// What no endpoint takes is in the totals only.
		l.want(byIP("10.9.9.9", "10.0.0.9"), StatusSrcAddr)
		if got := l.e.EndpointCounters(l.e.Endpoints()[0]); got != want {
			t.Errorf("endpoint's counters %v, want %v", got, want)
		}
		want[CounterError]++
		want[CounterResolve]++
		if got := l.e.Totals(); got != want {
			t.Errorf("counters %v, want %v", got, want)
		}
	})
}

// field case 25: however the address is learned, the askers get the route, and
// nothing before the SA has answered.
func TestAnswerOnlyWithRoute(t *testing.T) {
	bubble(t, func(l *lab, _ *Config) { l.sa.delay = time.Second }, func(t *testing.T, l *lab) {
		l.knows(ip("10.0.0.7"), 7)
		b := newInbox()
		l.submit(byIP("10.0.0.1", "10.0.0.7"), 1, b)
		time.Sleep(900 * time.Millisecond)
		if b.len() != 0 {
			t.Fatal("answered before the SA did")
		}
		time.Sleep(200 * time.Millisecond)
		if a := b.one(t, 1); a.Status != StatusSuccess || l.sa.count() != 1 {
			t.Errorf("%v, %d asks", a.Status, l.sa.count())
		}
	})
}

// All spellings of one destination are one question to the SA, at the same time
// and later. field case 58: names are folded.
func TestOneRouteForAllSpellings(t *testing.T) {
	for _, gap := range []time.Duration{0, 100 * time.Millisecond} {
		bubble(t, func(l *lab, _ *Config) { l.sa.delay = 10 * time.Millisecond }, func(t *testing.T, l *lab) {
			b := newInbox()
			qs := []Query{
				{Src: ip("10.0.0.1"), Dst: ip("10.0.0.9")},
				{Src: ip("2001:db8::1"), Dst: ip("2001:db8::9")},
				{Src: NameAddr("node1"), Dst: NameAddr("Node09.cluster")},
				{Src: NameAddr("NODE1"), Dst: NameAddr("NODE09.CLUSTER")},
				byGID(gidOf(9)),
			}
			for i := range 4 {
				l.knows(qs[i].Dst, 9)
			}
			for i, q := range qs {
				l.submit(q, uint64(i), b)
				time.Sleep(gap)
			}
			time.Sleep(time.Second)
			for i := range qs {
				if a := b.one(t, uint64(i)); a.Status != StatusSuccess || a.Path.DLID() != 9 {
					t.Errorf("spelling %d: %v %v", i, a.Status, a.Err)
				}
			}
			if n := l.sa.count(); n != 1 {
				t.Errorf("gap %v: %d SA asks, want 1", gap, n)
			}
			if n := l.acm.count(); n != 3 {
				t.Errorf("gap %v: %d address asks, want 3", gap, n)
			}
		})
	}
}

// The lookups and the waiters have a bound; what is over it is told so at once
// and counted.
func TestBounds(t *testing.T) {
	bubble(t, func(_ *lab, c *Config) { c.MaxFlights, c.MaxWaiters = 3, 5 }, func(t *testing.T, l *lab) {
		b := newInbox()
		for i := range 4 { // three flights, the fourth is refused
			l.submit(byIP("10.0.0.1", fmt.Sprintf("10.0.7.%d", i)), uint64(i), b)
		}
		for i := range 3 { // two more waiters, the third is refused
			l.submit(byIP("10.0.0.1", "10.0.7.0"), uint64(4+i), b)
		}
		synctest.Wait()
		for _, tag := range []uint64{3, 6} {
			if a := b.one(t, tag); a.Status != StatusNoMemory || !a.Core || a.Err == nil {
				t.Errorf("tag %d: %+v", tag, a)
			}
		}
		q := byGID(gidOf(9))
		q.Kind = AskSA
		l.want(q, StatusNoMemory)
		if b.len() != 2 || l.e.Stats().Refused != 3 || l.e.Stats().Waiters != 5 || l.e.Stats().Flights != 3 {
			t.Errorf("%d answers, stats %+v", b.len(), l.e.Stats())
		}
	})
}

// An engine that is closed has answered everybody, and answers whoever comes.
func TestClose(t *testing.T) {
	bubble(t, nil, func(t *testing.T, l *lab) {
		b := newInbox()
		l.sa.silent = true
		l.submit(byIP("10.0.0.1", "10.0.7.1"), 1, b)
		l.submit(byGID(gidOf(9)), 2, b)
		l.submit(Query{Kind: AskSA, Path: byGID(gidOf(9)).Path}, 3, b)
		time.Sleep(time.Millisecond)
		l.e.Close()
		l.submit(byGID(gidOf(9)), 4, b)
		for tag := range uint64(4) {
			if a := b.one(t, tag+1); a.Status != StatusNotConn {
				t.Errorf("tag %d: %v", tag+1, a.Status)
			}
		}
		if n := l.sa.opened("mlx5_0/1"); n != 0 {
			t.Errorf("SA client is open %d times", n)
		}
		time.Sleep(20 * time.Second) // what was under way ends into nothing
	})
}

// A source that never calls back does not hold a flight for ever.
func TestMuteSource(t *testing.T) {
	bubble(t, func(l *lab, _ *Config) { l.acm.mute = true }, func(t *testing.T, l *lab) {
		l.want(byIP("10.0.0.1", "10.0.7.1"), StatusTimedOut)
		time.Sleep(12 * time.Second)
		if s := l.e.Stats(); s.Flights != 0 {
			t.Errorf("stats %+v", s)
		}
	})
}

// What answers a second time is not heard.
func TestAnsweredTwice(t *testing.T) {
	first := &fakeSource{name: "preload", gids: map[Addr]mad.GID{}, asks: map[Addr]int{}, err: ErrUnknown, twice: true}
	bubble(t, func(l *lab, c *Config) {
		c.Sources = []AddressSource{first, l.acm}
	}, func(t *testing.T, l *lab) {
		l.knows(ip("10.0.0.9"), 9)
		l.want(byIP("10.0.0.1", "10.0.0.9"), StatusSuccess)
		time.Sleep(15 * time.Second)
		if first.count() != 1 || l.acm.count() != 1 || l.sa.count() != 1 {
			t.Errorf("asked %d, %d and %d times", first.count(), l.acm.count(), l.sa.count())
		}
		n := 0
		f := &routeFlight{x: &builtinEndpoint{e: l.e}, first: routeWait{ask: &Ask{}, done: func(r *Resolution) {
			if n++; r.Status != StatusSuccess {
				t.Errorf("status %v", r.Status)
			}
		}}}
		f.answered(SAResult{Valid: true})
		f.answered(SAResult{Err: ErrTimeout})
		if n != 1 {
			t.Errorf("%d outcomes of a route", n)
		}
	})
}

// Sources are asked in order, the first answer wins, and the failure says what
// each of them said.
func TestAddressStepOrder(t *testing.T) {
	first := &fakeSource{name: "preload", gids: map[Addr]mad.GID{}, asks: map[Addr]int{}, err: fmt.Errorf("not in the hosts file: %w", ErrUnknown)}
	bubble(t, func(l *lab, c *Config) {
		c.Sources = []AddressSource{first, l.acm}
	}, func(t *testing.T, l *lab) {
		l.knows(ip("10.0.0.9"), 9)
		l.want(byIP("10.0.0.1", "10.0.0.9"), StatusSuccess)
		if first.total != 1 || l.acm.total != 1 {
			t.Errorf("asked %d and %d times", first.total, l.acm.total)
		}
		first.gids[ip("10.0.0.10")] = gidOf(10)
		l.sa.lids[gidOf(10)] = 10
		l.want(byIP("10.0.0.1", "10.0.0.10"), StatusSuccess)
		if l.acm.total != 1 {
			t.Error("the second source was asked though the first knew")
		}
		// Known without asking another node: "address known, route not".
		if c := l.e.Totals(); c[CounterAddrCache] != 1 || c[CounterAddrQuery] != 1 {
			t.Errorf("counters %v", c)
		}
		l.acm.err = fmt.Errorf("no group on this transport: %w", ErrUnknown)
		a := l.want(byIP("10.0.0.1", "10.0.0.11"), StatusTimedOut)
		if got, want := a.Err.Error(), "address step: not in the hosts file: address is not known; no group on this transport: address is not known"; got != want {
			t.Errorf("error %q, want %q", got, want)
		}
		l.acm.err = fmt.Errorf("too many: %w", ErrOverload)
		l.want(byIP("10.0.0.1", "10.0.0.12"), StatusNoMemory)
		l.acm.err = nil
		l.knows(ip("10.0.0.12"), 12)
		l.want(byIP("10.0.0.1", "10.0.0.12"), StatusSuccess) // an overload is not remembered
	})
}

// A route that comes with the address (group parameters) needs no SA.
func TestRouteWithAddress(t *testing.T) {
	bubble(t, nil, func(t *testing.T, l *lab) {
		l.knows(ip("10.0.0.9"), 9)
		var rec sa.PathRecord
		rec.SetDGID(gidOf(9))
		rec.SetDLID(99)
		l.acm.route = &rec
		a := l.want(byIP("10.0.0.1", "10.0.0.9"), StatusSuccess)
		if a.Path != rec || a.Origin != OriginGroup || l.sa.count() != 0 {
			t.Errorf("%+v, %d asks", a, l.sa.count())
		}
		if a = l.want(byIP("10.0.0.1", "10.0.0.9"), StatusSuccess); a.Origin != OriginGroup {
			t.Errorf("origin %v from the cache", a.Origin)
		}
	})
}
