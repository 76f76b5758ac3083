// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package fabric

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"acmd/mad"
)

func TestParseOptions(t *testing.T) {
	for s, want := range map[string]Config{
		"embedded":            {Nodes: defaultNodes},
		"embedded:nodes=1000": {Nodes: 1000},
		"nodes=5":             {Nodes: 5},
		"embedded:topo=torus,dims=2,hosts=4,seed=0x7": {Nodes: defaultNodes, Topology: Torus, Dims: 2, Hosts: 4, Seed: 7},
		"embedded:loss=0.5,delay=1ms..3ms,silent=10":  {Nodes: defaultNodes, Loss: .5, Delay: time.Millisecond, DelayMax: 3 * time.Millisecond, Silent: 10},
		"embedded:delay=50us,sm=3,ports=2,mixed,lmc=2": {Nodes: defaultNodes, Delay: 50 * time.Microsecond,
			DelayMax: 50 * time.Microsecond, SMNode: 3, Ports: 2, Mixed: true, LMC: 2},
		"embedded:prefix=0xfec0000000000001,timers,nolisten,slow=4,topo=fattree": {Nodes: defaultNodes, Prefix: 0xfec0000000000001,
			KernelTimers: true, NoListen: true, SlowEvery: 4, Topology: FatTree},
	} {
		got, err := ParseOptions(s)
		if err != nil {
			t.Errorf("%q: %v", s, err)
			continue
		}
		if d := cmp.Diff(want, got, cmpopts.IgnoreFields(Config{}, "PKeys")); d != "" {
			t.Errorf("%q: %s", s, d)
		}
	}
	c, err := ParseOptions("embedded:pkeys=0x7fff+0x8001")
	if err != nil || !cmp.Equal(c.PKeys(3), []mad.PKey{0x7fff, 0x8001}) {
		t.Errorf("pkeys: %v", err)
	}
	for s, want := range map[string]string{
		"":                           "want embedded",
		"umad":                       "unknown",
		"umad:nodes=3":               "want embedded",
		"embedded:":                  "unknown",
		"embedded:node=3":            `"node": unknown, know delay, dims`,
		"embedded:nodes":             "number from 2",
		"embedded:nodes=":            "empty value",
		"embedded:nodes=1":           "number from 2",
		"embedded:nodes=40001":       "number from 2 to 40000",
		"embedded:nodes=3,nodes=4":   "twice",
		"embedded:topo=ring":         "star, fattree, torus",
		"embedded:loss=2":            "probability",
		"embedded:loss=NaN":          "probability",
		"embedded:delay=5":           "duration",
		"embedded:delay=5ms..1ms":    "duration",
		"embedded:delay=-5ms":        "duration",
		"embedded:mixed":             "two ports",
		"embedded:mixed=1":           "no value",
		"embedded:lmc=8":             "0 to 7",
		"embedded:nodes=40000,lmc=1": "more LIDs than there are",
		"embedded:nodes=9,sm=9":      "node 9 of 9",
		"embedded:pkeys=0x12345":     "P_Keys",
		"embedded:prefix=0":          "prefix",
		"embedded:seed=x":            "64 bits",
		"embedded:nodes=9,silent=10": "silent",
	} {
		if _, err := ParseOptions(s); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q in it", s, err, want)
		}
	}
}

// Whatever is accepted can be built.
func FuzzParseOptions(f *testing.F) {
	for _, s := range []string{"", "embedded", "embedded:nodes=9,topo=torus,seed=1,loss=0.1,delay=1ms..2ms,silent=3",
		"embedded:ports=2,mixed,lmc=7,nodes=40", "pkeys=0xffff+1,prefix=0x1", "embedded:,,", "sm=1,dims=3,hosts=2,slow=1,timers,nolisten"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		c, err := ParseOptions(s)
		if err != nil {
			if err.Error() == "" {
				t.Error("error without text")
			}
			return
		}
		fab, err := New(c)
		if err != nil {
			t.Fatalf("%q was accepted, and then: %v", s, err)
		}
		fab.Close()
	})
}

func TestConfigErrors(t *testing.T) {
	for name, c := range map[string]Config{
		"nodes": {}, "topology": {Nodes: 2, Topology: 9}, "ports": {Nodes: 2, Ports: 3}, "MTU": {Nodes: 2, MTU: 6},
		"rate": {Nodes: 2, Rate: 26}, "loss": {Nodes: 2, Loss: -1}, "slots": {Nodes: 2, Slots: 1 << 17},
		"delay": {Nodes: 2, Delay: -1}, "dims": {Nodes: 2, Dims: 4}, "hosts": {Nodes: 2, Hosts: 3}, "LMC": {Nodes: 2, LMC: 8},
		"P_Keys": {Nodes: 2, PKeys: func(int) []mad.PKey { return make([]mad.PKey, 129) }},
		"tables": {Nodes: 2000, PKeys: func(n int) []mad.PKey { return []mad.PKey{mad.PKey(n + 1)} }},
	} {
		if f, err := New(c); err == nil {
			f.Close()
			t.Errorf("%s: no error", name)
		}
	}
}
