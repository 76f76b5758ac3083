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
	"acmd/resolver"

	"pgregory.net/rapid"
)

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
			before := nd.stats().Refused[name]
			m := request(t, me, v4(3), group)
			spoil(m)
			send(m)
			if n := nd.stats().Refused[name] - before; n != 1 {
				t.Errorf("%s: counted %d times: %v", name, n, nd.stats().Refused)
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
		if st := nd.stats(); st.Refused["stray"] != 3 || st.Refused["no_common_group"] != 1 || st.Responses != 1 {
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
