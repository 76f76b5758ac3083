// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"acmd/mad"
	"acmd/mad/madtest/peer"
	"acmd/mad/sa"
	"acmd/resolver"
	"acmd/resolver/acmsock"
	"acmd/resolver/control"
)

// simNode is acmd on node-a of a simulated fabric with real OpenSMs on it.
type simNode struct {
	*daemon
	t      *testing.T
	fab    *peer.Fabric
	client *acmsock.Client
}

// startSimNode runs acmd with 4 s for a request and a look at the port each 200 ms.
// It is sent Reports: it attaches with a queue pair number of its own.
func startSimNode(t *testing.T, fab *peer.Fabric) *simNode {
	t.Helper()
	n := &simNode{t: t, fab: fab}
	n.daemon = start(t, setup{fabric: "ibsim:" + fab.SockName + ",node=node-a,qp=0x4d", opts: []string{
		"poll_interval 200", "request_timeout 4000", "negative_timeout 100"}})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var err error
	if n.client, err = acmsock.Dial(ctx, n.sock()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.client.Close() })
	return n
}

// simState is what of the daemon's state these tests look at.
type simState struct {
	Endpoints []struct {
		LID   mad.LID `json:"lid"`
		SMLID mad.LID `json:"sm_lid"`
	} `json:"endpoints"`
	Ports []struct {
		SA struct {
			Subscribed             int
			Subscriptions, Reports uint64
		} `json:"sa"`
	} `json:"ports"`
	Engine resolver.Stats `json:"engine"`
}

func (n *simNode) state() (s simState) {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(n.t.Context(), 20*time.Second)
	defer cancel()
	if err := control.NewClient(n.dir).Do(ctx, "GET", "state", nil, &s); err != nil {
		n.t.Fatal(err)
	}
	if len(s.Endpoints) != 1 || len(s.Ports) != 1 {
		n.t.Fatalf("state %+v", s)
	}
	return s
}

// ask asks for the path to a node and how long the answer took.
func (n *simNode) ask(node string) (sa.PathRecord, time.Duration, error) {
	n.t.Helper()
	var q sa.PathRecord
	q.SetDGID(mad.MakeGID(mad.DefaultPrefix, n.fab.NodeGUID(n.t, node)+1))
	ctx, cancel := context.WithTimeout(n.t.Context(), 30*time.Second)
	defer cancel()
	begin := time.Now()
	r, err := n.client.ResolvePath(ctx, q, false)
	var se *acmsock.StatusError
	if err != nil && !errors.As(err, &se) {
		n.t.Fatalf("the daemon gave no answer: %v", err)
	}
	if err != nil {
		return sa.PathRecord{}, time.Since(begin), err
	}
	return r.Paths[0].Record, time.Since(begin), nil
}

// subscribed waits until all notices are subscribed to, for the made-th time or
// later, at the SM that the port has now.
func (n *simNode) subscribed(made uint64) {
	n.t.Helper()
	eventually(n.t, fmt.Sprintf("subscription %d", made), func() bool {
		p := n.state().Ports[0].SA
		return p.Subscribed == len(resolver.Traps) && p.Subscriptions >= made
	})
}

// keeper has paths in the daemon's cache and expects them to stay there.
type keeper struct {
	*simNode
	paths map[string]sa.PathRecord
}

func (n *simNode) keep(nodes ...string) *keeper {
	n.t.Helper()
	k := &keeper{n, map[string]sa.PathRecord{}}
	for _, node := range nodes {
		eventually(n.t, "path to "+node, func() bool {
			p, _, err := n.ask(node)
			k.paths[node] = p
			return err == nil
		})
	}
	return k
}

// served asks for all paths; each has to be there at once, whatever the SA does.
func (k *keeper) served(when string) {
	k.t.Helper()
	for node, want := range k.paths {
		// A miss would take until the SA answers; a silent one takes 4 s.
		if got, d, err := k.ask(node); err != nil || got != want || d > 2*time.Second {
			k.t.Errorf("%s: %s after %v: %v\n%x, was\n%x", when, node, d, err, got, want)
		}
	}
}

// until waits for something while the paths are served.
func (k *keeper) until(what string, ok func() bool) {
	k.t.Helper()
	eventually(k.t, what, func() bool { k.served("until " + what); return ok() })
}

