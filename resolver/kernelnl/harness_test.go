// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package kernelnl_test

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"acmd/bpf"
	"acmd/mad"
	"acmd/mad/madtest"
	"acmd/mad/sa"
	"acmd/mad/transport"
	"acmd/resolver"
	"acmd/resolver/hostnet"
	"acmd/resolver/kernelnl"
	"acmd/resolver/kernelnl/kernelfake"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const prefix = 0xfe80000000000000

func gid(n int) mad.GID { return mad.MakeGID(prefix, mad.GUID(n)) }

// lab is a door with a real engine between a kernel and an SA in memory. Its
// time is that of a synctest bubble.
type lab struct {
	t    testing.TB
	k    *kernelfake.Kernel
	d    *kernelnl.Door
	e    *resolver.Engine
	sa   *scriptedSA
	port *oneport
	log  *madtest.Output
	host *hostnet.Static
	maps *bpf.Maps // what the door counts for the service
}

// bubble runs f with a lab whose SA knows every GID up to 100,000 and answers
// after 5 ms. Everything has to be closed at the end.
func bubble(t *testing.T, edit func(*resolver.Config, *kernelnl.Config), f func(l *lab)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		l := &lab{t: t, k: kernelfake.New(), sa: &scriptedSA{delay: 5 * time.Millisecond}, log: &madtest.Output{}, maps: bpf.NewMemory()}
		l.port = &oneport{port: transport.PortInfo{Num: 1, State: mad.PortActive, LID: 1, SMLID: 1, MTU: 5, Rate: 7,
			GIDs: []mad.GID{gid(1)}, PKeys: []mad.PKey{0xffff}}}
		l.host = &hostnet.Static{Addrs: []resolver.HostAddr{{IP: netip.MustParseAddr("10.9.0.1"), Ifname: "ib1", GID: gid(1), PKey: 0xffff}}}
		log := l.log.Logger()
		rc := resolver.Config{
			Fabric: l.port, Host: l.host, Log: log, AddrTimeout: resolver.Forever, RouteTimeout: resolver.Forever,
			OpenSA: func(string, transport.PortInfo) (resolver.SA, error) { return l.sa, nil },
		}
		kc := kernelnl.Config{Log: log, Counters: l.maps.Shard()}
		if edit != nil {
			edit(&rc, &kc)
		}
		var err error
		if l.e, err = resolver.New(rc); err != nil {
			t.Fatal(err)
		}
		kc.Engine = l.e
		l.d = kernelnl.New(l.k, kc)
		f(l)
		l.d.Close()
		l.e.Close()
		if !l.k.Closed() {
			t.Error("the socket is not closed")
		}
		l.accounts()
	})
}

// stats waits until the door is at rest, as it counts an answer when that is sent.
func (l *lab) stats() kernelnl.Stats {
	synctest.Wait()
	return l.d.Stats()
}

// accounts checks that each request has exactly one outcome in the counters.
func (l *lab) accounts() {
	l.t.Helper()
	s := l.stats()
	in := s.Resolves + s.IPResolves
	if out := s.Answered + s.Failed + s.Expired + s.Busy + s.Late + s.SendErrors + uint64(s.Pending); in != out {
		l.t.Errorf("%d requests, %d outcomes: %+v", in, out, s)
	}
	// What the service counts is the same.
	var c bpf.Snapshot
	l.maps.Read(&c)
	word := func(k bpf.Kind) uint64 { return c.Words[bpf.RequestWord(bpf.DoorNetlink, k)] }
	if word(bpf.KindPath) != s.Resolves || word(bpf.KindAddress) != s.IPResolves || word(bpf.KindInvalid) != s.Malformed+s.Unknown {
		l.t.Errorf("the service counts %d, %d, %d requests, the door %+v", word(bpf.KindPath), word(bpf.KindAddress), word(bpf.KindInvalid), s)
	}
	good, bad := c.Words[bpf.ReplyWord(bpf.DoorNetlink, 0)], c.Words[bpf.ReplyWord(bpf.DoorNetlink, uint8(resolver.StatusNoData))]
	refused := s.Failed + s.Expired + s.Busy + s.Malformed + s.Unknown
	if good < s.Answered || bad < refused || good+bad > s.Answered+refused+s.SendErrors {
		l.t.Errorf("the service counts %d and %d answers, the door %+v", good, bad, s)
	}
}

