// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"acmd/mad"
	"acmd/mad/ibsim"
	"acmd/mad/madtest/peer"
)

// settle lets a daemon that has just started come to rest: the stock one opens
// its socket before its ports are up.
const settle = 300 * time.Millisecond

// coldSite is the large fabric, and a node of it from which all its paths are asked.
type coldSite struct {
	fabric *peer.Fabric
	node   string
	lid    mad.LID
	dests  string // file of destinations
	count  int
	also   string // OpenSM and ibsim, for acmload
}

func (b *bench) startColdSite() coldSite {
	s := coldSite{fabric: peer.StartFabric(b, "n600.net"), node: "h1"}
	sim, err := ibsim.New(ibsim.Config{Base: s.fabric.SockName, Node: s.node})
	if err != nil {
		b.Fatal(err)
	}
	devices, err := sim.Devices()
	if err != nil || len(devices) != 1 || len(devices[0].Ports) != 1 {
		b.Fatalf("device of %s: %v, %v", s.node, devices, err)
	}
	s.lid = devices[0].Ports[0].LID
	if err := sim.Close(); err != nil {
		b.Fatal(err)
	}
	var lines []string
	const firstSwitch = 0x200000 // ibsim counts GUIDs up from there
	for guid, lid := range s.fabric.LIDs() {
		if guid < firstSwitch && lid != s.lid {
			lines = append(lines, fmt.Sprintf("lid:%d %v %d\n", lid, mad.MakeGID(0xfe80000000000000, guid), lid))
		}
	}
	slices.Sort(lines) // an order, the same one for all
	s.count, s.dests = len(lines), filepath.Join(s.fabric.Dir, "dests")
	b.write(s.dests, strings.Join(lines, ""))
	s.also = fmt.Sprintf("%d,%d", s.fabric.OpenSM.Pid, s.fabric.Ibsim.Pid)
	return s
}

// alone asks OpenSM directly, with so many questions outstanding.
func (s *coldSite) alone(b *bench, window, n int) result {
	var r result
	b.load(&r, "sabench", "-json", "-in-turn", "-sim", s.fabric.SockName, "-node", s.node, "-dests", s.dests,
		"-w", strconv.Itoa(window), "-n", strconv.Itoa(n), "-pid", strconv.Itoa(s.fabric.OpenSM.Pid), "-simpid", strconv.Itoa(s.fabric.Ibsim.Pid))
	if r.Failed > 0 || r.OK != int64(n) {
		b.warn("OpenSM alone: %d of %d failed: %s", r.Failed, n, r.FirstError)
	}
	return r
}

// ask resolves every destination once through a daemon that has none of them. The
// clients are connected before that.
func (s *coldSite) ask(b *bench, label, sock, pid string) result {
	time.Sleep(settle)
	r := b.resolve(label, "-s", sock, "-pid", pid, "-also", s.also, "-c", "16", "-io", "epoll", "-greet", "-once", "-src", fmt.Sprintf("lid:%d", s.lid), "-dests", s.dests)
	if r.OK != int64(s.count) {
		b.warn("%s: %d of %d paths", label, r.OK, s.count)
	}
	return r
}

func (s *coldSite) stock(b *bench, depth int) (r result) {
	b.scope(func() {
		// What is left of the last round would look like a daemon that is ready.
		if err := os.RemoveAll(filepath.Join(s.fabric.Dir, s.node)); err != nil {
			b.Fatal(err)
		}
		d := peer.StartIbacm(b, s.fabric, s.node, peer.Option("route_prot sa"), peer.Option(fmt.Sprint("sa_depth ", depth)))
		r = s.ask(b, fmt.Sprint("ibacm, sa_depth ", depth), d.Sock, strconv.Itoa(d.Proc.Pid))
	})
	return r
}

// own starts acmd with the options file that the stock ib_acme generates, which
// writes every default of ibacm down; only log and lock file lie elsewhere. The
// daemon is asked a second time when it has forgotten everything: what it costs
// once its memory is mapped and its threads are there.
func (s *coldSite) own(b *bench, options string) (r, again result) {
	b.scope(func() {
		d := b.startAcmd(acmdConfig{
			fabric: "ibsim:" + s.fabric.SockName + ",node=" + s.node,
			base:   options, addrs: []string{s.node + " ibsim0 1 default"},
		})
		r = s.ask(b, "acmd", d.sock, d.pid())
		if err := d.flush(context.Background()); err != nil {
			b.Fatalf("flush: %w", err)
		}
		again = s.ask(b, "acmd again", d.sock, d.pid())
	})
	return r, again
}

