// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package kernelnl_test

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"acmd/mad"
	"acmd/mad/madtest"
	"acmd/mad/transport"
	"acmd/resolver"
	"acmd/resolver/kernelnl"
	"acmd/resolver/kernelnl/kernelfake"
)

// A path comes from the SA and then from the cache, for every path_use, and the
// record is the SA's in every byte.
func TestResolve(t *testing.T) {
	bubble(t, nil, func(l *lab) {
		for use := range uint8(3) {
			q := ask(7)
			q.Use = use
			c := l.k.Resolve(q)
			if c.Wait() != kernelfake.Answered {
				t.Fatalf("path_use %d: outcome %d after %v", use, c.Outcome, c.After)
			}
			if c.Path.DGID() != gid(7) || c.Path.SGID() != gid(1) || c.Path.DLID() != 7 || c.Path.SLID() != 1 || c.Path.PKey() != 0xffff {
				t.Errorf("path_use %d: %x", use, c.Path)
			}
			if limit := time.Duration(0); use > 0 && c.After > limit {
				t.Errorf("path_use %d: from the cache after %v", use, c.After)
			}
		}
		if n := l.sa.queries(); n != 1 {
			t.Errorf("%d queries to the SA, want 1", n)
		}
		if s := l.stats(); s.Resolves != 3 || s.Answered != 3 || s.Hits != 2 {
			t.Errorf("%+v", s)
		}
		l.clean()
	})
}

// What the kernel constrains reaches the SA and is part of the key: a service ID
// may have a path of its own.
func TestConstraints(t *testing.T) {
	bubble(t, nil, func(l *lab) {
		q := ask(7)
		q.Service, q.TClass, q.QoS = 0x013f1234, 9, 0x20
		c := l.k.Resolve(q)
		if c.Wait() != kernelfake.Answered {
			t.Fatal(c.Outcome)
		}
		if c.Path.ServiceID() != q.Service || c.Path.TClass() != 9 || c.Path.QoSClass() != 0x20 {
			t.Errorf("the SA was not asked for it: %x", c.Path)
		}
		if c := l.k.Resolve(ask(7)); c.Wait() != kernelfake.Answered || c.Path.ServiceID() != 0 {
			t.Errorf("the plain path is %x", c.Path)
		}
		if n := l.sa.queries(); n != 2 {
			t.Errorf("%d queries to the SA, want 2", n)
		}
	})
}

// The kernel, and programs at the other door, join one flight.
func TestSharedFlight(t *testing.T) {
	bubble(t, nil, func(l *lab) {
		p := l.askAsClient(7)
		var calls []*kernelfake.Call
		for range 10 {
			calls = append(calls, l.k.Resolve(ask(7)))
		}
		a := <-p.done
		for _, c := range calls {
			if c.Wait() != kernelfake.Answered || c.Path != a.Path {
				t.Errorf("outcome %d, path %x, the program got %x", c.Outcome, c.Path, a.Path)
			}
		}
		if n := l.sa.queries(); n != 1 {
			t.Errorf("%d queries to the SA, want 1", n)
		}
	})
}

// A failure is told when it is known, and while it is remembered at once.
func TestRefused(t *testing.T) {
	bubble(t, nil, func(l *lab) {
		first := l.k.Resolve(ask(200_000))
		if first.Wait() != kernelfake.Refused || first.After > 100*time.Millisecond {
			t.Errorf("outcome %d after %v", first.Outcome, first.After)
		}
		if c := l.k.Resolve(ask(200_000)); c.Wait() != kernelfake.Refused || c.After != 0 {
			t.Errorf("remembered: outcome %d after %v", c.Outcome, c.After)
		}
		foreign := ask(7)
		foreign.SGID = gid(99) // no port of ours
		if c := l.k.Resolve(foreign); c.Wait() != kernelfake.Refused || c.After != 0 {
			t.Errorf("source not ours: outcome %d after %v", c.Outcome, c.After)
		}
		l.clean()
	})
}

