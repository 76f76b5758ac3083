// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package neigh

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"acmd/mad"
	"acmd/mad/transport"
	"acmd/resolver"
	"acmd/resolver/hostnet"
	"acmd/resolver/rtnl"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func gid(n byte) mad.GID { return mad.GID{0: 0xfe, 1: 0x80, 8: 2, 15: n} }

// hw is the hardware address of a port's interface.
func hw(g mad.GID) (a rtnl.LinkAddr) {
	a[0], a[3] = 0x80, 0x48
	copy(a[4:], g[:])
	return a
}

func addr(s string) resolver.Addr { return resolver.IPAddr(netip.MustParseAddr(s)) }

// fake is a kernel: a table of neighbours, routes by prefix and interface, and what
// it does when it is made to ask. The source's goroutines look at it at any time, also
// while a test goes on after a begin: a test gets at the fields through methods only.
type fake struct {
	mu       sync.Mutex
	entries  map[entry]rtnl.Neigh
	routes   map[string]rtnl.Route // "PREFIX INDEX"
	peers    map[entry]mad.GID     // who answers
	slow     time.Duration         // how long that takes
	solicits map[entry]int
	fail     error // of everything
	block    chan struct{}
	dumps    int
	open     int
	moved    []mad.GID

	news   chan any // a rtnl.Neigh, or an error
	closed chan struct{}
}

func (f *fake) do(fn func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	fn()
}

// get and set are for the fields that are not maps.
func get[T any](f *fake, field *T) (v T) {
	f.do(func() { v = *field })
	return v
}

func set[T any](f *fake, field *T, v T) { f.do(func() { *field = v }) }

// asked tells how often the kernel was made to ask for an entry.
func (f *fake) asked(e entry) (n int) {
	f.do(func() { n = f.solicits[e] })
	return n
}

// allAsked is what the kernel was made to ask for.
func (f *fake) allAsked() (list []entry) {
	f.do(func() { list = slices.Collect(maps.Keys(f.solicits)) })
	return list
}

// reported is what the source said has moved.
func (f *fake) reported() (list []mad.GID) {
	f.do(func() { list = slices.Clone(f.moved) })
	return list
}

// answers makes a peer answer from now on, silent makes it stop.
func (f *fake) answers(e entry, g mad.GID) { f.do(func() { f.peers[e] = g }) }
func (f *fake) silent(e entry)             { f.do(func() { delete(f.peers, e) }) }

// forgets takes an entry out of the table without a word.
func (f *fake) forgets(e entry) { f.do(func() { delete(f.entries, e) }) }

func (f *fake) Neigh(index int, dst netip.Addr) (n rtnl.Neigh, err error) {
	if block := get(f, &f.block); block != nil {
		<-block
	}
	f.do(func() {
		var ok bool
		if n, ok = f.entries[entry{index, dst}]; !ok {
			err = rtnl.ErrNotFound
		}
		if f.fail != nil {
			err = f.fail
		}
	})
	return n, err
}

func (f *fake) Route(index int, dst netip.Addr) (r rtnl.Route, err error) {
	err = unix.EHOSTUNREACH
	f.do(func() {
		best := -1
		for name, route := range f.routes {
			text, on, _ := strings.Cut(name, " ")
			prefix := netip.MustParsePrefix(text)
			if on == fmt.Sprint(index) && prefix.Contains(dst) && prefix.Bits() > best {
				best, r, err = prefix.Bits(), route, f.fail
			}
		}
	})
	return r, err
}

func (f *fake) Solicit(index int, dst netip.Addr) (err error) {
	e := entry{index, dst}
	f.do(func() {
		f.solicits[e]++
		if err = f.fail; err != nil {
			return
		}
		if g, ok := f.peers[e]; ok {
			time.AfterFunc(f.slow, func() { f.learns(e, g) })
		}
	})
	return err
}

func (f *fake) Neighs() (list []rtnl.Neigh, err error) {
	f.do(func() {
		f.dumps++
		for _, n := range f.entries {
			list = append(list, n)
		}
	})
	return list, nil
}

