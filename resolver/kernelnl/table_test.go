// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package kernelnl

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// The table against a plain list: requests wait in order of arrival, a tag works
// once, and the number of those that the engine works on is bounded.
func TestTable(t *testing.T) {
	type entry struct {
		tag     uint64
		seq     uint32
		tell    time.Time
		waiting bool
	}
	rapid.Check(t, func(t *rapid.T) {
		const limit = 5
		table := newTable(limit)
		var model []entry // in order of arrival
		var old []uint64  // tags that are used up
		now, seq := time.Unix(0, 0), uint32(0)
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				seq++
				tell := now.Add(10)
				tag, ok := table.add(&Header{Seq: seq}, tell, tell.Add(5))
				if ok != (len(model) < limit) {
					t.Fatalf("add = %v with %d in it", ok, len(model))
				}
				if ok {
					model = append(model, entry{tag, seq, tell, true})
				}
			},
			"finish": func(t *rapid.T) {
				if len(model) == 0 {
					t.Skip("empty")
				}
				i := rapid.IntRange(0, len(model)-1).Draw(t, "which")
				e := model[i]
				was, ok := table.finish(e.tag)
				if !ok || was.h.Seq != e.seq || was.waiting != e.waiting {
					t.Fatalf("finish = %+v, %v, want %+v", was, ok, e)
				}
				model, old = slices.Delete(model, i, i+1), append(old, e.tag)
			},
			"finish again": func(t *rapid.T) {
				tag := rapid.Uint64().Draw(t, "tag")
				if len(old) > 0 && rapid.Bool().Draw(t, "old") {
					tag = rapid.SampledFrom(old).Draw(t, "tag")
				}
				if !slices.ContainsFunc(model, func(e entry) bool { return e.tag == tag }) {
					if was, ok := table.finish(tag); ok {
						t.Fatalf("finish of a tag that is not out = %+v", was)
					}
				}
			},
			"due": func(t *rapid.T) {
				i := slices.IndexFunc(model, func(e entry) bool { return e.waiting && !e.tell.After(now) })
				s, ok := table.due(now)
				if ok != (i >= 0) || ok && s.h.Seq != model[i].seq {
					t.Fatalf("due = %+v, %v, want entry %d of %+v", s, ok, i, model)
				}
				if ok {
					model[i].waiting = false
				}
			},
			"time": func(t *rapid.T) { now = now.Add(time.Duration(rapid.IntRange(1, 8).Draw(t, "ns"))) },
			"": func(t *rapid.T) {
				waiting, next := 0, time.Time{}
				for _, e := range model {
					if e.waiting {
						if waiting++; waiting == 1 {
							next = e.tell
						}
					}
				}
				if table.waiting != waiting || !table.next().Equal(next) {
					t.Fatalf("%d wait until %v, want %d, %v", table.waiting, table.next(), waiting, next)
				}
			},
		})
	})
}
