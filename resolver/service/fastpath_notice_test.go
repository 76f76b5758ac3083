// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package service

import (
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"acmd/mad"
	"acmd/mad/fabric"
	madsa "acmd/mad/sa"
	"acmd/resolver"
	"acmd/resolver/hostnet"
)

// reports watches the daemon answer the SM's Reports, and the SA its questions.
type reports struct {
	mu   sync.Mutex
	seen map[mad.TID]bool // Reports that were answered
	more int              // answers to Reports that were told again
	trap uint16           // the next that somebody waits for
	gid  mad.GID
	then func()
	done chan struct{} // nil: nobody waits

	asked    map[uint32]mad.GID // questions for a path, by the half of the TID that is the client's
	answered map[mad.GID]int    // answers to them
}

// watchReports begins once the SM has taken the daemon's subscription.
func watchReports(t *testing.T, s *fastSite) *reports {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		if l := s.ports.list(); len(l) > 0 && l[0].Client.Stats().Subscribed == len(resolver.Traps) {
			break
		}
		if time.Now().After(end) {
			t.Fatal("no subscription to notices")
		}
	}
	r := &reports{seen: map[mad.TID]bool{}, asked: map[uint32]mad.GID{}, answered: map[mad.GID]int{}}
	t.Cleanup(s.f.Trace(r.event))
	return r
}

// event runs inside the daemon's own send, or the fabric's delivery.
func (r *reports) event(e fabric.Event) {
	m := &e.MAD
	if m.Class() != mad.ClassSA {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case e.Kind == fabric.Sent && m.Method() == mad.MethodReportResp:
		no := madsa.Event(m)
		if r.seen[m.TID()] { // the SM did not wait for the answer and told it again
			r.more++
			return
		}
		r.seen[m.TID()] = true
		if r.done != nil && no.Trap() == r.trap && no.GID() == r.gid {
			r.then()
			close(r.done)
			r.done = nil
		}
	case e.Kind == fabric.Sent && m.AttrID() == madsa.AttrPathRecord:
		r.asked[m.TID().Low()] = madsa.Path(m).DGID()
	case e.Kind == fabric.Delivered && m.AttrID() == madsa.AttrPathRecord:
		r.answered[r.asked[m.TID().Low()]]++
	}
}

// next has then called when the daemon answers the next Report of a trap about a
// port for the first time, before anybody has that answer. The channel is closed
// after that.
func (r *reports) next(trap uint16, gid mad.GID, then func()) <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.trap, r.gid, r.then, r.done = trap, gid, then, make(chan struct{})
	return r.done
}

// answers is how often the SA has answered for a path to a port, and how many Reports
// were told again.
func (r *reports) answers(gid mad.GID) (answers, more int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.answered[gid], r.more
}

// A peer dies. Requests that are sent at the instant at which the daemon tells the
// SM that it knows are answered by nobody with the path of before, and after one
// round trip to the SA. When the peer is back, elsewhere, the same holds.
func TestFastPathPeerDies(t *testing.T) {
	for _, mode := range fastModes {
		t.Run(mode, func(t *testing.T) {
			s := startFast(t, mode, "fast_path_miss wait", "negative_timeout 600000")
			s.t = t
			r := watchReports(t, s)
			k, u := s.dial(t), s.dialUnix()
			for i, h := range shapes {
				node := 10 + i
				gid, req := s.f.GID(node, 1), s.request(h, 1, node)
				s.warm(k, req)
				for _, up := range []bool{false, true} {
					trap, state, lid := madsa.TrapGIDOutOfService, mad.PortDown, mad.LID(firstLID+i)
					if up {
						trap, state = madsa.TrapGIDInService, mad.PortActive
						if err := s.f.SetLID(node, 1, lid); err != nil {
							t.Fatal(err)
						}
					}
					var hits uint64
					var errs [2]error
					var before, moreBefore int
					told := r.next(trap, gid, func() {
						hits, before, moreBefore = s.hits(), r.answered[gid], r.more
						errs[0], errs[1] = k.trySend(req), u.trySend(req)
					})
					if err := s.f.SetPort(node, 1, state); err != nil {
						t.Fatal(err)
					}
					select {
					case <-told:
					case <-time.After(patience):
						t.Fatalf("%s: trap %d was not answered", h.name, trap)
					}
					if errs[0] != nil || errs[1] != nil {
						t.Fatal(errs)
					}
					for _, c := range []*fastClient{k, u} {
						rep := c.message()
						switch {
						case !up && rep[2] != byte(resolver.StatusNoData):
							t.Errorf("%s: a dead peer is answered with % x", h.name, rep)
						case up && (rep[2] != 0 || (*madsa.PathRecord)(rep[24:88]).DLID() != lid):
							t.Errorf("%s: a peer that is back with LID %v is answered with % x", h.name, lid, rep)
						}
					}
					if n := s.hits() - hits; n != 0 {
						t.Errorf("%s: the kernel answered from before trap %d", h.name, trap)
					}
					// Each notice voids what the SA has answered before it, so one that was
					// told again on a slow machine may cost one question more.
					n, more := r.answers(gid)
					if n -= before; n < 1 || n > 1+more-moreBefore {
						t.Errorf("%s: trap %d, %d times again: the SA was asked %d times for two answers, want once",
							h.name, trap, more-moreBefore, n)
					}
				}
			}
		})
	}
}

// The host's routing changes: answers whose source was chosen before are the
// kernel's no more when the host has said so, others are.
func TestFastPathRouting(t *testing.T) {
	s := startFast(t, "kernel")
	host := s.fabric.host.(*hostnet.Static)
	addrs, err := host.Addresses()
	if err != nil {
		t.Fatal(err)
	}
	k := s.dial(t)
	for _, h := range shapes {
		chosen := h.name == "IPv4" || h.name == "IPv6"
		// A sweep may have made the answer anew already, which shows: then once more.
		for end, again := time.Now().Add(patience), true; again; {
			req := s.request(h, 1, 3)
			s.warm(k, req)
			puts := s.fast.State().Puts
			host.Set(addrs)
			hit := s.ask(k, req)
			again = chosen && hit && s.fast.State().Puts != puts
			if !again && hit == chosen || time.Now().After(end) {
				t.Fatalf("%s: answered by the kernel: %v", h.name, hit)
			}
		}
	}
	// Another address of the same port becomes the source.
	other := addrs[slices.IndexFunc(addrs, func(a resolver.HostAddr) bool { return a.IP.Is4() })]
	other.IP = netip.MustParseAddr("10.99.0.1")
	host.Set(append([]resolver.HostAddr{other}, addrs...))
	s.engine.Kick()
	req := s.request(shapes[1], 1, 3)
	for end, hits := time.Now().Add(patience), s.hits(); s.hits() == hits; {
		k.send(req)
		rep := k.message()
		if rep[2] == 0 && netip.AddrFrom4([4]byte(rep[96:100])) != other.IP {
			t.Fatalf("a source of before: % x", rep)
		}
		if time.Now().After(end) {
			t.Fatalf("no hit with the new source: % x", rep)
		}
	}
}
