// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acmp

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"acmd/cache"
	"acmd/mad"
	"acmd/mad/acm"
	"acmd/mad/fabric"
	madsa "acmd/mad/sa"
	"acmd/mad/transport"
	"acmd/resolver"
	"acmd/resolver/sa"
)

// Full and limited entries of one partition share the group: one that goes must
// not take the membership of the other with it.
func TestSharedGroup(t *testing.T) {
	keys := func(n int) []mad.PKey {
		if n == 1 {
			return []mad.PKey{0xffff, 0x7fff}
		}
		return []mad.PKey{0xffff}
	}
	inBubble(t, fabric.Config{Nodes: 4, PKeys: keys}, func(t *testing.T, f *fabric.Fabric) {
		log, stop := watch(f)
		defer stop()
		a, b := start(t, f, 0, Config{}), start(t, f, 1, Config{})
		defer a.stop()
		defer b.stop()
		b.src.SetEndpoints(b.eps[:1])
		synctest.Wait()
		a.must(v4(1), 1)
		if n := log.leaves(); n != 0 {
			t.Errorf("%d leaves", n)
		}
		b.src.SetEndpoints(nil)
		time.Sleep(time.Second)
		if n := log.leaves(); n != 1 {
			t.Errorf("%d leaves after the last endpoint went", n)
		}
	})
}

// A reregistration during a join asks for one more, as the first may have gone
// to an SM that has forgotten it.
func TestReregisterWhileJoining(t *testing.T) {
	inBubble(t, fabric.Config{Nodes: 4}, func(t *testing.T, f *fabric.Fabric) {
		log, stop := watch(f)
		defer stop()
		f.AddRule(fabric.Rule{Attr: madsa.AttrMCMemberRecord, Delay: 300 * time.Millisecond})
		nd := start(t, f, 0, Config{})
		defer nd.stop()
		for range 5 {
			nd.src.Event(transport.Event{Type: transport.EventReregister, Device: fabric.DeviceName, Port: 1})
		}
		time.Sleep(5 * time.Second)
		if n := log.count(0); n != 2 {
			t.Errorf("%d joins", n)
		}
		nd.must(v4(2), 2)
	})
}

// stubborn fails to attach a number of times.
type stubborn struct {
	transport.Port
	fail atomic.Int64
}

func (s *stubborn) JoinQP(g mad.GID, l mad.LID, pkey uint16) error {
	if l < 0xc000 {
		panic("attached to a unicast LID")
	}
	if s.fail.Add(-1) >= 0 {
		return errors.New("no more groups")
	}
	return s.Port.JoinQP(g, l, pkey)
}

// A queue pair that cannot be attached leaves the endpoint outside, with the
// reason, until it can. Field case 13: the LID is 0xC001, not 0x01C0.
func TestAttachFails(t *testing.T) {
	inBubble(t, fabric.Config{Nodes: 4}, func(t *testing.T, f *fabric.Fabric) {
		s := &stubborn{}
		s.fail.Store(2)
		nd := start(t, f, 0, Config{}, func(p transport.Port) transport.Port { s.Port = p; return s })
		defer nd.stop()
		got := <-nd.locate(v4(2), time.Second)
		if !errors.Is(got.err, ErrNotJoined) || !strings.Contains(got.err.Error(), "no more groups") {
			t.Error(got.err)
		}
		time.Sleep(5 * time.Second)
		nd.must(v4(2), 2)
		if g := nd.src.Groups()[0]; g.MLID != 0xc001 || g.Err != nil {
			t.Errorf("%+v", g)
		}
	})
}

