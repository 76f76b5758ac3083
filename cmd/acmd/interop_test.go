// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"acmd/mad"
	"acmd/mad/madtest/peer"
	"acmd/mad/transport"
	"acmd/mad/verbs"
	"acmd/resolver/acmp"
	"acmd/resolver/control"
)

// The matrix of stock ibacm and acmd as neighbours: each daemon is a process of its
// own with a queue pair, the fabric is ibsim's with a real OpenSM. Who asks is asked
// by the stock ib_acme.

// speaker is a daemon in the matrix.
type speaker struct {
	name, dir string
	stock     *peer.Ibacm // nil: acmd
	proc      *peer.Process
	addrs     map[string]string
	gid       string
	lid       mad.LID
}

// rounds is how often each node can ask each other one for something new.
const rounds = 4

var nodes = []string{"node-a", "node-b", "node-c", "node-d"}

// addressesOf are the addresses of a node: a set for each neighbour and round, so
// that no lookup is answered from what an earlier one left.
func addressesOf(node string) map[string]string {
	m := map[string]string{}
	for i, from := range nodes {
		for r := range rounds {
			key := fmt.Sprintf("%s %d ", from, r)
			m[key+"n"] = fmt.Sprintf("%s-for-%s-%d", node, from, r)
			m[key+"4"] = fmt.Sprintf("10.88.%d.%d", number(node), 10*i+r+1)
			m[key+"6"] = fmt.Sprintf("fd88::%d:%d", number(node), 10*i+r+1)
		}
	}
	return m
}

func number(node string) int { return int(node[len(node)-1]-'a') + 1 }

// setup of a matrix: stock ibacm on node-a and node-b, acmd on node-c and node-d.
type matrix struct {
	*peer.Fabric
	options []string
	pkeys   map[string]string // of each node in the second partition; nil: there is none
}

func (m *matrix) start(t *testing.T) map[string]*speaker {
	t.Helper()
	all := map[string]*speaker{}
	for _, node := range nodes {
		all[node] = m.speaker(t, node)
	}
	for _, s := range all {
		s.joined(t)
	}
	return all
}

// speaker starts the daemon of a node.
func (m *matrix) speaker(t *testing.T, node string) *speaker {
	t.Helper()
	s := &speaker{name: node, addrs: addressesOf(node)}
	key := ""
	var o []peer.IbacmOption
	if m.pkeys != nil {
		key = " " + m.pkeys[node]
		o = append(o, peer.PKeys("0xffff", m.pkeys[node]))
	}
	for _, kind := range []string{"n", "4", "6"} {
		o = append(o, peer.Address(s.own(kind)+key))
	}
	for _, a := range s.addrs {
		o = append(o, peer.Address(a+key))
	}
	for _, line := range m.options {
		o = append(o, peer.Option(line))
	}
	guid := m.NodeGUID(t, node)
	s.gid, s.lid = fmt.Sprintf("fe80::10:%x", uint64(guid+1)&0xffff), m.LID(t, guid+1)
	if node < "node-c" {
		d := peer.StartIbacm(t, m.Fabric, node, o...)
		s.dir, s.proc, s.stock = d.Dir, d.Proc, d
	} else {
		d := peer.StartAcmd(t, m.Fabric, node, o...)
		s.dir, s.proc = d.Dir, d.Proc
	}
	return s
}

// state is what the tests read of acmd's state.
type state struct {
	ACM    acmp.Stats `json:"acm"`
	Groups []struct {
		PKey   string `json:"pkey"`
		Joined bool   `json:"joined"`
	} `json:"groups"`
	Ports []struct {
		Queues verbs.Stats `json:"queue_pairs"`
	} `json:"ports"`
}

func (s *speaker) state(t *testing.T) (st state) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := control.NewClient(s.dir).Do(ctx, "GET", "state", nil, &st); err != nil {
		t.Fatal(err)
	}
	return st
}

// joined waits until s is in its groups.
func (s *speaker) joined(t *testing.T) {
	t.Helper()
	if s.stock != nil {
		s.stock.WaitJoined(t, s.own("n"))
		return
	}
	eventually(t, s.name+" joins", func() bool {
		st := s.state(t)
		for _, g := range st.Groups {
			if !g.Joined {
				return false
			}
		}
		return len(st.Groups) > 0
	})
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within 30 s", what)
		}
	}
}

