// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acmp

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"acmd/mad"
	"acmd/mad/fabric"
	madsa "acmd/mad/sa"
	"acmd/mad/transport"
	"acmd/resolver"
	"acmd/resolver/sa"
)

// Field case 6: link error, reregister and active in any order end in a
// membership, with no more than two joins.
func TestEventOrders(t *testing.T) {
	ERR, RE, ACT := transport.EventPortError, transport.EventReregister, transport.EventPortActive
	for _, order := range [][]transport.EventType{{ERR, RE, ACT}, {ERR, ACT, RE}, {RE}, {ERR, ACT}, {RE, RE, RE}} {
		inBubble(t, fabric.Config{Nodes: 4}, func(t *testing.T, f *fabric.Fabric) {
			log, stop := watch(f)
			defer stop()
			nd := start(t, f, 0, Config{})
			defer nd.stop()
			time.Sleep(10 * time.Second)
			before := log.count(0)
			for _, ev := range order {
				switch ev {
				case ERR:
					if err := f.SetPort(0, 1, mad.PortDown); err != nil {
						t.Fatal(err)
					}
					nd.endpoints()
				case ACT:
					if err := f.SetPort(0, 1, mad.PortActive); err != nil {
						t.Fatal(err)
					}
					nd.endpoints()
				}
				nd.src.Event(transport.Event{Type: ev, Device: fabric.DeviceName, Port: 1})
				time.Sleep(100 * time.Millisecond)
			}
			time.Sleep(5 * time.Second)
			if n := log.count(0) - before; n < 1 || n > 2 {
				t.Errorf("%v: %d joins", order, n)
			}
			nd.must(v4(2), 2)
		})
	}
}

// Events of others and of other kinds change nothing.
func TestForeignEvents(t *testing.T) {
	inBubble(t, fabric.Config{Nodes: 4}, func(t *testing.T, f *fabric.Fabric) {
		log, stop := watch(f)
		defer stop()
		nd := start(t, f, 0, Config{})
		defer nd.stop()
		for _, ev := range []transport.Event{
			{Type: transport.EventReregister, Device: "other", Port: 1},
			{Type: transport.EventReregister, Device: fabric.DeviceName, Port: 2},
			{Type: transport.EventGIDChange, Device: fabric.DeviceName, Port: 1},
		} {
			nd.src.Event(ev)
		}
		time.Sleep(5 * time.Second)
		if n := log.count(0); n != 1 {
			t.Errorf("%d joins", n)
		}
	})
}

// Field case 52: all nodes are told to register again while the SA is silent
// for 5 s. All are up within 2 s of its return, the first join comes in less
// than a second, and they do not send at once.
func TestReregisterStorm(t *testing.T) {
	const nodes = 500
	inBubble(t, fabric.Config{Nodes: nodes + 2, Delay: 10 * time.Microsecond}, func(t *testing.T, f *fabric.Fabric) {
		var all []*node
		for n := range nodes {
			all = append(all, start(t, f, n, Config{}))
		}
		time.Sleep(10 * time.Second)
		log, stop := watch(f)
		defer stop()
		if err := f.MoveSM(nodes+1, false); err != nil {
			t.Fatal(err)
		}
		f.AddRule(fabric.Rule{Class: mad.ClassSA, Do: fabric.Drop, For: 5 * time.Second})
		begin := time.Now()
		for _, nd := range all {
			nd.client.Update(info(f, nd.n))
			nd.src.Event(transport.Event{Type: transport.EventReregister, Device: fabric.DeviceName, Port: 1})
		}
		time.Sleep(5*time.Second + 2*time.Second)
		synctest.Wait()
		var sends []time.Time
		for _, nd := range all {
			if g := nd.src.Groups(); !g[0].Joined || g[0].Err != nil {
				t.Errorf("node %d: %+v", nd.n, g[0])
			}
			times := log.times(nd.n)
			if d := times[0].Sub(begin); d >= time.Second {
				t.Errorf("node %d: first join after %v", nd.n, d)
			}
			if n := len(times); n < 4 || n > 14 {
				t.Errorf("node %d: %d joins", nd.n, n)
			}
			sends = append(sends, times...)
		}
		slices.SortFunc(sends, time.Time.Compare)
		// First and second tries overlap: some 100 of them in 100 ms are usual.
		for i := range sends {
			if i >= nodes/2 && sends[i].Sub(sends[i-nodes/2]) < 100*time.Millisecond {
				t.Fatalf("%d nodes joined within 100 ms", nodes/2)
			}
		}
		for _, nd := range all {
			nd.stop()
		}
	})
}

