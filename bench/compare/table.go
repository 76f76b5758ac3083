// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package main

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// median of a list; the lower of the two in the middle. 0 for none.
func median(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	s := slices.Clone(v)
	slices.Sort(s)
	return s[(len(s)-1)/2]
}

// med is the median of one figure of several runs.
func med[T any](runs []T, get func(*T) float64) float64 { return median(figures(runs, get)) }

// figures is one figure of each run.
func figures[T any](runs []T, get func(*T) float64) []float64 {
	v := make([]float64, len(runs))
	for i := range runs {
		v[i] = get(&runs[i])
	}
	return v
}

func perSec(r *result) float64 { return r.PerSec }
func p50(r *result) float64    { return r.P50us }
func p99(r *result) float64    { return r.P99us }
func p999(r *result) float64   { return r.P999us }
func maxUs(r *result) float64  { return r.MaxUs }
func cpu1M(r *result) float64  { return r.CPUPer1M }

func switches(r *result) float64 { return r.Switches }

// ratio is 0 where there is nothing to divide by.
func ratio(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

// spread tells how far the runs are apart: least and greatest.
func spread[T any](runs []T, get func(*T) float64, format string) string {
	low, high := get(&runs[0]), get(&runs[0])
	for i := range runs {
		low, high = min(low, get(&runs[i])), max(high, get(&runs[i]))
	}
	return fmt.Sprintf(format+".."+format, low, high)
}

// quartiles bound the middle half of the runs, between two of them if need be.
func quartiles[T any](runs []T, get func(*T) float64, format string) string {
	v := figures(runs, get)
	slices.Sort(v)
	at := func(q float64) float64 {
		whole, part := math.Modf(q * float64(len(v)-1))
		i := int(whole)
		return v[i] + part*(v[min(i+1, len(v)-1)]-v[i])
	}
	return fmt.Sprintf(format+".."+format, at(.25), at(.75))
}

// mean of one figure of several runs.
func mean[T any](runs []T, get func(*T) float64) (sum float64) {
	for i := range runs {
		sum += get(&runs[i])
	}
	return ratio(sum, float64(len(runs)))
}

// table prints itself in Markdown as it grows.
type table struct{ columns int }

func newTable(columns ...string) *table {
	fmt.Println("| " + strings.Join(columns, " | ") + " |")
	fmt.Println("|" + strings.Repeat("---|", len(columns)))
	return &table{len(columns)}
}

func (t *table) row(cells ...any) {
	if len(cells) != t.columns {
		panic(fmt.Sprintf("table of %d columns: row of %d", t.columns, len(cells)))
	}
	text := make([]string, len(cells))
	for i, c := range cells {
		text[i] = figure(c)
	}
	fmt.Println("| " + strings.Join(text, " | ") + " |")
}

// figure writes a number with three digits that matter, four before the point.
func figure(c any) string {
	f, ok := c.(float64)
	switch {
	case !ok:
		return fmt.Sprint(c)
	case f == 0:
		return "-"
	case f >= 100:
		return grouped(int64(f + .5))
	case f >= 10:
		return fmt.Sprintf("%.1f", f)
	}
	return fmt.Sprintf("%.2f", f)
}

// grouped writes an integer with a space between thousands.
func grouped(n int64) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + " " + s[i:]
	}
	return s
}

// mark is something that must be reached.
type mark struct {
	what, must, reached string
	ok                  bool
}

// atMost notes that got must not be above limit.
func (b *bench) atMost(what string, got, limit float64, unit string) {
	b.marks = append(b.marks, mark{what, "<= " + figure(limit) + unit, figure(got) + unit, got > 0 && got <= limit})
}

// atLeast notes that got must not be below limit.
func (b *bench) atLeast(what string, got, limit float64, unit string) {
	b.marks = append(b.marks, mark{what, ">= " + figure(limit) + unit, figure(got) + unit, got >= limit})
}

// exactly notes that got must be want.
func (b *bench) exactly(what string, got, want int64) {
	b.marks = append(b.marks, mark{what, grouped(want), grouped(got), got == want})
}

// printMarks returns how many were missed.
func (b *bench) printMarks() (missed int) {
	if len(b.marks) == 0 {
		return 0
	}
	fmt.Println()
	t := newTable("mark", "must reach", "reached", "")
	for _, m := range b.marks {
		verdict := "yes"
		if !m.ok {
			verdict = "**no**"
			missed++
		}
		t.row(m.what, m.must, m.reached, verdict)
	}
	return missed
}
