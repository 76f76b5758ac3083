// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package main

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"acmd/mad"
	"acmd/mad/acm"
	"acmd/mad/madtest/peer"
)

const (
	hostileRate = 10_000 // datagrams per second
	hostileTime = 60 * time.Second
	// hostileGrowth is how much memory may grow over hostileTime, in kB.
	hostileGrowth = 8 << 10
)

// harassed is a daemon that neighbours are after, as clients and they see it.
type harassed struct {
	name   string
	sock   string
	pid    int
	dst    string // a cached address, of the other one
	src    string
	victim peer.Victim
}

// hostileRun is one measurement: who was asked, and whom the datagrams went to.
type hostileRun struct {
	asked *harassed
	after *harassed // nil: nobody
	runs  []hostileResult
}

type hostileResult struct {
	result
	sent int
}

func (r *hostileRun) of(get func(*result) float64) float64 {
	return med(r.runs, func(x *hostileResult) float64 { return get(&x.result) })
}

// hostile measures what neighbours that send what they should not cost those who
// ask this node for cached paths. Neighbours, clients and the threads that stand
// for adapters need the same processors. What those alone cost is seen twice: with
// the same datagrams at another process than the one that is asked, and with a
// stock ibacm that is asked and flooded in acmd's place.
func (b *bench) hostile() {
	f := peer.StartFabric(b, "small.net")
	stock := peer.StartIbacm(b, f, "node-a", peer.Option("route_prot sa"))
	d := peer.StartAcmd(b, f, "node-c", peer.Option("route_prot sa"))
	time.Sleep(settle)
	acmd := b.harassed(f, "acmd", d.Node, d.Sock, d.Proc.Pid, stock.Node)
	ibacm := b.harassed(f, "ibacm", stock.Node, stock.Sock, stock.Proc.Pid, d.Node)
	enemy := peer.NewUD(b, f.UDDir(b), 0x99, mad.MakeGID(0xfe80<<48, 0x99))

	b.heading("Hostile neighbours", fmt.Sprintf("%s datagrams a second of %d kinds (%s) with forged senders go to one queue pair. Clients ask a daemon for a cached address of the other; %d rounds of %v in turn, medians.",
		grouped(hostileRate), len(peer.HostileKinds()), strings.Join(peer.HostileKinds(), ", "), b.rounds, b.slice))
	b.harass(enemy, acmd, acmd, 1, b.slice) // maps what a flood needs
	b.harass(enemy, ibacm, ibacm, 1, b.slice)
	t := newTable("clients", "asked", "datagrams to", "datagrams/s", "hits/s", "p50 us", "p99 us", "p99, all runs", "p99 of quiet", "server CPU s/1M")
	for _, c := range []int{1, 16} {
		runs := []hostileRun{{asked: acmd}, {asked: acmd, after: ibacm}, {asked: acmd, after: acmd}, {asked: ibacm}, {asked: ibacm, after: acmd}, {asked: ibacm, after: ibacm}}
		var turns []func()
		for i := range runs {
			r := &runs[i]
			turns = append(turns, func() { r.runs = append(r.runs, b.harass(enemy, r.asked, r.after, c, b.slice)) })
		}
		b.eachRound(turns...)
		for i := range runs {
			r, to := &runs[i], "-"
			if r.after != nil {
				to = r.after.name
			}
			quiet := &runs[i-i%3]
			t.row(c, r.asked.name, to, med(r.runs, func(x *hostileResult) float64 { return float64(x.sent) / x.Seconds }),
				r.of(perSec), r.of(p50), r.of(p99), spread(r.runs, func(x *hostileResult) float64 { return x.P99us }, "%.0f"), ratio(r.of(p99), quiet.of(p99)), r.of(cpu1M))
		}
		what := fmt.Sprintf("p99 of hits of %d clients in the flood, of ", c)
		b.atMost(what+"quiet", ratio(runs[2].of(p99), runs[0].of(p99)), 1.2, "x")
		b.atMost(what+"the flood at another", ratio(runs[2].of(p99), runs[1].of(p99)), 1.2, "x")
	}
	b.hostileLong(d, enemy, acmd)
}

// hostileLong is one flood without a break, and what is left of it.
func (b *bench) hostileLong(d *peer.Acmd, enemy *peer.UD, acmd *harassed) {
	length := hostileTime
	if b.quick {
		length = time.Second
	}
	memory := b.rss(acmd.pid)
	r := b.harass(enemy, acmd, acmd, 4, length)
	grown := b.rss(acmd.pid) - memory
	fmt.Printf("\n%v without a break, 4 clients: %s datagrams, %s hits, %d wrong; p99 %s us; resident memory %s kB before, %+d kB after.\n",
		length, grouped(int64(r.sent)), grouped(r.OK), r.Failed, figure(r.P99us), grouped(int64(memory)), grown)
	b.atMost("memory after "+length.String()+" of it, more than before", float64(max(grown, 1)), hostileGrowth, " kB")
}

// harassed finds out what there is to know of a daemon on node that is asked for
// the address of another.
func (b *bench) harassed(f *peer.Fabric, name, node, sock string, pid int, other string) *harassed {
	guid, otherGUID := f.NodeGUID(b, node)+1, f.NodeGUID(b, other)+1
	queues := peer.Queues(f.UDDir(b), f.LID(b, guid))
	if len(queues) != 1 {
		b.Fatalf("queue pairs of %s: %v", name, queues)
	}
	return &harassed{
		name: name, sock: sock, pid: pid, src: "ip:" + peer.NodeIP(node),
		dst: fmt.Sprintf("ip:%s,%v,%d", peer.NodeIP(other), mad.MakeGID(0xfe80<<48, otherGUID), f.LID(b, otherGUID)),
		victim: peer.Victim{LID: f.LID(b, guid), QPN: queues[0], GID: mad.MakeGID(0xfe80<<48, guid),
			Group: acm.MGID(mad.DefaultPKey, 0, 3, 4), Addr: netip.MustParseAddr(peer.NodeIP(node))},
	}
}

// harass asks one daemon while datagrams go to another, the same, or none.
func (b *bench) harass(enemy *peer.UD, asked, after *harassed, clients int, length time.Duration) (r hostileResult) {
	ctx, cancel := context.WithCancel(context.Background())
	sent := make(chan int, 1)
	if after != nil {
		go func() { sent <- enemy.Harass(b, ctx, after.victim, hostileRate) }()
	} else {
		sent <- 0
	}
	r.result = b.resolve("hits of "+asked.name, "-s", asked.sock, "-pid", strconv.Itoa(asked.pid), "-c", strconv.Itoa(clients), "-warm", "-t", length.String(),
		"-src", asked.src, "-dst", asked.dst)
	cancel()
	r.sent = <-sent
	return r
}

// rss is the resident memory of a process in kB.
func (b *bench) rss(pid int) (kb int) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		b.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(text), "VmRSS:")
	if _, err := fmt.Sscan(rest, &kb); !ok || err != nil {
		b.Fatalf("resident memory of %d: %v", pid, err)
	}
	return kb
}