func (f *fake) openTable() (table, error) {
	f.do(func() { f.open++ })
	return f, nil
}

// Close is that of a table and of the notifier, which come in this order.
func (f *fake) Close() error {
	f.do(func() { f.open-- })
	return nil
}

// has puts an entry into the table without a word, hasNoAddress one without a
// hardware address.
func (f *fake) has(e entry, g mad.GID, state uint16) rtnl.Neigh {
	n := rtnl.Neigh{Index: e.index, IP: e.ip, State: state, Hardware: hw(g)}
	f.do(func() { f.entries[e] = n })
	return n
}

func (f *fake) hasNoAddress(e entry, state uint16) {
	f.do(func() { f.entries[e] = rtnl.Neigh{Index: e.index, IP: e.ip, State: state} })
}

// learns puts an entry into the table and tells.
func (f *fake) learns(e entry, g mad.GID) { f.news <- f.has(e, g, unix.NUD_REACHABLE) }

type notes struct{ *fake }

func (n notes) Receive(deadline time.Time, each func(*rtnl.Message)) error {
	select {
	case x := <-n.news:
		if err, ok := x.(error); ok {
			return err
		}
		e := x.(rtnl.Neigh)
		typ := uint16(unix.RTM_NEWNEIGH)
		if e.State == unix.NUD_NONE {
			typ = unix.RTM_DELNEIGH
		}
		each(&rtnl.Message{Type: unix.RTM_NEWROUTE})
		each(&rtnl.Message{Type: typ, Body: []byte{1}})
		each(&rtnl.Message{Type: typ, Body: rtnl.AppendNeigh(nil, &e)})
		return nil
	case <-n.closed:
		return os.ErrClosed
	}
}

func (n notes) Close() error { close(n.closed); return nil }

// lab is a source on a fake: interfaces 4 (GID 1, default partition, 10.0.0.1 and
// 2001:db8::1), 6 (GID 1, partition 1, 10.1.0.1) and 5 (GID 2, 10.0.0.2).
type lab struct {
	*fake
	t *testing.T
	s *Source
}

func run(t *testing.T, edit func(*Config), f func(t *testing.T, l *lab)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		l := &lab{t: t, fake: &fake{entries: map[entry]rtnl.Neigh{}, routes: map[string]rtnl.Route{}, peers: map[entry]mad.GID{},
			solicits: map[entry]int{}, slow: time.Millisecond, news: make(chan any), closed: make(chan struct{})}}
		ips := func(list ...string) (out []netip.Addr) {
			for _, s := range list {
				out = append(out, netip.MustParseAddr(s))
			}
			return out
		}
		ifs := []hostnet.Interface{
			{Index: 4, Name: "ib0", GID: gid(1), PKey: 0xffff, Addrs: ips("10.0.0.1", "2001:db8::1")},
			{Index: 5, Name: "ib1", GID: gid(2), PKey: 0xffff, Addrs: ips("10.0.0.2")},
			{Index: 6, Name: "ib0.8001", GID: gid(1), PKey: 0x8001, Addrs: ips("10.1.0.1")},
			{Index: 7, Name: "ib0b", GID: gid(1), PKey: 0xffff, Addrs: ips("10.7.0.1")},
		}
		one := func(index int) rtnl.Route {
			return rtnl.Route{Type: unix.RTN_UNICAST, Hops: []rtnl.Hop{{Index: index}}}
		}
		l.routes["10.0.0.0/16 4"], l.routes["10.0.0.0/16 5"], l.routes["10.1.0.0/16 6"] = one(4), one(5), one(6)
		l.routes["10.7.0.0/16 7"], l.routes["2001:db8::/64 4"] = one(7), one(4)
		l.routes["10.9.0.0/16 4"] = rtnl.Route{Type: unix.RTN_UNICAST, Hops: []rtnl.Hop{{Index: 4, Gateway: true}}}
		l.routes["10.0.255.255/32 4"] = rtnl.Route{Type: unix.RTN_BROADCAST, Hops: []rtnl.Hop{{Index: 4}}}
		cfg := Config{Interfaces: func() []hostnet.Interface { return ifs }, Timeout: 1500 * time.Millisecond,
			Moved: func(g mad.GID) { l.do(func() { l.moved = append(l.moved, g) }) }, Log: slog.New(slog.DiscardHandler)}
		if edit != nil {
			edit(&cfg)
		}
		var err error
		if l.s, err = start(cfg, l.openTable, notes{l.fake}); err != nil {
			t.Fatal(err)
		}
		f(t, l)
		if err := l.s.Close(); err != nil {
			t.Error(err)
		}
		if st := l.s.Stats(); st.Pending != 0 || len(l.s.pending) != 0 {
			t.Errorf("left: %+v", st)
		}
		if n := get(l.fake, &l.open); n != 0 {
			t.Errorf("%d tables are left open", n)
		}
	})
}

