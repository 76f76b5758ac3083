// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acmp

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"acmd/cache"
	"acmd/mad"
	"acmd/mad/acm"
	"acmd/mad/fabric"
	madsa "acmd/mad/sa"
	"acmd/mad/transport"
	"acmd/resolver"
	"acmd/resolver/sa"

	"pgregory.net/rapid"
)

// Field case 6: link error, reregister and active in any order end in a
// membership, with no more than two joins.
func TestEventOrders(t *testing.T) {
	ERR, RE, ACT := transport.EventPortError, transport.EventReregister, transport.EventPortActive
	for _, order := range [][]transport.EventType{{ERR, RE, ACT}, {ERR, ACT, RE}, {RE}, {ERR, ACT}, {RE, RE, RE}} {
		inBubble(t, fabric.Config{Nodes: 4}, func(t *testing.T, f *fabric.Fabric) {
			log, stop := watch(f)
			defer stop()
			nd := start(t, f, 0, Config{})
			defer nd.stop()
			time.Sleep(10 * time.Second)
			before := log.count(0)
			for _, ev := range order {
				switch ev {
				case ERR:
					if err := f.SetPort(0, 1, mad.PortDown); err != nil {
						t.Fatal(err)
					}
					nd.endpoints()
				case ACT:
					if err := f.SetPort(0, 1, mad.PortActive); err != nil {
						t.Fatal(err)
					}
					nd.endpoints()
				}
				nd.src.Event(transport.Event{Type: ev, Device: fabric.DeviceName, Port: 1})
				time.Sleep(100 * time.Millisecond)
			}
			time.Sleep(5 * time.Second)
			if n := log.count(0) - before; n < 1 || n > 2 {
				t.Errorf("%v: %d joins", order, n)
			}
			nd.must(v4(2), 2)
		})
	}
}

// Events of others and of other kinds change nothing.
func TestForeignEvents(t *testing.T) {
	inBubble(t, fabric.Config{Nodes: 4}, func(t *testing.T, f *fabric.Fabric) {
		log, stop := watch(f)
		defer stop()
		nd := start(t, f, 0, Config{})
		defer nd.stop()
		for _, ev := range []transport.Event{
			{Type: transport.EventReregister, Device: "other", Port: 1},
			{Type: transport.EventReregister, Device: fabric.DeviceName, Port: 2},
			{Type: transport.EventGIDChange, Device: fabric.DeviceName, Port: 1},
		} {
			nd.src.Event(ev)
		}
		time.Sleep(5 * time.Second)
		if n := log.count(0); n != 1 {
			t.Errorf("%d joins", n)
		}
	})
}

// Field case 52: all nodes are told to register again while the SA is silent
// for 5 s. All are up within 2 s of its return, the first join comes in less
// than a second, and they do not send at once.
func TestReregisterStorm(t *testing.T) {
	const nodes = 500
	inBubble(t, fabric.Config{Nodes: nodes + 2, Delay: 10 * time.Microsecond}, func(t *testing.T, f *fabric.Fabric) {
		var all []*node
		for n := range nodes {
			all = append(all, start(t, f, n, Config{}))
		}
		time.Sleep(10 * time.Second)
		log, stop := watch(f)
		defer stop()
		if err := f.MoveSM(nodes+1, false); err != nil {
			t.Fatal(err)
		}
		f.AddRule(fabric.Rule{Class: mad.ClassSA, Do: fabric.Drop, For: 5 * time.Second})
		begin := time.Now()
		for _, nd := range all {
			nd.client.Update(info(f, nd.n))
			nd.src.Event(transport.Event{Type: transport.EventReregister, Device: fabric.DeviceName, Port: 1})
		}
		time.Sleep(5*time.Second + 2*time.Second)
		synctest.Wait()
		var sends []time.Time
		for _, nd := range all {
			if g := nd.src.Groups(); !g[0].Joined || g[0].Err != nil {
				t.Errorf("node %d: %+v", nd.n, g[0])
			}
			times := log.times(nd.n)
			if d := times[0].Sub(begin); d >= time.Second {
				t.Errorf("node %d: first join after %v", nd.n, d)
			}
			if n := len(times); n < 4 || n > 14 {
				t.Errorf("node %d: %d joins", nd.n, n)
			}
			sends = append(sends, times...)
		}
		slices.SortFunc(sends, time.Time.Compare)
		for i := range sends {
			if i >= nodes/4 && sends[i].Sub(sends[i-nodes/4]) < 100*time.Millisecond {
				t.Fatalf("%d nodes joined within 100 ms", nodes/4)
			}
		}
		for _, nd := range all {
			nd.stop()
		}
	})
}