// The SM moves and forgets: the new one gives another MLID, the queue pair goes
// there, and requests are heard again.
func TestNewSMNewMLID(t *testing.T) {
	inBubble(t, fabric.Config{Nodes: 6}, func(t *testing.T, f *fabric.Fabric) {
		a, b := start(t, f, 0, Config{Retries: 2}), start(t, f, 1, Config{Retries: 2})
		defer a.stop()
		defer b.stop()
		a.must(v4(1), 1)
		if err := f.MoveSM(4, false); err != nil {
			t.Fatal(err)
		}
		a.endpoints() // a new SM LID, with no event at all
		b.endpoints()
		time.Sleep(2 * time.Second)
		a.must(v4(1), 1)
		b.must(v4(0), 0)
	})
}

// An endpoint that is taken away leaves its group, and answers no more; the one
// that stays does.
func TestEndpointLeaves(t *testing.T) {
	keys := func(int) []mad.PKey { return []mad.PKey{0xffff, 0x8001} }
	inBubble(t, fabric.Config{Nodes: 4, PKeys: keys}, func(t *testing.T, f *fabric.Fabric) {
		log, stop := watch(f)
		defer stop()
		a, b := start(t, f, 0, Config{}), start(t, f, 1, Config{})
		defer a.stop()
		defer b.stop()
		waiting := b.locateOn(1, resolver.NameAddr("nobody"), 10*time.Second)
		synctest.Wait()
		b.src.SetEndpoints(b.eps[:1])
		if got := <-waiting; !errors.Is(got.err, resolver.ErrDown) {
			t.Error(got.err)
		}
		if got := <-b.locateOn(1, v4(2), time.Second); !errors.Is(got.err, resolver.ErrDown) {
			t.Error(got.err)
		}
		if got := <-a.locateOn(1, v4(1), time.Second); !errors.Is(got.err, resolver.ErrTimeout) {
			t.Error(got)
		}
		a.must(v4(1), 1)
		log.mu.Lock()
		defer log.mu.Unlock()
		if len(log.leave) != 1 || log.leave[0].MGID() != fabric.ACMGroup(0x8001) || log.leave[0].PortGID() != f.GID(1, 1) || log.leave[0].JoinState() != madsa.JoinFull {
			t.Errorf("leaves: %x", log.leave)
		}
	})
}

// New addresses of an endpoint are answered for at once, with no new join.
func TestNewAddresses(t *testing.T) {
	inBubble(t, fabric.Config{Nodes: 4}, func(t *testing.T, f *fabric.Fabric) {
		log, stop := watch(f)
		defer stop()
		a, b := start(t, f, 0, Config{}), start(t, f, 1, Config{})
		defer a.stop()
		defer b.stop()
		ep := *b.eps[0]
		ep.Addrs = []resolver.LocalAddr{{Addr: resolver.NameAddr("Alias.Cluster"), Text: "Alias.Cluster"}}
		b.src.SetEndpoints([]*resolver.Endpoint{&ep})
		synctest.Wait()
		if got := <-a.locate(resolver.NameAddr("ALIAS.cluster"), time.Second); got.err != nil || got.LID != f.LID(1, 1) {
			t.Error(got)
		}
		if got := <-a.locate(v4(1), time.Second); !errors.Is(got.err, resolver.ErrTimeout) {
			t.Error(got)
		}
		if log.count(1) != 1 {
			t.Errorf("%d joins", log.count(1))
		}
	})
}

