// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package preload

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// What two readings do not both say the same of is named once, whichever is later.
func TestDiffer(t *testing.T) {
	later := strings.NewReplacer("other fe80::99", "other fe80::98", "off fe80::10:9\n", "new fe80::7\n").Replace(hosts)
	dump := strings.NewReplacer("0x0002 : 1  : 5", "0x0002 : 1  : 4", "0x0005 : 0  : 4   : 3   \n0x0009", "0x0009").Replace(small)
	a, _ := load(t, hosts, small)
	b, _ := load(t, later, dump)
	none, _ := load(t, "", "")
	list := func(from, to *Source) (list []string) {
		for addr := range from.Reading().Differ(to.Reading()) {
			list = append(list, addr.String())
		}
		slices.Sort(list)
		return list
	}
	want := []string{ // LIDs are numbers
		"2", "5", "new", "off", "other",
	}
	for _, c := range []struct {
		from, to *Source
		want     []string
	}{
		{a, b, want}, {b, a, want}, {a, a, nil}, {none, none, nil},
		{none, a, []string{"1", "10", "11", "2", "4", "5", "node1", "off", "other", "routed"}},
	} {
		if d := cmp.Diff(c.want, list(c.from, c.to)); d != "" {
			t.Error(d)
		}
	}
	for range none.Reading().Differ(a.Reading()) {
		break
	}
}
