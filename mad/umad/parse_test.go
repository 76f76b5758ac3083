// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package umad

import (
	"fmt"
	"slices"
	"sort"
	"strings"
	"testing"

	"acmd/mad"

	"pgregory.net/rapid"
)

func TestParseNumber(t *testing.T) {
	for _, c := range []struct {
		in   string
		bits int
		want uint64
		bad  bool
	}{
		{in: "18\n", bits: 8, want: 18}, {in: "0x12", bits: 8, want: 0x12}, {in: "0xffff", bits: 16, want: 0xffff},
		{in: "4: ACTIVE", bits: 8, want: 4}, {in: "0: NOP", bits: 8}, {in: " 5 ", bits: 8, want: 5}, {in: "010", bits: 8, want: 10},
		{in: "0x2651e84a\n", bits: 32, want: 0x2651e84a}, {in: "7 seven", bits: 8, want: 7},
		{in: "", bits: 8, bad: true}, {in: ": ACTIVE", bits: 8, bad: true}, {in: "0x", bits: 8, bad: true},
		{in: "256", bits: 8, bad: true}, {in: "0x10000", bits: 16, bad: true}, {in: "-1", bits: 8, bad: true},
		{in: "1_0", bits: 8, bad: true}, {in: "0b1", bits: 8, bad: true}, {in: "0X12", bits: 8, bad: true}, {in: "ACTIVE", bits: 8, bad: true},
	} {
		v, err := parseNumber(c.in, c.bits)
		if v != c.want || (err != nil) != c.bad {
			t.Errorf("%q in %d bits: %d, %v; want %d, error %v", c.in, c.bits, v, err, c.want, c.bad)
		}
	}
}

func TestParseGUID(t *testing.T) {
	for in, want := range map[string]mad.GUID{
		"0002:c903:0000:1234": 0x0002c90300001234, "ffff:FFFF:ffff:ffff": 0xffffffffffffffff, "0000:0000:0000:0000": 0,
		"": 0, "0002:c903:0000:123": 0, "0002:c903:0000:12345": 0, "0002c90300001234": 0, "0x02:c903:0000:1234": 0,
		"0002:c9g3:0000:1234": 0, "0002-c903-0000-1234": 0, "00:02:c9:03:00:00:12": 0, "+002:c903:0000:1234": 0,
	} {
		if got := parseGUID(in); got != want {
			t.Errorf("%q: %v, want %v", in, got, want)
		}
	}
}

// The numbers are those of the kernel's enum ib_rate, the texts those that its
// rate attribute prints for every speed and width.
func TestParseRate(t *testing.T) {
	for in, want := range map[string]mad.Rate{
		"2.5 Gb/sec (1X SDR)": 2, "10 Gb/sec (4X SDR)": 3, "30 Gb/sec (12X SDR)": 4, "5 Gb/sec (1X DDR)": 5,
		"20 Gb/sec (4X DDR)": 6, "40 Gb/sec (4X QDR)": 7, "60 Gb/sec (12X DDR)": 8, "80 Gb/sec (8X QDR)": 9,
		"120 Gb/sec (12X QDR)": 10, "14 Gb/sec (1X FDR)": 11, "56 Gb/sec (4X FDR)": 12, "112 Gb/sec (8X FDR)": 13,
		"168 Gb/sec (12X FDR)": 14, "25 Gb/sec (1X EDR)": 15, "100 Gb/sec (4X EDR)": 16, "200 Gb/sec (4X HDR)": 17,
		"300 Gb/sec (12X EDR)": 18, "28 Gb/sec (2X FDR)": 19, "50 Gb/sec (2X EDR)": 20, "400 Gb/sec (4X NDR)": 21,
		"600 Gb/sec (12X HDR)": 22, "800 Gb/sec (4X XDR)": 23, "1200 Gb/sec (12X NDR)": 24, "1600 Gb/sec (8X XDR)": 25,
		"40 Gb/sec (4X FDR10)": 7, "10 Gb/sec (4X)": 3, "10": 3,
		"": 0, "2400 Gb/sec (12X XDR)": 0, "0.5 Gb/sec (1X)": 0, "010 Gb/sec": 0, "10Gb/sec": 0,
	} {
		if got := parseRate(in); got != want {
			t.Errorf("%q: %d, want %d", in, got, want)
		}
	}
}

