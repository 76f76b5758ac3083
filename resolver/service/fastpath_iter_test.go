// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package service

import (
	"sync"
	"testing"

	"acmd/bpf"
)

// Where only iterators may change a socket map (Linux 7.3) clients are put there by a
// walk over the host's sockets, some time after they were answered. Whatever they do
// meanwhile, the replies are the daemon's.
func TestFastPathIterator(t *testing.T) {
	for _, mode := range fastModes {
		t.Run(mode, func(t *testing.T) {
			s := startFastWith(t, Options{inserter: bpf.FastInsertIter}, mode, "fast_path_miss wait")
			s.t = t
			if plan := s.fast.State().Plan; plan.Insert != bpf.FastInsertIter || plan.All != (mode == "kernel-all") {
				t.Fatalf("plan %+v", plan)
			}
			s.cases(t, shapes[:3]) // the reply as long as the request, longer, shorter
			walkedTogether(s)
			flushedAndSwitched(s)
			if st := s.fast.State(); mode == "kernel" && (st.Inserted == 0 || st.Refused != 0) {
				t.Errorf("%d sockets were put onto the map, %d refused", st.Inserted, st.Refused)
			}
		})
	}
}

// walkedTogether has many clients come at once: one walk takes several of them, and
// each is answered by the kernel in the end.
func walkedTogether(s *fastSite) {
	const clients = 64
	req := s.get(shapes[2], 1)
	s.want(req) // known from here on
	k := make([]*fastClient, clients)
	for i := range k {
		k[i] = s.dial(s.t)
	}
	var wg sync.WaitGroup
	for i := range k {
		wg.Go(func() {
			for range 50 {
				k[i].send(req)
				s.replies(k[i], req)
			}
		})
	}
	wg.Wait()
	for i := range k {
		s.warm(k[i], req)
		s.mustHit(k[i], req)
		k[i].close()
	}
}

// flushedAndSwitched: both are in force when they return, on connections that a walk
// put onto the map too.
func flushedAndSwitched(s *fastSite) {
	k := s.dial(s.t)
	req := s.get(shapes[2], 3)
	for range 20 {
		s.warm(k, req)
		s.engine.FlushAll()
		hits := s.hits()
		k.send(req)
		s.replies(k, req)
		if s.hits() != hits {
			s.t.Fatal("answered by the kernel after a flush")
		}
	}
	s.warm(k, req)
	if err := s.switchFastPath(false); err != nil {
		s.t.Fatal(err)
	}
	s.mustPass(k, req)
	if err := s.switchFastPath(true); err != nil {
		s.t.Fatal(err)
	}
	s.mustHit(k, req)
}
