// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package resolver

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"acmd/mad"
	"acmd/mad/sa"
	"acmd/mad/transport"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// lab is an engine among scripted neighbours. Inside a synctest bubble its time
// is the bubble's.
type lab struct {
	t    testing.TB
	fab  *fakeFabric
	host *fakeHost
	acm  *fakeSource
	sa   *fakeSA // behind every port
	e    *Engine
	log  *logCount
}

// newLab has one device mlx5_0 with an active port 1 (LID 5, GID ::5) that owns
// 10.0.0.1, 2001:db8::1 and the name "node1".
func newLab(t testing.TB, edit func(*lab, *Config)) *lab {
	t.Helper()
	l := &lab{t: t, log: &logCount{}}
	l.fab = &fakeFabric{events: make(chan transport.Event, 256), devs: []transport.Device{device("mlx5_0", port(1, 5))}}
	l.host = &fakeHost{addrs: []HostAddr{
		{IP: netip.MustParseAddr("10.0.0.1"), Ifname: "ib0", GID: gidOf(5), PKey: 0xffff},
		{IP: netip.MustParseAddr("2001:db8::1"), Ifname: "ib0", GID: gidOf(5), PKey: 0xffff},
	}}
	l.acm = &fakeSource{name: SourceACM, delay: time.Millisecond, gids: map[Addr]mad.GID{}, asks: map[Addr]int{}}
	l.sa = &fakeSA{delay: time.Millisecond, lids: map[mad.GID]mad.LID{}, asks: map[sa.PathRecord]int{}, open: map[string]int{}}
	cfg := Config{Fabric: l.fab, Host: l.host, Sources: []AddressSource{l.acm}, Loopback: true,
		AddrTimeout: 24 * time.Hour, RouteTimeout: Forever, Log: slog.New(slog.NewTextHandler(l.log, nil)),
		OpenSA: l.sa.openPort,
		Addresses: []AddressEntry{
			{Addr: NameAddr("Node1"), Text: "Node1", Device: "MLX5_0", Port: 1, Default: true},
		}}
	if edit != nil {
		edit(l, &cfg)
	}
	e, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	l.e = e
	t.Cleanup(e.Close)
	return l
}

// bubble runs a test in its own time; the engine is closed before it ends.
func bubble(t *testing.T, edit func(*lab, *Config), f func(t *testing.T, l *lab)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, edit)
		f(t, l)
		l.e.Close()
	})
}

const prefix = 0xfe80000000000000

func gidOf(n uint64) mad.GID { return mad.MakeGID(prefix, mad.GUID(n)) }

func device(name string, ports ...transport.PortInfo) transport.Device {
	return transport.Device{Name: name, NodeGUID: 0x100, Ports: ports}
}

func port(num uint8, lid mad.LID) transport.PortInfo {
	return transport.PortInfo{Num: num, State: mad.PortActive, LID: lid, SMLID: 1, MTU: 4, Rate: 3, SubnetTimeout: 18,
		GIDs: []mad.GID{gidOf(uint64(lid))}, PKeys: []mad.PKey{0xffff}}
}

type logCount struct {
	mu   sync.Mutex
	text []string
}

func (l *logCount) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text = append(l.text, string(b))
	return len(b), nil
}

func (l *logCount) lines() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]string(nil), l.text...)
}

var _ io.Writer = (*logCount)(nil)

type fakeFabric struct {
	mu     sync.Mutex
	devs   []transport.Device
	err    error
	events chan transport.Event
	looks  int
}

func (f *fakeFabric) Name() string { return "fake" }
func (f *fakeFabric) Devices() ([]transport.Device, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.looks++
	return append([]transport.Device(nil), f.devs...), f.err
}
func (f *fakeFabric) Open(string, uint8) (transport.Port, error) { return nil, errors.New("unused") }
func (f *fakeFabric) Events() <-chan transport.Event             { return f.events }
func (f *fakeFabric) Close() error                               { return nil }

func (f *fakeFabric) set(devs ...transport.Device) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.devs = devs
}

type fakeHost struct {
	mu     sync.Mutex
	addrs  []HostAddr
	gen    Generation
	choose func(netip.Addr) (netip.Addr, error)
	asked  int
}

