// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"acmd/mad"
	"acmd/mad/madtest/peer"
	"acmd/resolver/control"
)

// multicastNames is how many addresses the stock peer has.
const multicastNames = 500

// multicastSite is the large fabric with a stock ibacm on h2 that has many
// addresses; h1 asks for them.
type multicastSite struct {
	fabric *peer.Fabric
	dests  string // file of destinations
	peer   *peer.Ibacm
}

func (b *bench) startMulticastSite() multicastSite {
	s := multicastSite{fabric: peer.StartFabric(b, "n600.net")}
	guid := s.fabric.NodeGUID(b, "h2") + 1
	opts := []peer.IbacmOption{peer.Option("route_prot sa")}
	var lines strings.Builder
	for i := range multicastNames {
		ip := fmt.Sprintf("10.90.%d.%d", i/250, i%250+1)
		opts = append(opts, peer.Address(ip))
		fmt.Fprintf(&lines, "ip:%s %v %d\n", ip, mad.MakeGID(0xfe80000000000000, guid), s.fabric.LID(b, guid))
	}
	s.dests = filepath.Join(s.fabric.Dir, "dests")
	b.write(s.dests, lines.String())
	s.peer = peer.StartIbacm(b, s.fabric, "h2", opts...)
	return s
}

// asker is a daemon on h1 for one run.
type asker struct {
	name  string
	acmd  bool
	route string
	dead  bool // somebody waits for a name that nobody has
}

func (a *asker) label(clients int) string {
	return fmt.Sprintf("%s, route_prot %s, %d clients, dead %v", a.name, a.route, clients, a.dead)
}

// asked is what one run of an asker gave.
type asked struct {
	result          // of the first pass
	passes int      // over the addresses, each of them cold
	times  []uint32 // of all answers of all passes, ascending
}

// quantile of all answers, in microseconds.
func (r *asked) quantile(q float64) float64 {
	if len(r.times) == 0 {
		return 0
	}
	return float64(r.times[min(int(q*float64(len(r.times))), len(r.times)-1)]) / 1000
}

// ask starts the daemon anew and resolves every address once. Of both, all options
// but the route's are the defaults. acmd then forgets them and is asked again
// until the slice is over: the hundredth part of one pass is five answers, and
// those of the first are the ones that waited for the daemon to wake.
func (s *multicastSite) ask(b *bench, a *asker, clients int) (r asked) {
	b.scope(func() {
		if err := os.RemoveAll(filepath.Join(s.fabric.Dir, "h1")); err != nil {
			b.Fatal(err)
		}
		// The helper's own line for the time between tries is undone.
		opts := []peer.IbacmOption{peer.Option("route_prot " + a.route), peer.Option("timeout 2000")}
		var sock, dir string
		var pid int
		if a.acmd {
			d := peer.StartAcmd(b, s.fabric, "h1", opts...)
			sock, dir, pid = d.Sock, d.Dir, d.Proc.Pid
		} else {
			d := peer.StartIbacm(b, s.fabric, "h1", opts...)
			sock, pid = d.Sock, d.Proc.Pid
		}
		time.Sleep(settle)
		src := "ip:" + peer.NodeIP("h1")
		wait := func() {}
		if a.dead {
			wait = b.askOnce(sock, src, "ip:10.99.99.99")
		}
		time.Sleep(settle) // its request is out
		for begin := time.Now(); ; r.passes++ {
			pass := b.resolve(a.label(clients), "-s", sock, "-pid", strconv.Itoa(pid), "-also", strconv.Itoa(s.peer.Proc.Pid), "-c", strconv.Itoa(clients),
				"-io", "epoll", "-greet", "-once", "-times", "-src", src, "-dests", s.dests)
			if pass.OK != multicastNames {
				b.warn("%s: %d of %d", a.label(clients), pass.OK, multicastNames)
			}
			if r.passes == 0 {
				r.result = pass
			}
			r.times = append(r.times, pass.Times...)
			if !a.acmd || time.Since(begin) > b.slice {
				break
			}
			if err := control.NewClient(dir).Do(context.Background(), "POST", "flush", control.FlushRequest{All: true}, nil); err != nil {
				b.Fatalf("flush: %w", err)
			}
		}
		r.passes++
		slices.Sort(r.times)
		if a.acmd {
			b.checkFound(dir, r.passes*multicastNames)
		}
		wait()
	})
	return r
}

