// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package preload

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"acmd/mad"
)

const small = `Channel Adapter 0x0000000000100005, base LID 4, "HcaC HCA-1, base LID 9, x", port 1
# LID  : SL : MTU : RATE
0x0001 : 0  : 4   : 3   
0x0002 : 1  : 5   : 16  
0x0004 : 0  : 4   : 3   
0x0005 : 0  : 4   : 3   
0x0009 : UNREACHABLE
0x000A : 2  : 4   : 63  
0x000B : 2  : 4   : 3   

Switch 0x0000000000200000, base LID 2, "SwA", port 0
# LID  : SL : MTU : RATE
0x0001 : 0  : 4   : 3   

Channel Adapter 0x0000000000100001, base LID 1, "HcaA", port 1
# LID  : SL : MTU : RATE
0x0004 : 0  : 4   : 3   

Channel Adapter 0x0000000000100009, base LID 9, "off", port 1
# LID  : SL : MTU : RATE

Router 0x000000000010000A, base LID 0xA, "rtr", port 1
# LID  : SL : MTU : RATE
`

func readDump(t *testing.T, text string, want func(mad.GUID, mad.LID) bool) (*Dump, []string) {
	t.Helper()
	d, ps, err := ReadDump(strings.NewReader(text), "dump", want)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, p := range ps {
		out = append(out, p.Error())
	}
	return d, out
}

func TestDump(t *testing.T) {
	d, ps := readDump(t, small, func(g mad.GUID, l mad.LID) bool { return g == 0x100005 && l == 4 })
	if len(ps) != 0 {
		t.Errorf("%q", ps)
	}
	if d := cmp.Diff([]Node{{0x100001, 1, 15}, {0x200000, 2, 11}, {0x100005, 4, 1}, {0x100009, 9, 19}, {0x10000a, 10, 22}}, d.Nodes()); d != "" {
		t.Error(d)
	}
	paths, ok := d.Block(0x100005, 4)
	if d := cmp.Diff([]Path{{1, 0, 4, 3}, {2, 1, 5, 16}, {4, 0, 4, 3}, {5, 0, 4, 3}, {10, 2, 4, 63}, {11, 2, 4, 3}}, paths); d != "" || !ok {
		t.Error(d)
	}
	if d.Unreachable != 1 {
		t.Error(d.Unreachable)
	}
	if _, ok := d.Block(0x100001, 1); ok {
		t.Error("a block that nobody wanted was kept")
	}
	all, _ := readDump(t, small, nil)
	if p, ok := all.Block(0x200000, 2); !ok || len(p) != 1 {
		t.Error(p, ok)
	}
	if p, ok := all.Block(0x10000a, 10); !ok || len(p) != 0 {
		t.Error("empty block", p, ok)
	}
}

// LMC: a LID belongs to the base LID below it, as far as that one's alignment
// allows.
func TestOwner(t *testing.T) {
	d, _ := readDump(t, "Switch 0x2, base LID 3, \"\", port 0\nChannel Adapter 0x8, base LID 8, \"\", port 1\nChannel Adapter 0xc, base LID 12, \"\", port 1\nChannel Adapter 0x100, base LID 256, \"\", port 1\n", nil)
	for lid, want := range map[mad.LID]mad.GUID{
		1: 0, 2: 0, 3: 2, 4: 0, 7: 0, 8: 8, 9: 8, 11: 8, 12: 12, 15: 12, 16: 0, 255: 0, 256: 0x100, 383: 0x100, 384: 0,
	} {
		n, ok := d.Owner(lid)
		if n.GUID != want || ok != (want != 0) {
			t.Errorf("LID %d: %v %v", lid, n.GUID, ok)
		}
	}
}

