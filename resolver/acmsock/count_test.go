// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acmsock

import (
	"testing"
	"time"

	"acmd/bpf"
	"acmd/resolver"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// counted reads the counters that are not 0.
func counted(m *bpf.Maps) map[bpf.Word]uint64 {
	var s bpf.Snapshot
	m.Read(&s)
	got := map[bpf.Word]uint64{}
	for w, n := range s.Words {
		if n != 0 && bpf.Word(w) != bpf.BytesIn && bpf.Word(w) != bpf.BytesOut {
			got[bpf.Word(w)] = n
		}
	}
	return got
}

// Every request counts by kind and every reply by status, under the door that it
// came through; what was answered at once is timed.
func TestCounted(t *testing.T) {
	for door, mode := range map[bpf.Door]Mode{bpf.DoorUnix: ModeUnix, bpf.DoorTCP: ModeLoop} {
		t.Run(door.String(), func(t *testing.T) {
			f := goldenEndpoints()
			m := bpf.NewMemory()
			s := serve(t, f, func(c *Config) { c.Counters, c.Mode = m, mode })
			c := dialServer(t, s)
			for _, q := range [][]byte{
				ask(1, 0, 1), ask(2, 3, 2), ask(3, 4, 3), // at once, later, no data
				AppendResolve(nil, 4, PathQuery(examplePath(), 0)),
				AppendResolve(nil, 5, PathQuery(examplePath(), FlagQuerySA)),
				AppendResolve(nil, 6), // no destination
				AppendPerf(nil, 7, 0, nil), AppendPerf(nil, 8, 99, nil),
				AppendEndpoint(nil, 9, 1, 0),
			} {
				mustWrite(t, c, q)
				readReply(t, c)
			}
			mustWrite(t, c, append([]byte{9}, make([]byte, 15)...)) // no version of ours
			readReply(t, c)
			wantEOF(t, c)
			ok, req := func(st resolver.Status) bpf.Word { return bpf.ReplyWord(door, uint8(st)) }, func(k bpf.Kind) bpf.Word { return bpf.RequestWord(door, k) }
			want := map[bpf.Word]uint64{
				req(bpf.KindAddress): 4, req(bpf.KindPath): 1, req(bpf.KindSA): 1, req(bpf.KindPerf): 2, req(bpf.KindEndpoint): 1, req(bpf.KindInvalid): 1,
				ok(resolver.StatusSuccess): 6, ok(resolver.StatusNoData): 1, ok(resolver.StatusDestType): 1, ok(resolver.StatusSrcAddr): 1, ok(resolver.StatusInvalid): 1,
				bpf.DoorRefused: 1, bpf.Accepted: 1,
			}
			if d := cmp.Diff(want, counted(m)); d != "" {
				t.Error(d)
			}
			var snap bpf.Snapshot
			m.Read(&snap)
			if n := snap.Latency[bpf.LatHit].Count(); n != 4 { // the two that the fake answered later are the engine's to time
				t.Errorf("%d requests timed as answered at once", n)
			}
			st := s.Stats()
			eventually(t, "bytes", func() bool {
				m.Read(&snap)
				return snap.Words[bpf.BytesIn] == st.BytesIn && snap.Words[bpf.BytesOut] == st.BytesOut && st.BytesIn > 0
			})
		})
	}
}

// Whoever has a reply finds it counted, at any moment.
func TestCountedBeforeReply(t *testing.T) {
	m := bpf.NewMemory()
	s := serve(t, newFake(), func(c *Config) { c.Counters = m })
	c := dialServer(t, s)
	word := bpf.ReplyWord(bpf.DoorUnix, 0)
	var snap bpf.Snapshot
	for i := range 500 {
		mustWrite(t, c, ask(uint64(i+1), 0, i%100))
		readReply(t, c)
		m.Read(&snap)
		if n := snap.Words[word]; n != uint64(i+1) || snap.Latency[bpf.LatHit].Count() != n {
			t.Fatalf("%d replies received, %d counted, %d timed", i+1, n, snap.Latency[bpf.LatHit].Count())
		}
	}
}

// Connections that are turned away and replies that have nobody left count too.
func TestCountedLosses(t *testing.T) {
	m := bpf.NewMemory()
	f := newFake()
	s := serve(t, f, func(c *Config) { c.Counters, c.MaxClients = m, 1 })
	c := dialServer(t, s)
	mustWrite(t, c, append(ask(1, 1, 1), ask(2, 0, 2)...))
	eventually(t, "held", func() bool { return f.waiting() == 1 })
	wantEOF(t, dialServer(t, s))
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "counts", func() bool {
		n := counted(m)
		return n[bpf.Rejected] == 1 && n[bpf.Unsent] == 2
	})
	f.releaseAll()
	if n := counted(m); n[bpf.Accepted] != 1 {
		t.Errorf("%d accepted", n[bpf.Accepted])
	}
}

// stepClock is a resolver whose clock moves when it is told to.
type stepClock struct {
	*fakeResolver
	now int64
}

func (r *stepClock) Now() int64 { return r.now }

func (r *stepClock) Endpoints() []*resolver.Endpoint {
	r.now += int64(time.Second)
	return nil
}

func (r *stepClock) Resolve(q *resolver.Query, tag uint64, w resolver.Waiter) {
	r.now += int64(time.Second)
	r.fakeResolver.Resolve(q, tag, w)
}

// What a turn does between two hits is no part of the second one's time.
func TestHitTimedAlone(t *testing.T) {
	for name, between := range map[string]func(r *stepClock, l *loop, other func([]byte)){
		"a hit":             func(_ *stepClock, _ *loop, other func([]byte)) { other(ask(1, 0, 1)) },
		"an endpoint query": func(_ *stepClock, _ *loop, other func([]byte)) { other(AppendEndpoint(nil, 1, 1, 0)) },
		"a miss":            func(_ *stepClock, _ *loop, other func([]byte)) { other(ask(1, 1, 1)) },
		"connections": func(r *stepClock, l *loop, _ func([]byte)) {
			r.now += int64(time.Second)
			l.event(&unix.EpollEvent{Pad: markListener})
		},
		"answers for others": func(r *stepClock, l *loop, _ func([]byte)) { r.now += int64(time.Second); l.mail() },
	} {
		l, _ := lingering(t)
		r := &stepClock{newFake(), int64(time.Hour)}
		l.srv.r = r
		c, fd := l.connected(t)
		o, ofd := l.connected(t)
		l.asked(t, c, fd, ask(1, 0, 1))
		between(r, l, func(b []byte) { l.asked(t, o, ofd, b) })
		var before, after bpf.Snapshot
		l.srv.cfg.Counters.Read(&before)
		l.asked(t, c, fd, ask(2, 0, 2))
		l.srv.cfg.Counters.Read(&after)
		hit := after.Latency[bpf.LatHit]
		hit.Sub(&before.Latency[bpf.LatHit])
		if hit.Count() != 1 || hit.Sum != 0 {
			t.Errorf("%s: %d hits timed, %v", name, hit.Count(), time.Duration(hit.Sum))
		}
	}
}