// The SM moves and forgets: the new one gives another MLID, the queue pair goes
// there, and requests are heard again.
func TestNewSMNewMLID(t *testing.T) {
	inBubble(t, fabric.Config{Nodes: 6}, func(t *testing.T, f *fabric.Fabric) {
		a, b := start(t, f, 0, Config{Retries: 2}), start(t, f, 1, Config{Retries: 2})
		defer a.stop()
		defer b.stop()
		a.must(v4(1), 1)
		if err := f.MoveSM(4, false); err != nil {
			t.Fatal(err)
		}
		a.endpoints() // a new SM LID, with no event at all
		b.endpoints()
		time.Sleep(2 * time.Second)
		a.must(v4(1), 1)
		b.must(v4(0), 0)
	})
}

// An endpoint that is taken away leaves its group, and answers no more; the one
// that stays does.
func TestEndpointLeaves(t *testing.T) {
	keys := func(int) []mad.PKey { return []mad.PKey{0xffff, 0x8001} }
	inBubble(t, fabric.Config{Nodes: 4, PKeys: keys}, func(t *testing.T, f *fabric.Fabric) {
		log, stop := watch(f)
		defer stop()
		a, b := start(t, f, 0, Config{}), start(t, f, 1, Config{})
		defer a.stop()
		defer b.stop()
		waiting := b.locateOn(1, resolver.NameAddr("nobody"), 10*time.Second)
		synctest.Wait()
		b.src.SetEndpoints(b.eps[:1])
		if got := <-waiting; !errors.Is(got.err, resolver.ErrDown) {
			t.Error(got.err)
		}
		if got := <-b.locateOn(1, v4(2), time.Second); !errors.Is(got.err, resolver.ErrDown) {
			t.Error(got.err)
		}
		if got := <-a.locateOn(1, v4(1), time.Second); !errors.Is(got.err, resolver.ErrTimeout) {
			t.Error(got)
		}
		a.must(v4(1), 1)
		log.mu.Lock()
		defer log.mu.Unlock()
		if len(log.leave) != 1 || log.leave[0].MGID() != fabric.ACMGroup(0x8001) || log.leave[0].PortGID() != f.GID(1, 1) || log.leave[0].JoinState() != madsa.JoinFull {
			t.Errorf("leaves: %x", log.leave)
		}
	})
}

// New addresses of an endpoint are answered for at once, with no new join.
func TestNewAddresses(t *testing.T) {
	inBubble(t, fabric.Config{Nodes: 4}, func(t *testing.T, f *fabric.Fabric) {
		log, stop := watch(f)
		defer stop()
		a, b := start(t, f, 0, Config{}), start(t, f, 1, Config{})
		defer a.stop()
		defer b.stop()
		ep := *b.eps[0]
		ep.Addrs = []resolver.LocalAddr{{Addr: resolver.NameAddr("Alias.Cluster"), Text: "Alias.Cluster"}}
		b.src.SetEndpoints([]*resolver.Endpoint{&ep})
		synctest.Wait()
		if got := <-a.locate(resolver.NameAddr("ALIAS.cluster"), time.Second); got.err != nil || got.LID != f.LID(1, 1) {
			t.Error(got)
		}
		if got := <-a.locate(v4(1), time.Second); !errors.Is(got.err, resolver.ErrTimeout) {
			t.Error(got)
		}
		if log.count(1) != 1 {
			t.Errorf("%d joins", log.count(1))
		}
	})
}

