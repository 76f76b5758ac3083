// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package fabric

import (
	"testing"
	"testing/synctest"
	"time"

	"acmd/mad"
	"acmd/mad/sa"
)

// wish is the subscription of the spec's example: every port, one trap.
func wish(trap uint16) (i sa.InformInfo) {
	i.SetLIDRange(sa.AnyLID, 0)
	i.SetGeneric(true)
	i.SetSubscribe(true)
	i.SetType(sa.AnyType)
	i.SetTrap(trap)
	i.SetQPNTime(mad.QP1, 19)
	i.SetProducer(sa.AnyProducer)
	return i
}

func (c *client) inform(i sa.InformInfo) mad.Status {
	c.t.Helper()
	g := c.ask(func(p *mad.Packet) {
		sa.Init(p, mad.MethodSet, sa.AttrInformInfo, 0)
		*sa.Inform(p) = i
	})
	if g == nil {
		c.t.Fatal("no answer")
	}
	if g.m.Method() != mad.MethodGetResp || *sa.Inform(&g.m) != i {
		c.t.Errorf("answer %x must echo %x", g.m[:92], i)
	}
	return g.m.Status()
}

// report takes the next Report, nil if none comes within d.
func (c *client) report(d time.Duration) *got {
	c.t.Helper()
	g := c.recv(d)
	if g != nil && (g.m.Method() != mad.MethodReport || g.m.AttrID() != sa.AttrNotice || g.m.Class() != mad.ClassSA) {
		c.t.Fatalf("no Report: %x", g.m[:sa.DataOffset])
	}
	return g
}

// confirm answers a Report.
func (c *client) confirm(g *got) {
	c.t.Helper()
	s := c.slot()
	defer s.Release()
	*s.Header(), *s.MAD() = g.h, g.m
	s.MAD().SetMethod(mad.MethodReportResp)
	c.put(s)
}

func TestInformRules(t *testing.T) {
	f := build(t, Config{Nodes: 8})
	c := open(t, f, 0)
	if s := c.inform(wish(65)); s != 0 {
		t.Fatalf("subscribe: %#x", s)
	}
	if s := c.inform(wish(65)); s != 0 || f.informer.subscriptions() != 1 {
		t.Errorf("the same again: %#x, %d subscriptions", s, f.informer.subscriptions())
	}
	bad := wish(65)
	bad[23] = 2
	if s := c.inform(bad); s != 0x0200 {
		t.Errorf("subscribe 2: %#x", s)
	}
	if s := c.inform(wish(257)); s != 0x0200 {
		t.Errorf("security trap: %#x", s)
	}
	// Every field counts when it is taken back; the QPN is the one that the SA
	// stored, the source's.
	back := wish(65)
	back.SetSubscribe(false)
	for name, change := range map[string]func(*sa.InformInfo){
		"trap": func(i *sa.InformInfo) { i.SetTrap(64) }, "time": func(i *sa.InformInfo) { i.SetQPNTime(mad.QP1, 18) },
		"QPN": func(i *sa.InformInfo) { i.SetQPNTime(7, 19) }, "type": func(i *sa.InformInfo) { i.SetType(3) },
	} {
		other := back
		change(&other)
		if s := c.inform(other); s != 0x0200 {
			t.Errorf("unsubscribe with another %s: %#x", name, s)
		}
	}
	if s := c.inform(back); s != 0 || f.informer.subscriptions() != 0 {
		t.Errorf("unsubscribe: %#x, %d left", s, f.informer.subscriptions())
	}
	if s := c.inform(back); s != 0x0200 {
		t.Errorf("unsubscribe again: %#x", s)
	}
	// The QPN of the request does not matter when subscribing.
	odd := wish(65)
	odd.SetQPNTime(0x1234, 19)
	if s := c.inform(odd); s != 0 {
		t.Errorf("other QPN: %#x", s)
	}
	if s := c.inform(back); s != 0 {
		t.Errorf("stored under QP1: %#x", s)
	}
}

