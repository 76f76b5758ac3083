// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package resolver_test

import (
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"acmd/mad"
	"acmd/mad/ibsim"
	"acmd/mad/madtest"
	"acmd/mad/madtest/peer"
	"acmd/mad/transport"
	"acmd/resolver"
	"acmd/resolver/acmp"
	"acmd/resolver/hostnet"
	saclient "acmd/resolver/sa"
)

// livePatience bounds what a real OpenSM takes on a busy machine.
const livePatience = 60 * time.Second

// Port GUIDs of small.net.
var (
	liveB = mad.MakeGID(mad.DefaultPrefix, 0x100003)
	liveC = mad.MakeGID(mad.DefaultPrefix, 0x100005)
)

// liveNode is an engine on node-a of a simulated fabric with a real OpenSM.
type liveNode struct {
	t      *testing.T
	fab    *peer.Fabric
	e      *resolver.Engine
	client atomic.Pointer[saclient.Client]
}

func newLive(t *testing.T, cfg ibsim.Config, edit ...func(*resolver.Config)) *liveNode {
	t.Helper()
	l := &liveNode{t: t, fab: peer.StartFabric(t, "small.net", peer.Console())}
	cfg.Base, cfg.Node, cfg.Poll = l.fab.SockName, "node-a", 100*time.Millisecond
	sim, err := ibsim.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { sim.Close() })
	log := slog.New(slog.DiscardHandler)
	var engine atomic.Pointer[resolver.Engine]
	kick := func() {
		if e := engine.Load(); e != nil {
			e.Kick()
		}
	}
	rc := resolver.Config{
		Fabric: sim, Host: &hostnet.Static{}, Log: log, AddrTimeout: 24 * time.Hour, RouteTimeout: resolver.Forever,
		Refresh: resolver.DefaultRefresh, NegativeTimeout: time.Second, RequestTimeout: 10 * time.Second,
		OpenSA: func(device string, info transport.PortInfo) (resolver.SA, error) {
			p, err := sim.Open(device, info.Num)
			if err != nil {
				return nil, err
			}
			c := saclient.Open(p, info, saclient.Config{Retries: 2, RetryNoRecords: 1, Suspect: kick}, log)
			l.client.Store(c)
			return acmp.EngineSA{Client: c}, nil
		},
	}
	for _, f := range edit {
		f(&rc)
	}
	if l.e, err = resolver.New(rc); err != nil {
		t.Fatal(err)
	}
	engine.Store(l.e)
	t.Cleanup(l.e.Close)
	return l
}

// until waits for something that the fabric does in its own time.
func (l *liveNode) until(what string, ok func() bool) {
	l.t.Helper()
	for end := time.Now().Add(livePatience); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			l.t.Fatalf("%s: not within %v; SA client %+v, engine %+v", what, livePatience, l.client.Load().Stats(), l.e.Stats())
		}
	}
}

// subscriptions is how often the subscription was made.
func (l *liveNode) subscriptions() uint64 { return l.client.Load().Stats().Subscriptions }

// subscribed waits for the n-th subscription.
func (l *liveNode) subscribed(n uint64) {
	l.t.Helper()
	l.until("subscription", func() bool { return l.subscriptions() >= n })
}

// ask asks for the path to a port.
func (l *liveNode) ask(dst mad.GID) resolver.Answer {
	l.t.Helper()
	q := resolver.Query{Kind: resolver.ByPath}
	q.Path.SetDGID(dst)
	var a resolver.Answer
	if l.e.Lookup(&q, l.e.Now(), &a) {
		return a
	}
	w := answers{make(chan resolver.Answer, 1)}
	l.e.Resolve(&q, 0, w)
	return <-w.ch
}

// cached asks and wants the answer at once and right.
func (l *liveNode) cached(dst mad.GID) {
	l.t.Helper()
	q := resolver.Query{Kind: resolver.ByPath}
	q.Path.SetDGID(dst)
	var a resolver.Answer
	if !l.e.Lookup(&q, l.e.Now(), &a) || a.Status != resolver.StatusSuccess || a.Path.DGID() != dst {
		l.t.Errorf("path to %v is not in the cache: %v", dst, a.Status)
	}
}

