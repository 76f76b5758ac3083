// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package service

import (
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"acmd/mad"
	"acmd/mad/fabric"
	madsa "acmd/mad/sa"
	"acmd/resolver"
	"acmd/resolver/control"
)

// raceHits is how many hits race with invalidations: ACMD_RACE, or what takes some
// seconds.
func raceHits() uint64 {
	n, err := strconv.ParseUint(os.Getenv("ACMD_RACE"), 10, 64)
	if err != nil {
		return 40000
	}
	return n
}

const (
	firstLID = 8000  // of those that the destination gets one after the other
	lastLID  = 38000 // and ours from here on
	// minRounds is how often each kind of invalidation comes at least.
	minRounds = 5
)

// A destination gets one LID after the other, and so do we; each time the path is
// invalidated, in all ways that there are: flushed by request, by a notice of the
// SM, and by an event of our own port. No request that is sent after that was
// acknowledged is answered with a LID from before, though SA answers from before
// come after it. A flush is acknowledged when it returns, a notice when the daemon
// sends its answer to the Report, an event when the daemon has told who follows its
// endpoints.
func TestFastPathInvalidationRace(t *testing.T) {
	for _, mode := range fastModes {
		t.Run(mode, func(t *testing.T) {
			ours := make(chan mad.LID, 64) // as the daemon tells it
			s := startFastTuned(t, mode, func(c *resolver.Config) {
				tell := c.OnTopology
				c.OnTopology = func(eps []*resolver.Endpoint) {
					tell(eps)
					if len(eps) > 0 {
						ours <- eps[0].Port.LID
					}
				}
			})
			s.t = t
			reports := watchReports(t, s)
			s.f.AddRule(fabric.Rule{On: fabric.Deliveries, Class: mad.ClassSA, Attr: madsa.AttrPathRecord, DelayMax: 2 * time.Millisecond})
			const node = 3
			gid := s.f.GID(node, 1)
			ep := s.engine.Endpoints()[0]
			port := ep.Device + "/" + strconv.Itoa(int(ep.Port.Num))
			reqs := [][]byte{s.request(shapes[0], 1, node), s.request(shapes[1], 2, node), s.request(shapes[2], 3, node), s.request(shapes[5], 4, node)}

			var acked, ackedOurs, answers, nodata atomic.Uint64
			var stop atomic.Bool
			var wg sync.WaitGroup
			for c := range 2 {
				wg.Go(func() {
					k := s.dial(t)
					defer k.close()
					for i := 0; !stop.Load(); i++ {
						least, leastOurs := acked.Load(), ackedOurs.Load()
						k.send(reqs[(i+c)%len(reqs)])
						r := k.message()
						if r[2] != 0 {
							nodata.Add(1)
							continue
						}
						answers.Add(1)
						path := (*madsa.PathRecord)(r[24:88])
						if lid := uint64(path.DLID()); least > 0 && lid < firstLID+least {
							t.Errorf("LID %d in the reply to a request sent after all below %d were void", lid, firstLID+least)
							return
						}
						if lid := uint64(path.SLID()); leastOurs > 0 && lid < lastLID+leastOurs {
							t.Errorf("path from LID %d in the reply to a request sent after we had %d", lid, lastLID+leastOurs)
							return
						}
					}
				})
			}
			total := raceHits() / uint64(len(fastModes))
			end := time.Now().Add(10*time.Minute + patience)
			last := uint64(0)
			flush := func(r control.FlushRequest) {
				if _, err := s.Flush(t.Context(), r); err != nil {
					t.Fatal(err)
				}
			}
			notice := func(trap uint16) {
				told := reports.next(trap, gid, func() {})
				s.f.Notify(trap, gid)
				select {
				case <-told:
				case <-time.After(patience):
					t.Fatalf("trap %d was not answered", trap)
				}
			}
			event := func(n uint64) {
				lid := mad.LID(lastLID + n)
				if err := s.f.SetLID(0, 1, lid); err != nil {
					t.Fatal(err)
				}
				for late := time.After(patience); ; {
					select {
					case l := <-ours:
						if l != lid {
							continue
						}
						ackedOurs.Store(n)
						return
					case <-late:
						t.Fatalf("our LID %v was not seen", lid)
					}
				}
			}
			var kinds [7]int
			v := uint64(1)
			for ; (s.hits() < total || v <= uint64(minRounds*len(kinds))) && !t.Failed() && firstLID+v < lastLID; v++ {
				if err := s.f.SetLID(node, 1, mad.LID(firstLID+v)); err != nil {
					t.Fatal(err)
				}
				kind := v % uint64(len(kinds))
				kinds[kind]++
				switch kind {
				case 0:
					flush(control.FlushRequest{All: true})
				case 1:
					flush(control.FlushRequest{GID: gid.String()})
				case 2:
					flush(control.FlushRequest{LID: uint16(firstLID + v - 1)})
				case 3:
					flush(control.FlushRequest{Port: port})
				case 4:
					notice(madsa.TrapGIDOutOfService)
				case 5:
					notice(madsa.TrapGIDInService)
				case 6:
					event(uint64(kinds[kind]))
				}
				acked.Store(v)
				// Until the path is in the kernel again and has raced for a while.
				for s.hits() < last+20 && !t.Failed() {
					if time.Now().After(end) {
						t.Fatalf("no hits any more: %+v", s.fast.State())
					}
					runtime.Gosched()
				}
				last = s.hits()
			}
			stop.Store(true)
			wg.Wait()
			t.Logf("invalidations: %d by request, %d by notice, %d by event; %d answers, %d of them by the kernel, %d without data",
				kinds[0]+kinds[1]+kinds[2]+kinds[3], kinds[4]+kinds[5], kinds[6], answers.Load(), s.hits(), nodata.Load())
			if s.hits() < total {
				t.Errorf("%d hits in the kernel, want %d", s.hits(), total)
			}
		})
	}
}

