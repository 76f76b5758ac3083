// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package mad

import "slices"

// Rate is a rate code (IBTA vol. 1, PathRecord). Codes do not rise with the rate, see
// [Rate.Speed]; unknown ones pass through.
type Rate uint8

// rateSpeeds has the speed of each code (enum ib_rate of the kernel, enum ibv_rate of
// libibverbs), with 14 Gb/s for the 14.0625 of FDR and so on, as tools print it.
var rateSpeeds = [...]int{
	2: 25, 3: 100, 4: 300, 5: 50, 6: 200, 7: 400, 8: 600, 9: 800, 10: 1200, 11: 140, 12: 560, 13: 1120, 14: 1680,
	15: 250, 16: 1000, 17: 2000, 18: 3000, 19: 280, 20: 500, 21: 4000, 22: 6000, 23: 8000, 24: 12000, 25: 16000,
}

// Speed is the data rate in units of 100 Mb/s, 0 for a code that is not known.
func (r Rate) Speed() int {
	if int(r) < len(rateSpeeds) {
		return rateSpeeds[r]
	}
	return 0
}

// RateOf returns the code of a data rate in units of 100 Mb/s, 0 if it has none. 0 means
// "the largest" in a record, so do not build a group from it.
func RateOf(speed int) Rate { return Rate(max(slices.Index(rateSpeeds[:], speed), 0)) }

// LinkRate returns the rate of a link from the codes of its active width (1, 2, 4, 8,
// 16 = 1x, 4x, 8x, 12x, 2x) and speed (1 SDR, 2 DDR, 4 QDR, 8 FDR10, 16 FDR, 32 EDR,
// 64 HDR, 128 NDR, 256 XDR), as ibv_port_attr has them. It returns 0 for a width, a
// speed or a product without a code.
func LinkRate(width uint8, speed uint16) Rate { return RateOf(lanes(width) * laneSpeed(speed)) }

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

// laneSpeed is the data rate of one lane by speed code, in units of 100 Mb/s.
func laneSpeed(speed uint16) int {
	switch speed {
	case 1:
		return 25
	case 2:
		return 50
	case 4, 8:
		return 100
	case 16:
		return 140
	case 32:
		return 250
	case 64:
		return 500
	case 128:
		return 1000
	case 256:
		return 2000
	}
	return 0
}
