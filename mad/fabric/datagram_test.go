// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package fabric

import (
	"testing"

	"acmd/mad"
	"acmd/mad/acm"
	"acmd/mad/ring"
)

// join makes the client's port a member of the ACM group of a partition.
func (c *client) join(key mad.PKey) {
	c.t.Helper()
	r := joinRecord(c.f, c.p.node)
	r.SetPortGID(c.f.GID(c.p.node, c.p.num))
	r.SetMGID(ACMGroup(key))
	r.SetPKey(key)
	got, status := c.member(mad.MethodSet, stockJoin, r)
	if status != 0 {
		c.t.Fatalf("join: %#x", status)
	}
	if err := c.p.JoinQP(got.MGID(), got.MLID(), 0); err != nil {
		c.t.Fatal(err)
	}
}

// toGroup writes an ACM request to the default group.
func (c *client) toGroup(s *ring.Slot, typ uint8, dest []byte) {
	c.t.Helper()
	g := c.f.groups.Load().byMGID[ACMGroup(mad.DefaultPKey)]
	h := s.Header()
	*h = mad.UserHeader{}
	h.SetLID(g.mlid)
	h.SetQPN(mad.MulticastQPN)
	h.SetQKey(mad.WellKnownQKey)
	h.SetGID(g.mgid)
	src := IPv4(c.p.node, c.p.num).As4()
	c.tid++
	if err := acm.InitRequest(s.MAD(), mad.TID(c.tid), typ, dest, acm.TypeIPv4, src[:], g.mgid); err != nil {
		c.t.Fatal(err)
	}
}

// resolve multicasts a request and returns what comes.
func (c *client) resolve(typ uint8, dest []byte) *got {
	c.t.Helper()
	s := c.slot()
	c.toGroup(s, typ, dest)
	c.put(s)
	s.Release()
	return c.recv(0)
}

func ip4(node int) []byte { a := IPv4(node, 1).As4(); return a[:] }
func ip6(node int) []byte { a := IPv6(node, 1).As16(); return a[:] }

// Simulated services answer as the stock one does: unicast with GRH from their
// own queue pair, the chosen group and nothing else.
func TestPeerAnswers(t *testing.T) {
	f := build(t, Config{Nodes: 400, Silent: 3})
	c := open(t, f, 0)
	c.join(mad.DefaultPKey)
	silent := 0
	for node := 1; node < 400; node++ {
		g := c.resolve(acm.TypeIPv4, ip4(node))
		if f.world.Load().ports[f.index(node, 1)].silent {
			silent++
			if g != nil {
				t.Errorf("silent node %d answered", node)
			}
			continue
		}
		if g == nil {
			t.Fatalf("node %d does not answer", node)
		}
		var want mad.Packet
		acm.InitResponse(&want, mad.TID(c.tid), ACMGroup(mad.DefaultPKey))
		if g.m != want {
			t.Fatalf("answer %x, want %x", g.m[:40], want[:40])
		}
		if g.h.LID() != f.LID(node, 1) || !g.h.HasGRH() || g.h.GID() != f.GID(node, 1) || g.h.QPN() == 0 || g.h.QPN() == mad.QP1 || g.h.Length() != 320 {
			t.Fatalf("header %x", g.h)
		}
	}
	if silent != 3 {
		t.Errorf("%d silent nodes, want 3", silent)
	}
	for name, k := range map[string]struct {
		typ  uint8
		dest []byte
		node int // 0: no answer
	}{
		"name":            {acm.TypeName, []byte(NodeName(7, 1)), 7},
		"name, upper":     {acm.TypeName, []byte("NODE0399"), 399},
		"name and rest":   {acm.TypeName, []byte("node0007\x00junk"), 7},
		"IPv6":            {acm.TypeIPv6, ip6(123), 123},
		"not a name":      {acm.TypeName, []byte("node07"), 0},
		"name beyond":     {acm.TypeName, []byte("node0400"), 0},
		"name of a rail":  {acm.TypeName, []byte("node0007-2"), 0},
		"sign":            {acm.TypeName, []byte("node+007"), 0},
		"address beyond":  {acm.TypeIPv4, ip4(400), 0},
		"foreign address": {acm.TypeIPv4, []byte{10, 64, 0, 0}, 0},
		"foreign IPv6":    {acm.TypeIPv6, make([]byte, 16), 0},
		"own address":     {acm.TypeIPv4, ip4(0), 0},
		"GID":             {acm.TypeGID, ip6(3), 0},
	} {
		g := c.resolve(k.typ, k.dest)
		if (g != nil) != (k.node != 0) || g != nil && g.h.LID() != f.LID(k.node, 1) {
			t.Errorf("%s: %+v, want node %d", name, g, k.node)
		}
	}
}