// endpoint is the port with GID 1 and an alias 9, in the default partition.
func endpoint() *resolver.Endpoint {
	return &resolver.Endpoint{Device: "mlx5_0", PKey: 0x7fff, GID: gid(1),
		Port: transport.PortInfo{Num: 1, GIDs: []mad.GID{gid(1), gid(9)}, PKeys: []mad.PKey{0x7fff}}}
}

type result struct {
	loc  resolver.Location
	err  error
	took time.Duration
}

func (l *lab) begin(ep *resolver.Endpoint, src, dst string, deadline time.Duration) chan result {
	ch, from := make(chan result, 2), time.Now()
	var s, d resolver.Addr
	if src != "" {
		s = addr(src)
	}
	if d = resolver.NameAddr(dst); strings.ContainsAny(dst, ".:") {
		d = addr(dst)
	}
	l.s.Locate(ep, &s, &d, from.Add(deadline), func(loc resolver.Location, err error) { ch <- result{loc, err, time.Since(from)} })
	return ch
}

// wait returns the only answer.
func (l *lab) wait(ch chan result) result {
	l.t.Helper()
	r := <-ch
	synctest.Wait()
	if len(ch) != 0 {
		l.t.Errorf("two answers")
	}
	return r
}

func (l *lab) ask(src, dst string) result {
	l.t.Helper()
	return l.wait(l.begin(endpoint(), src, dst, 12*time.Second))
}

func at(index int, s string) entry { return entry{index, netip.MustParseAddr(s)} }

// An entry that is there answers at once, whatever the kernel would call it; a stale
// one is confirmed behind the answer.
func TestKnown(t *testing.T) {
	run(t, nil, func(t *testing.T, l *lab) {
		for i, state := range []uint16{unix.NUD_REACHABLE, unix.NUD_STALE, unix.NUD_DELAY, unix.NUD_PROBE, unix.NUD_PERMANENT, unix.NUD_NOARP} {
			for _, dst := range []string{"10.0.0.77", "2001:db8::77"} {
				e := at(4, dst)
				l.has(e, gid(77), state)
				before := l.asked(e)
				r := l.ask("", dst)
				if r.err != nil || r.loc != (resolver.Location{GID: gid(77), Source: "neigh"}) || r.took != 0 {
					t.Errorf("state %d: %+v", state, r)
				}
				if n := l.asked(e) - before; n != 0 && state != unix.NUD_STALE || n != 1 && state == unix.NUD_STALE {
					t.Errorf("state %d: asked %d times", state, n)
				}
			}
			if st := l.s.Stats(); st.Known != uint64(2*i+2) || st.Found != st.Known || st.Lookups != st.Known || st.Asked != 0 {
				t.Errorf("%+v", st)
			}
		}
	})
}