// checkFound sees that each answer came from the peer: none was of the cache.
func (b *bench) checkFound(dir string, want int) {
	var state struct{ ACM struct{ Found int } }
	if err := control.NewClient(dir).Do(context.Background(), "GET", "state", nil, &state); err != nil {
		b.Fatalf("state: %w", err)
	}
	if state.ACM.Found != want {
		b.warn("%d addresses found over multicast, want %d", state.ACM.Found, want)
	}
}

// askOnce asks for a destination that nobody has and returns how to wait for the
// answer.
func (b *bench) askOnce(sock, src, dst string) func() {
	cmd := b.loadCommand("fail", "-s", sock, "-t", "1ms", "-src", src, "-dst", dst)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	return func() {
		if err := cmd.Wait(); err != nil {
			b.warn("dead destination: %v: %s", err, bytes.TrimSpace(out.Bytes()))
		}
	}
}

// multicast compares cold resolves of a stock peer's addresses over multicast.
func (b *bench) multicast() {
	s := b.startMulticastSite()
	askers := []asker{
		{"ibacm", false, "sa", false}, {"acmd", true, "sa", false}, {"acmd", true, "sa", true},
		{"ibacm", false, "acm", false}, {"acmd", true, "acm", false}, {"acmd", true, "acm", true},
	}
	clients := []int{1, 16}
	b.heading("Cold resolves of a stock peer over multicast",
		fmt.Sprintf("%d IPv4 addresses of one stock ibacm, each asked once, with the defaults of both; a fresh daemon for each run, %d rounds in turn, medians. Queue pairs are those of the preload library. With the dead one: a client waits meanwhile for an address that nobody has. Rates and the first p99 are of the first pass over the addresses; acmd then forgets them all and is asked again for %v, and the last columns are of all answers.", multicastNames, b.rounds, b.slice))
	runs := map[string][]asked{}
	var turns []func()
	for i := range askers {
		for _, c := range clients {
			turns = append(turns, func() {
				l := askers[i].label(c)
				runs[l] = append(runs[l], s.ask(b, &askers[i], c))
			})
		}
	}
	s.ask(b, &askers[0], 16) // the first questions after a sweep are slow
	b.eachRound(turns...)
	t := newTable("who", "route_prot", "clients", "dead one", "addresses/s", "all runs", "p50 us", "p99 us", "own CPU s/1M", "peer's CPU s/1M", "passes", "p50 us of all", "p99 us of all", "all runs")
	all := func(q float64) func(*asked) float64 { return func(r *asked) float64 { return r.quantile(q) } }
	for _, c := range clients {
		for i := range askers {
			a := &askers[i]
			r := runs[a.label(c)]
			first := func(get func(*result) float64) func(*asked) float64 {
				return func(r *asked) float64 { return get(&r.result) }
			}
			t.row(a.name, a.route, c, a.dead, med(r, first(perSec)), spread(r, first(perSec), "%.0f"), med(r, first(p50)), med(r, first(p99)), med(r, first(cpu1M)),
				med(r, func(r *asked) float64 { return r.AlsoCPU[0] * 1e6 / float64(max(r.OK, 1)) }),
				spread(r, func(r *asked) float64 { return float64(r.passes) }, "%.0f"), med(r, all(.5)), med(r, all(.99)), spread(r, all(.99), "%.0f"))
		}
		for i := range 2 {
			stock, own, dead := runs[askers[3*i].label(c)], runs[askers[3*i+1].label(c)], runs[askers[3*i+2].label(c)]
			what := fmt.Sprintf("route_prot %s, %d clients: ", askers[3*i].route, c)
			rate := func(r *asked) float64 { return r.PerSec }
			b.atLeast(what+"rate, of ibacm's", ratio(med(own, rate), med(stock, rate)), 1, "x")
			b.atMost(what+"p99 beside a dead one, of without", ratio(med(dead, all(.99)), med(own, all(.99))), 1.2, "x")
		}
	}
}