// What an SA may answer to a join and what it may not.
func TestAccept(t *testing.T) {
	inBubble(t, fabric.Config{Nodes: 4}, func(t *testing.T, f *fabric.Fabric) {
		nd := start(t, f, 0, Config{})
		defer nd.stop()
		done := make(chan struct{})
		err := nd.client.Post(func() {
			defer close(done)
			g := (*nd.src.byKey.Load())[portKey{fabric.DeviceName, 1}].members[0].groups[0]
			good := g.rec
			for name, spoil := range map[string]func(r *madsa.MCMemberRecord){
				"other group":    func(r *madsa.MCMemberRecord) { r.SetMGID(acm.MGID(1, 0, 1, 1)) },
				"no lid":         func(r *madsa.MCMemberRecord) { r.SetMLID(0) },
				"unicast lid":    func(r *madsa.MCMemberRecord) { r.SetMLID(0x01c0) },
				"permissive lid": func(r *madsa.MCMemberRecord) { r.SetMLID(0xffff) },
			} {
				r := good
				if spoil(&r); g.accept(&r) == nil {
					t.Errorf("%s: accepted", name)
				}
			}
			if err := g.accept(&good); err != nil {
				t.Error(err)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		<-done
	})
}

// An owner that is behind refuses lookups, but does not lose a change of the
// endpoints.
func TestPostQueueFull(t *testing.T) {
	inBubble(t, fabric.Config{Nodes: 4}, func(t *testing.T, f *fabric.Fabric) {
		p, err := f.Open(fabric.DeviceName, 1)
		if err != nil {
			t.Fatal(err)
		}
		nd := &node{tb: t, f: f, src: New(Config{}, nil), client: sa.Open(p, info(f, 0), sa.Config{Queue: 1}, nil)}
		defer nd.stop()
		if err := nd.src.Attach(fabric.DeviceName, 1, nd.client); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		done := make(chan found, 1)
		if err := nd.client.Post(func() { // nothing else runs on the owner meanwhile
			if err := nd.client.Post(func() {}); err != nil {
				t.Error(err)
			}
			nd.endpoints()
			done <- <-nd.locate(v4(2), time.Second)
		}); err != nil {
			t.Fatal(err)
		}
		if got := <-done; !errors.Is(got.err, resolver.ErrOverload) {
			t.Error(got.err)
		}
		time.Sleep(time.Second)
		nd.must(v4(2), 2)
	})
}

// The address that a request names as its own, and the GID that goes with it.
func TestWireSource(t *testing.T) {
	alias := mad.MakeGID(0xfe80<<48, 0xa3)
	name, ip := resolver.NameAddr("Node1.Cluster"), v4(1)
	ep := &resolver.Endpoint{GID: mad.MakeGID(0xfe80<<48, 1), Addrs: []resolver.LocalAddr{
		{Addr: name, Text: "Node1.Cluster"}, {Addr: ip, GID: alias}}}
	lid, dstName := resolver.LIDAddr(7), resolver.NameAddr("other")
	for _, tt := range []struct {
		what     string
		ep       *resolver.Endpoint
		src, dst *resolver.Addr
		kind     uint8
		bytes    string
		alias    bool
	}{
		{"named", ep, &ip, &dstName, acm.TypeIPv4, string(ip.Bytes()), true},
		{"name keeps its case", ep, &name, &ip, acm.TypeName, "Node1.Cluster", false},
		{"of the kind that is asked for", ep, &resolver.Addr{}, &ip, acm.TypeIPv4, string(ip.Bytes()), true},
		{"the first, failing that", ep, &resolver.Addr{}, &lid, acm.TypeName, "Node1.Cluster", false},
		{"not an address of the endpoint", ep, &lid, &ip, acm.TypeLID, "\x00\x07", false},
		{"no address at all", &resolver.Endpoint{GID: ep.GID}, &resolver.Addr{}, &ip, acm.TypeGID, string(ep.GID[:]), false},
	} {
		kind, b, own := wireSource(tt.ep, tt.src, tt.dst)
		if kind != tt.kind || string(b) != tt.bytes || (own != nil && own.GID == alias) != tt.alias {
			t.Errorf("%s: type %d, %q, %+v", tt.what, kind, b, own)
		}
	}
	if cache.Kind(acm.TypeLID) != cache.KindLID || cache.Kind(acm.TypeName) != cache.KindName {
		t.Error("address types are no longer kinds")
	}
}

// Field case 50: with an alias GID as source, the group's path carries it.
func TestAliasRoute(t *testing.T) {
	inBubble(t, fabric.Config{Nodes: 4}, func(t *testing.T, f *fabric.Fabric) {
		nd := start(t, f, 0, Config{RouteACM: true})
		defer nd.stop()
		ep := *nd.eps[0]
		alias := mad.MakeGID(0xfe80<<48, 0xa3)
		ep.Addrs = []resolver.LocalAddr{{Addr: v4(0), GID: alias}}
		nd.src.SetEndpoints([]*resolver.Endpoint{&ep})
		if got := nd.must(v4(2), 2); got.Route == nil || got.Route.SGID() != alias {
			t.Errorf("%+v", got.Route)
		}
		if nd.src.Name() != "acm" {
			t.Error(nd.src.Name())
		}
	})
}