// generatedOptions is ib_acme's own options file without comments, log and lock.
func (b *bench) generatedOptions() string {
	dir := b.TempDir()
	b.command(dir, "ib_acme", "-O", "-D", dir)
	text, err := os.ReadFile(filepath.Join(dir, "ibacm_opts.cfg"))
	if err != nil {
		b.Fatal(err)
	}
	var keep strings.Builder
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) > 1 && f[0][0] != '#' && f[0] != "log_file" && f[0] != "lock_file" {
			keep.WriteString(line)
		}
	}
	if !strings.Contains(keep.String(), "sa_depth 1\n") {
		b.Fatalf("ib_acme's options file is not as expected:\n%s", keep.String())
	}
	return keep.String()
}

// cold compares resolves that have to ask the SA.
func (b *bench) cold() {
	s := b.startColdSite()
	options := b.generatedOptions()
	names := []string{"OpenSM alone, window 16", "ibacm, sa_depth 16", "acmd, ibacm's generated defaults", "the same acmd after a flush",
		"ibacm, sa_depth 1 (its default)", "OpenSM alone, window 16, 5 times the list"}
	runs := make([][]result, len(names))
	add := func(i int, r result) { runs[i] = append(runs[i], r) }
	turns := []func(){
		func() { add(0, s.alone(b, 16, s.count)) },
		func() { add(1, s.stock(b, 16)) },
		func() {
			first, again := s.own(b, options)
			add(2, first)
			add(3, again)
		},
		func() { add(4, s.stock(b, 1)) },
		func() { add(5, s.alone(b, 16, 5*s.count)) },
	}
	b.heading("Cold resolves", fmt.Sprintf("%d paths by LID on a fabric of 601 adapters, 16 clients, each path asked once, a fresh daemon for each round, %d rounds.", s.count, b.rounds))
	s.alone(b, 16, s.count) // the first questions after a sweep are slow
	b.eachRound(turns...)
	t := newTable("who", "paths/s", "all runs", "p50 us", "p99 us", "daemon CPU s/1M", "OpenSM s/1M", "ibsim s/1M", "load generator s/1M", "processors busy (these)", "(machine)", "switches per path")
	for i, r := range runs {
		per1M := func(cpu float64, r *result) float64 { return cpu * 1e6 / float64(max(r.OK, 1)) }
		daemon := any(med(r, cpu1M))
		if strings.HasPrefix(names[i], "OpenSM") {
			daemon = "-"
		}
		t.row(names[i], med(r, perSec), spread(r, perSec, "%.0f"), med(r, p50), med(r, p99), daemon,
			med(r, func(r *result) float64 { return per1M(r.AlsoCPU[0], r) }), med(r, func(r *result) float64 { return per1M(r.AlsoCPU[1], r) }),
			med(r, func(r *result) float64 { return per1M(r.OwnCPU, r) }), med(r, busyThese), med(r, func(r *result) float64 { return r.Busy }), med(r, switches))
	}
	b.coldMarks(runs[0], runs[1], runs[2])
}

// busyThese is the share of the machine's processor time that went into the
// programs of the comparison.
func busyThese(r *result) float64 {
	cpu := r.OwnCPU
	for _, c := range r.AlsoCPU {
		cpu += c
	}
	// For OpenSM alone the server is the load generator itself.
	if len(r.AlsoCPU) > 0 && r.Conns > 0 && r.RSSKB > 0 {
		cpu += r.CPUPer1M * float64(r.OK) / 1e6
	}
	return cpu / r.Seconds / float64(runtime.NumCPU())
}

func (b *bench) coldMarks(alone, stock, own []result) {
	b.atLeast("rate, of ibacm's with sa_depth 16", ratio(med(own, perSec), med(stock, perSec)), 1.3, "x")
	share := ratio(med(own, perSec), med(alone, perSec))
	cpu, busy := med(own, cpu1M), max(med(own, busyThese), med(own, func(r *result) float64 { return r.Busy }))
	b.marks = append(b.marks, mark{
		"rate, of OpenSM's alone; or own CPU per 1M with all processors busy", ">= 0.90x; or <= 20 s",
		fmt.Sprintf("%.2fx; %.1f s, %.0f %% busy", share, cpu, 100*busy),
		share >= .9 || cpu <= 20 && busy >= .95,
	})
}
