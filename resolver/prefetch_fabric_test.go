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

func prefetching(c *resolver.Config) { c.Prefetch = true }

// After one GetTable the SA is asked nothing by whoever needs a path to every node, and
// each path is the one that the SA tells for it alone.
func TestFabricPrefetch(t *testing.T) {
	for name, cfg := range map[string]fabric.Config{
		"plain": {Nodes: 1000, Seed: 1, Topology: fabric.FatTree, SlowEvery: 7},
		"LMC 2": {Nodes: 300, Seed: 2, LMC: 2},
		"parts": {Nodes: 300, Seed: 3, PKeys: func(n int) []mad.PKey { return []mad.PKey{0xffff, 0x8001 + mad.PKey(n%2)} }},
	} {
		t.Run(name, func(t *testing.T) {
			onFabricWith(t, cfg, prefetching, func(n *node) {
				parts := len(n.e.Endpoints())
				if st := n.fab.Stats(); st.PathTables != uint64(parts) || n.e.Stats().Tables != uint64(parts) {
					n.t.Fatalf("%d tables asked for, %d taken, want one for each of %d endpoints", st.PathTables, n.e.Stats().Tables, parts)
				}
				for i := 1; i < cfg.Nodes; i++ {
					q := n.byGID(i)
					a := n.ask(q)
					rec := q.Path
					rec.SetSGID(n.fab.GID(0, 1))
					rec.SetSLID(n.fab.LID(0, 1))
					rec.SetPKey(0xffff)
					rec.SetReversibleNumPath(true, 1)
					want, _ := n.fab.SAPath(sa.PathDGID|sa.PathSGID|sa.PathSLID|sa.PathPKey|sa.PathReversible|sa.PathNumPath, &rec)
					if a.Path != want {
						n.t.Fatalf("node %d:\n% x from the table,\n% x alone", i, a.Path, want)
					}
					if b := n.ask(toIPv4(i)); b.Path != want {
						n.t.Fatalf("node %d by address: % x", i, b.Path)
					}
				}
				if st := n.fab.Stats(); st.PathGets != 0 {
					n.t.Errorf("%d Gets, want none", st.PathGets)
				}
			})
		})
	}
}

// A node that dies is not found in the table, and one that came back is asked for.
func TestFabricPrefetchPeerDies(t *testing.T) {
	onFabricWith(t, fabric.Config{Nodes: 64, Seed: 1}, prefetching, func(n *node) {
		if err := n.fab.SetPort(7, 1, mad.PortDown); err != nil {
			n.t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond) // the Report arrives
		for _, q := range []resolver.Query{n.byGID(7), n.byLID(7), toIPv4(7)} {
			if a, _ := n.answer(q); a.Status == resolver.StatusSuccess {
				n.t.Errorf("path to a dead node: % x", a.Path)
			}
		}
		n.ask(n.byGID(8))
		if err := n.fab.SetPort(7, 1, mad.PortActive); err != nil {
			n.t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond)
		n.ask(n.byGID(7))
		n.ask(n.byLID(7))
	})
}

// Lost, late and refused tables, and an SM that moves meanwhile: until one comes the SA
// is asked for single paths, and nobody waits for it (field case 82).
func TestFabricPrefetchFaults(t *testing.T) {
	table := fabric.Rule{Attr: sa.AttrPathRecord, Method: mad.MethodGetTable}
	for name, fault := range map[string]fabric.Rule{
		"question lost": {Do: fabric.Drop, Count: 1},
		"answer lost":   {On: fabric.Deliveries, Do: fabric.Drop, Count: 1},
		"late":          {On: fabric.Deliveries, Delay: 8 * time.Second, Count: 1},
		"doubled":       {On: fabric.Deliveries, Copies: 2, Count: 1},
		"busy":          {Do: fabric.Answer, Status: mad.StatusBusy, Count: 1},
		"refused":       {Do: fabric.Answer, Status: mad.Status(sa.StatusNoResources) << 8, Count: 1},
		"another TID":   {Do: fabric.OtherTID, Count: 1},
		"another attr":  {Do: fabric.OtherAttr, Count: 1},
	} {
		fault.Attr, fault.Method = table.Attr, table.Method
		t.Run(name, func(t *testing.T) {
			var rule *fabric.ActiveRule
			onFabricWith(t, fabric.Config{Nodes: 64, Seed: 1}, func(c *resolver.Config) {
				c.Prefetch = true
				rule = c.Fabric.(*fabric.Fabric).AddRule(fault)
			}, func(n *node) {
				for i := 1; i < 20; i++ {
					if a, took := n.answer(n.byGID(i)); a.Status != resolver.StatusSuccess || took > 100*time.Millisecond {
						n.t.Errorf("node %d: %v after %v", i, a.Status, took)
					}
				}
				time.Sleep(30 * time.Second)
				before := n.fab.Stats().PathGets
				for i := 20; i < 40; i++ {
					n.ask(n.byGID(i))
				}
				if s := n.e.Stats(); s.Tables == 0 || n.fab.Stats().PathGets != before {
					n.t.Errorf("%d tables, %d Gets after it", s.Tables, n.fab.Stats().PathGets-before)
				}
				if rule.Hits() == 0 {
					n.t.Error("the fault did not happen")
				}
			})
		})
	}
}

// All nodes are reregistered at once: what the SA is asked for spreads over the time
// that it needs for it.
func TestFabricPrefetchReregister(t *testing.T) {
	onFabricWith(t, fabric.Config{Nodes: 1000, Seed: 1}, prefetching, func(n *node) {
		var first, last time.Duration
		for range 40 {
			begin, tables := time.Now(), n.fab.Stats().PathTables
			if err := n.fab.Raise(0, 1, transport.EventReregister); err != nil {
				n.t.Fatal(err)
			}
			for n.fab.Stats().PathTables == tables {
				time.Sleep(10 * time.Millisecond)
			}
			took := time.Since(begin)
			if first == 0 || took < first {
				first = took
			}
			last = max(last, took)
			time.Sleep(2 * time.Minute) // its part of the SA's time
		}
		// 1,000 nodes, 1,000 paths each, 5 us a path.
		if first > 2*time.Second || last < 3*time.Second || last > 5100*time.Millisecond {
			n.t.Errorf("asked after %v to %v, want anything up to 5 s", first, last)
		}
	})
}