// refreshed waits until each path was asked for again behind a hit. No more than a
// hundred are in any second, so some answers still come without one.
func (k *keeper) refreshed(before simState) {
	k.t.Helper()
	k.until("all paths are refreshed", func() bool {
		return k.state().Engine.Refreshes >= before.Engine.Refreshes+uint64(len(k.paths))
	})
}

// flap pulls a node's cable and puts it back; the SM's notice takes the path away.
func (n *simNode) flap(node string) {
	n.t.Helper()
	eventually(n.t, "path to "+node, func() bool { _, _, err := n.ask(node); return err == nil })
	drops := n.state().Engine.NoticeDrops
	n.fab.Command(n.t, `Unlink "`+node+`"`)
	eventually(n.t, "notice that "+node+" went", func() bool { return n.state().Engine.NoticeDrops > drops })
	if p, _, err := n.ask(node); err == nil {
		n.t.Errorf("a path to %s, which is gone: %x", node, p)
	}
	n.fab.Command(n.t, `ReLink "`+node+`"`)
	eventually(n.t, "path to "+node+" again", func() bool { _, _, err := n.ask(node); return err == nil })
}

// field cases 8, 9 and 10: OpenSM ends and is started again on the same port, with
// the same LID. Nothing tells of it but the subscription that is gone.
func TestSMRestart(t *testing.T) {
	fab := peer.StartFabric(t, "small.net", peer.Console(), peer.WithoutSM())
	sm := fab.JoinSM(t, "sm-host", 5)
	sm.WaitMaster(t)
	n := startSimNode(t, fab)
	n.subscribed(1)
	k := n.keep("node-b", "node-c", "node-e", "node-f", "sm-host")
	before := n.state()
	sm.Stop()
	for begin := time.Now(); time.Since(begin) < 6*time.Second; { // shorter gaps hide little
		k.served("no SM")
		if _, d, err := n.ask("node-g"); err == nil || d > 10*time.Second {
			t.Errorf("a miss without an SM: %v after %v", err, d)
		}
	}
	k.served("no SM")
	fab.JoinSM(t, "sm-host", 5).WaitMaster(t)
	k.until("path from the new SM", func() bool { _, _, err := n.ask("node-g"); return err == nil })
	after := n.state()
	if after.Endpoints[0] != before.Endpoints[0] {
		t.Errorf("endpoint %+v, was %+v", after.Endpoints[0], before.Endpoints[0])
	}
	n.subscribed(before.Ports[0].SA.Subscriptions + 1)
	k.refreshed(before)
	n.flap("node-d")
	k.served("after the restart")
}

// field cases 8, 9 and 10: the master dies and the standby takes over; then a better
// one comes and takes over from that. Paths are served all the time, misses go to
// the master as soon as there is one, and its notices arrive.
func TestSMHandOver(t *testing.T) {
	fab := peer.StartFabric(t, "small.net", peer.Console(), peer.WithoutSM())
	master := fab.JoinSM(t, "sm-host", 5)
	master.WaitMaster(t)
	standby := fab.JoinSM(t, "node-g", 1)
	standby.WaitStandby(t)
	n := startSimNode(t, fab)
	n.subscribed(1)
	k := n.keep("node-b", "node-c", "node-e", "node-f", "node-g")

	before := n.state()
	time.Sleep(time.Duration(rand.IntN(600)) * time.Millisecond) // between two polls of the standby
	master.Kill()
	k.until("the port has another SM", func() bool { return n.state().Endpoints[0].SMLID != before.Endpoints[0].SMLID })
	k.handed(standby, before, "hand-over", "sm-host")

	before = n.state()
	better := fab.JoinSM(t, "sm-host", 9)
	k.until("the better one has taken over", func() bool { return n.state().Endpoints[0].SMLID != before.Endpoints[0].SMLID })
	k.handed(better, before, "hand-back", "node-d")
	standby.WaitStandby(t)
}

// handed checks what follows when the port has another SM; miss is a node that
// nobody has asked for.
func (k *keeper) handed(sm *peer.SM, before simState, what, miss string) {
	k.t.Helper()
	begin := time.Now()
	k.until(what+": path from the new SM", func() bool { _, _, err := k.ask(miss); return err == nil })
	k.t.Logf("%s: a miss is answered %v after the port has its new SM", what, time.Since(begin).Round(time.Millisecond))
	sm.WaitMaster(k.t)
	k.subscribed(before.Ports[0].SA.Subscriptions + 1)
	k.refreshed(before)
	k.flap("node-d")
	k.served(what)
}
