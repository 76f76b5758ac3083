// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package fabric

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"acmd/mad"
	"acmd/mad/acm"
	"acmd/mad/sa"
)

// get asks for the path from the client's node and returns what is there at once.
func (c *client) get(to int) *got {
	c.t.Helper()
	return c.ask(func(p *mad.Packet) {
		sa.Init(p, mad.MethodGet, sa.AttrPathRecord, byGIDs)
		*sa.Path(p) = question(c.f, byGIDs, c.p.node, to)
	})
}

func TestRules(t *testing.T) {
	f := build(t, Config{Nodes: 8})
	c := open(t, f, 0)
	q := question(f, byGIDs, 0, 3)
	good, _ := f.SAPath(byGIDs, &q)
	for _, k := range []struct {
		name string
		rule Rule
		want string // of four Gets in a row: answered, lost, B status busy, N no records
	}{
		{"nothing", Rule{}, "aaaa"},
		{"drop", Rule{Do: Drop}, "...."},
		{"drop answers", Rule{Do: Drop, On: Deliveries}, "...."},
		{"drop two", Rule{Do: Drop, Count: 2}, "..aa"},
		{"drop the second", Rule{Do: Drop, Skip: 1, Count: 1}, "a.aa"},
		{"busy twice", Rule{Do: Answer, Status: mad.StatusBusy, Count: 2}, "BBaa"},
		{"no records", Rule{Do: Answer, Status: 0x0300}, "NNNN"},
		{"paths only", Rule{Do: Drop, Class: mad.ClassSA, Attr: sa.AttrPathRecord, Method: mad.MethodGet}, "...."},
		{"answers to paths", Rule{Do: Drop, On: Deliveries, Attr: sa.AttrPathRecord, Method: mad.MethodGet}, "...."},
		{"other attribute", Rule{Do: Drop, Attr: sa.AttrMCMemberRecord}, "aaaa"},
		{"other method", Rule{Do: Drop, Method: mad.MethodGetTable}, "aaaa"},
		{"other class", Rule{Do: Drop, Class: mad.ClassACM}, "aaaa"},
		{"node", Rule{Do: Drop, Nodes: []int{4, 0}}, "...."},
		{"other node", Rule{Do: Drop, Nodes: []int{4}}, "aaaa"},
		{"match", Rule{Do: Drop, Match: func(n int, m *mad.Packet) bool { return n == 0 && sa.Path(m).DGID() == f.GID(3, 1) }}, "...."},
		{"no match", Rule{Do: Drop, Match: func(n int, m *mad.Packet) bool { return sa.Path(m).DGID() == f.GID(4, 1) }}, "aaaa"},
	} {
		r := f.AddRule(k.rule)
		text := ""
		for range 4 {
			g := c.get(3)
			switch {
			case g == nil:
				text += "."
			case g.m.Status() == 0 && *sa.Path(&g.m) == good:
				text += "a"
			case g.m.Status() == mad.StatusBusy:
				text += "B"
			case g.m.Status() == 0x0300:
				text += "N"
			}
		}
		if text != k.want {
			t.Errorf("%s: %q, want %q", k.name, text, k.want)
		}
		if n := k.rule.Count; n > 0 && r.Hits() != n {
			t.Errorf("%s: %d hits", k.name, r.Hits())
		}
		r.Remove()
		r.Remove() // is harmless
	}
	if f.faults.Load() != nil {
		t.Error("rules left")
	}
}

func TestWrongAnswers(t *testing.T) {
	f := build(t, Config{Nodes: 8})
	c := open(t, f, 0)
	send := func(a Action) *got {
		defer f.AddRule(Rule{Do: a, Count: 1}).Remove()
		c.send(func(p *mad.Packet) {
			sa.Init(p, mad.MethodGet, sa.AttrPathRecord, byGIDs)
			*sa.Path(p) = question(f, byGIDs, 0, 3)
		})
		return c.recv(0)
	}
	if g := send(OtherDGID); g == nil || g.m.Status() != 0 || sa.Path(&g.m).DGID() == f.GID(3, 1) || g.m.TID() != mad.TID(c.tid) {
		t.Errorf("other DGID: %+v", g)
	}
	if g := send(OtherTID); g == nil || g.m.TID().Low() == c.tid || sa.Path(&g.m).DGID() != f.GID(3, 1) {
		t.Errorf("other TID: %+v", g)
	}
	if g := send(OtherAttr); g == nil || g.m.AttrID() != sa.AttrNodeRecord || g.m.TID() != mad.TID(c.tid) {
		t.Errorf("other attribute: %+v", g)
	}
	r := f.AddRule(Rule{Copies: 2})
	g := c.get(3)
	for range 2 {
		if again := c.recv(0); g == nil || again == nil || again.m != g.m {
			t.Errorf("copy %+v of %+v", again, g)
		}
	}
	if c.recv(0) != nil {
		t.Error("too many copies")
	}
	r.Remove()
	// A request that arrives twice is answered twice.
	r = f.AddRule(Rule{On: Requests, Copies: 1})
	before := f.Stats().PathGets
	if c.get(3) == nil || c.recv(0) == nil || f.Stats().PathGets != before+2 {
		t.Error("request was not duplicated")
	}
	r.Remove()
}

func TestDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := build(t, Config{Nodes: 8, Delay: 2 * time.Millisecond, DelayMax: 5 * time.Millisecond, Seed: 3})
		c := open(t, f, 0)
		c.tid = 0
		last := map[time.Duration]bool{}
		for range 50 {
			begin := time.Now()
			if c.get(3) != nil {
				t.Fatal("answer came at once")
			}
			if g := c.recv(time.Second); g == nil {
				t.Fatal("no answer")
			}
			d := time.Since(begin)
			if d < 2*time.Millisecond || d > 5*time.Millisecond {
				t.Fatalf("after %v", d)
			}
			last[d] = true
		}
		if len(last) < 40 {
			t.Errorf("%d different delays of 50", len(last))
		}
		// A fixed delay on top, and equal delays keep the order.
		f.AddRule(Rule{Delay: time.Second})
		begin := time.Now()
		for i := range 10 {
			c.send(func(p *mad.Packet) {
				sa.Init(p, mad.MethodGet, sa.AttrPathRecord, byGIDs)
				*sa.Path(p) = question(f, byGIDs, 0, 1+i%7)
			})
		}
		for range 10 {
			if c.recv(time.Minute) == nil || time.Since(begin) < time.Second+2*time.Millisecond {
				t.Fatalf("after %v", time.Since(begin))
			}
		}
	})
	synctest.Test(t, func(t *testing.T) {
		f := build(t, Config{Nodes: 8, Delay: time.Second})
		c := open(t, f, 0)
		for range 10 {
			c.send(func(p *mad.Packet) { sa.Init(p, mad.MethodGet, sa.AttrClassPortInfo, 0) })
		}
		for i := range 10 {
			if g := c.recv(time.Minute); g == nil || g.m.TID().Low() != c.tid-9+uint32(i) {
				t.Fatalf("answer %d is %+v", i, g)
			}
		}
	})
}

func TestRuleFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := build(t, Config{Nodes: 8})
		c := open(t, f, 0)
		f.AddRule(Rule{Do: Answer, Status: mad.StatusBusy, For: time.Second})
		if g := c.get(3); g == nil || g.m.Status() != mad.StatusBusy {
			t.Errorf("%+v", g)
		}
		time.Sleep(time.Second)
		if g := c.get(3); g == nil || g.m.Status() != 0 {
			t.Errorf("after its time: %+v", g)
		}
	})
}

// Chances come from the seed: the same again in the same fabric, others in
// another.
func TestLossSeed(t *testing.T) {
	run := func(seed uint64, loss float64) (text string) {
		f := build(t, Config{Nodes: 8, Loss: loss, Seed: seed})
		c := open(t, f, 0)
		for range 400 {
			if c.get(3) != nil {
				text += "a"
			} else {
				text += "."
			}
		}
		return text
	}
	a := run(1, 0.25)
	if a != run(1, 0.25) {
		t.Error("equal seeds, different losses")
	}
	if a == run(2, 0.25) {
		t.Error("different seeds, equal losses")
	}
	// Both ways are lossy: (3/4)^2 = 56 % get through.
	n := 0
	for _, c := range a {
		if c == 'a' {
			n++
		}
	}
	if n < 180 || n > 270 {
		t.Errorf("%d of 400 got through", n)
	}
	if run(3, 1) != string(slices.Repeat([]byte{'.'}, 400)) {
		t.Error("loss 1 is not total")
	}
}

// Rules see ACM datagrams, too.
func TestRulesOnACM(t *testing.T) {
	f := build(t, Config{Nodes: 8})
	c := open(t, f, 0)
	c.join(mad.DefaultPKey)
	r := f.AddRule(Rule{Do: Drop, Class: mad.ClassACM, On: Requests})
	if c.resolve(acm.TypeIPv4, ip4(3)) != nil || f.Stats().ACMRequests != 0 {
		t.Error("request was not lost")
	}
	r.Remove()
	r = f.AddRule(Rule{Do: Drop, Class: mad.ClassACM, On: Deliveries})
	if c.resolve(acm.TypeIPv4, ip4(3)) != nil || f.Stats().ACMAnswers != 1 || r.Hits() != 1 {
		t.Error("answer was not lost")
	}
	r.Remove()
	f.AddRule(Rule{Copies: 1, Class: mad.ClassACM})
	if c.resolve(acm.TypeIPv4, ip4(3)) == nil || c.recv(0) == nil {
		t.Error("answer was not duplicated")
	}
}

