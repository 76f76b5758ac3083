// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package umad

import (
	"fmt"
	"strconv"
	"strings"

	"acmd/mad"
)

// parseNumber reads what sysfs prints for a number: "18", "0x12" or, with a name
// behind it, "4: ACTIVE". Only a prefix of 0x means hexadecimal.
func parseNumber(t string, bits int) (uint64, error) {
	word, _, _ := strings.Cut(strings.TrimSpace(t), ":")
	word, _, _ = strings.Cut(word, " ")
	digits, base := word, 10
	if hex, ok := strings.CutPrefix(word, "0x"); ok {
		digits, base = hex, 16
	}
	v, err := strconv.ParseUint(digits, base, bits)
	if err != nil {
		return 0, fmt.Errorf("%q is not a number of %d bits", t, bits)
	}
	return v, nil
}

// parseGUID reads four groups of four hexadecimal digits, "0002:c903:0000:1234";
// anything else is 0, "unknown".
func parseGUID(t string) mad.GUID {
	var digits [16]byte
	if len(t) != 19 || t[4] != ':' || t[9] != ':' || t[14] != ':' {
		return 0
	}
	for g := range 4 {
		copy(digits[4*g:], t[5*g:5*g+4])
	}
	v, err := strconv.ParseUint(string(digits[:]), 16, 64)
	if err != nil {
		return 0
	}
	return mad.GUID(v)
}

// parseRate reads the leading number of sysfs' rate, "2.5 Gb/sec (1X SDR)". It returns 0
// for a speed without a code.
func parseRate(t string) mad.Rate {
	word, _, _ := strings.Cut(t, " ")
	whole, tenth, found := strings.Cut(word, ".")
	if !found {
		tenth = "0"
	}
	speed, err := strconv.ParseUint(whole+tenth, 10, 16)
	if err != nil || len(tenth) != 1 || strings.HasPrefix(whole, "0") {
		return 0
	}
	return mad.RateOf(int(speed))
}

// naturalLess orders mlx5_2 before mlx5_10: by the name without its number, then
// by the number, then as text.
func naturalLess(a, b string) bool {
	pa, na := splitNumber(a)
	pb, nb := splitNumber(b)
	switch {
	case pa != pb:
		return pa < pb
	case na != nb:
		return na < nb
	}
	return a < b
}

// splitNumber cuts a decimal number off the end; -1 when there is none that fits.
func splitNumber(s string) (prefix string, n int) {
	i := len(s)
	for i > 0 && s[i-1] >= '0' && s[i-1] <= '9' {
		i--
	}
	n, err := strconv.Atoi(s[i:])
	if err != nil {
		return s, -1
	}
	return s[:i], n
}