// Without an entry the kernel asks, once the destination is known to be on the link.
func TestAsked(t *testing.T) {
	run(t, nil, func(t *testing.T, l *lab) {
		for i, dst := range []string{"10.0.0.77", "2001:db8::77"} {
			e := at(4, dst)
			l.answers(e, gid(77))
			if i == 0 {
				l.hasNoAddress(e, unix.NUD_FAILED)
			}
			if r := l.ask("10.0.0.1", dst); r.err != nil || r.loc.GID != gid(77) || r.took != l.slow {
				t.Errorf("%+v", r)
			}
		}
		if st := l.s.Stats(); st.Asked != 2 || st.Found != 2 || st.Known != 0 || st.Told != 2 {
			t.Errorf("%+v", st)
		}
	})
}

// Whose entry counts: that of an interface of the endpoint's port and partition, the
// one with the source first.
func TestInterfaces(t *testing.T) {
	other := func(pkey mad.PKey, g mad.GID) *resolver.Endpoint {
		ep := endpoint()
		ep.PKey, ep.Port.GIDs = pkey, []mad.GID{g}
		return ep
	}
	run(t, nil, func(t *testing.T, l *lab) {
		for i, e := range []entry{at(4, "10.0.0.77"), at(5, "10.0.0.77"), at(6, "10.0.0.77"), at(7, "10.0.0.77"), at(7, "10.0.0.78"), at(3, "10.0.0.78")} {
			l.has(e, gid(byte(100+i)), unix.NUD_REACHABLE)
		}
		for _, tt := range []struct {
			name     string
			ep       *resolver.Endpoint
			src, dst string
			want     byte // last byte of the GID; 0: unknown
		}{
			{"by source", endpoint(), "10.0.0.1", "10.0.0.77", 100},
			{"by another source", endpoint(), "10.7.0.1", "10.0.0.77", 103},
			{"no source", endpoint(), "", "10.0.0.77", 100},
			{"no source, on the second interface", endpoint(), "", "10.0.0.78", 104},
			{"by source, not on that interface", endpoint(), "10.0.0.1", "10.0.0.78", 0},
			{"source of the file", endpoint(), "10.99.0.1", "10.0.0.77", 100},
			{"the other port", other(0xffff, gid(2)), "", "10.0.0.77", 101},
			{"the other port's source", other(0xffff, gid(2)), "10.0.0.1", "10.0.0.77", 101},
			{"the other partition", other(0x8001, gid(1)), "", "10.0.0.77", 102},
			{"limited member of it", other(0x0001, gid(1)), "", "10.0.0.77", 102},
			{"a partition without an interface", other(0x8002, gid(1)), "", "10.0.0.77", 0},
			{"a port without an interface", other(0xffff, gid(3)), "", "10.0.0.77", 0},
			{"a family without an address", other(0xffff, gid(2)), "", "2001:db8::77", 0},
		} {
			r := l.wait(l.begin(tt.ep, tt.src, tt.dst, 10*time.Millisecond))
			switch {
			case tt.want != 0 && (r.err != nil || r.loc.GID != gid(tt.want)):
				t.Errorf("%s: %+v", tt.name, r)
			case tt.want == 0 && (r.err == nil || !errors.Is(r.err, resolver.ErrUnknown) && !errors.Is(r.err, resolver.ErrTimeout)):
				t.Errorf("%s: %+v", tt.name, r)
			}
		}
	})
}