// A path that only the kernel answers is neither evicted by a flood of others nor
// allowed to end: it is looked up again before.
func TestFastPathUse(t *testing.T) {
	const life = 20 * time.Second // a refresh is due 5 s before its end
	s := startFastTuned(t, "kernel", func(c *resolver.Config) {
		c.AddrTimeout, c.CacheSize = life, 64
	})
	h := shapes[2]
	k := s.dial(t)
	req := s.get(h, 1)
	s.warm(k, req)
	base := s.fast.State().Messages
	asked := s.door.Stats().Requests
	var flood atomic.Uint64
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() { // far more than the cache has room for, over and over
		u := s.dialUnix()
		defer u.close()
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			u.send(s.request(h, 1, 100+i%900))
			u.message()
			flood.Add(1)
		}
	})
	want := s.want(req)
	n := 0
	for end := time.Now().Add(life + life/5); time.Now().Before(end); n++ {
		k.send(req)
		if got := k.message(); string(got) != string(want) {
			t.Fatalf("got %x\nwant %x", got, want)
		}
	}
	close(stop)
	wg.Wait()
	st := s.fast.State()
	for word, have := range st.Messages {
		if have != base[word] && word != "hit" && word != "split" {
			t.Errorf("%s: %d messages", word, have-base[word])
		}
	}
	if hits := st.Messages["hit"] - base["hit"]; hits != uint64(n) {
		t.Errorf("%d hits for %d replies", hits, n)
	}
	// One request more for what the daemon itself says about req.
	if d := s.door.Stats().Requests - asked - flood.Load(); d > 1 {
		t.Errorf("the daemon was asked %d times", d)
	}
	if st.Refreshed == 0 {
		t.Error("nothing was refreshed")
	}
	t.Logf("%d hits, %d requests beside them, %d evicted, %d refreshed", n, flood.Load(), s.engine.CacheStats().Evicted, st.Refreshed)
	if s.engine.CacheStats().Evicted == 0 {
		t.Error("the cache was never full")
	}
}