func TestInformBound(t *testing.T) {
	f := build(t, Config{Nodes: 8})
	c := open(t, f, 0)
	for i := range maxSubsPerPort {
		if s := c.inform(wish(uint16(1000 + i))); s != 0 {
			t.Fatalf("subscription %d: %#x", i, s)
		}
	}
	if s := c.inform(wish(64)); s != 0x0100 || f.Stats().SubsRefused != 1 {
		t.Errorf("one too many: %#x", s)
	}
}

// A Report as OpenSM writes it: SM as issuer, garbage where the trap defines
// nothing, GID at offset 16 of the notice.
func TestReportGolden(t *testing.T) {
	f := build(t, Config{Nodes: 8})
	c := open(t, f, 0)
	c.inform(wish(sa.AnyTrap))
	if err := f.SetPort(3, 1, mad.PortDown); err != nil {
		t.Fatal(err)
	}
	g := c.report(0)
	if g == nil {
		t.Fatal("no Report")
	}
	want := unhex(t, `83 000004 0041 0008 5a5a 5a5a5a5a5a5a`)
	gid, sm := f.GID(3, 1), f.GID(7, 1)
	no := sa.Event(&g.m)
	if string(no[:16]) != string(want) || no.GID() != gid || no.IssuerGID() != sm {
		t.Errorf("notice %x", *no)
	}
	if g.h.LID() != f.SMLID() || g.h.QPN() != mad.QP1 || g.m.TID()>>32 != 0 || g.m[2] != 2 {
		t.Errorf("header %x, MAD %x", g.h, g.m[:24])
	}
	c.confirm(g)
	f.SetPort(3, 1, mad.PortActive)
	if g := c.report(0); g == nil || sa.Event(&g.m).Trap() != 64 || sa.Event(&g.m).GID() != gid {
		t.Errorf("in service: %+v", g)
	}
}

// A Report is repeated until it is answered, but not for ever.
func TestReportTries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := build(t, Config{Nodes: 8, ReportInterval: time.Second, ReportTries: 3})
		c := open(t, f, 0)
		c.inform(wish(66))
		begin := time.Now()
		f.Notify(66, mad.GID{0xff})
		var tid mad.TID
		for i := range 3 {
			g := c.report(10 * time.Second)
			if g == nil || time.Since(begin) != time.Duration(i)*time.Second {
				t.Fatalf("try %d after %v: %v", i, time.Since(begin), g)
			}
			if i > 0 && g.m.TID() != tid {
				t.Errorf("try %d has TID %v, want %v", i, g.m.TID(), tid)
			}
			tid = g.m.TID()
		}
		if g := c.report(time.Minute); g != nil {
			t.Error("a fourth try")
		}
		if s := f.Stats(); s.Reports != 3 || s.ReportsGivenUp != 1 || f.informer.subscriptions() != 1 {
			t.Errorf("%+v", s)
		}
		// Answered: no second try.
		f.Notify(66, mad.GID{0xff})
		c.confirm(c.report(0))
		if g := c.report(time.Minute); g != nil {
			t.Error("repeated although answered")
		}
		// Somebody else's answer does not count.
		f.Notify(66, mad.GID{0xff})
		d := open(t, f, 1)
		d.confirm(c.report(0))
		if g := c.report(time.Minute); g == nil {
			t.Error("taken as answered by another port")
		}
	})
}

