// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acmp

import (
	"encoding/hex"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"acmd/mad"
	"acmd/mad/acm"
	"acmd/mad/fabric"
	madsa "acmd/mad/sa"
	"acmd/resolver"
)

// Names in any case and both kinds of IP are found on simulated services; the
// request is the one of the specification, byte for byte.
func TestLocate(t *testing.T) {
	inBubble(t, fabric.Config{Nodes: 20}, func(t *testing.T, f *fabric.Fabric) {
		log, stop := watch(f)
		defer stop()
		nd := start(t, f, 0, Config{})
		defer nd.stop()
		nd.must(resolver.NameAddr(strings.ToUpper(fabric.NodeName(5, 1))), 5)
		nd.must(v4(6), 6)
		nd.must(resolver.IPAddr(fabric.IPv6(7, 1)), 7)
		sent := log.sent()
		if len(sent) != 3 {
			t.Fatalf("%d requests", len(sent))
		}
		e := sent[0]
		tid := e.MAD.TID()
		if tid.Low() == 0 || tid>>32 == 0 || sent[1].MAD.TID() == tid {
			t.Errorf("TIDs %v, %v: want random ones", tid, sent[1].MAD.TID())
		}
		e.MAD.SetTID(9)
		want := "012c0101000000010000000000000009" + "0140014001000000" +
			pad(fabric.NodeName(5, 1), 64) + pad(fabric.NodeName(0, 1), 64) +
			"ff154001ffff00030400000000000000" + strings.Repeat("00", 256-168)
		if got := hex.EncodeToString(e.MAD[:]); got != want {
			t.Errorf("request\n%s\nwant\n%s", got, want)
		}
		h := &e.Header
		if h.LID() < 0xc000 || h.QPN() != mad.MulticastQPN || h.QKey() != 0x80010000 || h.GID() != fabric.ACMGroup(0xffff) || !h.HasGRH() || h.TimeoutMS() != 0 {
			t.Errorf("header % x", h[:])
		}
		// The source goes out in the kind that is asked for.
		if r := acm.View(&sent[1].MAD); r.SrcType() != acm.TypeIPv4 || [4]byte(r.Src()[:4]) != fabric.IPv4(0, 1).As4() {
			t.Errorf("source of an IPv4 request: type %d, % x", r.SrcType(), r.Src()[:4])
		}
	})
}

func pad(s string, n int) string {
	return hex.EncodeToString([]byte(s + strings.Repeat("\x00", n-len(s))))
}

// The join is the one of the specification. Field cases 13 and 53: byte order,
// full bit in the group, true P_Key in the record.
func TestJoinBytes(t *testing.T) {
	keys := func(int) []mad.PKey { return []mad.PKey{0xffff, 0x0123} }
	inBubble(t, fabric.Config{Nodes: 4, PKeys: keys}, func(t *testing.T, f *fabric.Fabric) {
		log, stop := watch(f)
		defer stop()
		nd := start(t, f, 0, Config{})
		defer nd.stop()
		m := *log.first
		m.SetTID(0)
		gid := f.GID(0, 1)
		want := "01030202" + strings.Repeat("00", 12) + "0038" + strings.Repeat("00", 30) + "000000000001b3f7" +
			"ff154001ffff00030400000000000000" + hex.EncodeToString(gid[:]) + "8001000000008400" +
			"ffff830000000000" + "51" + strings.Repeat("00", 256-105)
		if got := hex.EncodeToString(m[:]); got != want {
			t.Errorf("join\n%s\nwant\n%s", got, want)
		}
		g := nd.src.Groups()
		if len(g) != 2 || !g[0].Joined || !g[1].Joined || g[1].PKey != 0x0123 || g[1].MGID != fabric.ACMGroup(0x8123) ||
			g[0].MLID < 0xc000 || g[0].MLID == g[1].MLID {
			t.Errorf("groups %+v", g)
		}
	})
}

// Field case 53: a full and a limited member meet in one group; both ways.
func TestLimitedMeetsFull(t *testing.T) {
	keys := func(n int) []mad.PKey {
		if n == 0 {
			return []mad.PKey{0xffff, 0x0123}
		}
		return []mad.PKey{0xffff, 0x8123}
	}
	inBubble(t, fabric.Config{Nodes: 3, PKeys: keys}, func(t *testing.T, f *fabric.Fabric) {
		a, b := start(t, f, 0, Config{}), start(t, f, 1, Config{})
		defer a.stop()
		defer b.stop()
		if got := <-a.locateOn(1, v4(1), time.Second); got.err != nil || got.LID != f.LID(1, 1) {
			t.Errorf("limited asks full: %v", got)
		}
		if got := <-b.locateOn(1, resolver.NameAddr(fabric.NodeName(0, 1)), time.Second); got.err != nil || got.GID != f.GID(0, 1) {
			t.Errorf("full asks limited: %v", got)
		}
		if st := b.stats(); st.Heard != 1 || st.Answered != 1 {
			t.Errorf("%+v", st)
		}
	})
}