// Two nodes with views: multicast, answer by unicast, nothing to the sender
// (field case 59).
func TestHostsExchange(t *testing.T) {
	f := build(t, Config{Nodes: 8})
	a, b, other := open(t, f, 0), open(t, f, 5), open(t, f, 6)
	a.join(mad.DefaultPKey)
	b.join(mad.DefaultPKey)
	if g := a.resolve(acm.TypeIPv4, ip4(5)); g != nil {
		t.Fatalf("a node with a view was answered for, or the sender heard itself: %x", g.m[:32])
	}
	g := b.recv(0)
	if g == nil || g.m.TID() != mad.TID(a.tid) || acm.Validate(&g.m, 256) != nil {
		t.Fatalf("member heard %+v", g)
	}
	if g.h.LID() != f.LID(0, 1) || g.h.QPN() != a.p.caps.QPN || !g.h.HasGRH() || g.h.GID() != f.GID(0, 1) {
		t.Errorf("header %x", g.h)
	}
	if g := other.recv(0); g != nil {
		t.Error("a port outside the group heard it")
	}
	// The answer goes to the queue pair that asked.
	s := b.slot()
	defer s.Release()
	*s.Header() = g.h
	s.Header().SetQKey(mad.WellKnownQKey)
	acm.InitResponse(s.MAD(), g.m.TID(), ACMGroup(mad.DefaultPKey))
	b.put(s)
	back := a.recv(0)
	if back == nil || back.m != *s.MAD() || back.h.LID() != f.LID(5, 1) || back.h.GID() != f.GID(5, 1) || back.h.QPN() != b.p.caps.QPN {
		t.Fatalf("answer %+v", back)
	}
	// Wrong Q_Key, unknown queue pair, dead LID.
	for want, set := range map[Reason]func(h *mad.UserHeader){
		LostQKey:   func(h *mad.UserHeader) { h.SetQKey(1) },
		LostNoDest: func(h *mad.UserHeader) { h.SetQPN(0x99999) },
		LostPKey:   func(h *mad.UserHeader) { h.SetPKeyIndex(3) },
	} {
		*s.Header() = g.h
		s.Header().SetQKey(mad.WellKnownQKey)
		set(s.Header())
		before := f.Stats().Lost[want]
		b.put(s)
		if a.recv(0) != nil || f.Stats().Lost[want] != before+1 {
			t.Errorf("%v: %v", want, f.Stats().Lost)
		}
	}
	// After LeaveQP the packets of the group do not come any more.
	if err := b.p.LeaveQP(ACMGroup(mad.DefaultPKey), 0xc001); err != nil {
		t.Fatal(err)
	}
	a.resolve(acm.TypeIPv4, ip4(5))
	if g := b.recv(0); g != nil {
		t.Error("heard after LeaveQP")
	}
}

// What makes a multicast get lost.
func TestMulticastRules(t *testing.T) {
	f := build(t, Config{Nodes: 8, PKeys: func(n int) []mad.PKey { return []mad.PKey{0xffff, 0x8001} }})
	a := open(t, f, 0)
	if g := a.resolve(acm.TypeIPv4, ip4(3)); g != nil || f.Stats().Lost[LostNotMember] != 1 {
		t.Errorf("not a member: %v %v", g, f.Stats().Lost)
	}
	a.join(mad.DefaultPKey)
	for want, set := range map[Reason]func(h *mad.UserHeader){
		LostNoGroup: func(h *mad.UserHeader) { h.SetLID(0xc123) },
		LostQKey:    func(h *mad.UserHeader) { h.SetQKey(7) },
		LostPKey:    func(h *mad.UserHeader) { h.SetPKeyIndex(1) },
	} {
		s := a.slot()
		a.toGroup(s, acm.TypeIPv4, ip4(3))
		set(s.Header())
		a.put(s)
		s.Release()
		if g := a.recv(0); g != nil || f.Stats().Lost[want] != 1 {
			t.Errorf("%v: %v %v", want, g, f.Stats().Lost)
		}
	}
	for _, k := range []struct {
		mgid mad.GID
		mlid mad.LID
	}{{f.GID(0, 1), 0xc001}, {ACMGroup(0xffff), 17}, {ACMGroup(0xffff), 0xffff}} {
		if a.p.JoinQP(k.mgid, k.mlid, 0) == nil || a.p.LeaveQP(k.mgid, k.mlid) == nil {
			t.Errorf("joined %v, %v", k.mgid, k.mlid)
		}
	}
	if g := a.resolve(acm.TypeIPv4, ip4(3)); g == nil {
		t.Error("good request got no answer")
	}
}

