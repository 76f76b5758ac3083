// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package resolver

import (
	"slices"
	"testing"

	"acmd/cache"
	"acmd/mad"
	"acmd/mad/sa"

	"pgregory.net/rapid"
)

func TestPathTableCrowded(t *testing.T) {
	const n = 200_000
	for name, gid := range map[string]func(uint64) mad.GID{
		"in a row":        func(i uint64) mad.GID { return mad.MakeGID(prefix, mad.GUID(i+1)) },
		"far apart":       func(i uint64) mad.GID { return mad.MakeGID(prefix, mad.GUID((i+1)<<40)) },
		"one GUID":        func(i uint64) mad.GID { return mad.MakeGID(i<<16, 7) },
		"prefix and GUID": func(i uint64) mad.GID { return mad.MakeGID(i&0x1ff<<32, mad.GUID(i>>9+1)) },
		"hash unseeded":   func(i uint64) mad.GID { return mad.MakeGID(prefix, mad.GUID((i+1)*0xf1de83e19937733d)) },
	} {
		paths := make([]sa.PathRecord, n)
		for i := range paths {
			paths[i].SetDGID(gid(uint64(i)))
			paths[i].SetDLID(mad.LID(i%0xbfff) + 1)
		}
		last := paths[n-1]
		last.SetDLID(0)
		tab := newPathTable(paths, 1, 1, func(*sa.PathRecord) bool { return true })
		longest, run := 0, 0
		for _, at := range tab.gids {
			if run++; at == 0 {
				longest, run = max(longest, run), 0
			}
		}
		if longest > 2000 || tab.find(&last) != n-1 || len(tab.lids) != 0xbfff {
			t.Errorf("%s: %d in a row, last found at %d, %d LIDs", name, longest, tab.find(&last), len(tab.lids))
		}
	}
}

func TestPathTableModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		guids := rapid.SliceOfN(rapid.Uint64Range(1, 400), 0, 300).Draw(t, "guids")
		var paths []sa.PathRecord
		byGID, byLID := map[mad.GID]sa.PathRecord{}, map[mad.LID]sa.PathRecord{}
		for i, g := range guids {
			var r sa.PathRecord
			r.SetDGID(mad.MakeGID(prefix+g%3, mad.GUID(g<<rapid.IntRange(0, 40).Draw(t, "shift"))))
			r.SetDLID(mad.LID(rapid.IntRange(1, 0xbfff).Draw(t, "lid")))
			r.SetServiceID(uint64(i))
			paths = append(paths, r)
			if i%7 == 0 {
				continue // does not fit
			}
			if _, ok := byGID[r.DGID()]; !ok {
				byGID[r.DGID()] = r
			}
			if _, ok := byLID[r.DLID()]; !ok {
				byLID[r.DLID()] = r
			}
		}
		all := slices.Clone(paths)
		tab := newPathTable(paths, 1, cache.Epoch(2), func(r *sa.PathRecord) bool { return r.ServiceID()%7 != 0 })
		check := func(route *sa.PathRecord, want sa.PathRecord, there bool) {
			n := tab.find(route)
			if there != (n >= 0) || there && tab.paths[n] != want {
				t.Fatalf("found %d for % x, want % x, %v", n, *route, want, there)
			}
		}
		lookAt := func() {
			for i := range all {
				var g, l sa.PathRecord
				g.SetDGID(all[i].DGID())
				l.SetDLID(all[i].DLID())
				want, there := byGID[all[i].DGID()]
				check(&g, want, there)
				want, there = byLID[all[i].DLID()]
				check(&l, want, there)
			}
		}
		lookAt()
		check(pathRoute(1<<60), sa.PathRecord{}, false)
		for i := 0; i < len(all); i += 5 {
			var g sa.PathRecord
			g.SetDGID(all[i].DGID())
			tab.drop(&g)
			gone, had := byGID[g.DGID()]
			delete(byGID, g.DGID())
			if had && byLID[gone.DLID()] == gone {
				delete(byLID, gone.DLID())
			}
		}
		lookAt()
	})
}

func BenchmarkPathTable(b *testing.B) {
	const n = 40_000
	from := make([]sa.PathRecord, n)
	for i := range from {
		from[i].SetDGID(mad.MakeGID(prefix, mad.GUID(0x0002c90300000000+uint64(i)*0x10)))
		from[i].SetDLID(mad.LID(i + 1))
		from[i].SetSGID(gidOf(5))
		from[i].SetPKey(0xffff)
	}
	fits := func(p *sa.PathRecord) bool { return p.SGID() == gidOf(5) && p.PKey().Matches(0xffff) }
	build := func() *pathTable { return newPathTable(slices.Clone(from), 1, 1, fits) }
	b.Run("build", func(b *testing.B) {
		for b.Loop() {
			if tab := build(); len(tab.paths) != n {
				b.Fatal(len(tab.paths))
			}
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/path")
	})
	for name, clear := range map[string]func(*sa.PathRecord){
		"by GID": func(p *sa.PathRecord) { p.SetDLID(0) },
		"by LID": func(p *sa.PathRecord) { p.SetDGID(mad.GID{}) },
	} {
		b.Run(name, func(b *testing.B) {
			tab := build()
			routes := slices.Clone(from)
			for i := range routes {
				clear(&routes[i])
			}
			i := uint32(1)
			for b.Loop() {
				i = i*1664525 + 1013904223
				if tab.find(&routes[uint64(i)*n>>32]) < 0 {
					b.Fatal("not found")
				}
			}
		})
	}
}
