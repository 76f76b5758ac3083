// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package main

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"path/filepath"
	"strconv"
	"time"

	"acmd/mad"
	"acmd/mad/madtest/peer"
	"acmd/resolver"
	"acmd/resolver/acmsock"
)

// Ports of small.net.
const nodeBPort mad.GUID = 0x100003

const (
	ipOfB  = "10.77.0.2"
	gidOfB = "fe80::10:3"
)

// server is one contestant of the cached comparisons.
type server struct {
	name  string
	where string // socket path or host:port
	pid   string
	dest  dest
}

// run measures the server once.
func (s *server) run(b *bench, conns int, slice time.Duration, extra ...string) result {
	args := append([]string{"-s", s.where, "-pid", s.pid, "-c", strconv.Itoa(conns), "-t", slice.String(), "-warm"}, s.dest.args()...)
	return b.resolve(s.name, append(args, extra...)...)
}

// destB is node-b's address, asked from the node with the given address.
func destB(b *bench, f *peer.Fabric, src string) dest {
	return dest{"ip:" + src, "ip:" + ipOfB, gidOfB, int(f.LID(b, nodeBPort))}
}

// acmdOnNodeC runs the daemon on node-c of small.net; node-b's address comes from
// a hosts file, its path from OpenSM.
func (b *bench) acmdOnNodeC(f *peer.Fabric, opts ...string) *daemon {
	hosts := filepath.Join(b.TempDir(), "hosts")
	b.write(hosts, ipOfB+" "+gidOfB+"\n")
	return b.startAcmd(acmdConfig{
		fabric: "ibsim:" + f.SockName + ",node=node-c",
		opts:   append([]string{"support_ips_in_addr_cfg 1", "addr_preload acm_hosts", "addr_data_file " + hosts}, opts...),
		addrs:  []string{"node-c ibsim0 1 default", "10.77.0.3 ibsim0 1 default"},
	})
}

// acmdAlone is a server for comparisons without a stock daemon.
func (b *bench) acmdAlone() (*daemon, server) {
	f := peer.StartFabric(b, "small.net")
	d := b.acmdOnNodeC(f)
	return d, server{"acmd", d.sock, d.pid(), destB(b, f, "10.77.0.3")}
}

// cached compares resolves that need no fabric any more.
func (b *bench) cached() {
	f := peer.StartFabric(b, "small.net")
	// node-b answers the stock daemons' multicast.
	peer.StartIbacm(b, f, "node-b")
	b.heading("Cached resolves", "One destination by IPv4 address with a source, 160-byte request, 88-byte answer, one request in flight per connection.",
		fmt.Sprintf("%d rounds of %v for each cell, contestants in turn; medians.", b.rounds, b.slice))
	b.cachedOn("unix", []server{b.ibacmUnix(f), b.acmdUnix(f)}, filepath.Join(b.TempDir(), "echo.sock"))
	fmt.Println()
	tcp, port := b.tcpServers(f)
	b.cachedOn("TCP", tcp, strconv.Itoa(port))
}

func (b *bench) ibacmUnix(f *peer.Fabric) server {
	d := peer.StartIbacm(b, f, "node-a")
	return server{"ibacm", d.Sock, strconv.Itoa(d.Proc.Pid), destB(b, f, "10.77.0.1")}
}

func (b *bench) acmdUnix(f *peer.Fabric) server {
	d := b.acmdOnNodeC(f)
	return server{"acmd", d.sock, d.pid(), destB(b, f, "10.77.0.3")}
}

