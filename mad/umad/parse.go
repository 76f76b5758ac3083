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

// rates maps the leading number of sysfs' rate, "100 Gb/sec (4X EDR)", to the
// rate code (IBTA vol. 1, PathRecord; enum ib_rate of the kernel).
var rates = map[string]mad.Rate{
	"2.5": 2, "5": 5, "10": 3, "14": 11, "20": 6, "25": 15, "28": 19, "30": 4, "40": 7, "50": 20,
	"56": 12, "60": 8, "80": 9, "100": 16, "112": 13, "120": 10, "168": 14, "200": 17, "300": 18,
	"400": 21, "600": 22, "800": 23, "1200": 24, "1600": 25,
}

// parseRate returns 0 for a speed it does not know.
func parseRate(t string) mad.Rate {
	word, _, _ := strings.Cut(t, " ")
	return rates[word]
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