// flap takes a node's link away and expects its paths to go, and brings it back.
func (l *liveNode) flap(node string, gid mad.GID) {
	l.t.Helper()
	if a := l.ask(gid); a.Status != resolver.StatusSuccess {
		l.t.Fatalf("path to %s: %v %v", node, a.Status, a.Err)
	}
	drops := l.e.Stats().NoticeDrops
	l.fab.Command(l.t, `Unlink "`+node+`"`)
	l.until("notice that "+node+" went", func() bool { return l.e.Stats().NoticeDrops > drops })
	begin := time.Now()
	if a := l.ask(gid); a.Status != resolver.StatusNoData {
		l.t.Errorf("path to %s, which is gone: %v %v", node, a.Status, a.Err)
	}
	l.t.Logf("%s is gone: answered after %v", node, time.Since(begin))
	notices := l.e.Stats().Notices
	l.fab.Command(l.t, `ReLink "`+node+`"`)
	l.until("notice that "+node+" came", func() bool { return l.e.Stats().Notices > notices })
	l.until("path to "+node, func() bool { return l.ask(gid).Status == resolver.StatusSuccess })
}

// field case 8: a real OpenSM tells of a peer that went and came, in both roles in
// which the simulator passes Reports.
func TestLiveNotices(t *testing.T) {
	for name, cfg := range map[string]ibsim.Config{"issm": {ISSM: true}, "qp": {QP: 0x4d}} {
		t.Run(name, func(t *testing.T) {
			l := newLive(t, cfg)
			l.subscribed(1)
			l.flap("node-b", liveB)
			l.flap("node-b", liveB)
			l.cached(liveB)
		})
	}
}

// A plain client of the simulator is sent no Reports: nothing is asked for, and
// paths are served as before.
func TestLivePlain(t *testing.T) {
	l := newLive(t, ibsim.Config{})
	if a := l.ask(liveB); a.Status != resolver.StatusSuccess {
		t.Fatal(a.Status, a.Err)
	}
	if st := l.client.Load().Stats(); st.Subscribed != 0 || st.SubscribeErrors != 0 {
		t.Errorf("%+v", st)
	}
}

// The simulator hands on the first packet of a table, which has three paths: that is
// told, nobody takes them for all, and paths are asked for one by one.
func TestLivePrefetchCut(t *testing.T) {
	var out madtest.Output
	l := newLive(t, ibsim.Config{}, prefetching, func(c *resolver.Config) { c.Log = slog.New(slog.NewTextHandler(&out, nil)) })
	l.until("an answer to the question for the table", func() bool { return l.e.Stats().TableFailures > 0 })
	if st := l.e.Stats(); st.Tables != 0 || !strings.Contains(out.String(), resolver.ErrCut.Error()) {
		t.Errorf("%+v, the log says:\n%s", st, out.String())
	}
	if a := l.ask(liveB); a.Status != resolver.StatusSuccess || l.e.Stats().TableRoutes != 0 {
		t.Errorf("%v %v", a.Status, a.Err)
	}
}

// field case 9: OpenSM ends and is started again. Cached paths are served all the
// time, the SA is asked as soon as it is there, and its notices arrive again.
func TestLiveRestart(t *testing.T) {
	l := newLive(t, ibsim.Config{QP: 0x4d})
	l.subscribed(1)
	if a := l.ask(liveB); a.Status != resolver.StatusSuccess {
		t.Fatal(a.Status, a.Err)
	}
	l.fab.OpenSM.Stop()
	l.cached(liveB)
	if a := l.ask(liveC); a.Status == resolver.StatusSuccess {
		t.Error("a path without an SA")
	}
	l.cached(liveB)
	l.fab.StartSM(t)
	l.until("the SA answers again", func() bool { return l.ask(liveC).Status == resolver.StatusSuccess })
	l.cached(liveB)
	// No event told of the restart: only asking shows that the subscription is gone.
	l.subscribed(2)
	l.flap("node-c", liveC)
	l.cached(liveB)
}

// field case 10: another OpenSM takes over on another port. Cached paths are served
// all the time, the SA is asked where it is, and its notices arrive again.
func TestLiveHandOver(t *testing.T) {
	l := newLive(t, ibsim.Config{QP: 0x4d})
	l.subscribed(1)
	if a := l.ask(liveB); a.Status != resolver.StatusSuccess {
		t.Fatal(a.Status, a.Err)
	}
	sm, made := l.e.Endpoints()[0].Port.SMLID, l.subscriptions()
	l.fab.OpenSM.Stop()
	l.fab.StartSMOn(t, "node-d")
	l.until("the port has another SM", func() bool { l.cached(liveB); return l.e.Endpoints()[0].Port.SMLID != sm })
	l.cached(liveB)
	l.subscribed(made + 1)
	l.until("path from the new SA", func() bool { return l.ask(liveC).Status == resolver.StatusSuccess })
	l.flap("node-c", liveC)
	l.cached(liveB)
}
