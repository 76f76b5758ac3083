// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package mad

import (
	"bytes"
	"encoding/hex"
	"testing"
)

// A header with every field set.
func TestGRH(t *testing.T) {
	b, err := hex.DecodeString("6ab12345" + "0118" + "1b" + "3f" + "fe800000000000000000000000100003" + "ff154001ffff00030400000000000000")
	if err != nil {
		t.Fatal(err)
	}
	g := GRH(b)
	if g.TrafficClass() != 0xab || g.FlowLabel() != 0x12345 || g.HopLimit() != 0x3f {
		t.Errorf("class %#x, label %#x, hops %d", g.TrafficClass(), g.FlowLabel(), g.HopLimit())
	}
	if s, d := g.SGID().String(), g.DGID().String(); s != "fe80::10:3" || d != "ff15:4001:ffff:3:400::" {
		t.Errorf("from %s to %s", s, d)
	}
}

func FuzzGRH(f *testing.F) {
	f.Add(make([]byte, GRHSize))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < GRHSize {
			return
		}
		g := GRH(b[:GRHSize])
		sgid, dgid := g.SGID(), g.DGID()
		if g.FlowLabel() > 0xfffff || !bytes.Equal(sgid[:], b[8:24]) || !bytes.Equal(dgid[:], b[24:40]) {
			t.Errorf("% x", b)
		}
	})
}
