// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package ring

import (
	"math/rand/v2"
	"sync"
	"testing"

	"pgregory.net/rapid"
)

// Every slot has one owner: each owner writes its own mark and finds it again.
func TestConcurrency(t *testing.T) {
	const slots, workers, rounds = 16, 8, 2000
	r := newRing(t, slots, true)
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(w), 1))
			var mine []*Slot
			for i := range rounds {
				if n := rnd.IntN(4); len(mine) > n {
					s := mine[0]
					mine = mine[1:]
					if got := s.Header().Agent(); got != uint32(w) {
						t.Errorf("worker %d found the mark of %d", w, got)
					}
					s.Release()
					continue
				}
				var got [3]*Slot
				for _, s := range got[:r.GetN(got[:1+i%3])] {
					s.Header().SetAgent(uint32(w))
					mine = append(mine, s)
				}
			}
			for _, s := range mine {
				s.Release()
			}
		})
	}
	wg.Wait()
	if r.Free() != slots {
		t.Errorf("free %d of %d", r.Free(), slots)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}

// The ring against a model: a set of borrowed slots.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 9).Draw(t, "slots")
		r, err := New(n, rapid.Bool().Draw(t, "poison"))
		if err != nil {
			t.Fatal(err)
		}
		out := map[*Slot]bool{}
		var order []*Slot
		borrow := func(s *Slot) {
			if out[s] {
				t.Fatalf("slot %d was lent twice", s.Index())
			}
			out[s] = true
			order = append(order, s)
		}
		t.Repeat(map[string]func(*rapid.T){
			"get": func(t *rapid.T) {
				s := r.Get()
				if (s == nil) != (len(out) == n) {
					t.Fatalf("Get = %v with %d of %d out", s, len(out), n)
				}
				if s != nil {
					borrow(s)
				}
			},
			"getN": func(t *rapid.T) {
				dst := make([]*Slot, rapid.IntRange(0, n+1).Draw(t, "want"))
				got := r.GetN(dst)
				if want := min(len(dst), n-len(out)); got != want {
					t.Fatalf("GetN(%d) = %d, want %d", len(dst), got, want)
				}
				for _, s := range dst[:got] {
					borrow(s)
				}
			},
			"release": func(t *rapid.T) {
				if len(order) == 0 {
					t.Skip("nothing is out")
				}
				i := rapid.IntRange(0, len(order)-1).Draw(t, "which")
				order[i].Release()
				delete(out, order[i])
				order = append(order[:i], order[i+1:]...)
			},
			"": func(t *rapid.T) {
				if r.Free() != n-len(out) {
					t.Fatalf("free %d, want %d", r.Free(), n-len(out))
				}
			},
		})
		for s := range out {
			s.Release()
		}
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

func TestAllocations(t *testing.T) {
	r := newRing(t, 8, false)
	var few [4]*Slot
	if n := testing.AllocsPerRun(100, func() {
		r.Get().Release()
		for _, s := range few[:r.GetN(few[:])] {
			s.Release()
		}
	}); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}

func BenchmarkGetRelease(b *testing.B) {
	r := newRing(b, 64, false)
	for b.Loop() {
		r.Get().Release()
	}
}