// own is the address that s asks from. Names and IP addresses of a node are not
// those of the default lists: they may be in another partition.
func (s *speaker) own(kind string) string {
	switch kind {
	case "n":
		return "from-" + s.name
	case "4":
		return fmt.Sprintf("10.87.0.%d", number(s.name))
	}
	return fmt.Sprintf("fd87::%d", number(s.name))
}

// resolve has s resolve an address of to with the stock tool; verify compares the
// path with the SA's.
func (s *speaker) resolve(t *testing.T, to *speaker, round int, kind string, verify bool) {
	t.Helper()
	if out, ok := s.try(t, to, round, kind, verify); !ok {
		t.Errorf("%s -> %s by %s:\n%s", s.name, to.name, kind, out)
	}
}

func (s *speaker) try(t *testing.T, to *speaker, round int, kind string, verify bool) (string, bool) {
	t.Helper()
	args := []string{"-f", "i", "-s", s.own(kind), "-d", to.addrs[fmt.Sprintf("%s %d %s", s.name, round, kind)]}
	if kind == "n" {
		args[1] = "n"
	}
	if verify {
		args = append(args, "-v")
	}
	out, status := peer.IbAcme(t, peer.Client{RunDir: s.dir}, args...)
	ok := status == 0 && strings.Contains(out, "  dgid: "+to.gid+"\n") && strings.Contains(out, "  sgid: "+s.gid+"\n") &&
		strings.Contains(out, fmt.Sprintf("  dlid: %d\n", to.lid)) && strings.Contains(out, fmt.Sprintf("  slid: %d\n", s.lid)) &&
		(!verify || strings.Contains(out, "SA verification: success"))
	return fmt.Sprintf("ib_acme %q, exit status %d\n%s", args, status, out), ok
}

// pairs are who asks whom; the first is the control, without acmd.
var pairs = [][2]string{{"node-a", "node-b"}, {"node-a", "node-c"}, {"node-c", "node-a"}, {"node-c", "node-d"}}

// everyPair has all pairs resolve each other in every spelling.
func everyPair(t *testing.T, all map[string]*speaker, round int, verify bool) {
	t.Helper()
	for _, p := range pairs {
		for _, kind := range []string{"n", "4", "6"} {
			all[p[0]].resolve(t, all[p[1]], round, kind, verify)
		}
	}
}

func TestInterop(t *testing.T) {
	for _, route := range []string{"acm", "sa"} {
		t.Run(route, func(t *testing.T) {
			m := matrix{Fabric: peer.StartFabric(t, "small.net"), options: []string{"route_prot " + route}}
			all := m.start(t)
			everyPair(t, all, 0, true)
			// Nothing of that came from a cache: each question was multicast.
			if st := all["node-c"].state(t).ACM; st.Requests < 6 || st.Found < 6 || st.Answered < 3 {
				t.Errorf("node-c: %+v", st)
			}
			if st := all["node-d"].state(t).ACM; st.Answered < 3 {
				t.Errorf("node-d: %+v", st)
			}
		})
	}
}

// With the SA silent, routes come from the group's parameters where route_prot says
// so. Where it does not, acmd tells its client in time and works again when the SA
// does; stock ibacm waits for ever then, and is not asked.
func TestInteropSilentSA(t *testing.T) {
	t.Run("acm", func(t *testing.T) {
		m := matrix{Fabric: peer.StartFabric(t, "small.net")}
		all := m.start(t)
		m.OpenSM.Signal(syscall.SIGSTOP)
		everyPair(t, all, 0, false)
		m.OpenSM.Signal(syscall.SIGCONT)
		everyPair(t, all, 1, true)
	})
	t.Run("sa", func(t *testing.T) {
		m := matrix{Fabric: peer.StartFabric(t, "small.net"), options: []string{"route_prot sa"}}
		all := m.start(t)
		m.OpenSM.Signal(syscall.SIGSTOP)
		for _, to := range []string{"node-a", "node-d"} {
			begin := time.Now()
			out, ok := all["node-c"].try(t, all[to], 0, "n", false)
			if ok || !strings.Contains(out, "timed out") {
				t.Errorf("node-c -> %s: %s", to, out)
			}
			if d := time.Since(begin); d > 10*time.Second {
				t.Errorf("answered after %v", d)
			}
		}
		m.OpenSM.Signal(syscall.SIGCONT)
		eventually(t, "the SA answers again", func() bool {
			_, ok := all["node-c"].try(t, all["node-a"], 1, "n", true)
			return ok
		})
		everyPair(t, all, 2, true)
	})
}