// tcpServers are both daemons in loopback mode, and a port for the echo.
func (b *bench) tcpServers(f *peer.Fabric) ([]server, int) {
	local := func(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
	stock, own := b.freePort(), b.freePort()
	s := peer.StartIbacm(b, f, "node-d", peer.Option("server_mode loop"), peer.Option(fmt.Sprint("server_port ", stock)))
	// The unix instance of acmd has node-c; nodes share nothing, so another one does as well.
	hosts := filepath.Join(b.TempDir(), "hosts")
	b.write(hosts, ipOfB+" "+gidOfB+"\n")
	d := b.startAcmd(acmdConfig{
		fabric: "ibsim:" + f.SockName + ",node=node-e",
		opts: []string{"support_ips_in_addr_cfg 1", "addr_preload acm_hosts", "addr_data_file " + hosts,
			"server_mode loop", fmt.Sprint("server_port ", own)},
		addrs: []string{"node-e ibsim0 1 default", "10.77.0.5 ibsim0 1 default"},
	})
	return []server{
		{"ibacm", local(stock), strconv.Itoa(s.Proc.Pid), destB(b, f, "10.77.0.4")},
		{"acmd", local(own), d.pid(), destB(b, f, "10.77.0.5")},
	}, b.freePort()
}

// cachedOn measures ibacm, acmd and the echo on one kind of socket. list has the
// two daemons; marks are set for unix sockets only.
func (b *bench) cachedOn(kind string, list []server, echoAt string) {
	acmd := &list[1]
	echo := b.startEcho(echoAt, b.answerOf(acmd))
	e := server{"C echo", echoAt, echo.pid(), acmd.dest}
	if kind == "TCP" {
		e.where = net.JoinHostPort("127.0.0.1", echoAt)
	}
	list = append(list, e)
	t := newTable(kind+", connections", "server", "resolves/s", "of ibacm", "p50 us", "of C echo", "p99 us", "p99.9 us", "server CPU s/1M", "of ibacm", "CPU s/1M, all runs", "switches per resolve")
	for _, conns := range []int{1, 4, 16, 64} {
		runs := make([][]result, len(list))
		turns := make([]func(), len(list))
		for i := range list {
			turns[i] = func() { runs[i] = append(runs[i], list[i].run(b, conns, b.slice)) }
		}
		b.eachRound(turns...)
		for i, r := range runs {
			t.row(conns, list[i].name, med(r, perSec), ratio(med(r, perSec), med(runs[0], perSec)),
				med(r, p50), ratio(med(r, p50), med(runs[2], p50)), med(r, p99), med(r, p999),
				med(r, cpu1M), ratio(med(r, cpu1M), med(runs[0], cpu1M)), spread(r, cpu1M, "%.1f"), med(r, switches))
		}
		if kind == "unix" {
			b.cachedMarks(conns, runs[0], runs[1], runs[2])
		}
	}
}

func (b *bench) cachedMarks(conns int, ibacm, acmd, echo []result) {
	b.atMost(fmt.Sprintf("CPU per 1M, %d connections, of ibacm's", conns), ratio(med(acmd, cpu1M), med(ibacm, cpu1M)), 1, "x")
	if conns == 1 {
		b.atMost("p50 at 1 connection, of the C echo's", ratio(med(acmd, p50), med(echo, p50)), 1.15, "x")
	}
	if conns == 64 {
		b.atMost("p99.9 at 64 connections, of ibacm's", ratio(med(acmd, p999), med(ibacm, p999)), 1, "x")
	}
}

// answerOf asks a server once and returns the 72-byte entry of its answer, which
// the echo will repeat.
func (b *bench) answerOf(s *server) []byte {
	network := "tcp"
	if filepath.IsAbs(s.where) {
		network = "unix"
	}
	c, err := net.Dial(network, s.where)
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		b.Fatal(err)
	}
	addr := func(spec string) resolver.Addr { return resolver.IPAddr(netip.MustParseAddr(spec[len("ip:"):])) }
	q := acmsock.AppendResolve(nil, 1, acmsock.SourceRecord(addr(s.dest.src)), acmsock.DestRecord(addr(s.dest.addr), false))
	if _, err := c.Write(q); err != nil {
		b.Fatal(err)
	}
	answer := make([]byte, 88)
	if _, err := io.ReadFull(c, answer); err != nil || answer[2] != 0 {
		b.Fatalf("%s: no answer to repeat: %x, %v", s.name, answer[:16], err)
	}
	return answer[16:]
}

// clients compares nothing: it is a cliff that the stock daemon falls off at 1,004.
func (b *bench) clients() {
	n := 10000
	if b.quick {
		n = 2000
	}
	d, s := b.acmdAlone()
	b.heading("Clients", fmt.Sprintf("%d connections, one after the other, each served when it is open; then a request on every one of them before any answer is read.", n))
	type crowd struct {
		Connected   int     `json:"connected"`
		ConnectTime float64 `json:"connect_s"`
		Served      int     `json:"served"`
		AtOnce      int     `json:"at_once"`
		AtOnceTime  float64 `json:"at_once_s"`
		RSSKB       int     `json:"server_rss_kb"`
		CPU         float64 `json:"server_cpu_s"`
		Error       string  `json:"error"`
	}
	t := newTable("round", "connected", "served", "s", "served at once", "s", "server RSS KB", "server CPU s")
	var runs []crowd
	b.eachRound(func() {
		var r crowd
		b.load(&r, append([]string{"clients", "-s", d.sock, "-pid", s.pid, "-n", strconv.Itoa(n)}, s.dest.args()...)...)
		if r.AtOnce != n {
			b.warn("clients: %d connected, %d served, %d at once: %s", r.Connected, r.Served, r.AtOnce, r.Error)
		}
		runs = append(runs, r)
		t.row(len(runs), r.Connected, r.Served, r.ConnectTime, r.AtOnce, r.AtOnceTime, r.RSSKB, r.CPU)
	})
	least := int64(n)
	for i := range runs {
		least = min(least, int64(runs[i].AtOnce))
	}
	b.exactly("clients connected and served", least, int64(n))
	// The daemon has seen them leave and serves on.
	if r := s.run(b, 1, b.slice/10); r.Failed > 0 {
		b.warn("after the crowd: %s", r.FirstError)
	}
}

// pipelined measures one client that asks 32 times with each write.
func (b *bench) pipelined() {
	_, s := b.acmdAlone()
	b.heading("Pipelined requests", "One connection, 160-byte requests with TIDs of their own, so many in each write; latencies are of a whole batch.")
	t := newTable("batch", "resolves/s (wall)", "per server CPU second", "server CPU s/1M", "p50 us", "p99 us", "all runs, per CPU second")
	perCPU := func(r *result) float64 { return ratio(1e6, r.CPUPer1M) }
	sizes := []int{1, 8, 32, 64}
	runs := make([][]result, len(sizes))
	turns := make([]func(), len(sizes))
	for i, n := range sizes {
		turns[i] = func() { runs[i] = append(runs[i], s.run(b, 1, b.slice, "-batch", strconv.Itoa(n))) }
	}
	b.eachRound(turns...)
	for i, r := range runs {
		t.row(sizes[i], med(r, perSec), med(r, perCPU), med(r, cpu1M), med(r, p50), med(r, p99), spread(r, perCPU, "%.0f"))
		if sizes[i] == 32 {
			b.atLeast("requests per server CPU second at batch 32", med(r, perCPU), 1e6, "")
		}
	}
}
