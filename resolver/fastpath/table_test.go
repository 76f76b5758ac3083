// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package fastpath

import (
	"math/rand/v2"
	"testing"

	"acmd/bpf"
)

// A chain has the questions of its entry, in whatever order they come and go.
func TestChain(t *testing.T) {
	var tab table
	tab.init(100)
	dst := ip(1)
	from := keyFor(&dst)
	in := map[*item]bool{}
	for i := range 2000 {
		if len(in) < 100 && rand.IntN(2) == 0 {
			q := question(1, true)
			in[tab.add(bpf.FastKey{Addr: [64]byte{byte(i), byte(i >> 8)}}, q, from)] = true
		} else {
			for it := range in { // any
				tab.remove(it)
				delete(in, it)
				break
			}
		}
		n := 0
		for it := tab.byCache[from]; it != nil; it = it.next {
			if n++; !in[it] || n > len(in) {
				t.Fatal("a question that is not there")
			}
		}
		if _, ok := tab.byCache[from]; n != len(in) || ok != (n > 0) {
			t.Fatalf("%d in the chain, want %d", n, len(in))
		}
	}
}