// Asynchronous events of the adapter: port error, port active, client
// reregistration. What a node could do before it can do afterwards.
func TestInteropEvents(t *testing.T) {
	m := matrix{Fabric: peer.StartFabric(t, "small.net")}
	all := m.start(t)
	everyPair(t, all, 0, true)
	inject := peer.NewUD(t, m.UDDir(t), 0x99, mad.MakeGID(0xfe80<<48, 0x99))
	c := all["node-c"]
	joins := c.state(t).ACM.Joins
	eventually(t, "joins after the port became active", func() bool { // endpoints younger than a second need not
		inject.Event(t, c.lid, uint32(transport.EventPortError), mad.PortDown)
		inject.Event(t, c.lid, uint32(transport.EventPortActive), mad.PortActive)
		time.Sleep(200 * time.Millisecond)
		return c.state(t).ACM.Joins > joins
	})
	c.joined(t)
	everyPair(t, all, 1, true)

	joins = c.state(t).ACM.Joins
	for _, s := range all { // stock daemons, too, join again on this event only
		inject.Event(t, s.lid, uint32(transport.EventReregister), 0)
	}
	eventually(t, "joins after reregistration", func() bool { return c.state(t).ACM.Joins > joins })
	eventually(t, "stock daemons are back", func() bool {
		_, ok := all["node-a"].try(t, all["node-b"], 2, "n", false)
		return ok
	})
	everyPair(t, all, 3, true)
}

// Either side starts again, with another queue pair number: what knew it learns
// anew.
func TestInteropRestart(t *testing.T) {
	m := matrix{Fabric: peer.StartFabric(t, "small.net")}
	all := m.start(t)
	everyPair(t, all, 0, true)
	for round, node := range []string{"node-c", "node-a"} {
		before := peer.Queues(m.UDDir(t), all[node].lid)
		all[node].proc.Stop()
		all[node] = m.speaker(t, node)
		all[node].joined(t)
		if after := peer.Queues(m.UDDir(t), all[node].lid); len(after) != 1 || slices.Contains(before, after[0]) {
			t.Errorf("%s had queue pairs %x, has %x", node, before, after)
		}
		everyPair(t, all, 1+round, true)
		// What was resolved before the restart is still right.
		all["node-a"].resolve(t, all["node-c"], 0, "4", true)
		all["node-c"].resolve(t, all["node-a"], 0, "4", true)
	}
	// Without a chance to say good-bye.
	all["node-d"].proc.Kill()
	all["node-d"] = m.speaker(t, "node-d")
	all["node-d"].joined(t)
	everyPair(t, all, 3, true)
}

// In a partition with full and limited members all resolve each other that may
// talk at all (field case 53): the group is that of the full key.
func TestInteropPartitions(t *testing.T) {
	file := filepath.Join(t.TempDir(), "partitions.conf")
	const conf = "Default=0x7fff, ipoib : ALL=full, SELF=full;\n" +
		"jobs=0x0001 : 0x100001=full, 0x100003=limited, 0x100005=full, 0x100007=limited;\n"
	if err := os.WriteFile(file, []byte(conf), 0o644); err != nil {
		t.Fatal(err)
	}
	m := matrix{Fabric: peer.StartFabric(t, "small.net", peer.OpenSMArgs("-P", file)),
		pkeys: map[string]string{"node-a": "0x8001", "node-b": "0x0001", "node-c": "0x8001", "node-d": "0x0001"}}
	all := m.start(t)
	for _, p := range [][2]string{{"node-a", "node-b"}, {"node-a", "node-c"}, {"node-a", "node-d"}, {"node-b", "node-c"},
		{"node-c", "node-a"}, {"node-c", "node-b"}, {"node-c", "node-d"}, {"node-d", "node-a"}, {"node-d", "node-c"}} {
		for _, kind := range []string{"n", "4", "6"} {
			all[p[0]].resolve(t, all[p[1]], 0, kind, true)
		}
	}
	// Two limited members may not.
	if out, ok := all["node-d"].try(t, all["node-b"], 0, "n", false); ok || !strings.Contains(out, "timed out") {
		t.Error(out)
	}
}
