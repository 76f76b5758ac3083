// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acmp

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"acmd/mad"
	"acmd/mad/acm"
	"acmd/mad/fabric"
	madsa "acmd/mad/sa"
	"acmd/mad/transport"
	"acmd/resolver"
	"acmd/resolver/sa"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// node is a local node of an embedded fabric with an ACM source.
type node struct {
	tb     testing.TB
	f      *fabric.Fabric
	n      int
	client *sa.Client
	src    *Source
	eps    []*resolver.Endpoint
}

// newFabric makes a fabric that the test closes.
func newFabric(t *testing.T, c fabric.Config) *fabric.Fabric {
	c.Seed, c.Poison, c.Slots = 7, true, 128
	f, err := fabric.New(c)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// inBubble runs test in a bubble, with a fabric that ends before the bubble.
func inBubble(t *testing.T, c fabric.Config, test func(t *testing.T, f *fabric.Fabric)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := newFabric(t, c)
		test(t, f)
		if err := f.Close(); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Minute)
	})
}

func info(f *fabric.Fabric, n int) transport.PortInfo {
	d, _ := f.Host(n).Devices()
	return d[0].Ports[0]
}

// start makes node n local: port, client, source, one endpoint per P_Key.
func start(tb testing.TB, f *fabric.Fabric, n int, cfg Config, wrap ...func(transport.Port) transport.Port) *node {
	tb.Helper()
	p, err := f.Host(n).Open(fabric.DeviceName, 1)
	if err != nil {
		tb.Fatal(err)
	}
	for _, w := range wrap {
		p = w(p)
	}
	nd := &node{tb: tb, f: f, n: n, src: New(cfg, nil)}
	nd.client = sa.Open(p, info(f, n), sa.Config{Retries: 2}, nil)
	if err := nd.src.Attach(fabric.DeviceName, 1, nd.client); err != nil {
		tb.Fatal(err)
	}
	nd.endpoints()
	synctest.Wait()
	return nd
}

// stats waits until the node is at rest: what a datagram brings is told before all
// of it is counted.
func (nd *node) stats() Stats {
	synctest.Wait()
	return nd.src.Stats()
}

// endpoints tells client and source how the port is now.
func (nd *node) endpoints() {
	pi := info(nd.f, nd.n)
	nd.client.Update(pi)
	nd.eps = nil
	for i, k := range pi.PKeys {
		if !k.IsValid() || pi.State != mad.PortActive {
			continue
		}
		name := fabric.NodeName(nd.n, 1)
		nd.eps = append(nd.eps, &resolver.Endpoint{
			Slot: uint16(i + 1), Device: fabric.DeviceName, Port: pi, PKey: k, PKeyIndex: uint16(i), GID: pi.GIDs[0],
			Addrs: []resolver.LocalAddr{
				{Addr: resolver.NameAddr(name), Text: name},
				{Addr: resolver.IPAddr(fabric.IPv4(nd.n, 1))},
				{Addr: resolver.IPAddr(fabric.IPv6(nd.n, 1))},
			},
		})
	}
	nd.src.SetEndpoints(nd.eps)
}

// found is the outcome of a Locate.
type found struct {
	resolver.Location
	err   error
	at    time.Time
	calls int
}

// locate asks for dst on the first endpoint; the channel gets the outcome.
func (nd *node) locate(dst resolver.Addr, limit time.Duration) <-chan found {
	return nd.locateOn(0, dst, limit)
}

func (nd *node) locateOn(ep int, dst resolver.Addr, limit time.Duration) <-chan found {
	ch := make(chan found, 2)
	var mu sync.Mutex
	calls := 0
	var deadline time.Time
	if limit != 0 {
		deadline = time.Now().Add(limit)
	}
	nd.src.Locate(nd.eps[ep], &resolver.Addr{}, &dst, deadline, func(l resolver.Location, err error) {
		mu.Lock()
		defer mu.Unlock()
		if calls++; calls > 1 {
			nd.tb.Error("done was called twice")
		}
		ch <- found{l, err, time.Now(), calls}
	})
	return ch
}

// must locates dst and fails the test unless it is on node want.
func (nd *node) must(dst resolver.Addr, want int) found {
	nd.tb.Helper()
	got := <-nd.locate(dst, 12*time.Second)
	if got.err != nil || got.GID != nd.f.GID(want, 1) || got.LID != nd.f.LID(want, 1) || got.Source != "acm" {
		nd.tb.Errorf("%v", got)
	}
	return got
}

func (nd *node) stop() { nd.client.Close() }

// joins returns when node n sent joins, from the trace.
type joinLog struct {
	mu    sync.Mutex
	at    map[int][]time.Time
	leave []madsa.MCMemberRecord
	first *mad.Packet
	acm   []fabric.Event
}

func watch(f *fabric.Fabric) (*joinLog, func()) {
	l := &joinLog{at: map[int][]time.Time{}}
	return l, f.Trace(func(e fabric.Event) {
		if e.Kind != fabric.Sent {
			return
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		switch {
		case e.MAD.Class() == mad.ClassACM:
			l.acm = append(l.acm, e)
		case e.MAD.AttrID() != madsa.AttrMCMemberRecord:
		case e.MAD.Method() == mad.MethodDelete:
			l.leave = append(l.leave, *madsa.Member(&e.MAD))
		case e.MAD.Method() == mad.MethodSet:
			if l.first == nil {
				m := e.MAD
				l.first = &m
			}
			l.at[e.Node] = append(l.at[e.Node], e.Time)
		}
	})
}

func (l *joinLog) count(n int) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.at[n])
}

func (l *joinLog) leaves() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.leave)
}

func (l *joinLog) times(n int) []time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.at[n])
}

func (l *joinLog) sent() []fabric.Event {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.acm)
}

func v4(n int) resolver.Addr { return resolver.IPAddr(fabric.IPv4(n, 1)) }

// request is a request of another node as it arrives.
func request(tb testing.TB, dst, src resolver.Addr, groups ...mad.GID) *mad.Packet {
	var m mad.Packet
	if err := acm.InitRequest(&m, 0x1122334455667788, uint8(dst.Kind), dst.Bytes(), uint8(src.Kind), src.Bytes(), groups...); err != nil {
		tb.Fatal(err)
	}
	return &m
}