// Field case 25: the request of the very node that is looked for tells where it
// is. One of any other node teaches nothing.
func TestOverheard(t *testing.T) {
	inBubble(t, fabric.Config{Nodes: 6}, func(t *testing.T, f *fabric.Fabric) {
		nd := start(t, f, 0, Config{Retries: 2})
		defer nd.stop()
		if err := f.SetSilent(3, true); err != nil {
			t.Fatal(err)
		}
		ch := nd.locate(v4(3), 12*time.Second)
		time.Sleep(100 * time.Millisecond)
		other := fabric.IPv4(2, 1).As4()
		if err := f.PeerAsk(4, 1, 0xffff, 77, acm.TypeIPv4, other[:]); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if len(ch) != 0 {
			t.Fatalf("learned from a stranger: %v", <-ch)
		}
		if err := f.PeerAsk(3, 1, 0xffff, 78, acm.TypeIPv4, other[:]); err != nil {
			t.Fatal(err)
		}
		if got := <-ch; got.err != nil || got.LID != f.LID(3, 1) || got.GID != f.GID(3, 1) {
			t.Errorf("%v", got)
		}
		if st := nd.stats(); st.Found != 1 || st.Responses != 0 || st.Heard != 2 || st.Refused["not_ours"] != 2 {
			t.Errorf("%+v", st)
		}
	})
}

// With route_prot acm the location brings the path: that of the best common
// group, with the peer's GID and LID.
func TestRouteACM(t *testing.T) {
	inBubble(t, fabric.Config{Nodes: 10, SlowEvery: 3}, func(t *testing.T, f *fabric.Fabric) {
		a, b := start(t, f, 1, Config{RouteACM: true}), start(t, f, 3, Config{RouteACM: true})
		defer a.stop()
		defer b.stop()
		if g := a.src.Groups(); len(g) != 2 || !g[1].Joined || g[1].Rate == 3 || g[1].MTU != info(f, 1).MTU {
			t.Fatalf("groups %+v", g)
		}
		check := func(to int, mtu mad.MTU, rate mad.Rate) {
			t.Helper()
			got := a.must(v4(to), to)
			if got.Route == nil || got.Origin != resolver.OriginGroup {
				t.Fatalf("%+v", got)
			}
			var want madsa.PathRecord
			want.SetDGID(f.GID(to, 1))
			want.SetSGID(f.GID(1, 1))
			want.SetDLID(f.LID(to, 1))
			want.SetSLID(f.LID(1, 1))
			want.SetReversibleNumPath(true, 1)
			want.SetPKey(0xffff)
			want.SetMTU(madsa.Exactly, mtu)
			want.SetRate(madsa.Exactly, rate)
			want.SetLifetime(madsa.Exactly, 0)
			got.Route.SetLifetime(madsa.Exactly, 0) // the SA's to say
			got.Route.SetFlowHop(0, 0)
			if *got.Route != want {
				t.Errorf("route\n%x\nwant\n%x", *got.Route, want)
			}
		}
		check(3, info(f, 1).MTU, info(f, 1).Rate) // both have the fast group
		check(4, 4, 3)                            // a simulated service, in the common one
	})
}

// A port that cannot do what the group asks is told so at once, and keeps
// trying. Field case 56: an unknown rate code does not drop the group.
func TestJoinRefused(t *testing.T) {
	inBubble(t, fabric.Config{Nodes: 10}, func(t *testing.T, f *fabric.Fabric) {
		log, stop := watch(f)
		defer stop()
		rule := f.AddRule(fabric.Rule{Attr: madsa.AttrMCMemberRecord, Do: fabric.Answer, Status: 0x0200})
		nd := start(t, f, 1, Config{})
		defer nd.stop()
		got := <-nd.locate(v4(2), time.Second)
		if !errors.Is(got.err, ErrNotJoined) || !errors.Is(got.err, resolver.ErrDown) || !strings.Contains(got.err.Error(), "request invalid") {
			t.Error(got.err)
		}
		time.Sleep(10 * time.Minute)
		if n := log.count(1); n < 20 || n > 80 {
			t.Errorf("%d joins in 10 minutes of refusals", n)
		}
		if g := nd.src.Groups(); g[0].Joined || g[0].Err == nil {
			t.Errorf("%+v", g)
		}
		rule.Remove()
		time.Sleep(maxJoinPause + time.Second)
		nd.must(v4(2), 2)
	})
	// The record's rate is the SA's word, whatever it means.
	m := &member{ep: &resolver.Endpoint{PKey: 0xffff}}
	g := newGroup(m, 63, 4)
	g.rec.SetRate(madsa.Exactly, 63)
	if r := g.path(1); r[55] != 0x80|63 {
		t.Errorf("rate %#x", r[55])
	}
}

// A lookup that comes before the join is done waits for it.
func TestLocateBeforeJoin(t *testing.T) {
	inBubble(t, fabric.Config{Nodes: 10, Delay: 100 * time.Millisecond}, func(t *testing.T, f *fabric.Fabric) {
		nd := start(t, f, 1, Config{})
		defer nd.stop()
		begin := time.Now()
		if got := nd.must(v4(2), 2); got.at.Sub(begin) > 500*time.Millisecond {
			t.Errorf("after %v", got.at.Sub(begin))
		}
	})
}