// The receive queue is bounded, late messages count in it.
func TestQueueBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := build(t, Config{Nodes: 8, Queue: 10})
		c := open(t, f, 0)
		send := func() {
			c.send(func(p *mad.Packet) {
				sa.Init(p, mad.MethodGet, sa.AttrPathRecord, byGIDs)
				*sa.Path(p) = question(f, byGIDs, 0, 3)
			})
		}
		for range 25 {
			send()
		}
		count := func() (n int) {
			for c.recv(time.Minute) != nil {
				n++
			}
			return n
		}
		if n := count(); n != 10 || f.Stats().Lost[LostQueue] != 15 {
			t.Errorf("%d received, %v", n, f.Stats().Lost)
		}
		f.AddRule(Rule{Delay: time.Second})
		for range 25 {
			send()
		}
		if n := f.Stats().Lost[LostQueue]; n != 30 {
			t.Errorf("%d lost before anything is due: late messages take no room", n)
		}
		if n := count(); n != 10 || f.Stats().Lost[LostQueue] != 30 {
			t.Errorf("late: %d received, %v", n, f.Stats().Lost)
		}
	})
}

func TestTrace(t *testing.T) {
	f := build(t, Config{Nodes: 8})
	c := open(t, f, 0)
	var log []string
	stop := f.Trace(func(e Event) {
		log = append(log, fmt.Sprintf("%d %d %v %#x", e.Kind, e.Node, e.Reason, e.MAD.Method()))
	})
	c.get(3)
	f.AddRule(Rule{Do: Drop, Count: 1})
	c.get(3)
	stop()
	c.get(3)
	want := []string{"1 0  0x1", "2 0  0x81", "1 0  0x1", "3 0 rule 0x1"}
	if !slices.Equal(log, want) {
		t.Errorf("%q, want %q", log, want)
	}
	if f.tracers.Load() != nil {
		t.Error("tracers left")
	}
}

// The recorder proves what the engine promises: each path once, never more than
// the window outstanding, and when the tries were.
func TestRecorder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := build(t, Config{Nodes: 8, Delay: 10 * time.Millisecond})
		c := open(t, f, 0)
		rec := f.Record()
		send := func(to int) {
			c.send(func(p *mad.Packet) {
				sa.Init(p, mad.MethodGet, sa.AttrPathRecord, byGIDs)
				*sa.Path(p) = question(f, byGIDs, 0, to)
			})
		}
		for to := 1; to <= 4; to++ {
			send(to)
		}
		for range 4 {
			c.recv(time.Second)
		}
		send(5)
		c.recv(time.Second)
		if n := rec.MaxOutstanding(); n != 4 {
			t.Errorf("%d outstanding, want 4", n)
		}
		// A lost request stops counting when its sender gave it up.
		f.AddRule(Rule{Do: Drop, Count: 4})
		for range 4 {
			send(6)
			time.Sleep(1500 * time.Millisecond)
		}
		if n := rec.MaxOutstanding(); n != 4 {
			t.Errorf("%d outstanding with lost ones, want 4", n)
		}
		// The same TID again is a further try.
		c.tid--
		send(6)
		c.recv(time.Second)
		paths := rec.Paths()
		for to := 1; to <= 6; to++ {
			n := paths[PathQuestion{byGIDs, question(f, byGIDs, 0, to)}]
			if want := 1 + 3*(to/6); n != want {
				t.Errorf("path to %d asked %d times, want %d", to, n, want)
			}
		}
		times := rec.SendTimes(mad.ClassSA)
		if len(times) != 9 || len(times[8]) != 2 || times[8][1].Sub(times[8][0]) != 1500*time.Millisecond {
			t.Errorf("send times %v", times)
		}
		rec.Stop()
		c.resolve(acm.TypeIPv4, ip4(3))
		if len(rec.ACM()) != 0 || rec.Overflow() != 0 {
			t.Error("recorded after Stop")
		}
		rec = f.Record()
		c.resolve(acm.TypeIPv4, ip4(3))
		k := ACMQuestion{Node: 0, Type: acm.TypeIPv4}
		copy(k.Dest[:], ip4(3))
		if rec.ACM()[k] != 1 {
			t.Errorf("%v", rec.ACM())
		}
	})
}

// An overloaded SA: answers at its rate, silence beyond its queue (field cases
// 2 and 64).
func TestSARate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := build(t, Config{Nodes: 8, SARate: 1000, SAMaxAge: 100 * time.Millisecond})
		c := open(t, f, 0)
		begin := time.Now()
		for range 500 {
			c.send(func(p *mad.Packet) {
				sa.Init(p, mad.MethodGet, sa.AttrPathRecord, byGIDs)
				*sa.Path(p) = question(f, byGIDs, 0, 3)
			})
		}
		for i := range 101 {
			if g := c.recv(time.Second); g == nil || time.Since(begin) != time.Duration(i+1)*time.Millisecond {
				t.Fatalf("answer %d after %v", i, time.Since(begin))
			}
		}
		if g := c.recv(time.Minute); g != nil || f.Stats().Lost[LostSAQueue] != 399 {
			t.Errorf("%+v, %v", g, f.Stats().Lost)
		}
		f.SetSARate(0)
		if c.get(3) == nil {
			t.Error("no answer without a limit")
		}
	})
}