func (h *fakeHost) Addresses() ([]HostAddr, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]HostAddr(nil), h.addrs...), nil
}
func (h *fakeHost) Generation() *Generation { return &h.gen }
func (h *fakeHost) Source(dst netip.Addr) (netip.Addr, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.asked++
	if h.choose != nil {
		return h.choose(dst)
	}
	for _, a := range h.addrs {
		if a.IP.Is4() == dst.Is4() {
			return a.IP, nil
		}
	}
	return netip.Addr{}, errors.New("network is unreachable")
}
func (h *fakeHost) set(addrs ...HostAddr) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.addrs = addrs
	h.gen.Raise()
}

// fakeSource answers from a table after a delay; what is not there times out at
// the deadline, or fails at once with err.
type fakeSource struct {
	name  string
	mu    sync.Mutex
	delay time.Duration
	gids  map[Addr]mad.GID
	route *sa.PathRecord
	err   error
	mute  bool // never answers at all, against the contract
	twice bool // fails twice, against the contract
	asks  map[Addr]int
	total int
}

func (s *fakeSource) Name() string { return s.name }
func (s *fakeSource) Locate(_ *Endpoint, _, dst *Addr, deadline time.Time, done func(Location, error)) {
	s.mu.Lock()
	s.asks[*dst]++
	s.total++
	g, ok := s.gids[*dst]
	delay, err, route, mute, twice := s.delay, s.err, s.route, s.mute, s.twice
	s.mu.Unlock()
	switch {
	case mute:
	case ok:
		loc := Location{GID: g, Source: s.name}
		if route != nil {
			loc.Route, loc.Origin = route, OriginGroup
		}
		if delay == 0 {
			done(loc, nil)
			return
		}
		time.AfterFunc(delay, func() { done(loc, nil) })
	case err != nil:
		done(Location{}, err)
		if twice {
			done(Location{}, err)
			time.AfterFunc(time.Second, func() { done(Location{}, err) })
		}
	default:
		time.AfterFunc(time.Until(deadline), func() {
			done(Location{}, fmt.Errorf("no answer over multicast (3 tries): %w", ErrTimeout))
		})
	}
}

// knows adds a destination and its path.
func (l *lab) knows(dst Addr, n uint64) {
	l.acm.mu.Lock()
	l.acm.gids[dst] = gidOf(n)
	l.acm.mu.Unlock()
	l.sa.mu.Lock()
	l.sa.lids[gidOf(n)] = mad.LID(n)
	l.sa.mu.Unlock()
}

func (s *fakeSource) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.total
}

// fakeSA answers path queries from a table of LIDs by GID, or as respond says.
type fakeSA struct {
	mu      sync.Mutex
	delay   time.Duration
	lids    map[mad.GID]mad.LID
	silent  bool // answers ErrTimeout after 3 s
	respond func(mask sa.ComponentMask, rec *sa.PathRecord) (SAResult, time.Duration)

	asks    map[sa.PathRecord]int
	masks   []sa.ComponentMask
	records []sa.PathRecord
	times   []time.Time
	updates []transport.PortInfo
	open    map[string]int
	opensN  int // ever
	openErr error
	total   int
	dead    chan struct{} // closed: the clients that are open have ended
}

type fakePort struct {
	*fakeSA
	name string
	end  chan struct{}
}

func (s *fakeSA) openPort(dev string, info transport.PortInfo) (SA, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.openErr != nil {
		return nil, s.openErr
	}
	name := fmt.Sprintf("%s/%d", dev, info.Num)
	s.open[name]++
	s.opensN++
	return &fakePort{s, name, s.dead}, nil
}

func (p *fakePort) Done() <-chan struct{} { return p.end }
func (p *fakePort) Update(info transport.PortInfo) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.updates = append(p.updates, info)
}
func (p *fakePort) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open[p.name]--
}