// field case 17: with a slow SA each request is told "no" once, shortly before the
// kernel's wait ends, and nothing after that; the answer is kept for the next.
func TestSlowSA(t *testing.T) {
	bubble(t, nil, func(l *lab) {
		l.sa.set(3 * time.Second)
		var calls []*kernelfake.Call
		for n := range 1000 {
			calls = append(calls, l.k.Resolve(ask(n+2)))
		}
		for _, c := range calls {
			if c.Wait() != kernelfake.Refused || c.After < 1500*time.Millisecond || c.After > 1900*time.Millisecond {
				t.Fatalf("outcome %d after %v", c.Outcome, c.After)
			}
		}
		time.Sleep(2 * time.Second)
		if c := l.k.Resolve(ask(500)); c.Wait() != kernelfake.Answered || c.After >= time.Millisecond {
			t.Errorf("after the SA's answer: outcome %d after %v", c.Outcome, c.After)
		}
		if n := l.sa.queries(); n != 1000 {
			t.Errorf("%d queries to the SA, want 1000", n)
		}
		if s := l.stats(); s.Expired != 1000 || s.Pending != 0 {
			t.Errorf("%+v", s)
		}
		l.clean()
	})
}

// field case 17, second half: where the kernel waits longer, the answer of the slow
// SA is in time, though programs are told earlier.
func TestLongWait(t *testing.T) {
	bubble(t, func(_ *resolver.Config, c *kernelnl.Config) { c.Wait = 5 * time.Second }, func(l *lab) {
		if w := l.k.Timeout(); w != 5*time.Second {
			t.Fatalf("the kernel waits %v", w)
		}
		l.sa.set(3 * time.Second)
		p := l.askAsClient(2)
		var calls []*kernelfake.Call
		for n := range 1000 {
			calls = append(calls, l.k.Resolve(ask(n+2)))
		}
		if a := <-p.done; a.Status != resolver.StatusTimedOut {
			t.Errorf("the program was told %v", a.Status)
		}
		late := l.k.Resolve(ask(2)) // programs are told at once by now
		for _, c := range append(calls, late) {
			if c.Wait() != kernelfake.Answered || c.After > 3100*time.Millisecond {
				t.Fatalf("outcome %d after %v", c.Outcome, c.After)
			}
		}
		if n := l.sa.queries(); n != 1000 {
			t.Errorf("%d queries to the SA, want 1000", n)
		}
		l.clean()
	})
}

// The kernel takes what is outside its bounds for the nearer one, and so does the
// door; when the wait cannot be set the shorter of the two is assumed.
func TestWaitBounds(t *testing.T) {
	for _, c := range []struct {
		set    time.Duration
		fail   bool
		kernel time.Duration
		door   int64 // ms
	}{
		{0, false, 2 * time.Second, 2000},
		{time.Millisecond, false, 100 * time.Millisecond, 100},
		{time.Hour, false, 200 * time.Second, 200_000},
		{5 * time.Second, true, 2 * time.Second, 2000},
		{500 * time.Millisecond, true, 2 * time.Second, 500},
	} {
		synctest.Test(t, func(t *testing.T) {
			k := kernelfake.New()
			if c.fail {
				k.FailWait(errPermission)
			}
			log := &madtest.Output{}
			d := kernelnl.New(k, kernelnl.Config{Engine: nowhere{}, Wait: c.set, Log: log.Logger()})
			if got := k.Timeout(); got != c.kernel {
				t.Errorf("%v: the kernel waits %v, want %v", c.set, got, c.kernel)
			}
			if got := d.Stats().WaitMS; got != c.door {
				t.Errorf("%v: the door assumes %d ms, want %d", c.set, got, c.door)
			}
			if n := log.Count("stays as it is"); (n == 1) != c.fail {
				t.Errorf("%v: said %d times that it failed", c.set, n)
			}
			d.Close()
		})
	}
}

// Closing the door sends the kernel to the SA at once.
func TestClose(t *testing.T) {
	bubble(t, nil, func(l *lab) {
		l.sa.set(0)
		c := l.k.Resolve(ask(7))
		if n := l.stats().Pending; n != 1 {
			t.Errorf("%d pending, want 1", n)
		}
		l.d.Close()
		if c.Wait() != kernelfake.Refused || c.After != 0 {
			t.Errorf("outcome %d after %v", c.Outcome, c.After)
		}
		if err := l.d.Err(); err != nil {
			t.Error(err)
		}
		l.d.Close() // again
		l.clean()
	})
}