// The device goes with lookups under way: each is told, none twice; the source
// forgets the port; a new client takes its place.
func TestDeviceGone(t *testing.T) {
	inBubble(t, fabric.Config{Nodes: 4}, func(t *testing.T, f *fabric.Fabric) {
		nd := start(t, f, 0, Config{})
		a, b := nd.locate(resolver.NameAddr("nobody"), 0), nd.locate(resolver.NameAddr("somebody"), 0)
		synctest.Wait()
		if err := f.RemoveDevice(0); err != nil {
			t.Fatal(err)
		}
		for _, ch := range []<-chan found{a, b, nd.locate(v4(2), time.Second)} {
			if got := <-ch; !errors.Is(got.err, resolver.ErrDown) {
				t.Error(got)
			}
		}
		<-nd.client.Done()
		if len(nd.src.Groups()) != 0 {
			t.Errorf("groups of a port that is gone: %+v", nd.src.Groups())
		}
		if err := nd.src.Attach(fabric.DeviceName, 1, nd.client); !errors.Is(err, transport.ErrGone) {
			t.Error(err)
		}
		if err := f.RestoreDevice(0); err != nil {
			t.Fatal(err)
		}
		p, err := f.Host(0).Open(fabric.DeviceName, 1)
		if err != nil {
			t.Fatal(err)
		}
		nd.client = sa.Open(p, info(f, 0), sa.Config{}, nil)
		defer nd.stop()
		if err := nd.src.Attach(fabric.DeviceName, 1, nd.client); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		nd.must(v4(2), 2)
		if got := <-nd.locate(resolver.Addr{}, time.Second); got.err == nil {
			t.Error("an empty address was found")
		}
	})
}

// Field case 80: subnet time-outs of every size give sane waits, which rise.
func TestWaits(t *testing.T) {
	for _, timeout := range []time.Duration{0, time.Nanosecond, 100 * time.Millisecond, 2 * time.Second, time.Minute} {
		c := Config{Timeout: timeout, Retries: 4}
		c.normalize()
		last := time.Duration(0)
		for e := range 32 {
			w := c.longestGap(uint8(e))
			if w < time.Millisecond || w > 2*c.Timeout || w < last {
				t.Errorf("time-out %v, exponent %d: wait %v after %v", timeout, e, w, last)
			}
			last = w
			gap := time.Duration(0)
			for n := range 6 {
				g := c.gap(n, uint8(e))
				if g < min(gap, w) || g > w || g < time.Millisecond {
					t.Errorf("exponent %d, try %d: gap %v after %v", e, n, g, gap)
				}
				gap = g
			}
		}
	}
	c := Config{}
	c.normalize()
	for e, want := range map[uint8]time.Duration{0: 2000, 1: 2000, 7: 2000, 8: 2001, 18: 3024, 31: 4000, 32: 2000} {
		if got := c.longestGap(e); got != want*time.Millisecond {
			t.Errorf("exponent %d: %v", e, got)
		}
	}
}

// A group that could not be joined is joined soon after the SM told that it came to
// be, instead of after the pause between two tries; one that is joined, and another
// one, ask for nothing.
func TestGroupCreated(t *testing.T) {
	inBubble(t, fabric.Config{Nodes: 4}, func(t *testing.T, f *fabric.Fabric) {
		log, stop := watch(f)
		defer stop()
		refuse := f.AddRule(fabric.Rule{Class: mad.ClassSA, Attr: uint16(madsa.AttrMCMemberRecord), Do: fabric.Answer, Status: 0x0200})
		nd := start(t, f, 0, Config{})
		defer nd.stop()
		time.Sleep(5 * time.Minute) // pauses are 15 s and more from now on
		for n := log.count(0); n == log.count(0); {
			time.Sleep(100 * time.Millisecond)
		}
		refuse.Remove()
		notice := func(mgid mad.GID) (joins int) {
			var n madsa.Notice
			n.SetTrap(madsa.TrapGroupCreated)
			n.SetGID(mgid)
			before := log.count(0)
			nd.src.Notice(fabric.DeviceName, 1, &n)
			time.Sleep(2 * rejoinSpread)
			return log.count(0) - before
		}
		if n := notice(fabric.ACMGroup(0x8001)); n != 0 || nd.src.Groups()[0].Joined {
			t.Errorf("another group: %d joins", n)
		}
		if n := notice(fabric.ACMGroup(mad.DefaultPKey)); n != 1 || !nd.src.Groups()[0].Joined {
			t.Errorf("the group that was refused: %d joins", n)
		}
		if n := notice(fabric.ACMGroup(mad.DefaultPKey)); n != 0 {
			t.Errorf("a group that is joined: %d joins", n)
		}
	})
}
