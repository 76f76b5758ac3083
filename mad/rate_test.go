// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package mad

import "testing"

// field case 56: 2x links and the speeds after EDR have a code, what has none is
// 0 and no panic.
func TestLinkRate(t *testing.T) {
	speeds := []uint16{1, 2, 4, 8, 16, 32, 64, 128, 256}
	want := map[uint8][]Rate{
		1:  {2, 5, 3, 3, 11, 15, 20, 16, 17},
		2:  {3, 6, 7, 7, 12, 16, 17, 21, 23},
		4:  {6, 7, 9, 9, 13, 17, 21, 23, 25},
		8:  {4, 8, 10, 10, 14, 18, 22, 24, 0},
		16: {5, 3, 6, 6, 19, 20, 16, 17, 21},
	}
	for width, row := range want {
		for i, speed := range speeds {
			if got := LinkRate(width, speed); got != row[i] {
				t.Errorf("width %d, speed %d: %d, want %d", width, speed, got, row[i])
			}
		}
	}
	for _, c := range []struct {
		width uint8
		speed uint16
	}{{0, 1}, {3, 1}, {32, 1}, {255, 1}, {1, 0}, {1, 3}, {2, 512}, {2, 0xffff}, {0, 0}} {
		if got := LinkRate(c.width, c.speed); got != 0 {
			t.Errorf("width %d, speed %d: %d, want 0", c.width, c.speed, got)
		}
	}
}

// Each speed has one code; 0, which means the largest, and 1, which is reserved, have
// none, and neither has what nobody knows yet.
func TestRateSpeeds(t *testing.T) {
	for r := range Rate(255) {
		known := r >= 2 && r <= 25
		if s := r.Speed(); (s != 0) != known || known && RateOf(s) != r {
			t.Errorf("rate code %d: speed %d, which has code %d", r, s, RateOf(s))
		}
	}
	for _, s := range []int{-1, 0, 1, 24, 26, 24000, 32000} {
		if r := RateOf(s); r != 0 {
			t.Errorf("speed %d: code %d", s, r)
		}
	}
}