func TestNaturalOrder(t *testing.T) {
	want := []string{"", "1", "ib", "ib0", "mlx4_0", "mlx5_0", "mlx5_02", "mlx5_2", "mlx5_10", "mlx5_99999999999999999999", "rxe0", "x2", "x10", "x1a"}
	got := slices.Clone(want)
	slices.Reverse(got)
	sort.Slice(got, func(i, j int) bool { return naturalLess(got[i], got[j]) })
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

// It is an order at all: of two different names exactly one is first, and it is
// transitive.
func TestNaturalLessIsAnOrder(t *testing.T) {
	name := rapid.StringMatching(`[a-c_]{0,2}[0-9]{0,3}[a-b]?`)
	rapid.Check(t, func(t *rapid.T) {
		a, b, c := name.Draw(t, "a"), name.Draw(t, "b"), name.Draw(t, "c")
		if naturalLess(a, b) == naturalLess(b, a) && a != b || naturalLess(a, a) {
			t.Fatalf("%q and %q have no order", a, b)
		}
		if naturalLess(a, b) && naturalLess(b, c) && !naturalLess(a, c) {
			t.Fatalf("%q < %q < %q, but not %q < %q", a, b, c, a, c)
		}
	})
}

func FuzzParseNumber(f *testing.F) {
	for _, s := range []string{"18", "0x12", "4: ACTIVE", "", "0x", "-1", "99999999999999999999", "1 2", ":", "0xffffffff\n"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		v, err := parseNumber(s, 16)
		if err != nil {
			if v != 0 {
				t.Errorf("%q: %d beside an error", s, v)
			}
			return
		}
		if v > 0xffff {
			t.Fatalf("%q: %d does not fit", s, v)
		}
		// What we print reads back the same, in both notations.
		for _, again := range []string{fmt.Sprintf("%d", v), fmt.Sprintf("0x%x", v), fmt.Sprintf("%d: NAME", v)} {
			if w, err := parseNumber(again, 16); w != v || err != nil {
				t.Errorf("%q read as %d, which as %q reads as %d, %v", s, v, again, w, err)
			}
		}
	})
}

func FuzzParseGUID(f *testing.F) {
	for _, s := range []string{"0002:c903:0000:1234", "", ":::", "0000:0000:0000:0000", "0002:c903:0000:12", "zzzz:zzzz:zzzz:zzzz"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		v := uint64(parseGUID(s))
		if v == 0 {
			return
		}
		text := fmt.Sprintf("%04x:%04x:%04x:%04x", v>>48, v>>32&0xffff, v>>16&0xffff, v&0xffff)
		if !strings.EqualFold(text, s) {
			t.Errorf("%q read as %s", s, text)
		}
	})
}

func FuzzParseRate(f *testing.F) {
	for _, s := range []string{"10 Gb/sec (4X)", "2.5 Gb/sec (1X SDR)", "", " ", "100", "1e2 Gb/sec"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r := parseRate(s)
		if r != 0 && (r < 2 || r > 25) {
			t.Errorf("%q: rate code %d", s, r)
		}
		if word, _, _ := strings.Cut(s, " "); r != 0 && parseRate(word) != r {
			t.Errorf("%q and %q differ", s, word)
		}
	})
}

func FuzzNaturalLess(f *testing.F) {
	f.Add("mlx5_2", "mlx5_10")
	f.Add("", "")
	f.Add("mlx5_99999999999999999999", "mlx5_1")
	f.Fuzz(func(t *testing.T, a, b string) {
		if a != b && naturalLess(a, b) == naturalLess(b, a) || a == b && naturalLess(a, b) {
			t.Errorf("%q and %q have no order", a, b)
		}
	})
}