// What is no neighbour is told at once, and the kernel is not made to ask.
func TestNoNeighbour(t *testing.T) {
	run(t, nil, func(t *testing.T, l *lab) {
		for dst, why := range map[string]string{
			"node77": "names", "0.0.0.0": "no host's", "224.0.0.1": "no host's", "ff02::1": "no host's",
			"10.9.0.77": "router", "10.8.0.77": "no route", "10.0.255.255": "local or no host's", "2001:db9::77": "no route",
		} {
			r := l.ask("10.0.0.1", dst)
			if strings.Contains(dst, ":") {
				r = l.ask("2001:db8::1", dst)
			}
			if !errors.Is(r.err, resolver.ErrUnknown) || !strings.Contains(r.err.Error(), why) || r.took != 0 {
				t.Errorf("%s: %v after %v, want %q", dst, r.err, r.took, why)
			}
		}
		if list := l.allAsked(); len(list) != 0 {
			t.Errorf("asked for %v", list)
		}
		// A hardware address that is not IPoIB's.
		l.hasNoAddress(at(4, "10.0.0.77"), unix.NUD_REACHABLE)
		if r := l.ask("10.0.0.1", "10.0.0.77"); !errors.Is(r.err, resolver.ErrUnknown) || !strings.Contains(r.err.Error(), "no GID") {
			t.Errorf("%v", r.err)
		}
		set[error](l.fake, &l.fail, unix.ENOBUFS)
		if r := l.ask("10.0.0.1", "10.0.0.78"); !errors.Is(r.err, unix.ENOBUFS) {
			t.Errorf("%v", r.err)
		}
	})
}

// Silence ends at the time-out, at the deadline if that is earlier, and costs no
// other lookup anything.
func TestSilence(t *testing.T) {
	run(t, nil, func(t *testing.T, l *lab) {
		dead := l.begin(endpoint(), "10.0.0.1", "10.0.0.66", time.Minute)
		soon := l.begin(endpoint(), "10.0.0.1", "10.0.0.66", 200*time.Millisecond)
		past := l.begin(endpoint(), "10.0.0.1", "10.0.0.66", -time.Second)
		l.answers(at(4, "10.0.0.77"), gid(77))
		if r := l.ask("10.0.0.1", "10.0.0.77"); r.err != nil || r.took != l.slow {
			t.Errorf("%+v", r)
		}
		for ch, want := range map[chan result]time.Duration{dead: 1500 * time.Millisecond, soon: 200 * time.Millisecond, past: 0} {
			if r := l.wait(ch); !errors.Is(r.err, resolver.ErrTimeout) || r.took != want || !strings.Contains(r.err.Error(), "ib0") {
				t.Errorf("%v after %v, want %v", r.err, r.took, want)
			}
		}
		if st := l.s.Stats(); st.Timeouts != 3 {
			t.Errorf("%+v", st)
		}
		// A late answer is nobody's any more.
		l.learns(at(4, "10.0.0.66"), gid(66))
		synctest.Wait()
		if st := l.s.Stats(); st.Told != 1 {
			t.Errorf("%+v", st)
		}
	})
}

// An entry that fails or goes while somebody waits, because other tries were at
// their end, is asked for again.
func TestFailsMeanwhile(t *testing.T) {
	run(t, nil, func(t *testing.T, l *lab) {
		e := at(4, "10.0.0.77")
		for i, state := range []uint16{unix.NUD_FAILED, unix.NUD_NONE, unix.NUD_INCOMPLETE} {
			l.silent(e)
			l.forgets(e)
			ch := l.begin(endpoint(), "10.0.0.1", "10.0.0.77", time.Minute)
			synctest.Wait()
			asked := l.asked(e)
			l.answers(e, gid(byte(70+i)))
			l.news <- rtnl.Neigh{Index: 4, IP: e.ip, State: state}
			synctest.Wait()
			if n := l.asked(e) - asked; n != 1 && i < 2 || n != 0 && i == 2 {
				t.Errorf("state %d: asked %d more times", state, n)
			}
			if i == 2 {
				l.learns(e, gid(72))
			}
			if r := l.wait(ch); r.err != nil || r.loc.GID != gid(byte(70+i)) {
				t.Errorf("state %d: %+v", state, r)
			}
		}
	})
}

