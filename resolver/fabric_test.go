// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package resolver_test

import (
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"acmd/mad"
	"acmd/mad/fabric"
	"acmd/mad/sa"
	"acmd/mad/transport"
	"acmd/resolver"
	"acmd/resolver/acmp"
	"acmd/resolver/hostnet"
	saclient "acmd/resolver/sa"
)

// node is an engine on node 0 of an embedded fabric, with the real SA client and
// the real multicast source.
type node struct {
	t   *testing.T
	fab *fabric.Fabric
	e   *resolver.Engine
}

// saPort closes the transport's port with the client.
type saPort struct {
	acmp.EngineSA
	port transport.Port
}

func (p saPort) Done() <-chan struct{} { return p.Client.Done() }
func (p saPort) Close()                { p.Client.Close(); p.port.Close() }

func onFabric(t *testing.T, cfg fabric.Config, f func(*node)) {
	t.Helper()
	onFabricWith(t, cfg, func(*resolver.Config) {}, f)
}

// onFabricWith is onFabric with an edited configuration of the engine.
func onFabricWith(t *testing.T, cfg fabric.Config, edit func(*resolver.Config), f func(*node)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		fab, err := fabric.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		log := slog.New(slog.DiscardHandler)
		source := acmp.New(acmp.Config{Retries: 2}, log)
		defer func() {
			if err := fab.Close(); err != nil {
				t.Error(err)
			}
		}()
		host := &hostnet.Static{}
		dev := fabric.DeviceName
		for _, ip := range []resolver.HostAddr{{IP: fabric.IPv4(0, 1)}, {IP: fabric.IPv6(0, 1)}} {
			ip.Device, ip.Port = dev, 1
			host.Addrs = append(host.Addrs, ip)
		}
		name := fabric.NodeName(0, 1)
		var engine atomic.Pointer[resolver.Engine]
		suspect := func() {
			if e := engine.Load(); e != nil {
				e.Kick()
			}
		}
		rc := resolver.Config{
			Fabric: fab, Host: host, Log: log, Loopback: true, AddrTimeout: 24 * time.Hour, RouteTimeout: resolver.Forever,
			Sources: []resolver.AddressSource{source}, OnTopology: source.SetEndpoints, OnEvent: source.Event, OnNotice: source.Notice,
			Addresses: []resolver.AddressEntry{{Addr: resolver.NameAddr(name), Text: name, Device: dev, Port: 1, Default: true}},
			OpenSA: func(device string, info transport.PortInfo) (resolver.SA, error) {
				p, err := fab.Open(device, info.Num)
				if err != nil {
					return nil, err
				}
				c := saclient.Open(p, info, saclient.Config{Retries: 2, Suspect: suspect}, log)
				if err := source.Attach(device, info.Num, c); err != nil {
					t.Error(err)
				}
				return saPort{acmp.EngineSA{Client: c}, p}, nil
			},
		}
		edit(&rc)
		e, err := resolver.New(rc)
		if err != nil {
			t.Fatal(err)
		}
		engine.Store(e)
		defer e.Close()
		time.Sleep(2 * time.Second) // groups are joined
		f(&node{t, fab, e})
	})
}

// answers counts what comes back, and keeps the last answer.
type answers struct {
	ch chan resolver.Answer
}

func (a answers) Answered(_ uint64, ans *resolver.Answer) { a.ch <- *ans }

func (n *node) start(q resolver.Query, w answers) {
	var a resolver.Answer
	if n.e.Lookup(&q, n.e.Now(), &a) {
		w.ch <- a
		return
	}
	n.e.Resolve(&q, 0, w)
}

func (n *node) ask(q resolver.Query) resolver.Answer {
	n.t.Helper()
	w := answers{make(chan resolver.Answer, 1)}
	n.start(q, w)
	a := <-w.ch
	if a.Status != resolver.StatusSuccess {
		n.t.Fatalf("%v: %v", a.Status, a.Err)
	}
	return a
}

func toIPv4(i int) resolver.Query {
	return resolver.Query{Src: resolver.IPAddr(fabric.IPv4(0, 1)), Dst: resolver.IPAddr(fabric.IPv4(i, 1))}
}