// The answer to a request, byte for byte, to the sender that the packet names;
// each copy of a request is answered. Hostile packets only count.
func TestAnswers(t *testing.T) {
	inBubble(t, fabric.Config{Nodes: 6}, func(t *testing.T, f *fabric.Fabric) {
		log, stop := watch(f)
		defer stop()
		nd := start(t, f, 0, Config{})
		defer nd.stop()
		group := fabric.ACMGroup(0xffff)
		me := resolver.NameAddr(fabric.NodeName(0, 1))
		send := func(m *mad.Packet) {
			t.Helper()
			if err := f.Multicast(3, 1, group, m); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		m := request(t, me, v4(3), group)
		copy(acm.View(m).Dest()[:], strings.ToUpper(fabric.NodeName(0, 1)))
		send(m)
		send(m)
		sent := log.sent()
		if len(sent) != 2 || sent[0].MAD != sent[1].MAD {
			t.Fatalf("%d answers", len(sent))
		}
		var want mad.Packet
		copy(want[:], []byte{1, 0x2c, 1, 0x81, 0, 0, 0, 1, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0, 0, 0, 0, 1})
		copy(want[152:], group[:])
		if sent[0].MAD != want {
			t.Errorf("answer\n%x\nwant\n%x", sent[0].MAD, want)
		}
		if h := &sent[0].Header; h.LID() != f.LID(3, 1) || h.GID() != f.GID(3, 1) || h.QPN() == mad.QP1 || h.QKey() != 0x80010000 || h.TimeoutMS() != 0 {
			t.Errorf("header % x", h[:])
		}

		foreign := acm.MGID(0xffff, 0, 9, 5)
		for name, spoil := range map[string]func(m *mad.Packet){
			"version":         func(m *mad.Packet) { m[2] = 2 },
			"control":         func(m *mad.Packet) { m.SetSpecific(acm.ControlAck) },
			"method":          func(m *mad.Packet) { m.SetMethod(mad.MethodSet) },
			"src_type":        func(m *mad.Packet) { m[18] = 6 },
			"dest_type":       func(m *mad.Packet) { m[16] = 0 },
			"groups":          func(m *mad.Packet) { m[20] = 0 },
			"address":         func(m *mad.Packet) { *acm.View(m).Dest() = [64]byte{} },
			"no_common_group": func(m *mad.Packet) { copy(m[152:168], foreign[:]) },
			"not_ours":        func(m *mad.Packet) { acm.View(m).Dest()[0]++ },
			"stray":           func(m *mad.Packet) { m.SetMethod(mad.MethodGetResp) },
		} {
			before := nd.src.Stats().Refused[name]
			m := request(t, me, v4(3), group)
			spoil(m)
			send(m)
			if n := nd.src.Stats().Refused[name] - before; n != 1 {
				t.Errorf("%s: counted %d times: %v", name, n, nd.src.Stats().Refused)
			}
		}
		// A count of groups beyond the packet is clamped, and a group inside is found.
		m = request(t, me, v4(3), foreign, foreign, foreign, group)
		m[20] = 255
		send(m)
		if n := len(log.sent()); n != 3 {
			t.Errorf("%d answers", n)
		}
	})
}

// Answers that must not end a lookup: another TID, another group, an impossible
// sender. Then the true one does, and a second one is stray.
func TestForgedAnswers(t *testing.T) {
	inBubble(t, fabric.Config{Nodes: 6, Silent: 6}, func(t *testing.T, f *fabric.Fabric) {
		log, stop := watch(f)
		defer stop()
		nd := start(t, f, 0, Config{Retries: 2})
		defer nd.stop()
		ch := nd.locate(v4(3), 12*time.Second)
		synctest.Wait()
		tid := log.sent()[0].MAD.TID()
		group := fabric.ACMGroup(0xffff)
		send := func(from int, tid mad.TID, g mad.GID, status mad.Status) {
			t.Helper()
			var m mad.Packet
			acm.InitResponse(&m, tid, g)
			m.SetStatus(status)
			if err := f.Unicast(from, 1, f.LID(0, 1), nd.client.Caps().QPN, &m); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		send(4, tid^1, group, 0)
		send(4, tid^1<<40, group, 0)
		send(4, tid, acm.MGID(0xffff, 0, 9, 5), 0)
		if len(ch) != 0 {
			t.Fatalf("a forged answer was taken: %v", <-ch)
		}
		send(3, tid, group, 0)
		send(3, tid, group, 0)
		if got := <-ch; got.err != nil || got.LID != f.LID(3, 1) {
			t.Error(got)
		}
		if st := nd.src.Stats(); st.Refused["stray"] != 3 || st.Refused["no_common_group"] != 1 || st.Responses != 1 {
			t.Errorf("%+v", st)
		}
		ch = nd.locate(v4(4), 12*time.Second)
		synctest.Wait()
		send(4, log.sent()[1].MAD.TID(), group, 0x0100)
		if got := <-ch; !errors.Is(got.err, resolver.ErrUnknown) {
			t.Error(got)
		}
	})
}

// Who cannot be a sender.
func TestSender(t *testing.T) {
	good := func() *mad.UserHeader {
		var h mad.UserHeader
		h.SetLID(5)
		h.SetQPN(0x123)
		h.SetGID(mad.MakeGID(0xfe80<<48, 5))
		return &h
	}
	if !sender(good()) {
		t.Fatal("a good one")
	}
	for name, spoil := range map[string]func(h *mad.UserHeader){
		"lid 0":     func(h *mad.UserHeader) { h.SetLID(0) },
		"multicast": func(h *mad.UserHeader) { h.SetLID(0xc001) },
		"qpn 0":     func(h *mad.UserHeader) { h.SetQPN(0) },
		"qpn all":   func(h *mad.UserHeader) { h.SetQPN(mad.MulticastQPN) },
		"no grh":    func(h *mad.UserHeader) { h[32] = 0 },
		"gid 0":     func(h *mad.UserHeader) { h.SetGID(mad.GID{}) },
		"mgid":      func(h *mad.UserHeader) { h.SetGID(fabric.ACMGroup(0xffff)) },
	} {
		h := good()
		if spoil(h); sender(h) {
			t.Error(name)
		}
	}
}

// A flood of requests is answered up to the bound.
func TestAnswerRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &port{}
		n := 0
		for range 2 * MaxAnswers {
			if p.mayAnswer() {
				n++
			}
		}
		time.Sleep(time.Second)
		if n != MaxAnswers || !p.mayAnswer() {
			t.Errorf("%d answers in a second", n)
		}
	})
}