// An address that was told and is elsewhere now is reported, once; others are not.
func TestMoved(t *testing.T) {
	run(t, nil, func(t *testing.T, l *lab) {
		e := at(4, "10.0.0.77")
		l.has(e, gid(77), unix.NUD_REACHABLE)
		l.ask("10.0.0.1", "10.0.0.77")
		l.learns(e, gid(77))
		l.learns(at(4, "10.0.0.78"), gid(1))
		l.learns(at(5, "10.0.0.77"), gid(2))
		l.news <- rtnl.Neigh{Index: 4, IP: e.ip, State: unix.NUD_FAILED}
		l.news <- rtnl.Neigh{Index: 4, IP: e.ip, State: unix.NUD_REACHABLE} // no address of IPoIB
		synctest.Wait()
		if moved := l.reported(); len(moved) != 0 {
			t.Fatalf("moved: %v", moved)
		}
		l.learns(e, gid(88))
		l.learns(e, gid(88))
		l.learns(e, gid(99))
		synctest.Wait()
		if moved := l.reported(); !slices.Equal(moved, []mad.GID{gid(77), gid(88)}) {
			t.Errorf("moved: %v", moved)
		}
		if r := l.ask("10.0.0.1", "10.0.0.77"); r.loc.GID != gid(99) {
			t.Errorf("%+v", r)
		}
		if st := l.s.Stats(); st.Moved != 2 || st.Told != 1 {
			t.Errorf("%+v", st)
		}
	})
}

// A peer that stopped answering where it was is looked for once: it may be elsewhere
// and have said nothing. If it is nowhere nothing is reported (field case 9: that is
// what a lost SM looks like too), and the kernel is left alone.
func TestMovedSilently(t *testing.T) {
	run(t, nil, func(t *testing.T, l *lab) {
		e := at(4, "10.0.0.77")
		l.has(e, gid(77), unix.NUD_REACHABLE)
		l.ask("10.0.0.1", "10.0.0.77")
		fails := func() {
			l.forgets(e)
			l.news <- rtnl.Neigh{Index: 4, IP: e.ip, State: unix.NUD_FAILED}
			synctest.Wait()
		}
		l.news <- rtnl.Neigh{Index: 4, IP: e.ip, State: unix.NUD_NONE} // only collected
		l.news <- rtnl.Neigh{Index: 4, IP: at(4, "10.0.0.78").ip, State: unix.NUD_FAILED}
		l.news <- rtnl.Neigh{Index: 99, IP: e.ip, State: unix.NUD_FAILED}
		synctest.Wait()
		if list := l.allAsked(); len(list) != 0 {
			t.Errorf("asked %v", list)
		}
		for range 3 {
			fails()
			time.Sleep(time.Minute)
		}
		if n, moved := l.asked(e), l.reported(); n != 1 || len(moved) != 0 {
			t.Errorf("nobody there: asked %d times, moved %v", n, moved)
		}
		l.learns(e, gid(77)) // back where it was
		l.answers(e, gid(88))
		fails()
		time.Sleep(time.Minute)
		synctest.Wait()
		if n, moved := l.asked(e), l.reported(); n != 2 || !slices.Equal(moved, []mad.GID{gid(77)}) {
			t.Errorf("elsewhere: asked %d times, moved %v", n, moved)
		}
	})
}

// A lookup may read what has changed before the notification comes: that is a move
// as well.
func TestMovedAsRead(t *testing.T) {
	run(t, nil, func(t *testing.T, l *lab) {
		e := at(4, "10.0.0.77")
		l.has(e, gid(77), unix.NUD_REACHABLE)
		l.ask("10.0.0.1", "10.0.0.77")
		l.has(e, gid(88), unix.NUD_REACHABLE)
		r := l.ask("10.0.0.1", "10.0.0.77")
		if moved := l.reported(); r.loc.GID != gid(88) || !slices.Equal(moved, []mad.GID{gid(77)}) {
			t.Errorf("%+v, moved %v", r, moved)
		}
	})
}

