// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acm

import "acmd/mad"

// RateFromWidthSpeed returns the rate code of a link from the codes of its active
// width (1, 2, 4, 8, 16 = 1x, 4x, 8x, 12x, 2x) and speed (1 SDR, 2 DDR, 4 QDR,
// 8 FDR10, 16 FDR, 32 EDR, 64 HDR, 128 NDR, 256 XDR), as PortInfo and ibv_port_attr
// have them. It returns 0 for a width, a speed or a product without a code; 0
// means "the largest" in a record, so do not build a group from it.
func RateFromWidthSpeed(width uint8, speed uint16) mad.Rate {
	return rateCode[lanes(width)*laneSpeed(speed)]
}

// KnownRate reports whether a rate code has a meaning, the same one in records and
// in address handles (IBTA vol. 1, PathRecord; enum ibv_rate).
func KnownRate(r mad.Rate) bool { return 2 <= r && r <= 24 }

// lanes is the number of lanes by width code, 0 if there is no such code.
func lanes(width uint8) int {
	switch width {
	case 1:
		return 1
	case 2:
		return 4
	case 4:
		return 8
	case 8:
		return 12
	case 16:
		return 2
	}
	return 0
}

// laneSpeed is the data rate of one lane by speed code, in units of 0.5 Gb/s.
func laneSpeed(speed uint16) int {
	switch speed {
	case 1:
		return 5
	case 2:
		return 10
	case 4, 8:
		return 20
	case 16:
		return 28
	case 32:
		return 50
	case 64:
		return 100
	case 128:
		return 200
	case 256:
		return 400
	}
	return 0
}

// rateCode maps a data rate in units of 0.5 Gb/s to its code (IBTA vol. 1,
// PathRecord; enum ibv_rate).
var rateCode = map[int]mad.Rate{
	5: 2, 10: 5, 20: 3, 40: 6, 60: 4, 80: 7, 120: 8, 160: 9, 240: 10, 28: 11,
	112: 12, 224: 13, 336: 14, 50: 15, 200: 16, 400: 17, 600: 18, 56: 19, 100: 20,
	800: 21, 1200: 22, 1600: 23, 2400: 24,
}
