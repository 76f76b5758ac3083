// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acm

import (
	"testing"

	"acmd/mad"
)

func TestMGID(t *testing.T) {
	for _, c := range []struct {
		pkey mad.PKey
		tos  uint8
		rate mad.Rate
		mtu  mad.MTU
		want string
	}{
		{0xffff, 0, 3, 4, "ff15:4001:ffff:3:400::"},
		{0x7fff, 0, 3, 4, "ff15:4001:ffff:3:400::"}, // field case 5: a limited member shares the group
		{0x0123, 0, 16, 5, "ff15:4001:8123:10:500::"},
		{0x8123, 7, 63, 63, "ff15:4001:8123:73f:3f00::"}, // field case 56
	} {
		want, err := mad.ParseGID(c.want)
		if err != nil {
			t.Fatal(err)
		}
		g := MGID(c.pkey, c.tos, c.rate, c.mtu)
		if g != want {
			t.Errorf("%v, want %v", g, want)
		}
		if !g.IsMulticast() {
			t.Errorf("%v is not multicast", g)
		}
	}
}

// 0 means the largest, 1 is reserved, and what libibverbs does not know must not reach an
// address handle (field case 56).
func TestKnownRate(t *testing.T) {
	for r := range mad.Rate(64) {
		if got, want := KnownRate(r), r >= 2 && r <= 24; got != want || got && r.Speed() == 0 {
			t.Errorf("rate code %d, speed %d: %v", r, r.Speed(), got)
		}
	}
}