// What was asked while the door ended is answered too.
func TestCloseUnread(t *testing.T) {
	bubble(t, nil, func(l *lab) {
		if c := l.k.Resolve(ask(7)); c.Wait() != kernelfake.Answered {
			t.Fatal(c.Outcome)
		}
		var calls []*kernelfake.Call
		for range 1000 {
			calls = append(calls, l.k.Resolve(ask(7)), l.k.Resolve(ask(200_000)))
		}
		l.d.Close()
		for i, c := range calls {
			if want := []kernelfake.Outcome{kernelfake.Answered, kernelfake.Refused}[i%2]; c.Wait() != want || c.After != 0 {
				t.Fatalf("request %d: outcome %d after %v", i, c.Outcome, c.After)
			}
		}
		l.clean()
	})
}

// field case 62: an address behind a gateway is answered from the rows of a file,
// or from a path that is known, and refused at once otherwise.
func TestIPResolve(t *testing.T) {
	ip := func(s string) netip.Addr { return netip.MustParseAddr(s) }
	file := rows{resolver.IPAddr(ip("10.20.0.9")): gid(9), resolver.IPAddr(ip("2001:db8::9")): gid(10)}
	peers := rows{resolver.IPAddr(ip("10.20.0.7")): gid(7)}
	edit := func(r *resolver.Config, k *kernelnl.Config) {
		r.Sources = []resolver.AddressSource{peers}
		k.Static = file
	}
	bubble(t, edit, func(l *lab) {
		for _, c := range []struct {
			ip   string
			want kernelfake.Outcome
			gid  mad.GID
		}{
			{"10.20.0.9", kernelfake.Answered, gid(9)},
			{"2001:db8::9", kernelfake.Answered, gid(10)},
			{"10.20.0.10", kernelfake.Refused, mad.GID{}},
			{"10.20.0.7", kernelfake.Refused, mad.GID{}}, // a peer would know
		} {
			call := l.k.ResolveIP(3, ip(c.ip))
			if call.Wait() != c.want || call.GID != c.gid || call.After != 0 {
				t.Errorf("%s: outcome %d, GID %v after %v", c.ip, call.Outcome, call.GID, call.After)
			}
		}
		p := program{make(chan resolver.Answer, 1)}
		l.e.Resolve(&resolver.Query{Dst: resolver.IPAddr(ip("10.20.0.7"))}, 1, p)
		if a := <-p.done; a.Status != resolver.StatusSuccess {
			t.Fatal(a.Err)
		}
		if call := l.k.ResolveIP(3, ip("10.20.0.7")); call.Wait() != kernelfake.Answered || call.GID != gid(7) {
			t.Errorf("cached: outcome %d, GID %v", call.Outcome, call.GID)
		}
		if s := l.stats(); s.IPResolves != 5 || s.Answered != 3 || s.Failed != 2 || s.Hits != 1 {
			t.Errorf("%+v", s)
		}
		l.clean()
	})
}

// field case 65: a port goes down and comes back, and everybody reconnects. Without
// a change the SA is not asked; with another LID it is asked once for each peer.
func TestMassReconnect(t *testing.T) {
	const peers, requests = 500, 10_000
	bubble(t, nil, func(l *lab) {
		for n := range peers {
			if c := l.k.Resolve(ask(n + 2)); c.Wait() != kernelfake.Answered {
				t.Fatalf("outcome %d", c.Outcome)
			}
		}
		reconnect := func(lid mad.LID) (queries int) {
			before := l.sa.queries()
			l.change(func(p *transport.PortInfo) { p.State = mad.PortDown })
			l.change(func(p *transport.PortInfo) { p.State, p.LID = mad.PortActive, lid })
			calls := make([]*kernelfake.Call, 0, requests)
			for i := range requests {
				calls = append(calls, l.k.Resolve(ask(i%peers+2)))
				if i%100 == 99 {
					time.Sleep(10 * time.Millisecond) // in one second
				}
			}
			for _, c := range calls {
				if c.Wait() != kernelfake.Answered || c.Path.SLID() != lid || c.After > 100*time.Millisecond {
					t.Fatalf("outcome %d after %v, SLID %v", c.Outcome, c.After, c.Path.SLID())
				}
			}
			return l.sa.queries() - before
		}
		if n := reconnect(1); n != 0 {
			t.Errorf("the same port: %d queries", n)
		}
		if n := reconnect(9); n != peers {
			t.Errorf("another LID: %d queries for %d peers", n, peers)
		}
		l.clean()
	})
}