// A limited and a full member meet in the group of the full key (field case 53);
// two limited ones do not hear each other.
func TestMulticastPartition(t *testing.T) {
	f := build(t, Config{Nodes: 8, PKeys: func(n int) []mad.PKey {
		return [][]mad.PKey{{0xffff, 0x0123}, {0x7fff, 0x8123}, {0x7fff, 0x0123}, {0xffff}}[min(n, 3)]
	}})
	if ACMGroup(0x0123) != ACMGroup(0x8123) {
		t.Fatal("the group is not that of the full key")
	}
	limited, full, limited2 := open(t, f, 0), open(t, f, 1), open(t, f, 2)
	for _, c := range []*client{limited, full, limited2} {
		c.join(0x0123)
	}
	s := limited.slot()
	defer s.Release()
	g := f.groups.Load().byMGID[ACMGroup(0x8123)]
	limited.toGroup(s, acm.TypeIPv4, ip4(1))
	s.Header().SetLID(g.mlid)
	s.Header().SetGID(g.mgid)
	s.Header().SetPKeyIndex(1)
	limited.put(s)
	if got := full.recv(0); got == nil || got.h.PKeyIndex() != 1 {
		t.Errorf("full member heard %v", got)
	}
	if got := limited2.recv(0); got != nil {
		t.Error("a limited member heard another one")
	}
	if n := f.Stats().Lost[LostPKey]; n != 1 {
		t.Errorf("%d lost to the P_Key", n)
	}
}

// Simulated nodes ask, too, and hostile ones send nonsense (field case 32).
func TestInject(t *testing.T) {
	f := build(t, Config{Nodes: 8})
	c := open(t, f, 0)
	c.join(mad.DefaultPKey)
	if err := f.PeerAsk(3, 1, mad.DefaultPKey, 77, acm.TypeIPv4, ip4(0)); err != nil {
		t.Fatal(err)
	}
	g := c.recv(0)
	if g == nil || g.m.TID() != 77 || g.h.LID() != f.LID(3, 1) || string(acm.View(&g.m).Src()[:4]) != string(ip4(3)) {
		t.Fatalf("heard %+v", g)
	}
	// Answering a simulated node is no error.
	s := c.slot()
	defer s.Release()
	*s.Header() = g.h
	s.Header().SetQKey(mad.WellKnownQKey)
	acm.InitResponse(s.MAD(), 77, ACMGroup(mad.DefaultPKey))
	c.put(s)
	if n := f.Stats(); n.Unicasts != 1 {
		t.Errorf("%+v", n)
	}
	evil := mad.Packet{9, 9, 9, 9}
	if err := f.Multicast(4, 1, ACMGroup(mad.DefaultPKey), &evil); err != nil {
		t.Fatal(err)
	}
	if g := c.recv(0); g == nil || g.m != evil {
		t.Errorf("heard %+v", g)
	}
	if err := f.Unicast(4, 1, f.LID(0, 1), c.p.caps.QPN, &evil); err != nil {
		t.Fatal(err)
	}
	if g := c.recv(0); g == nil || g.m != evil || g.h.LID() != f.LID(4, 1) {
		t.Errorf("heard %+v", g)
	}
	for name, err := range map[string]error{
		"no such node":  f.Multicast(8, 1, ACMGroup(0xffff), &evil),
		"no such group": f.Multicast(1, 1, mad.GID{0xff}, &evil),
		"no such LID":   f.Unicast(1, 1, 0x777, 1, &evil),
		"no such QP":    f.Unicast(1, 1, f.LID(0, 1), 2, &evil),
		"partition":     f.PeerAsk(1, 1, 0x8001, 1, acm.TypeIPv4, ip4(0)),
	} {
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// Without a queue pair of its own a port takes answers at QP1 and hears no
// multicast.
func TestNoListen(t *testing.T) {
	f := build(t, Config{Nodes: 8, NoListen: true})
	c := open(t, f, 0)
	c.join(mad.DefaultPKey)
	if caps := c.p.Caps(); caps.Listens || caps.QPN != mad.QP1 {
		t.Errorf("%+v", caps)
	}
	if g := c.resolve(acm.TypeIPv4, ip4(3)); g == nil || g.h.LID() != f.LID(3, 1) {
		t.Errorf("answer %+v", g)
	}
	f.PeerAsk(3, 1, mad.DefaultPKey, 77, acm.TypeIPv4, ip4(0))
	if g := c.recv(0); g != nil {
		t.Error("heard a multicast")
	}
}

// Of two handles of one port the first gets the Reports (umad: one agent).
func TestTwoHandles(t *testing.T) {
	f := build(t, Config{Nodes: 8})
	a, b := open(t, f, 0), open(t, f, 0)
	if !a.p.Caps().Reports || b.p.Caps().Reports || a.p.caps.QPN == b.p.caps.QPN {
		t.Errorf("%+v %+v", a.p.caps, b.p.caps)
	}
	b.inform(wish(66))
	f.Notify(66, mad.GID{0xff})
	if a.report(0) == nil || b.report(0) != nil {
		t.Error("Report went to the wrong handle")
	}
	r := question(f, byGIDs, 0, 3)
	if _, status := b.path(byGIDs, r); status != 0 {
		t.Errorf("second handle: %#x", status)
	}
	if g := a.recv(0); g != nil {
		t.Errorf("answer to the other handle: %x", g.m[:24])
	}
	a.p.Close()
	if c := open(t, f, 0); !c.p.Caps().Reports {
		t.Error("Reports stay taken by a closed handle")
	}
}