// The device goes with lookups under way: each is told, none twice; the source
// forgets the port; a new client takes its place.
func TestDeviceGone(t *testing.T) {
	inBubble(t, fabric.Config{Nodes: 4}, func(t *testing.T, f *fabric.Fabric) {
		nd := start(t, f, 0, Config{})
		a, b := nd.locate(resolver.NameAddr("nobody"), 0), nd.locate(resolver.NameAddr("somebody"), 0)
		synctest.Wait()
		if err := f.RemoveDevice(0); err != nil {
			t.Fatal(err)
		}
		for _, ch := range []<-chan found{a, b, nd.locate(v4(2), time.Second)} {
			if got := <-ch; !errors.Is(got.err, resolver.ErrDown) {
				t.Error(got)
			}
		}
		<-nd.client.Done()
		if len(nd.src.Groups()) != 0 {
			t.Errorf("groups of a port that is gone: %+v", nd.src.Groups())
		}
		if err := nd.src.Attach(fabric.DeviceName, 1, nd.client); !errors.Is(err, transport.ErrGone) {
			t.Error(err)
		}
		if err := f.RestoreDevice(0); err != nil {
			t.Fatal(err)
		}
		p, err := f.Host(0).Open(fabric.DeviceName, 1)
		if err != nil {
			t.Fatal(err)
		}
		nd.client = sa.Open(p, info(f, 0), sa.Config{}, nil)
		defer nd.stop()
		if err := nd.src.Attach(fabric.DeviceName, 1, nd.client); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		nd.must(v4(2), 2)
		if got := <-nd.locate(resolver.Addr{}, time.Second); got.err == nil {
			t.Error("an empty address was found")
		}
	})
}

