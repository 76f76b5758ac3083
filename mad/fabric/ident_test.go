// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package fabric

import (
	"net/netip"
	"testing"

	"acmd/mad"
	"acmd/mad/acm"
)

// Everything about a node follows from its index, and back.
func TestIdentities(t *testing.T) {
	if NodeName(7, 1) != "node0007" || NodeName(39999, 2) != "node39999-2" ||
		IPv4(7, 1) != netip.MustParseAddr("10.64.0.8") || IPv4(39999, 2) != netip.MustParseAddr("10.65.159.250") ||
		IPv6(7, 1) != netip.MustParseAddr("fd00:0:0:1::8") || IPv6(39999, 2) != netip.MustParseAddr("fd00:0:0:2::9c40") {
		t.Error(NodeName(7, 1), IPv4(7, 1), IPv4(39999, 2), IPv6(7, 1), IPv6(39999, 2))
	}
	f := build(t, Config{Nodes: 24000, Ports: 2, Seed: 5})
	w := f.world.Load()
	guids, lids, ips := map[mad.GUID]bool{}, map[mad.LID]bool{}, map[netip.Addr]bool{}
	for node := range 24000 {
		guids[f.NodeGUID(node)] = true
		for num := uint8(1); num <= 2; num++ {
			i := f.index(node, num)
			if n, p := f.owner(i); n != node || p != num {
				t.Fatalf("owner of %d is %d port %d", i, n, p)
			}
			guids[f.PortGUID(node, num)], lids[f.LID(node, num)] = true, true
			v4, v6 := IPv4(node, num), IPv6(node, num)
			ips[v4], ips[v6] = true, true
			if v4.As4()[3] == 0 || v4.As4()[3] == 255 {
				t.Fatalf("%v", v4)
			}
			var n4, n6, name [acm.AddrSize]byte
			copy(n4[:], v4.AsSlice())
			copy(n6[:], v6.AsSlice())
			copy(name[:], NodeName(node, num))
			if f.byAddress(acm.TypeIPv4, &n4) != i || f.byAddress(acm.TypeIPv6, &n6) != i || f.byAddress(acm.TypeName, &name) != i {
				t.Fatalf("node %d port %d is not found by its addresses", node, num)
			}
			if f.byGID(w, f.GID(node, num)) != i || w.at(f.LID(node, num)) != i {
				t.Fatalf("node %d port %d is not found by GID or LID", node, num)
			}
		}
	}
	if len(guids) != 3*24000 || len(lids) != 2*24000 || len(ips) != 4*24000 {
		t.Errorf("%d GUIDs, %d LIDs, %d addresses", len(guids), len(lids), len(ips))
	}
	if f.byGUID(f.NodeGUID(3)) != -1 || f.byGUID(f.PortGUID(3, 1)+2) != -1 || f.byGUID(f.NodeGUID(0)-1) != -1 || f.byGUID(0) != -1 {
		t.Error("a GUID of no port was found")
	}
	if f.LID(24000, 1) != 0 || f.LID(3, 3) != 0 {
		t.Error("LID of no port")
	}
	if o := build(t, Config{Nodes: 4, Seed: 6}); o.NodeGUID(0) == f.NodeGUID(0) {
		t.Error("seeds do not show in GUIDs")
	}
	if s := build(t, Config{Nodes: 100, Silent: 40}); true {
		n := 0
		for _, p := range s.world.Load().ports[1:] {
			if p.silent {
				n++
			}
		}
		if n != 40 {
			t.Errorf("%d silent nodes, want 40", n)
		}
	}
}