// Field case 38 and the reference's faults: DLIDs that are not unicast,
// UNREACHABLE with blanks around it, fields that are not there.
func TestBadDumpLines(t *testing.T) {
	const head = "Channel Adapter 0x1, base LID 1, \"a\", port 1\n"
	for _, c := range []struct{ name, text, want string }{
		{"no header", "0x0001 : 0 : 4 : 3", "dump:1: path without a header, ignored"},
		{"multicast", head + "0xC000 : 0 : 4 : 3", `dump:2: "0xC000" is not a unicast LID, line ignored`},
		{"zero", head + "0x0000 : UNREACHABLE", `dump:2: "0x0000" is not a unicast LID, line ignored`},
		{"too large", head + "0x10001 : 0 : 4 : 3", `dump:2: "0x10001" is not a unicast LID, line ignored`},
		{"fields", head + "0x0001 : 0 : 4", "dump:2: path to LID 1: SL, MTU and rate are expected, line ignored"},
		{"more fields", head + "0x0001 : 0 : 4 : 3 : 1", `dump:2: path to LID 1: rate code "3 : 1", line ignored`},
		{"SL", head + "0x0001 : 16 : 4 : 3", `dump:2: path to LID 1: SL "16", line ignored`},
		{"MTU", head + "0x0001 : 0 : 0 : 3", `dump:2: path to LID 1: MTU code "0", line ignored`},
		{"rate", head + "0x0001 : 0 : 4 : 64", `dump:2: path to LID 1: rate code "64", line ignored`},
		{"twice", head + "0x0001 : 0 : 4 : 3\n0x0001 : 1 : 4 : 3", "dump:3: path to LID 1 is in this block already, line ignored"},
		{"unknown LID", head + "0x0007 : 0 : 4 : 3", "dump:1: 1 paths of LID 1 lead to LIDs of no port in the file"},
		{"type", head + "Bridge 0x2, base LID 2, \"\", port 1\n0x0001 : 0 : 4 : 3", `dump:2: unknown line "Bridge 0x2, base LID 2, \"\", port", its paths are ignored`},
		{"base LID", head + "Switch 0x2, base LID 49152, \"\", port 0\n0x0001 : 0 : 4 : 3", `dump:2: header with base LID "49152", its paths are ignored`},
		{"GUID", head + "Switch 0x12345678901234567, base LID 2, \"\", port 0", `dump:2: header with port GUID " 0x12345678901234567", its paths are ignored`},
		{"short", head + "Switch 0x2", `dump:2: header "Switch 0x2" has no base LID, its paths are ignored`},
		{"same LID", head + "Switch 0x2, base LID 1, \"\", port 0\n0x0001 : 0 : 4 : 3", "dump:2: base LID 1 is that of 0x0000000000000001 in line 1 already, its paths are ignored"},
		{"same GUID", head + "Switch 0x1, base LID 2, \"\", port 0", "dump:2: 0x0000000000000001 has base LID 1 in line 1 already"},
		{"blanks", head + "0x0001 :   UNREACHABLE   \r", ""},
		{"long description", "Switch 0x2, base LID 2, \"" + strings.Repeat("0x0001 : 0 : 4 : 3 ", 100) + "\", port 0\n", ""},
	} {
		_, ps := readDump(t, c.text+"\n", nil)
		if c.want == "" && len(ps) == 0 {
			continue
		}
		if len(ps) != 1 || ps[0] != c.want {
			t.Errorf("%s: %q", c.name, ps)
		}
	}
}

// writeDump writes in the format of OpenSM's plug-in.
func writeDump(b *bytes.Buffer, nodes []Node, blocks map[mad.LID][]Path, lids []mad.LID) {
	for i, n := range nodes {
		kind := []string{"Channel Adapter", "Switch", "Router"}[i%3]
		fmt.Fprintf(b, "%s 0x%016x, base LID %d, \"node %d\", port %d\n# LID  : SL : MTU : RATE\n", kind, uint64(n.GUID), n.LID, i, 1)
		paths := blocks[n.LID]
		for _, l := range lids {
			k, ok := slices.BinarySearchFunc(paths, l, func(p Path, l mad.LID) int { return int(p.DLID) - int(l) })
			if !ok {
				fmt.Fprintf(b, "0x%04X : UNREACHABLE\n", uint16(l))
				continue
			}
			p := paths[k]
			fmt.Fprintf(b, "0x%04X : %-2d : %-3d : %-4d\n", uint16(l), p.SL, p.MTU, p.Rate)
		}
		b.WriteString("\n")
	}
}

func TestDumpRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		lmc := rapid.IntRange(0, 3).Draw(t, "lmc")
		var nodes []Node
		var lids []mad.LID
		for i := range rapid.IntRange(1, 20).Draw(t, "nodes") {
			base := mad.LID((i + 1) << lmc)
			nodes = append(nodes, Node{GUID: mad.GUID(rapid.Uint64Max(1<<40).Draw(t, "guid")<<8 | uint64(i) + 1), LID: base})
			for l := range mad.LID(1 << lmc) {
				lids = append(lids, base+l)
			}
		}
		blocks := map[mad.LID][]Path{}
		for _, n := range nodes {
			for _, l := range lids {
				if rapid.IntRange(0, 9).Draw(t, "reachable") == 0 {
					continue
				}
				blocks[n.LID] = append(blocks[n.LID], Path{l, uint8(l % 16), mad.MTU(l%5 + 1), mad.Rate(l%63 + 1)})
			}
		}
		var b bytes.Buffer
		writeDump(&b, nodes, blocks, lids)
		d, ps, err := ReadDump(&b, "d", nil)
		if err != nil || len(ps) != 0 {
			t.Fatal(ps, err)
		}
		for _, n := range nodes {
			got, ok := d.Block(n.GUID, n.LID)
			if !ok || !slices.Equal(got, blocks[n.LID]) {
				t.Fatalf("block %d: %v, want %v", n.LID, got, blocks[n.LID])
			}
			for l := range mad.LID(1 << lmc) {
				if o, ok := d.Owner(n.LID + l); !ok || o.GUID != n.GUID {
					t.Fatalf("owner of %d: %v", n.LID+l, o)
				}
			}
		}
	})
}

func dumpText(nodes int, blocks int) []byte {
	var b bytes.Buffer
	for i := 1; i <= blocks; i++ {
		fmt.Fprintf(&b, "Channel Adapter 0x%016x, base LID %d, \"node%d HCA-1\", port 1\n# LID  : SL : MTU : RATE\n", i, i, i)
		for l := 1; l <= nodes; l++ {
			fmt.Fprintf(&b, "0x%04X : %-2d : %-3d : %-4d\n", l, 0, 4, 16)
		}
		b.WriteString("\n")
	}
	for i := blocks + 1; i <= nodes; i++ {
		fmt.Fprintf(&b, "Channel Adapter 0x%016x, base LID %d, \"node%d HCA-1\", port 1\n# LID  : SL : MTU : RATE\n\n", i, i, i)
	}
	return b.Bytes()
}

// One block of 40,000 paths, and the skipping of ten more.
func BenchmarkDump40k(b *testing.B) {
	for name, blocks := range map[string]int{"one": 1, "skip10": 11} {
		b.Run(name, func(b *testing.B) {
			text := dumpText(40_000, blocks)
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				d, ps, err := ReadDump(bytes.NewReader(text), "d", func(g mad.GUID, _ mad.LID) bool { return g == 1 })
				if p, _ := d.Block(1, 1); err != nil || len(ps) != 0 || len(p) != 40_000 {
					b.Fatal(len(p), ps, err)
				}
			}
		})
	}
}

func FuzzReadDump(f *testing.F) {
	f.Add([]byte(small))
	f.Add([]byte("Switch 0x1, base LID 4, \"\", port 0\n0x0006 : UNREACHABLE\n0x0007 : 0 : 1 : 1\n0xFFFF : 1 : 1 : 1\n"))
	f.Add([]byte("Channel\nRouter 0x, base LID , \n0 : : :\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		d, _, err := ReadDump(bytes.NewReader(b), "d", nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range d.Nodes() {
			if !n.LID.IsUnicast() || n.GUID == 0 {
				t.Fatalf("%+v", n)
			}
			paths, ok := d.Block(n.GUID, n.LID)
			if !ok {
				t.Fatal("a port without a block")
			}
			last := mad.LID(0)
			for _, p := range paths {
				if _, ok := d.Owner(p.DLID); !ok || p.DLID <= last || p.SL > 15 || p.MTU == 0 || p.MTU > 63 || p.Rate == 0 || p.Rate > 63 {
					t.Fatalf("%+v after %d", p, last)
				}
				last = p.DLID
			}
		}
	})
}