// Field case 80: subnet time-outs of every size give sane waits, which rise.
func TestWaits(t *testing.T) {
	for _, timeout := range []time.Duration{0, time.Nanosecond, 100 * time.Millisecond, 2 * time.Second, time.Minute} {
		c := Config{Timeout: timeout, Retries: 4}
		c.normalize()
		last := time.Duration(0)
		for e := range 32 {
			w := c.longestGap(uint8(e))
			if w < time.Millisecond || w > 2*c.Timeout || w < last {
				t.Errorf("time-out %v, exponent %d: wait %v after %v", timeout, e, w, last)
			}
			last = w
			gap := time.Duration(0)
			for n := range 6 {
				g := c.gap(n, uint8(e))
				if g < min(gap, w) || g > w || g < time.Millisecond {
					t.Errorf("exponent %d, try %d: gap %v after %v", e, n, g, gap)
				}
				gap = g
			}
		}
	}
	c := Config{}
	c.normalize()
	for e, want := range map[uint8]time.Duration{0: 2000, 1: 2000, 7: 2000, 8: 2001, 18: 3024, 31: 4000, 32: 2000} {
		if got := c.longestGap(e); got != want*time.Millisecond {
			t.Errorf("exponent %d: %v", e, got)
		}
	}
}

// An address survives its way through a packet; a name is folded on the way.
func TestWireAddr(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		kind := rapid.SampledFrom([]cache.Kind{cache.KindName, cache.KindIPv4, cache.KindIPv6, cache.KindGID, cache.KindLID}).Draw(t, "kind")
		a := resolver.Addr{Kind: kind, Len: map[cache.Kind]uint8{2: 4, 3: 16, 4: 16, 5: 2}[kind]}
		var field [acm.AddrSize]byte
		if kind == cache.KindName {
			name := rapid.StringMatching(`[A-Za-z0-9.-]{1,64}`).Draw(t, "name")
			copy(field[:], name)
			a = resolver.NameAddr(name)
		} else {
			b := rapid.SliceOfN(rapid.Byte(), int(a.Len), int(a.Len)).Draw(t, "bytes")
			if slices.Max(b) == 0 {
				b[0] = 1
			}
			copy(field[:], b)
			copy(a.Data[:], b)
		}
		got, ok := wireAddr(uint8(kind), &field)
		if !ok || got != a {
			t.Fatalf("%v, %v; want %v", got, ok, a)
		}
	})
	long := [acm.AddrSize]byte{10, 0, 0, 1, 63: 1}
	if _, ok := wireAddr(acm.TypeIPv4, &long); ok {
		t.Error("bytes behind an IPv4 address were passed over")
	}
}

func FuzzWireAddr(f *testing.F) {
	f.Add(uint8(1), []byte("Node1"))
	f.Add(uint8(2), []byte{10, 0, 0, 1})
	f.Add(uint8(9), []byte{1})
	f.Fuzz(func(t *testing.T, kind uint8, b []byte) {
		var field [acm.AddrSize]byte
		copy(field[:], b)
		a, ok := wireAddr(kind, &field)
		if ok && (a.Len == 0 || a.Kind < cache.KindName || a.Kind > cache.KindLID || !allZero(a.Data[a.Len:])) {
			t.Errorf("%+v", a)
		}
	})
}
