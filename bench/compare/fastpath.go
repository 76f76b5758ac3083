// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package main

import (
	"context"
	"fmt"
	"net"
	"regexp"
	"strconv"

	"acmd/mad"
	"acmd/mad/fabric"
	"acmd/mad/madtest/peer"
)

// GUIDs of small.net's first node.
const nodeA mad.GUID = 0x100000

// manyPaths is how many destinations the kernel has in the second part.
const manyPaths = 10000

// fastpath compares answers of the kernel with those of the stock daemon, on both
// of its sockets, and with the floor under any daemon.
func (b *bench) fastpath() {
	f := peer.StartFabric(b, "small.net")
	peer.StartIbacm(b, f, "node-b") // answers the stock daemons' multicast
	local := func(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

	stock, own, echoPort := b.freePort(), b.freePort(), b.freePort()
	tcp := peer.StartIbacm(b, f, "node-d", peer.Option("server_mode loop"), peer.Option(fmt.Sprint("server_port ", stock)))
	unix := peer.StartIbacm(b, f, "node-a")
	d := b.acmdOnNodeC(f, "fast_path kernel", fmt.Sprint("fast_path_port ", own))
	if err := b.fastOn(d); err != nil {
		b.Fatalf("fast path: %v", err)
	}
	list := []server{
		{"ibacm, TCP", local(stock), strconv.Itoa(tcp.Proc.Pid), destB(b, f, "10.77.0.4")},
		{"ibacm, unix", unix.Sock, strconv.Itoa(unix.Proc.Pid), destB(b, f, "10.77.0.1")},
		{"acmd, in the kernel", local(own), d.pid(), destB(b, f, "10.77.0.3")},
	}
	echo := b.startEcho(strconv.Itoa(echoPort), b.answerOf(&list[2]))
	list = append(list, server{"C echo, TCP", local(echoPort), echo.pid(), list[2].dest})

	b.heading("Answers in the kernel", "One destination by IPv4 address with a source, 160-byte request, 88-byte answer, one request in flight per connection, every answer checked.",
		fmt.Sprintf("%d rounds of %v for each cell, contestants in turn; medians, of ratios too.", b.rounds, b.slice))
	before := b.kernelHits(d)
	answers := b.fastTable(list, true)
	if hits := b.kernelHits(d) - before; float64(hits) < 0.99*float64(answers) {
		b.warn("the kernel answered only %d of %d", hits, answers)
	}
	fmt.Println()
	b.fastMany(list[:2])
	fmt.Println()
	b.fastLibrary(peer.Client{RunDir: unix.Dir, GUID: nodeA}, peer.Client{RunDir: d.dir, GUID: nodeA + 4})
}

// fastTable measures ibacm on TCP and unix sockets, acmd, and perhaps the echo. It
// returns the answers of acmd.
func (b *bench) fastTable(list []server, marks bool, extra ...string) (answers int64) {
	t := newTable("connections", "server", "resolves/s", "of ibacm TCP", "of ibacm unix", "p50 us", "of C echo", "p99 us")
	for _, conns := range []int{1, 4, 16, 64} {
		runs := make([][]result, len(list))
		turns := make([]func(), len(list))
		for i := range list {
			turns[i] = func() { runs[i] = append(runs[i], list[i].run(b, conns, b.slice, extra...)) }
		}
		b.eachRound(turns...)
		for i, r := range runs {
			echo := "-"
			if len(list) > 3 {
				echo = figure(ratios(r, runs[3], p50))
			}
			t.row(conns, list[i].name, med(r, perSec), ratios(r, runs[0], perSec), ratios(r, runs[1], perSec), med(r, p50), echo, med(r, p99))
		}
		for i := range runs[2] {
			answers += runs[2][i].OK
		}
		if !marks {
			continue
		}
		unix := 4.0
		if conns == 1 {
			unix = 5
		}
		b.atLeast(fmt.Sprintf("rate at %d connections, of ibacm's on TCP", conns), ratios(runs[2], runs[0], perSec), 8, "x")
		b.atLeast(fmt.Sprintf("rate at %d connections, of ibacm's on unix", conns), ratios(runs[2], runs[1], perSec), unix, "x")
		b.atMost(fmt.Sprintf("p50 at %d connections, of the C echo's on TCP", conns), ratios(runs[2], runs[3], p50), 0.25, "x")
	}
	return answers
}

// ratios is the median of the ratios of one figure, round by round.
func ratios(a, of []result, get func(*result) float64) float64 {
	v := make([]float64, len(a))
	for i := range a {
		v[i] = ratio(get(&a[i]), get(&of[i]))
	}
	return median(v)
}

// fastMany is the same with many paths in the kernel, each asked in turn.
func (b *bench) fastMany(stock []server) {
	port := b.freePort()
	nodes := manyPaths + 1
	d := b.startAcmd(acmdConfig{fabric: fmt.Sprintf("embedded:nodes=%d", nodes),
		opts: []string{"fast_path kernel", fmt.Sprint("fast_path_port ", port)}})
	if err := b.fastOn(d); err != nil {
		b.Fatalf("fast path: %v", err)
	}
	twin, err := fabric.New(fabric.Config{Nodes: nodes}) // says what the right answers are
	if err != nil {
		b.Fatal(err)
	}
	defer twin.Close()
	dests := b.dests(twin, manyPaths)
	where := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	many := func(where string, conns int, extra ...string) result {
		return b.resolve("many paths", append([]string{"-s", where, "-pid", d.pid(), "-c", strconv.Itoa(conns), "-dests", dests,
			"-src", "ip:" + fabric.IPv4(0, 1).String()}, extra...)...)
	}
	many(d.sock, 16, "-once") // known,
	for range 2 {             // then in the kernel
		many(where, 1, "-once")
	}
	fmt.Printf("With %d paths in the kernel, each in turn:\n\n", b.kernelPaths(d))
	t := newTable("connections", "resolves/s", "of ibacm TCP, one path", "of ibacm unix, one path", "p50 us")
	for _, conns := range []int{1, 4, 16, 64} {
		runs := make([][]result, 3)
		before := b.kernelHits(d)
		b.eachRound(
			func() { runs[0] = append(runs[0], stock[0].run(b, conns, b.slice)) },
			func() { runs[1] = append(runs[1], stock[1].run(b, conns, b.slice)) },
			func() { runs[2] = append(runs[2], many(where, conns, "-t", b.slice.String())) },
		)
		answers := int64(0)
		for i := range runs[2] {
			answers += runs[2][i].OK
		}
		if hits := b.kernelHits(d) - before; float64(hits) < 0.99*float64(answers) {
			b.warn("the kernel answered only %d of %d", hits, answers)
		}
		onTCP, onUnix := ratios(runs[2], runs[0], perSec), ratios(runs[2], runs[1], perSec)
		t.row(conns, med(runs[2], perSec), onTCP, onUnix, med(runs[2], p50))
		b.atLeast(fmt.Sprintf("%d paths, rate at %d connections, of ibacm's on TCP", manyPaths, conns), onTCP, 8, "x")
	}
}

// fastLibrary asks through the stock librdmacm.
func (b *bench) fastLibrary(stock, own peer.Client) {
	calls := 100000
	if b.quick {
		calls = 2000
	}
	rate := func(c peer.Client, src string) float64 {
		out, status := peer.Raitest(b, c, src, ipOfB, calls)
		m := regexp.MustCompile(`(\d+) of (\d+) with a route, (\d+) per second`).FindStringSubmatch(out)
		if status != 0 || m == nil || m[1] != m[2] {
			b.warn("rdma_getaddrinfo: status %d: %s", status, out)
			return 0
		}
		v, _ := strconv.ParseFloat(m[3], 64) // digits
		return v
	}
	fmt.Printf("Stock rdma_getaddrinfo, %d calls in each round:\n\n", calls)
	var of, a, i []float64
	b.eachRound(func() {
		s, o := rate(stock, "10.77.0.1"), rate(own, "10.77.0.3")
		i, a, of = append(i, s), append(a, o), append(of, ratio(o, s))
	})
	t := newTable("server", "calls/s", "of ibacm")
	t.row("ibacm, unix", median(i), 1.0)
	t.row("acmd, in the kernel", median(a), median(of))
	b.atLeast("rdma_getaddrinfo, of its rate with ibacm", median(of), 5, "x")
}

type fastState struct {
	Paths    int
	Messages map[string]uint64
}

func (b *bench) fastState(d *daemon) (st fastState) {
	if err := d.control.Do(context.Background(), "GET", "fast-path", nil, &st); err != nil {
		b.Fatal(err)
	}
	return st
}

func (b *bench) kernelHits(d *daemon) uint64 { return b.fastState(d).Messages["hit"] }
func (b *bench) kernelPaths(d *daemon) int   { return b.fastState(d).Paths }