func TestReportMatching(t *testing.T) {
	f := build(t, Config{Nodes: 8, SMNode: 6, PKeys: func(n int) []mad.PKey {
		if n == 1 || n == 2 {
			return []mad.PKey{0x8001}
		}
		return []mad.PKey{0xffff}
	}})
	sm := f.GID(6, 1)
	for _, k := range []struct {
		name  string
		node  int
		set   func(*sa.InformInfo)
		about mad.GID
		want  bool
	}{
		{"all", 0, nil, f.GID(3, 1), true},
		{"other trap", 0, func(i *sa.InformInfo) { i.SetTrap(64) }, f.GID(3, 1), false},
		{"any trap", 0, func(i *sa.InformInfo) { i.SetTrap(sa.AnyTrap) }, f.GID(3, 1), true},
		{"type", 0, func(i *sa.InformInfo) { i.SetType(3) }, f.GID(3, 1), true},
		{"other type", 0, func(i *sa.InformInfo) { i.SetType(1) }, f.GID(3, 1), false},
		{"producer", 0, func(i *sa.InformInfo) { i.SetProducer(4) }, f.GID(3, 1), true},
		{"other producer", 0, func(i *sa.InformInfo) { i.SetProducer(1) }, f.GID(3, 1), false},
		{"not generic", 0, func(i *sa.InformInfo) { i.SetGeneric(false) }, f.GID(3, 1), false},
		{"LID range of the SM", 0, func(i *sa.InformInfo) { i.SetLIDRange(7, 7) }, f.GID(3, 1), true},
		{"LID range without the SM", 0, func(i *sa.InformInfo) { i.SetLIDRange(1, 6) }, f.GID(3, 1), false},
		{"GID of the SM", 0, func(i *sa.InformInfo) { i.SetGID(sm); i.SetLIDRange(1, 2) }, f.GID(3, 1), true},
		{"other GID", 0, func(i *sa.InformInfo) { i.SetGID(f.GID(0, 1)) }, f.GID(3, 1), false},
		{"port of another partition", 0, nil, f.GID(2, 1), false},
		{"port of the own partition", 1, nil, f.GID(2, 1), true},
	} {
		c := open(t, f, k.node)
		i := wish(65)
		if k.set != nil {
			k.set(&i)
		}
		if s := c.inform(i); s != 0 {
			t.Fatalf("%s: %#x", k.name, s)
		}
		f.Notify(65, k.about)
		if g := c.report(0); (g != nil) != k.want {
			t.Errorf("%s: Report %v, want %v", k.name, g != nil, k.want)
		}
		i.SetSubscribe(false)
		if s := c.inform(i); s != 0 {
			t.Fatalf("%s: take back: %#x", k.name, s)
		}
		c.p.Close()
	}
}

// Groups that come and go; the Report may be there before the answer.
func TestGroupTraps(t *testing.T) {
	f := build(t, Config{Nodes: 8})
	c := open(t, f, 0)
	c.inform(wish(66))
	c.inform(wish(67))
	r := joinRecord(f, 0)
	r.SetMGID(mad.GID{0xff, 0x12, 15: 1})
	for _, k := range []struct {
		method uint8
		mask   sa.ComponentMask
		trap   uint16
	}{{mad.MethodSet, stockJoin, 66}, {mad.MethodDelete, sa.MCLeave, 67}} {
		c.send(func(p *mad.Packet) {
			sa.Init(p, k.method, sa.AttrMCMemberRecord, k.mask)
			*sa.Member(p) = r
		})
		g := c.report(0)
		if g == nil || sa.Event(&g.m).Trap() != k.trap || sa.Event(&g.m).GID() != r.MGID() {
			t.Errorf("trap %d: %+v", k.trap, g)
		}
		if a := c.recv(0); a == nil || a.m.Status() != 0 || !a.m.IsResponse() {
			t.Errorf("answer: %+v", a)
		}
	}
	// Joining a group that exists is no news.
	c.member(mad.MethodSet, stockJoin, joinRecord(f, 0))
	if g := c.recv(0); g != nil {
		t.Errorf("Report of an old group: %x", g.m[:80])
	}
}

func TestClassPortInfo(t *testing.T) {
	ask := func(c Config) string {
		f := build(t, c)
		g := open(t, f, 0).ask(func(p *mad.Packet) { sa.Init(p, mad.MethodGet, sa.AttrClassPortInfo, 0) })
		if g == nil || g.m.Status() != 0 || sa.AttrOffset(&g.m) != 9 {
			t.Fatalf("answer %+v", g)
		}
		return string(g.m[sa.DataOffset : sa.DataOffset+40])
	}
	want := unhex(t, `01 02 2602 0016bd10 00000000000000000000000000000000 00000000 0000 0000 00000001 80010000`)
	if got := ask(Config{Nodes: 2}); got != string(want) {
		t.Errorf("%x, want %x", got, want)
	}
	want[2] = 0x24
	if got := ask(Config{Nodes: 2, NoMulticast: true}); got != string(want) {
		t.Errorf("without multicast %x, want %x", got, want)
	}
}
