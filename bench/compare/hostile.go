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
)

// hostile measures what neighbours that send what they should not cost those who
// ask this node for cached paths. The neighbours' own work and the preload
// library's thread need the same processors: with the same flood at another node's
// queue pair that is told apart.
func (b *bench) hostile() {
	slice := max(b.slice, hostileTime/time.Duration(2*b.rounds))
	if b.quick {
		slice = time.Second
	}
	f := peer.StartFabric(b, "small.net")
	stock := peer.StartIbacm(b, f, "node-a", peer.Option("route_prot sa"))
	d := peer.StartAcmd(b, f, "node-c", peer.Option("route_prot sa"))
	time.Sleep(settle)
	guid := f.NodeGUID(b, stock.Node) + 1
	dst := fmt.Sprintf("ip:%s,%v,%d", peer.NodeIP(stock.Node), mad.MakeGID(0xfe80<<48, guid), f.LID(b, guid))
	queues := peer.Queues(f.UDDir(b), d.LID)
	if len(queues) != 1 {
		b.Fatalf("queue pairs of acmd: %v", queues)
	}
	elsewhere := peer.Queues(f.UDDir(b), f.LID(b, guid))
	if len(elsewhere) != 1 {
		b.Fatalf("queue pairs of ibacm: %v", elsewhere)
	}
	v := peer.Victim{LID: d.LID, QPN: queues[0], GID: mad.MakeGID(0xfe80<<48, d.GUID+1), Group: acm.MGID(mad.DefaultPKey, 0, 3, 4),
		Addr: netip.MustParseAddr(peer.NodeIP(d.Node))}
	other := v
	other.LID, other.QPN, other.GID = f.LID(b, guid), elsewhere[0], mad.MakeGID(0xfe80<<48, guid)
	enemy := peer.NewUD(b, f.UDDir(b), 0x99, mad.MakeGID(0xfe80<<48, 0x99))

	b.heading("Hostile neighbours", fmt.Sprintf("%d datagrams a second of %d kinds (%s) with forged senders go to acmd's queue pair, %v in all. 1 and 4 clients ask for a cached address of a stock peer, with and without; %d rounds in turn, medians.",
		hostileRate, len(peer.HostileKinds()), strings.Join(peer.HostileKinds(), ", "), 2*time.Duration(b.rounds)*slice, b.rounds))
	clients := []int{1, 4}
	floods := []struct {
		name string
		at   *peer.Victim
	}{{"quiet", nil}, {"hostile to a stock ibacm", &other}, {"hostile to acmd", &v}}
	type run struct {
		result
		sent int
	}
	runs := make([][]run, len(floods)*len(clients))
	var turns []func()
	measure := func(c int, at *peer.Victim) (r run) {
		ctx, cancel := context.WithCancel(context.Background())
		sent := make(chan int, 1)
		if at != nil {
			go func() { sent <- enemy.Harass(b, ctx, *at, hostileRate) }()
		} else {
			sent <- 0
		}
		r.result = b.resolve("hits", "-s", d.Sock, "-pid", strconv.Itoa(d.Proc.Pid), "-c", strconv.Itoa(c), "-warm", "-t", slice.String(),
			"-src", "ip:"+peer.NodeIP(d.Node), "-dst", dst)
		cancel()
		r.sent = <-sent
		return r
	}
	for i, c := range clients {
		for j := range floods {
			k := len(floods)*i + j
			turns = append(turns, func() { runs[k] = append(runs[k], measure(c, floods[j].at)) })
		}
	}
	measure(1, &v) // maps what a flood needs
	memory := b.rss(d.Proc.Pid)
	b.eachRound(turns...)
	t := newTable("clients", "neighbours", "datagrams/s", "hits/s", "p50 us", "p99 us", "p99 of quiet", "of elsewhere", "server CPU s/1M", "resident kB")
	for i, c := range clients {
		of := func(j int, g func(*result) float64) float64 {
			return med(runs[len(floods)*i+j], func(x *run) float64 { return g(&x.result) })
		}
		for j, flood := range floods {
			t.row(c, flood.name, med(runs[len(floods)*i+j], func(x *run) float64 { return float64(x.sent) / x.Seconds }),
				of(j, perSec), of(j, p50), of(j, p99), ratio(of(j, p99), of(0, p99)), ratio(of(j, p99), of(1, p99)), of(j, cpu1M),
				of(j, func(r *result) float64 { return float64(r.RSSKB) }))
		}
		b.atMost(fmt.Sprintf("p99 of hits of %d clients, of without", c), ratio(of(2, p99), of(0, p99)), 1.2, "x")
		b.atMost(fmt.Sprintf("p99 of hits of %d clients, of the flood at another", c), ratio(of(2, p99), of(1, p99)), 1.2, "x")
	}
	b.atMost("memory after all of it, more than before", float64(max(b.rss(d.Proc.Pid)-memory, 1)), 8<<10, " kB")
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
