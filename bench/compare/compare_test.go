// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package main

import (
	"errors"
	"slices"
	"testing"
	"time"

	"acmd/mad"
	"acmd/mad/fabric"
	"acmd/mad/sa"
)

func TestMedian(t *testing.T) {
	for _, tc := range []struct {
		in   []float64
		want float64
	}{{nil, 0}, {[]float64{3}, 3}, {[]float64{9, 1, 5}, 5}, {[]float64{4, 1, 3, 2}, 2}} {
		in := slices.Clone(tc.in)
		if got := median(tc.in); got != tc.want || !slices.Equal(in, tc.in) {
			t.Errorf("median of %v: %v, list is now %v", in, got, tc.in)
		}
	}
}

func TestQuartiles(t *testing.T) {
	for _, tc := range []struct {
		in   []float64
		want string
		mean float64
	}{{[]float64{3}, "3.00..3.00", 3}, {[]float64{9, 1, 5}, "3.00..7.00", 5}, {[]float64{5, 1, 4, 2, 3}, "2.00..4.00", 3}, {[]float64{4, 1, 3, 2}, "1.75..3.25", 2.5}} {
		runs := make([]result, len(tc.in))
		for i, v := range tc.in {
			runs[i].PerSec = v
		}
		if got := quartiles(runs, perSec, "%.2f"); got != tc.want {
			t.Errorf("quartiles of %v: %s, want %s", tc.in, got, tc.want)
		}
		if got := mean(runs, perSec); got != tc.mean {
			t.Errorf("mean of %v: %v, want %v", tc.in, got, tc.mean)
		}
	}
}

func TestFigures(t *testing.T) {
	for in, want := range map[any]string{
		0.0: "-", 0.123: "0.12", 9.999: "10.00", 12.34: "12.3", 123.6: "124", 1234.0: "1 234", 1234567.0: "1 234 567",
		7: "7", "x": "x", time.Millisecond: "1ms",
	} {
		if got := figure(in); got != want {
			t.Errorf("%v: %q, want %q", in, got, want)
		}
	}
	if ratio(1, 0) != 0 || ratio(3, 2) != 1.5 {
		t.Error("ratio")
	}
}

func TestMarks(t *testing.T) {
	b := &bench{}
	b.atMost("a", 1, 1, "x")
	b.atMost("b", 1.01, 1, "x")
	b.atMost("nothing measured", 0, 1, "x")
	b.atLeast("c", 1, 1, "x")
	b.atLeast("d", .99, 1, "x")
	b.exactly("e", 3, 3)
	b.exactly("f", 4, 3)
	var ok []bool
	for _, m := range b.marks {
		ok = append(ok, m.ok)
	}
	if want := []bool{true, false, false, true, false, true, false}; !slices.Equal(ok, want) {
		t.Errorf("%v, want %v", ok, want)
	}
}

func TestParseBench(t *testing.T) {
	list := parseBench("goos: linux\nBenchmarkGet/n=1000-2  \t 5 \t 10.5 ns/op\t 0 B/op\t 0 allocs/op\nBenchmarkOther \t 1 \t 7 ns/op\t 9.5 MB/s\n" +
		"BenchmarkGet/n=1000-2  \t 5 \t 20 ns/op\t 0 B/op\t 2 allocs/op\nPASS\nok x 1s\n")
	if len(list) != 2 || list[0].name != "Get/n=1000" || list[1].name != "Other" {
		t.Fatalf("%+v", list)
	}
	if v := list[0].values; !slices.Equal(v["ns/op"], []float64{10.5, 20}) || !slices.Equal(v["allocs/op"], []float64{0, 2}) {
		t.Errorf("%v", v)
	}
	if got := list[1].others(); got != "9.5 MB/s" {
		t.Errorf("%q", got)
	}
}

// Clean-ups run last first, those of a scope at its end, and all of them after a
// fatal error.
func TestCleanUps(t *testing.T) {
	var order []int
	note := func(n int) func() { return func() { order = append(order, n) } }
	b := newTB()
	err := b.run(func() {
		b.Cleanup(note(4))
		b.scope(func() {
			b.Cleanup(note(2))
			b.Cleanup(note(1))
		})
		order = append(order, 0)
		b.scope(func() {
			b.Cleanup(note(3))
			b.Fatalf("end: %w", errDummy)
		})
		t.Error("went on after a fatal error")
	})
	if !errors.Is(err, errDummy) || !b.Failed() {
		t.Errorf("error %v", err)
	}
	if want := []int{1, 2, 0, 3, 4}; !slices.Equal(order, want) {
		t.Errorf("order %v, want %v", order, want)
	}
}

var errDummy = errors.New("dummy")

// The watcher that marks the storm sees a second question for the same path.
func TestWatcher(t *testing.T) {
	w := &watcher{asked: map[mad.GID]int{}}
	e := fabric.Event{Kind: fabric.Sent, Time: time.Unix(1, 0)}
	w.see(e) // no SA question
	question(&e)
	w.see(e)
	w.see(e)
	e.Kind = fabric.Delivered
	w.see(e)
	if w.total != 2 || w.most != 2 || w.outstanding != 1 || len(w.asked) != 1 {
		t.Errorf("%+v", w)
	}
}

func question(e *fabric.Event) {
	sa.Init(&e.MAD, mad.MethodGet, sa.AttrPathRecord, sa.PathDGID)
}
