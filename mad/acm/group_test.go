// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acm

import (
	"testing"

	"acmd/mad"

	"pgregory.net/rapid"
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
		if gr, ok := ParseMGID(g); !ok || gr != (Group{c.pkey.Full(), c.tos, c.rate, c.mtu}) {
			t.Errorf("%v was parsed as %+v, %v", g, gr, ok)
		}
		if !g.IsMulticast() {
			t.Errorf("%v is not multicast", g)
		}
	}
	for _, s := range []string{
		"::", "fe80::1",
		"ff12:4001:ffff:3:400::",  // another scope
		"ff15:401b:ffff:3:400::",  // IPoIB, IPv4
		"ff15:4001:7fff:3:400::",  // limited key
		"ff15:4001:ffff:3:401::",  // bytes behind
		"ff15:4001:ffff:3:400::1", // bytes behind
	} {
		g, err := mad.ParseGID(s)
		if err != nil {
			t.Fatal(err)
		}
		if gr, ok := ParseMGID(g); ok {
			t.Errorf("%s was taken as %+v", s, gr)
		}
	}
}

func TestMGIDRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := Group{
			PKey: mad.PKey(rapid.Uint16().Draw(t, "pkey")), TOS: rapid.Uint8().Draw(t, "tos"),
			Rate: mad.Rate(rapid.Uint8().Draw(t, "rate")), MTU: mad.MTU(rapid.Uint8().Draw(t, "mtu")),
		}
		got, ok := ParseMGID(MGID(want.PKey, want.TOS, want.Rate, want.MTU))
		want.PKey = want.PKey.Full()
		if !ok || got != want {
			t.Fatalf("%+v, %v, want %+v", got, ok, want)
		}
	})
}

// field case 56: 2x links and the speeds after EDR have a code, what has none is
// 0 and no panic.
func TestRateFromWidthSpeed(t *testing.T) {
	speeds := []uint16{1, 2, 4, 8, 16, 32, 64, 128, 256}
	want := map[uint8][]mad.Rate{
		1:  {2, 5, 3, 3, 11, 15, 20, 16, 17},
		2:  {3, 6, 7, 7, 12, 16, 17, 21, 23},
		4:  {6, 7, 9, 9, 13, 17, 21, 23, 0},
		8:  {4, 8, 10, 10, 14, 18, 22, 24, 0},
		16: {5, 3, 6, 6, 19, 20, 16, 17, 21},
	}
	for width, row := range want {
		for i, speed := range speeds {
			if got := RateFromWidthSpeed(width, speed); got != row[i] {
				t.Errorf("width %d, speed %d: %d, want %d", width, speed, got, row[i])
			}
		}
	}
	for _, c := range []struct {
		width uint8
		speed uint16
	}{{0, 1}, {3, 1}, {32, 1}, {255, 1}, {1, 0}, {1, 3}, {2, 512}, {2, 0xffff}, {0, 0}} {
		if got := RateFromWidthSpeed(c.width, c.speed); got != 0 {
			t.Errorf("width %d, speed %d: %d, want 0", c.width, c.speed, got)
		}
	}
}

// Each code that a link can have is known; 0 means the largest, 1 is reserved.
func TestKnownRate(t *testing.T) {
	for _, r := range rateCode {
		if !KnownRate(r) {
			t.Errorf("rate code %d", r)
		}
	}
	for _, r := range []mad.Rate{0, 1, 25, 63} {
		if KnownRate(r) {
			t.Errorf("rate code %d has no meaning", r)
		}
	}
}
