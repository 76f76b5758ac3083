// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package main

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// suites are the Go benchmarks that the report quotes.
var suites = []struct{ pkg, pattern string }{
	{"./mad/sa", "Encode|Decode|View|PathMask|Records"},
	{"./mad/acm", "."},
	{"./mad/ring", "."},
	{"./resolver", "Lookup|PathTable"},
	{"./resolver/acmsock", "ParseAndReply"},
	{"./resolver/sa", "Path$|PathAlone|Fabric"},
	{"./mad/fabric", "PathGet|PathTable"},
	{"./resolver/preload", "."},
	{"./cache", "Get|MakeKey"},
}

// measured is one line of a Go benchmark's output.
type measured struct {
	name   string
	values map[string][]float64 // by unit
}

// gobench runs the Go benchmarks of the repository, and the cache beside others.
func (b *bench) gobench() {
	b.heading("Go benchmarks", fmt.Sprintf("`go test -bench`, medians of %d runs each.", b.rounds))
	time, count := "200ms", strconv.Itoa(b.rounds)
	if b.quick {
		time = "1x"
	}
	t := newTable("package", "benchmark", "ns/op", "allocs/op", "other figures")
	for _, s := range suites {
		out := b.command(b.root, "go", "test", "-run", "^$", "-bench", s.pattern, "-benchmem", "-benchtime", time, "-count", count, s.pkg)
		list := parseBench(out)
		if len(list) == 0 {
			b.Fatalf("%s: no benchmark matches %q", s.pkg, s.pattern)
		}
		for _, m := range list {
			t.row(strings.TrimPrefix(s.pkg, "./"), m.name, exact(median(m.values["ns/op"])), exact(median(m.values["allocs/op"])), m.others())
		}
	}
	b.heading("Cache beside others", "bench/cachebench: processor time per operation and goroutine, in nanoseconds; least of all rounds in brackets.")
	args := []string{"run", "./cachebench"}
	if b.quick {
		args = append(args, "-sizes", "1000", "-rounds", "1", "-slice", "5ms")
	}
	fmt.Printf("```\n%s```\n", b.command(filepath.Join(b.root, "bench"), "go", args...))
	if !b.quick {
		fmt.Printf("\n```\n%s```\n", b.command(filepath.Join(b.root, "bench"), "go", "run", "./cachebench", "-rss"))
	}
}

func exact(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }

// others lists the figures that a benchmark reports beside time and allocations.
func (m *measured) others() string {
	var list []string
	for unit, v := range m.values {
		if unit != "ns/op" && unit != "allocs/op" && unit != "B/op" {
			list = append(list, exact(median(v))+" "+unit)
		}
	}
	slices.Sort(list)
	return strings.Join(list, ", ")
}

// benchLine is "BenchmarkName-2  1000  12.3 ns/op  0 B/op".
var benchLine = regexp.MustCompile(`^Benchmark(\S+?)(?:-\d+)?\s+\d+\s+(.*)$`)

// parseBench collects the lines of each benchmark, in the order of their names'
// first appearance.
func parseBench(out string) (list []*measured) {
	for line := range strings.Lines(out) {
		p := benchLine.FindStringSubmatch(strings.TrimSpace(line))
		if p == nil {
			continue
		}
		i := slices.IndexFunc(list, func(m *measured) bool { return m.name == p[1] })
		if i < 0 {
			i = len(list)
			list = append(list, &measured{p[1], map[string][]float64{}})
		}
		f := strings.Fields(p[2])
		for k := 0; k+1 < len(f); k += 2 {
			if v, err := strconv.ParseFloat(f[k], 64); err == nil {
				list[i].values[f[k+1]] = append(list[i].values[f[k+1]], v)
			}
		}
	}
	return list
}
