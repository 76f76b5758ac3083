// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
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
	fabric       *peer.Fabric
	node         string
	byLID, byGID coldList
	coldList            // the one of the two that is asked now
	also         string // OpenSM and ibsim, for acmload
	blocking     bool   // the clients have a thread each, which waits in recv
}

// coldList is the list of all paths, spelled in one way.
type coldList struct {
	by    string // how the ends of a path are named: "LID" or "GID"
	src   string // for acmload, as dests is
	dests string // file of destinations
	count int
}

func (b *bench) startColdSite() coldSite {
	s := coldSite{fabric: peer.StartFabric(b, "n600.net"), node: "h1"}
	sim, err := ibsim.New(ibsim.Config{Base: s.fabric.SockName, Node: s.node})
	if err != nil {
		b.Fatal(err)
	}
	devices, err := sim.Devices()
	if err != nil || len(devices) != 1 || len(devices[0].Ports) != 1 || len(devices[0].Ports[0].GIDs) == 0 {
		b.Fatalf("device of %s: %v, %v", s.node, devices, err)
	}
	own := devices[0].Ports[0]
	if err := sim.Close(); err != nil {
		b.Fatal(err)
	}
	byLID, byGID := coldDests(s.fabric.LIDs(), own.LID)
	s.byLID = coldList{"LID", fmt.Sprintf("lid:%d", own.LID), filepath.Join(s.fabric.Dir, "by-lid"), len(byLID)}
	s.byGID = coldList{"GID", fmt.Sprintf("gid:%v", own.GIDs[0]), filepath.Join(s.fabric.Dir, "by-gid"), len(byGID)}
	b.write(s.byLID.dests, strings.Join(byLID, ""))
	b.write(s.byGID.dests, strings.Join(byGID, ""))
	s.also = fmt.Sprintf("%d,%d", s.fabric.OpenSM.Pid, s.fabric.Ibsim.Pid)
	return s
}

// coldDests is acmload's list of all adapters but that with LID own, by LID and by
// GID, in one order.
func coldDests(lids map[mad.GUID]mad.LID, own mad.LID) (byLID, byGID []string) {
	const firstSwitch = 0x200000 // ibsim counts GUIDs up from there
	for _, guid := range slices.Sorted(maps.Keys(lids)) {
		lid, gid := lids[guid], mad.MakeGID(0xfe80000000000000, guid)
		if guid < firstSwitch && lid != own {
			byLID = append(byLID, fmt.Sprintf("lid:%d %v %d\n", lid, gid, lid))
			byGID = append(byGID, fmt.Sprintf("gid:%v %v %d\n", gid, gid, lid))
		}
	}
	return byLID, byGID
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
	io := "epoll" // one thread for all, which costs the least
	if s.blocking {
		io = "raw"
	}
	r := b.resolve(label, "-s", sock, "-pid", pid, "-also", s.also, "-c", "16", "-io", io, "-greet", "-once", "-src", s.src, "-dests", s.dests)
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

// cold compares resolves that have to ask the SA, all on the same processors.
func (b *bench) cold() {
	s := b.startColdSite()
	s.compare(b, s.byLID, nil)
}

// coldBlocking is cold with clients that wait as those of librdmacm and ib_acme do.
func (b *bench) coldBlocking() {
	s := b.startColdSite()
	s.blocking = true
	s.compare(b, s.byLID, nil)
}

// coldGID is cold with both ends of a path named by GID, which is less work for
// OpenSM: for a LID it goes through the table of all GUIDs.
func (b *bench) coldGID() {
	s := b.startColdSite()
	s.compare(b, s.byGID, nil)
}

// coldApart is both with the SA on a processor of its own, as on a fabric where it
// is another machine.
func (b *bench) coldApart() {
	apart, err := apartOf(b.processors())
	if err != nil {
		b.Fatal(err)
	}
	s := b.startColdSite()
	b.pinAll(apart.sa, s.fabric.OpenSM.Pid, s.fabric.Ibsim.Pid)
	b.pinOwn(apart.rest) // and what is started from here on
	s.compare(b, s.byLID, apart)
	s.compare(b, s.byGID, apart)
}

// compare lets the contestants ask for a list in turn, and prints what they
// reached. apart is nil when all programs share all processors.
func (s *coldSite) compare(b *bench, list coldList, apart *apart) {
	s.coldList = list
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
	lines := []string{fmt.Sprintf("%d paths by %s on a fabric of 601 adapters, 16 clients, each path asked once, a fresh daemon for each round, %d rounds.", s.count, s.by, b.rounds)}
	what := s.by
	if s.blocking {
		what += ", clients that block"
	}
	title := "Cold resolves by " + what
	if apart != nil {
		title += ", the SA apart"
		lines = append(lines, apart.String())
	}
	b.heading(title, lines...)
	s.alone(b, 16, s.count) // the first questions after a sweep are slow
	b.eachRound(turns...)
	printCold(names, runs, apart)
	b.coldMarks(what, runs[0], runs[1], runs[2], apart)
}