// field case 1, on the wire: 64 askers of 1,000 nodes cause 1,000 Gets, never
// more outstanding than the client's window.
func TestFabricCoalescing(t *testing.T) {
	onFabric(t, fabric.Config{Nodes: 1002, Seed: 1, SARate: 20000}, func(n *node) {
		rec := n.fab.Record()
		defer rec.Stop()
		const clients, dests = 64, 1000
		w := answers{make(chan resolver.Answer, clients*dests)}
		before := n.fab.Stats().PathGets
		start := time.Now()
		for range clients {
			for i := 1; i <= dests; i++ {
				n.start(toIPv4(i), w)
			}
		}
		for range clients * dests {
			if a := <-w.ch; a.Status != resolver.StatusSuccess {
				n.t.Fatalf("%v: %v", a.Status, a.Err)
			}
		}
		if took := time.Since(start); took > 2*time.Second {
			n.t.Errorf("took %v", took)
		}
		if got := n.fab.Stats().PathGets - before; got != dests {
			n.t.Errorf("%d Gets, want %d", got, dests)
		}
		for q, times := range rec.Paths() {
			if times != 1 {
				n.t.Errorf("%x was asked %d times", q.Path, times)
			}
		}
		if out := rec.MaxOutstanding(); out > saclient.AutoWindow {
			n.t.Errorf("%d outstanding", out)
		}
		if c := n.e.Totals(); c[resolver.CounterRouteQuery] != dests || c[resolver.CounterRouteCache] != (clients-1)*dests || c[resolver.CounterError] != 0 {
			n.t.Errorf("counters %v", c)
		}
	})
}

// Whatever the spelling, the answer is the SA's, and the SA is asked once.
func TestFabricSpellings(t *testing.T) {
	onFabric(t, fabric.Config{Nodes: 64, Seed: 1}, func(n *node) {
		before := n.fab.Stats().PathGets
		gid := resolver.Query{Kind: resolver.ByPath}
		gid.Path.SetDGID(n.fab.GID(7, 1))
		v6 := resolver.Query{Src: resolver.IPAddr(fabric.IPv6(0, 1)), Dst: resolver.IPAddr(fabric.IPv6(7, 1))}
		name := resolver.Query{Src: resolver.NameAddr(fabric.NodeName(0, 1)), Dst: resolver.NameAddr(fabric.NodeName(7, 1))}
		var ask sa.PathRecord
		ask.SetDGID(n.fab.GID(7, 1))
		ask.SetSGID(n.fab.GID(0, 1))
		want, st := n.fab.SAPath(sa.PathMask(&ask), &ask)
		if st != 0 {
			n.t.Fatalf("SA status %#x", st)
		}
		for i, q := range []resolver.Query{toIPv4(7), v6, name, gid, {Dst: toIPv4(7).Dst}} {
			if got := n.ask(q).Path; got != want {
				n.t.Errorf("spelling %d:\n got %x\nwant %x", i, got, want)
			}
		}
		if got := n.fab.Stats().PathGets - before; got != 1 {
			n.t.Errorf("%d Gets", got)
		}
		if got := n.ask(toIPv4(0)); got.Origin != resolver.OriginLoopback {
			n.t.Errorf("origin %v", got.Origin)
		}
	})
}

// What happens to the fabric reaches the answers: another LID of the peer with a
// notice (field case 8), another LID of ours, another SM (field case 9), the
// device removed and brought back (field case 76).
func TestFabricChanges(t *testing.T) {
	onFabric(t, fabric.Config{Nodes: 64, Seed: 1}, func(n *node) {
		check := func(what string) {
			n.t.Helper()
			p := n.ask(toIPv4(7)).Path
			if p.SLID() != n.fab.LID(0, 1) || p.DLID() != n.fab.LID(7, 1) || p.SGID() != n.fab.GID(0, 1) {
				n.t.Errorf("%s: path from LID %v to LID %v, want %v, %v", what, p.SLID(), p.DLID(), n.fab.LID(0, 1), n.fab.LID(7, 1))
			}
		}
		must := func(err error) {
			n.t.Helper()
			if err != nil {
				n.t.Fatal(err)
			}
		}
		check("at first")
		must(n.fab.SetLID(7, 1, 5001))
		n.e.FlushGID(n.fab.GID(7, 1))
		check("peer has another LID")
		must(n.fab.SetLID(0, 1, 5000))
		time.Sleep(2 * time.Second)
		check("own LID is another one")
		gets := n.fab.Stats().PathGets
		must(n.fab.MoveSM(9, true, transport.EventSMChange))
		time.Sleep(time.Second)
		check("another SM, path from the cache")
		time.Sleep(time.Second)
		if got := n.fab.Stats().PathGets - gets; got != 1 {
			n.t.Errorf("%d Gets after the SM moved, want one refresh", got)
		}
		must(n.fab.RemoveDevice(0))
		time.Sleep(2 * time.Second)
		if eps := n.e.Endpoints(); len(eps) != 0 {
			n.t.Errorf("%d endpoints without a device", len(eps))
		}
		must(n.fab.RestoreDevice(0))
		time.Sleep(3 * time.Second)
		check("the device is back")
		must(n.fab.SetPort(0, 1, mad.PortDown))
		time.Sleep(time.Second)
		must(n.fab.SetPort(0, 1, mad.PortActive))
		time.Sleep(2 * time.Second)
		check("the link bounced")
	})
}
