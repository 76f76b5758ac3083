// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package main

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"acmd/mad"
	"acmd/mad/madtest/peer"
	"acmd/resolver"
	"acmd/resolver/acmsock"
)

// startRun is one start of a daemon with preload files.
type startRun struct {
	ready  time.Duration // its own word; 0 for the stock daemon, which says nothing
	answer time.Duration // the first right answer
	load   result        // of asking for everything once
	idleKB int           // resident before anyone has asked
}

// start compares the time until a daemon serves, and its memory, with files of
// routes and addresses to load.
func (b *bench) start() {
	f := peer.StartFabric(b, "small.net")
	sizes := map[string]int{"small": 10000, "large": 40000}
	b.heading("Start and memory", "OpenSM route dump and hosts file; from the start of the process to its word to the service manager, to the first right answer; then every address is resolved once by 4 clients and resident memory is read.",
		fmt.Sprintf("%d rounds in turn; medians.", b.rounds))
	small, large := b.preload(f, sizes["small"]), b.preload(f, sizes["large"])
	contestants := []struct {
		name string
		n    int
		run  func() startRun
	}{
		{"ibacm", sizes["small"], func() startRun { return b.startStock(f, small) }},
		{"acmd", sizes["small"], func() startRun { return b.startOwn(f, small) }},
		{"acmd", sizes["large"], func() startRun { return b.startOwn(f, large) }},
		{"ibacm", sizes["large"], func() startRun { return b.startStock(f, large) }},
		{"acmd, nothing to load", 0, func() startRun { return b.startOwn(f, "") }},
	}
	runs := make([][]startRun, len(contestants))
	turns := make([]func(), len(contestants))
	for i, c := range contestants {
		turns[i] = func() { b.scope(func() { runs[i] = append(runs[i], c.run()) }) }
	}
	b.eachRound(turns...)
	ms := func(d time.Duration) float64 { return float64(d) / 1e6 }
	t := newTable("daemon", "destinations", "ready ms", "first answer ms", "RSS KB at first", "RSS KB after all", "resolves/s of the once-over", "p99 us")
	for i, r := range runs {
		t.row(contestants[i].name, contestants[i].n, med(r, func(r *startRun) float64 { return ms(r.ready) }), med(r, func(r *startRun) float64 { return ms(r.answer) }),
			med(r, func(r *startRun) float64 { return float64(r.idleKB) }), med(r, func(r *startRun) float64 { return float64(r.load.RSSKB) }),
			med(r, func(r *startRun) float64 { return r.load.PerSec }), med(r, func(r *startRun) float64 { return r.load.P99us }))
	}
	rss := func(r *startRun) float64 { return float64(r.load.RSSKB) / 1024 }
	first := func(r *startRun) float64 { return ms(r.answer) }
	b.atMost("resident memory with 40,000 destinations", med(runs[2], rss), 40, " MB")
	b.atMost("memory per destination above an empty daemon", (med(runs[2], rss)-med(runs[4], rss))*1024*1024/float64(sizes["large"]), 200, " B")
	b.atMost("first answer with 10,000 destinations, of ibacm's", ratio(med(runs[1], first), med(runs[0], first)), 1, "x")
}

// Nodes of small.net that load the files, and the address that they ask from.
const (
	startNode = "node-f"
	startIP   = "10.77.0.6"
)

// preload writes files for n destinations and returns their directory. The dump
// is that of startNode's port, which is where both daemons run in turn.
func (b *bench) preload(f *peer.Fabric, n int) string {
	dir := b.TempDir()
	guid := mad.GUID(0x100001 + 2*('f'-'a'))
	b.command(dir, b.acmload(), "gen", "preload", "-n", strconv.Itoa(n), "-guid", fmt.Sprintf("%#x", uint64(guid)),
		"-lid", strconv.Itoa(int(f.LID(b, guid))), "-o", dir)
	return dir
}

func (b *bench) startStock(f *peer.Fabric, files string) (r startRun) {
	dir := filepath.Join(f.Dir, startNode)
	if err := os.RemoveAll(dir); err != nil {
		b.Fatal(err)
	}
	begin := time.Now()
	first := make(chan time.Duration, 1)
	go func() { first <- firstAnswer(filepath.Join(dir, "ibacm-unix.sock"), files, begin) }()
	d := peer.StartIbacm(b, f, startNode, peer.Preload(filepath.Join(files, "route.data"), filepath.Join(files, "hosts.data")), peer.Option("route_prot sa"))
	b.finishStart(&r, first, d.Proc.Pid, d.Sock, files)
	return r
}

func (b *bench) startOwn(f *peer.Fabric, files string) (r startRun) {
	dir := b.TempDir()
	c := acmdConfig{dir: dir, fabric: "ibsim:" + f.SockName + ",node=" + startNode,
		opts: []string{"support_ips_in_addr_cfg 1"}, addrs: []string{startNode + " ibsim0 1 default", startIP + " ibsim0 1 default"}}
	if files == "" {
		d := b.startAcmd(c)
		r.ready = d.ready
		time.Sleep(settle)
		r.idleKB = b.rss(d.cmd.Process.Pid)
		r.load.RSSKB = r.idleKB
		return r
	}
	c.opts = append(c.opts, "route_preload opensm_full_v1", "route_data_file "+filepath.Join(files, "route.data"),
		"addr_preload acm_hosts", "addr_data_file "+filepath.Join(files, "hosts.data"))
	begin := time.Now()
	first := make(chan time.Duration, 1)
	go func() { first <- firstAnswer(filepath.Join(dir, "ibacm-unix.sock"), files, begin) }()
	d := b.startAcmd(c)
	r.ready = d.ready
	b.finishStart(&r, first, d.cmd.Process.Pid, d.sock, files)
	return r
}

// finishStart waits for the first answer and then asks for everything.
func (b *bench) finishStart(r *startRun, first <-chan time.Duration, pid int, sock, files string) {
	if r.answer = <-first; r.answer == 0 {
		b.Fatalf("%s: no right answer within %v", sock, startLimit)
	}
	r.idleKB = b.rss(pid)
	r.load = b.resolve("start", "-s", sock, "-pid", strconv.Itoa(pid), "-c", "4", "-once", "-src", "ip:"+startIP, "-dests", filepath.Join(files, "dests.ip"))
}

// firstAnswer asks for the first destination until the right answer comes, and
// returns how long after begin that was; 0 when it gives up.
func firstAnswer(sock, files string, begin time.Time) time.Duration {
	text, err := os.ReadFile(filepath.Join(files, "dests.ip"))
	if err != nil {
		return 0
	}
	f := strings.Fields(string(text[:min(len(text), 200)]))
	ip, err := netip.ParseAddr(strings.TrimPrefix(f[0], "ip:"))
	lid, err2 := strconv.Atoi(f[2])
	if err != nil || err2 != nil {
		return 0
	}
	ask := func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		c, err := acmsock.Dial(ctx, sock)
		if err != nil {
			return false
		}
		defer c.Close()
		a, err := c.ResolveAddr(ctx, resolver.IPAddr(netip.MustParseAddr(startIP)), resolver.IPAddr(ip), false)
		return err == nil && len(a.Paths) > 0 && a.Paths[0].Record.DLID() == mad.LID(lid)
	}
	for time.Since(begin) < startLimit {
		if ask() {
			return time.Since(begin)
		}
		time.Sleep(time.Millisecond)
	}
	return 0
}
