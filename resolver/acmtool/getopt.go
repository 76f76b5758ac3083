// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acmtool

import (
	"fmt"
	"strings"
)

// opt is one option of a command line.
type opt struct {
	name byte
	arg  string
	has  bool // an argument was given
}

// getopt takes a command line apart as getopt(3) does: options in clusters and
// in any place, arguments attached or as the next word, "--" as the end. spec is
// getopt's: ":" marks an argument, "::" an optional one. Beyond getopt an
// optional argument may also be the next word, if that does not begin with "-".
// Words that belong to no option come back in rest.
func getopt(args []string, spec string) (opts []opt, rest []string, err error) {
	for i := 0; i < len(args); i++ {
		w := args[i]
		if w == "--" {
			return opts, append(rest, args[i+1:]...), nil
		}
		if len(w) < 2 || w[0] != '-' {
			rest = append(rest, w)
			continue
		}
		for j := 1; j < len(w); j++ {
			colons, ok := lookupOpt(spec, w[j])
			if !ok {
				return nil, nil, fmt.Errorf("invalid option -- '%c'", w[j])
			}
			o := opt{name: w[j]}
			switch attached := w[j+1:]; {
			case colons == 0:
			case attached != "":
				o.arg, o.has = attached, true
			case colons == 1 && i+1 == len(args):
				return nil, nil, fmt.Errorf("option requires an argument -- '%c'", w[j])
			case colons == 1, i+1 < len(args) && !strings.HasPrefix(args[i+1], "-"):
				i++
				o.arg, o.has = args[i], true
			}
			opts = append(opts, o)
			if colons > 0 {
				break
			}
		}
	}
	return opts, rest, nil
}

func lookupOpt(spec string, c byte) (colons int, ok bool) {
	i := strings.IndexByte(spec, c)
	if i < 0 || c == ':' {
		return 0, false
	}
	for i++; i < len(spec) && spec[i] == ':'; i++ {
		colons++
	}
	return colons, true
}