// clean checks that the kernel saw nothing but answers in order.
func (l *lab) clean() {
	l.t.Helper()
	if c := l.k.Counts(); c != (kernelfake.Counts{}) {
		l.t.Errorf("the kernel saw %+v", c)
	}
}

func ask(n int) kernelfake.Resolve {
	return kernelfake.Resolve{Device: "sib1", Port: 1, DGID: gid(n), SGID: gid(1), PKey: 0xffff}
}

// oneport is a host with one port, which tests change.
type oneport struct {
	mu   sync.Mutex
	port transport.PortInfo
}

func (*oneport) Name() string                               { return "one port" }
func (*oneport) Open(string, uint8) (transport.Port, error) { return nil, errors.New("not used") }
func (*oneport) Events() <-chan transport.Event             { return nil }
func (*oneport) Close() error                               { return nil }
func (p *oneport) Devices() ([]transport.Device, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return []transport.Device{{Name: "sib1", NodeGUID: 1, Ports: []transport.PortInfo{p.port}}}, nil
}

// change changes the port and lets the engine see it.
func (l *lab) change(f func(*transport.PortInfo)) {
	l.port.mu.Lock()
	f(&l.port.port)
	l.port.mu.Unlock()
	l.e.Kick()
	synctest.Wait()
}

// scriptedSA answers after a delay that tests change; a delay of 0 is silence.
type scriptedSA struct {
	mu    sync.Mutex
	delay time.Duration
	asked map[sa.PathRecord]int
}

func (s *scriptedSA) Update(transport.PortInfo) {}
func (s *scriptedSA) Close()                    {}

func (s *scriptedSA) set(delay time.Duration) { s.mu.Lock(); s.delay = delay; s.mu.Unlock() }

func (s *scriptedSA) queries() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range s.asked {
		n += k
	}
	return n
}

// Path answers with a record that has the query's own fields in it.
func (s *scriptedSA) Path(_ sa.ComponentMask, rec *sa.PathRecord, done func(resolver.SAResult)) {
	s.mu.Lock()
	if s.asked == nil {
		s.asked = map[sa.PathRecord]int{}
	}
	s.asked[*rec]++
	delay := s.delay
	s.mu.Unlock()
	r := resolver.SAResult{Path: answer(*rec), Valid: true, Tries: 1}
	switch n := rec.DGID().GUID(); {
	case delay == 0:
		delay, r = 10*time.Second, resolver.SAResult{Err: fmt.Errorf("SA: %w", resolver.ErrTimeout), Tries: 3}
	case n == 0 || n >= 100_000:
		r.Status = mad.Status(sa.StatusNoRecords) << 8
	}
	time.AfterFunc(delay, func() { done(r) })
}

// answer makes the SA's record of a query.
func answer(p sa.PathRecord) sa.PathRecord {
	p.SetDLID(mad.LID(p.DGID().GUID()&0x7fff | 1))
	p.SetReversibleNumPath(true, 0)
	p.SetMTU(sa.Exactly, 5)
	p.SetRate(sa.Exactly, 7)
	p.SetLifetime(sa.Exactly, 18)
	return p
}

// rows is an address source of what somebody wrote down.
type rows map[resolver.Addr]mad.GID

func (rows) Name() string { return "rows" }
func (r rows) Locate(_ *resolver.Endpoint, _, dst *resolver.Addr, _ time.Time, done func(resolver.Location, error)) {
	g, ok := r[*dst]
	if !ok {
		done(resolver.Location{}, resolver.ErrUnknown)
		return
	}
	done(resolver.Location{GID: g, Source: "rows"}, nil)
}

// program is what a client of another door sees.
type program struct {
	done chan resolver.Answer
}

func (p program) Answered(_ uint64, a *resolver.Answer) { p.done <- *a }

// askAsClient asks the engine for a path to a GID as acmsock does.
func (l *lab) askAsClient(n int) program {
	p := program{make(chan resolver.Answer, 1)}
	q := resolver.Query{Kind: resolver.ByPath}
	q.Path.SetDGID(gid(n))
	l.e.Resolve(&q, 1, p)
	return p
}