func (s *fakeSA) Path(mask sa.ComponentMask, rec *sa.PathRecord, done func(SAResult)) {
	s.mu.Lock()
	s.asks[*rec]++
	s.total++
	s.masks = append(s.masks, mask)
	s.records = append(s.records, *rec)
	s.times = append(s.times, time.Now())
	r, delay := s.answer(mask, rec)
	s.mu.Unlock()
	if delay == 0 {
		done(r)
		return
	}
	time.AfterFunc(delay, func() { done(r) })
}

func (s *fakeSA) answer(mask sa.ComponentMask, rec *sa.PathRecord) (SAResult, time.Duration) {
	if s.respond != nil {
		return s.respond(mask, rec)
	}
	if s.silent {
		return SAResult{Err: fmt.Errorf("SA: %w", ErrTimeout), Tries: 3}, 3 * time.Second
	}
	r := SAResult{Path: *rec, Valid: true, Tries: 1}
	lid, ok := s.lids[rec.DGID()]
	if rec.DGID().IsZero() {
		lid, ok = rec.DLID(), true
	}
	if !ok {
		r.Status = mad.Status(sa.StatusNoRecords) << 8
		return r, s.delay
	}
	r.Path.SetDLID(lid)
	r.Path.SetMTU(sa.Exactly, 4)
	r.Path.SetRate(sa.Exactly, 3)
	return r, s.delay
}

func (s *fakeSA) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.total
}

func (s *fakeSA) opened(port string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.open[port]
}

func (s *fakeSA) opens() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.opensN
}

func (s *fakeSA) set(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// inbox collects answers by tag.
type inbox struct {
	mu  sync.Mutex
	got map[uint64][]Answer
	at  map[uint64]time.Time
}

func newInbox() *inbox { return &inbox{got: map[uint64][]Answer{}, at: map[uint64]time.Time{}} }

func (b *inbox) Answered(tag uint64, a *Answer) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.got[tag] = append(b.got[tag], *a)
	b.at[tag] = time.Now()
}

func (b *inbox) len() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.got)
}

// one returns the only answer to a tag.
func (b *inbox) one(t testing.TB, tag uint64) Answer {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.got[tag]) != 1 {
		t.Fatalf("tag %d has %d answers, want 1", tag, len(b.got[tag]))
	}
	return b.got[tag][0]
}

// submit does what a door does: look up, else resolve.
func (l *lab) submit(q Query, tag uint64, b *inbox) {
	var a Answer
	if l.e.Lookup(&q, l.e.Now(), &a) {
		b.Answered(tag, &a)
		return
	}
	l.e.Resolve(&q, tag, b)
}

// ask waits for the answer and tells how long it took.
func (l *lab) ask(q Query) (Answer, time.Duration) {
	l.t.Helper()
	ch := make(chan Answer, 1)
	start := time.Now()
	var a Answer
	if !l.e.Lookup(&q, l.e.Now(), &a) {
		l.e.Resolve(&q, 1, chanWaiter(ch))
		a = <-ch
	}
	return a, time.Since(start)
}

type chanWaiter chan Answer

func (c chanWaiter) Answered(_ uint64, a *Answer) { c <- *a }

// want asks and checks the status.
func (l *lab) want(q Query, s Status) Answer {
	l.t.Helper()
	a, _ := l.ask(q)
	if a.Status != s {
		l.t.Fatalf("status %v (%v), want %v", a.Status, a.Err, s)
	}
	if (a.Err == nil) != (s == StatusSuccess) {
		l.t.Fatalf("status %v with error %v", s, a.Err)
	}
	return a
}

func ip(s string) Addr { return IPAddr(netip.MustParseAddr(s)) }

func byIP(src, dst string) Query {
	q := Query{Kind: ByAddress, Dst: ip(dst)}
	if src != "" {
		q.Src = ip(src)
	}
	return q
}

func byGID(g mad.GID) Query {
	q := Query{Kind: ByPath}
	q.Path.SetDGID(g)
	return q
}

func byLID(n mad.LID) Query {
	q := Query{Kind: ByPath}
	q.Path.SetDLID(n)
	return q
}

// event sends a port event and lets the engine act on it.
func (l *lab) event(typ transport.EventType, dev string, num uint8) {
	l.fab.events <- transport.Event{Type: typ, Device: dev, Port: num}
	synctest.Wait()
}
