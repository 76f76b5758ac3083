// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package resolver_test

import (
	"testing"
	"time"

	"acmd/mad"
	"acmd/mad/fabric"
	"acmd/mad/sa"
	"acmd/mad/transport"
	"acmd/resolver"
)

// answer asks and returns what came, and after what time.
func (n *node) answer(q resolver.Query) (resolver.Answer, time.Duration) {
	n.t.Helper()
	w := answers{make(chan resolver.Answer, 1)}
	begin := time.Now()
	n.start(q, w)
	return <-w.ch, time.Since(begin)
}

func (n *node) byGID(i int) resolver.Query {
	q := resolver.Query{Kind: resolver.ByPath}
	q.Path.SetDGID(n.fab.GID(i, 1))
	return q
}

func (n *node) byLID(i int) resolver.Query {
	q := resolver.Query{Kind: resolver.ByPath}
	q.Path.SetDLID(n.fab.LID(i, 1))
	return q
}

// field case 8 with notices: a peer that dies is not served from the cache, and the
// next answer, that there is no path, comes within one round trip to the SA. When
// it is back, remembered failures do not stand in the way.
func TestFabricPeerDies(t *testing.T) {
	const oneWay = 10 * time.Millisecond
	onFabric(t, fabric.Config{Nodes: 64, Seed: 1, Delay: oneWay}, func(n *node) {
		spellings := []resolver.Query{toIPv4(7), n.byGID(7)}
		for range 3 {
			for _, q := range append(spellings, n.byLID(7), toIPv4(8)) {
				n.ask(q)
			}
			sent := n.fab.Stats().PathGets
			if err := n.fab.SetPort(7, 1, mad.PortDown); err != nil {
				n.t.Fatal(err)
			}
			time.Sleep(oneWay + time.Millisecond) // the Report arrives
			for i, q := range spellings {
				a, took := n.answer(q)
				if a.Status != resolver.StatusNoData || took > 2*oneWay+time.Millisecond {
					n.t.Errorf("spelling %d of a dead peer: %v after %v", i, a.Status, took)
				}
			}
			if a, _ := n.answer(n.byLID(7)); a.Status == resolver.StatusSuccess {
				n.t.Error("a dead peer by its LID")
			}
			if a, took := n.answer(toIPv4(8)); a.Status != resolver.StatusSuccess || took != 0 {
				n.t.Errorf("another peer: %v after %v", a.Status, took)
			}
			if err := n.fab.SetPort(7, 1, mad.PortActive); err != nil {
				n.t.Fatal(err)
			}
			time.Sleep(oneWay + time.Millisecond)
			for i, q := range spellings {
				a, took := n.answer(q)
				if a.Status != resolver.StatusSuccess || took > 4*oneWay+time.Millisecond {
					n.t.Errorf("spelling %d of a peer that is back: %v after %v, %v", i, a.Status, took, a.Err)
				}
			}
			if n.fab.Stats().PathGets == sent {
				n.t.Error("nobody asked the SA")
			}
		}
		if st := n.e.Stats(); st.Notices != 6 || st.NoticeDrops == 0 {
			n.t.Errorf("%d notices, %d paths dropped", st.Notices, st.NoticeDrops)
		}
	})
}

// A notice that comes while a question about the dead peer is with the SA: the
// answer of before is not served.
func TestFabricPeerDiesMeanwhile(t *testing.T) {
	onFabric(t, fabric.Config{Nodes: 64, Seed: 1, Delay: 10 * time.Millisecond}, func(n *node) {
		w := answers{make(chan resolver.Answer, 1)}
		// The SA's answer is held back behind the Report of what follows.
		n.fab.AddRule(fabric.Rule{On: fabric.Deliveries, Attr: sa.AttrPathRecord, Count: 1, Delay: 100 * time.Millisecond})
		n.start(n.byGID(7), w)
		time.Sleep(20 * time.Millisecond)
		if err := n.fab.SetPort(7, 1, mad.PortDown); err != nil {
			n.t.Fatal(err)
		}
		if a := <-w.ch; a.Status == resolver.StatusSuccess {
			n.t.Errorf("the path of before: %x", a.Path)
		}
		if n.e.Stats().Voided == 0 {
			n.t.Error("no answer was thrown away: the test shows nothing")
		}
	})
}

// A subscription that was lost for longer than a moment may have hidden anything:
// every path is then looked up again by and by, and served meanwhile.
func TestFabricMissedNotices(t *testing.T) {
	onFabric(t, fabric.Config{Nodes: 64, Seed: 1}, func(n *node) {
		n.ask(toIPv4(7))
		n.fab.AddRule(fabric.Rule{On: fabric.Requests, Attr: sa.AttrInformInfo, Do: fabric.Drop, For: time.Minute})
		if err := n.fab.MoveSM(9, false, transport.EventSMChange); err != nil {
			n.t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		n.ask(toIPv4(7)) // what the change of the SM asks for is done
		time.Sleep(time.Second)
		gets := n.fab.Stats().PathGets
		n.ask(toIPv4(7))
		time.Sleep(time.Second)
		if got := n.fab.Stats().PathGets - gets; got != 0 {
			n.t.Errorf("%d Gets before the subscription holds", got)
		}
		time.Sleep(3 * time.Minute)
		if a, took := n.answer(toIPv4(7)); a.Status != resolver.StatusSuccess || took != 0 {
			n.t.Errorf("%v after %v", a.Status, took)
		}
		time.Sleep(time.Second)
		if got := n.fab.Stats().PathGets - gets; got != 1 {
			n.t.Errorf("%d Gets once it holds, want one refresh", got)
		}
	})
}

// A group of ours that the SM ends is joined again; other groups, and the Report of
// one that is there, ask for nothing.
func TestFabricGroupDeleted(t *testing.T) {
	onFabric(t, fabric.Config{Nodes: 16, Seed: 1}, func(n *node) {
		mgid := fabric.ACMGroup(mad.DefaultPKey)
		other := mgid
		other[15]++
		joins := func(what string, want uint64, about mad.GID, trap uint16) {
			n.t.Helper()
			before := n.fab.Stats().Joins
			n.fab.Notify(trap, about)
			time.Sleep(5 * time.Second)
			if got := n.fab.Stats().Joins - before; got != want {
				n.t.Errorf("%s: %d joins, want %d", what, got, want)
			}
		}
		joins("our group ended", 1, mgid, sa.TrapGroupDeleted)
		joins("another one ended", 0, other, sa.TrapGroupDeleted)
		joins("our group came to be", 0, mgid, sa.TrapGroupCreated)
		n.ask(toIPv4(7))
	})
}
