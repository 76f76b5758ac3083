// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acmtool

import (
	"fmt"
	"strconv"
	"strings"
)

// maxList bounds what one bracket list expands to.
const maxList = 1 << 20

// expand makes the words of "base[1-3,5,07-12]": base1 base2 base3 base5 base07
// ... base12. Numbers are padded with zeros to the width of the first number of
// their range. What stands behind the bracket is dropped, as ib_acme does. A
// word without a bracket is itself.
func expand(s string) ([]string, error) {
	base, list, ok := strings.Cut(s, "[")
	if !ok {
		return []string{s}, nil
	}
	list, _, ok = strings.Cut(list, "]")
	if !ok {
		return nil, fmt.Errorf("%q: no closing bracket", s)
	}
	var out []string
	for part := range strings.SplitSeq(list, ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		a, err := listNumber(first)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", s, err)
		}
		b, err := listNumber(last)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", s, err)
		}
		if a > b {
			return nil, fmt.Errorf("%q: range %s runs backwards", s, part)
		}
		if b-a >= uint64(maxList-len(out)) {
			return nil, fmt.Errorf("%q: more than %d words", s, maxList)
		}
		for n := a; n <= b; n++ {
			out = append(out, fmt.Sprintf("%s%0*d", base, len(first), n))
		}
	}
	return out, nil
}

func listNumber(s string) (uint64, error) {
	if n, err := strconv.ParseUint(s, 10, 63); err == nil && len(s) <= 64 && s[0] != '+' {
		return n, nil
	}
	return 0, fmt.Errorf("%q in the list is not a number", s)
}
