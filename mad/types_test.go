// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package mad

import (
	"testing"

	"pgregory.net/rapid"
)

// field case 44: unsigned, in host order, in the form of the SM.
func TestText(t *testing.T) {
	for _, c := range []struct{ got, want string }{
		{LID(0xc123).String(), "49443"},
		{LID(0xbfff).String(), "49151"},
		{LID(1).String(), "1"},
		{TID(0xdeadbeef11223344).String(), "0xdeadbeef11223344"},
		{TID(9).String(), "0x0000000000000009"},
		{GUID(0x0002c90300a1b2c3).String(), "0x0002c90300a1b2c3"},
		{PKey(0x8123).String(), "0x8123"},
		{PKey(1).String(), "0x0001"},
		{MakeGID(0xfe80<<48, 0x0002c90300a1b2c3).String(), "fe80::2:c903:a1:b2c3"},
		{GID{}.String(), "::"},
		{PortDown.String(), "DOWN"},
		{PortInit.String(), "INIT"},
		{PortArmed.String(), "ARMED"},
		{PortActive.String(), "ACTIVE"},
		{State(9).String(), "state 9"},
	} {
		if c.got != c.want {
			t.Errorf("%q, want %q", c.got, c.want)
		}
	}
}

func TestLIDRange(t *testing.T) {
	for l, want := range map[LID]bool{0: false, 1: true, 0x7fff: true, 0x8000: true, 0xbfff: true, 0xc000: false, 0xfffe: false, 0xffff: false} {
		if l.IsUnicast() != want {
			t.Errorf("LID %#x: unicast %v", uint16(l), !want)
		}
	}
}

// field case 5: membership does not make another partition.
func TestPKey(t *testing.T) {
	limited, full := PKey(0x0123), PKey(0x8123)
	if !limited.Matches(full) || limited.Matches(0x0124) {
		t.Error("partitions compare by their 15 bits")
	}
	if limited.Full() != full || full.Full() != full || limited.IsFull() || !full.IsFull() {
		t.Error("membership bit")
	}
	for k, want := range map[PKey]bool{0: false, 0x8000: false, 1: true, 0x7fff: true, DefaultPKey: true} {
		if k.IsValid() != want {
			t.Errorf("%v: valid %v", k, !want)
		}
	}
}

func TestParseGID(t *testing.T) {
	for _, c := range []struct {
		in   string
		want GID
	}{
		{"::", GID{}},
		{"fe80::2:c903:a1:b2c3", MakeGID(0xfe80<<48, 0x0002c90300a1b2c3)},
		{"fe80:0000:0000:0000:0002:c903:00a1:b2c3", MakeGID(0xfe80<<48, 0x0002c90300a1b2c3)},
		{"FF15:4001:FFFF:0003:0400::", GID{0xff, 0x15, 0x40, 1, 0xff, 0xff, 0, 3, 4}},
		{"::ffff:10.0.0.1", GID{10: 0xff, 0xff, 10, 0, 0, 1}},
	} {
		if g, err := ParseGID(c.in); err != nil || g != c.want {
			t.Errorf("%q: %v, %v, want %v", c.in, g, err, c.want)
		}
	}
	for _, in := range []string{"", "fe80", "10.0.0.1", "fe80::1%ib0", "fe80::1/64", "0xfe80000000000000", " fe80::1", "::1::2"} {
		if g, err := ParseGID(in); err == nil {
			t.Errorf("%q was taken as %v", in, g)
		}
	}
}

func TestGIDParts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		prefix, guid := rapid.Uint64().Draw(t, "prefix"), GUID(rapid.Uint64().Draw(t, "guid"))
		g := MakeGID(prefix, guid)
		if g.Prefix() != prefix || g.GUID() != guid {
			t.Fatalf("%v: prefix %#x, guid %v", g, g.Prefix(), g.GUID())
		}
		if g.IsZero() != (prefix == 0 && guid == 0) || g.IsMulticast() != (prefix>>56 == 0xff) {
			t.Fatalf("%v: zero %v, multicast %v", g, g.IsZero(), g.IsMulticast())
		}
		if back, err := ParseGID(g.String()); err != nil || back != g {
			t.Fatalf("%v parsed as %v, %v", g, back, err)
		}
	})
}

func FuzzParseGID(f *testing.F) {
	for _, s := range []string{"fe80::1", "ff15:4001:ffff:3:400::", "::ffff:1.2.3.4", "fe80::1%x", "", "1:2:3:4:5:6:7:8"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		g, err := ParseGID(s)
		if err != nil {
			if g != (GID{}) {
				t.Fatalf("%q: %v beside an error", s, g)
			}
			return
		}
		if back, err := ParseGID(g.String()); err != nil || back != g {
			t.Fatalf("%q: %v printed and parsed is %v, %v", s, g, back, err)
		}
	})
}
