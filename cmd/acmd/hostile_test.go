// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package main

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
	"time"

	"acmd/mad"
	"acmd/mad/acm"
	"acmd/mad/madtest/peer"
	"acmd/resolver/acmp"
)

// rss is the resident memory of a process in kB.
func rss(t *testing.T, pid int) int {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "status"))
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`VmRSS:\s+(\d+) kB`).FindSubmatch(text)
	if m == nil {
		t.Fatalf("no VmRSS in\n%s", text)
	}
	n, _ := strconv.Atoi(string(m[1]))
	return n
}

// Field case 32: neighbours send what they should not, 10,000 datagrams a second with forged
// senders: each kind is counted under its reason or does no harm, memory stays
// where it was, and meanwhile acmd resolves and is resolved as ever. How long a
// local client waits is measured by bench/compare hostile.
func TestHostileNeighbours(t *testing.T) {
	m := matrix{Fabric: peer.StartFabric(t, "small.net")}
	a, c := m.speaker(t, "node-a"), m.speaker(t, "node-c")
	a.joined(t)
	c.joined(t)
	a.resolve(t, c, 0, "4", true)
	c.resolve(t, a, 0, "4", true)

	queues := peer.Queues(m.UDDir(t), c.lid)
	if len(queues) != 1 {
		t.Fatalf("queue pairs %v", queues)
	}
	victim := peer.Victim{LID: c.lid, QPN: queues[0], GID: mad.MakeGID(0xfe80<<48, m.NodeGUID(t, "node-c")+1),
		Group: acm.MGID(mad.DefaultPKey, 0, 3, 4), Addr: netip.MustParseAddr(c.own("4"))}
	u := peer.NewUD(t, m.UDDir(t), 0x99, mad.MakeGID(0xfe80<<48, 0x99))
	u.Join(t, victim.Group)
	harass := func(d time.Duration) (sent int) {
		ctx, cancel := context.WithTimeout(t.Context(), d)
		defer cancel()
		return u.Harass(t, ctx, victim, 10_000)
	}
	harass(time.Second) // what a first flood maps stays mapped
	before, memory := c.state(t).ACM, rss(t, c.proc.Pid)

	type report struct {
		sent  int
		after acmp.Stats
	}
	done := make(chan report)
	go func() {
		r := report{sent: harass(4 * time.Second)}
		done <- r
	}()
	for round := 1; round < rounds; round++ {
		for _, kind := range []string{"n", "4", "6"} {
			a.resolve(t, c, round, kind, true)
			c.resolve(t, a, round, kind, true)
			c.resolve(t, a, 0, "4", false) // from the cache
		}
	}
	r := <-done
	time.Sleep(100 * time.Millisecond) // what is under way arrives
	after := c.state(t)
	t.Logf("%d hostile datagrams; %+v", r.sent, after.ACM)
	if r.sent < 20*len(peer.HostileKinds()) {
		t.Errorf("only %d datagrams were sent", r.sent)
	}
	for _, reason := range []string{"length", "version", "control", "method", "src_type", "dest_type", "groups", "address", "no_common_group", "stray", "not_ours"} {
		if after.ACM.Refused[reason] == before.Refused[reason] {
			t.Errorf("nothing was refused for %q: %v", reason, after.ACM.Refused)
		}
	}
	if after.ACM.Conflicts == before.Conflicts {
		t.Error("nobody noticed that our address was claimed")
	}
	if len(after.Ports) != 1 || after.Ports[0].Queues.Foreign == 0 || after.Ports[0].Queues.RecvErrors != 0 {
		t.Errorf("queue pairs: %+v", after.Ports)
	}
	if grown := rss(t, c.proc.Pid) - memory; grown > 16<<10 {
		t.Errorf("memory grew by %d kB", grown)
	}
}