// The table says one thing, and another before that is passed on: who asked is told
// the newer one, or the older is reported as moved.
func TestMovesWhileAsked(t *testing.T) {
	run(t, nil, func(t *testing.T, l *lab) {
		block := make(chan struct{})
		set(l.fake, &l.block, block)
		e := at(4, "10.0.0.77")
		ch := l.begin(endpoint(), "10.0.0.1", "10.0.0.77", time.Minute)
		synctest.Wait() // the asker is in the kernel
		l.learns(e, gid(88))
		if r := l.wait(ch); r.loc.GID != gid(88) {
			t.Errorf("%+v", r)
		}
		l.has(e, gid(77), unix.NUD_REACHABLE) // as if read before
		close(block)
		synctest.Wait()
		l.learns(e, gid(88))
		synctest.Wait()
		if moved := l.reported(); len(moved) != 0 || l.s.Stats().Told != 1 {
			t.Errorf("moved: %v, %+v", moved, l.s.Stats())
		}
	})
}

// field case 18: after an overrun the table is read and compared.
func TestOverrun(t *testing.T) {
	run(t, nil, func(t *testing.T, l *lab) {
		e, quiet := at(4, "10.0.0.77"), at(4, "10.0.0.66")
		l.has(e, gid(77), unix.NUD_REACHABLE)
		l.ask("10.0.0.1", "10.0.0.77")
		ch := l.begin(endpoint(), "10.0.0.1", "10.0.0.66", time.Minute)
		synctest.Wait()
		l.has(e, gid(88), unix.NUD_REACHABLE)
		l.has(quiet, gid(66), unix.NUD_REACHABLE)
		l.news <- rtnl.ErrOverrun
		if r := l.wait(ch); r.err != nil || r.loc.GID != gid(66) {
			t.Errorf("%+v", r)
		}
		if moved, dumps := l.reported(), get(l.fake, &l.dumps); !slices.Equal(moved, []mad.GID{gid(77)}) || dumps != 1 {
			t.Errorf("moved: %v, %d dumps", moved, dumps)
		}
		if st := l.s.Stats(); st.Overruns != 1 {
			t.Errorf("%+v", st)
		}
	})
}

// The kernel may take its time over a question: lookups are bounded, end by their
// time, and Close ends what is left.
func TestBounds(t *testing.T) {
	run(t, nil, func(t *testing.T, l *lab) {
		block := make(chan struct{})
		set(l.fake, &l.block, block)
		var all []chan result
		for i := range MaxLookups {
			all = append(all, l.begin(endpoint(), "10.0.0.1", fmt.Sprintf("10.0.%d.%d", i>>8, i&0xff|1), time.Minute))
		}
		if r := l.ask("10.0.0.1", "10.0.0.77"); !errors.Is(r.err, resolver.ErrOverload) {
			t.Errorf("%+v", r)
		}
		for _, ch := range all {
			if r := l.wait(ch); !errors.Is(r.err, resolver.ErrTimeout) {
				t.Fatalf("%+v", r)
			}
		}
		if st := l.s.Stats(); st.Pending != 0 || st.Overload != 1 || st.Timeouts != MaxLookups {
			t.Errorf("%+v", st)
		}
		left := l.begin(endpoint(), "10.0.0.1", "10.0.0.77", time.Minute)
		close(block)
		synctest.Wait()
		if err := l.s.Close(); err != nil {
			t.Error(err)
		}
		if r := l.wait(left); !errors.Is(r.err, resolver.ErrDown) && !errors.Is(r.err, resolver.ErrOverload) {
			t.Errorf("left at Close: %+v", r)
		}
		if r := l.ask("10.0.0.1", "10.0.0.77"); !errors.Is(r.err, resolver.ErrDown) {
			t.Errorf("after Close: %+v", r)
		}
	})
}

// What was told is remembered within a bound.
func TestTold(t *testing.T) {
	run(t, nil, func(t *testing.T, l *lab) {
		remember := func(e entry, g mad.GID) {
			l.s.mu.Lock()
			defer l.s.mu.Unlock()
			l.s.remember(e, answer{gid: g})
		}
		for i := range MaxTold + 10 {
			remember(entry{4, netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})}, gid(1))
		}
		remember(entry{4, netip.AddrFrom4([4]byte{10, 1, 0, 9})}, gid(2))
		if st := l.s.Stats(); st.Told != MaxTold || st.Forgot != 10 {
			t.Errorf("%+v", st)
		}
	})
}
