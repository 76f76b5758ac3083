// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package main

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"acmd/mad/umad/kernellab"
	"acmd/resolver"
	"acmd/resolver/acmsock"
	"acmd/resolver/hostnet"
	"acmd/resolver/neigh"
)

// IPoIB on real interfaces: ib1 is ours, ib2 and ib3 are another host's, in a network
// namespace of their own, and no daemon runs there.
const (
	labMine4, labPeer4 = "10.9.0.1", "10.9.0.2"
	labMine6, labPeer6 = "2001:db8:9::1", "2001:db8:9::2"
)

// startNeigh starts a daemon that has nothing but the neighbour table and looks at
// addresses by itself once an hour, and the peer.
func startNeigh(t *testing.T) (*kernelLab, *kernellab.Peer) {
	t.Helper()
	kernellab.Need(t, kernellab.IPoIB)
	l := startLab(t, "addr_prot neigh", "request_timeout 2000", "poll_interval 3600000", "log_level 1")
	p := kernellab.StartPeer(t, "ib2", "ib3")
	for _, words := range []string{"link set ib2 up", "addr add " + labPeer4 + "/24 dev ib2", "-6 addr add " + labPeer6 + "/64 dev ib2"} {
		p.IP(words)
	}
	for _, words := range []string{"link set ib1 up", "addr add " + labMine4 + "/24 dev ib1", "-6 addr add " + labMine6 + "/64 dev ib1"} {
		ip(t, words)
	}
	t.Cleanup(func() { ip(t, "link set ib1 down"); ip(t, "addr flush dev ib1") })
	return l, p
}

func ip(t *testing.T, words string) {
	t.Helper()
	kernellab.Run(t, "ip", strings.Fields(words)...)
}

// askIP asks for the path between addresses; src may be "".
func (l *kernelLab) askIP(src, dst string) (acmsock.Resolved, error) {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(l.t.Context(), labAnswer)
	defer cancel()
	var from netip.Addr
	if src != "" {
		from = netip.MustParseAddr(src)
	}
	r, err := l.client.ResolveIP(ctx, from, netip.MustParseAddr(dst), false)
	var se *acmsock.StatusError
	if err != nil && !errors.As(err, &se) {
		l.t.Fatalf("the daemon gave no answer: %v", err)
	}
	return r, err
}

// reaches waits until an address leads to a device, by the SA's own record.
func (l *kernelLab) reaches(src, dst, device string) {
	l.t.Helper()
	want := l.info(device).GIDs[0]
	var last error
	kernellab.Eventually(l.t, dst+" leads to "+device, func() bool {
		r, err := l.askIP(src, dst)
		last = err
		if err != nil {
			return false
		}
		got := r.Paths[0].Record
		if got.DGID() != want {
			return false
		}
		l.same(device, got, l.labQuery(device, false))
		return true
	})
	if last != nil {
		l.t.Error(last)
	}
}

// owner names the device that has an address, "" if none has.
func (l *kernelLab) owner(addr string) string {
	l.t.Helper()
	var s struct {
		Endpoints []struct {
			Device    string
			Addresses []string
		}
	}
	if out := l.acmctl("state"); json.Unmarshal([]byte(out), &s) != nil || len(s.Endpoints) == 0 {
		l.t.Fatalf("endpoints:\n%s", out)
	}
	for _, ep := range s.Endpoints {
		if slices.Contains(ep.Addresses, addr) {
			return ep.Device
		}
	}
	return ""
}

// views reads what the daemon has counted.
func (l *kernelLab) views() (n neigh.Stats, h hostnet.Stats) {
	l.t.Helper()
	var s struct {
		Neigh neigh.Stats
		Host  hostnet.Stats
	}
	if out := l.acmctl("state"); json.Unmarshal([]byte(out), &s) != nil || !s.Host.Watching {
		l.t.Fatalf("the daemon does not watch the network:\n%s", out)
	}
	return s.Neigh, s.Host
}

// field cases 3, 23 and 61: addresses that came after the start lead to a peer
// without a daemon, by IPv4 and IPv6, with and without a source, whether the kernel
// has the neighbour or has to ask. What is nobody's ends in time, what is no
// neighbour at once.
func TestIPoIBNeighResolves(t *testing.T) {
	l, _ := startNeigh(t)
	for _, pair := range [][2]string{{labMine4, labPeer4}, {labMine6, labPeer6}} {
		l.reaches(pair[0], pair[1], "sib2")
		l.reaches("", pair[1], "sib2")
		// Until an IPv6 address is known to be nobody else's the kernel takes the
		// link-local one.
		kernellab.Eventually(t, "the source towards "+pair[1], func() bool {
			r, err := l.askIP("", pair[1])
			return err == nil && r.Source.IP() == netip.MustParseAddr(pair[0])
		})
	}
	before, _ := l.views()
	l.flush()
	l.reaches(labMine4, labPeer4, "sib2")
	l.reaches(labMine6, labPeer6, "sib2")
	known, _ := l.views()
	if known.Known < before.Known+2 {
		t.Errorf("with neighbours that the kernel has: %+v, before that %+v", known, before)
	}
	var asked neigh.Stats
	kernellab.Eventually(t, "the kernel is made to ask, its table being empty", func() bool {
		// What the peer says by itself may fill it again, and that as long as ip tries.
		if exec.Command("ip", "neigh", "flush", "dev", "ib1").Run() != nil {
			return false
		}
		l.flush()
		l.reaches(labMine4, labPeer4, "sib2")
		asked, _ = l.views()
		return asked.Asked > known.Asked && asked.Found > known.Found
	})
	// Link-local addresses come by themselves, and the source says on which link.
	l.reaches("fe80::200:0:1:101", "fe80::200:0:1:201", "sib2")
	asked, _ = l.views()
	begin := time.Now()
	_, err := l.askIP(labMine4, "10.9.0.77")
	var se *acmsock.StatusError
	if took := time.Since(begin); !errors.As(err, &se) || se.Status != resolver.StatusTimedOut || took < time.Second || took > labAnswer {
		t.Errorf("an address that nobody has: %v after %v", err, took)
	}
	ip(t, "route add 10.10.0.0/16 via "+labPeer4+" dev ib1")
	if _, err := l.askIP(labMine4, "10.10.0.1"); err == nil {
		t.Error("a path to what is behind a router")
	}
	kernellab.Eventually(t, "both are counted", func() bool {
		end, _ := l.views()
		return end.Unknown > asked.Unknown && end.Timeouts > asked.Timeouts && end.Asked > asked.Asked
	})
}

// field case 8: the peer moves its address to its other port. The neighbour table
// hears of it, and the path to the old port goes, though nothing expired.
func TestIPoIBNeighMoves(t *testing.T) {
	l, p := startNeigh(t)
	l.reaches(labMine4, labPeer4, "sib2")
	p.IP("link set ib3 up")
	p.IP("addr del " + labPeer4 + "/24 dev ib2")
	p.IP("addr add " + labPeer4 + "/24 dev ib3")
	want := l.info("sib3").GIDs[0]
	kernellab.Eventually(t, labPeer4+" leads to the other port", func() bool {
		// Its first packet carries the news; IPoIB may still be joining when it is sent.
		_ = p.Command("ping", "-c", "1", "-W", "1", "-I", "ib3", labMine4).Run()
		r, err := l.askIP(labMine4, labPeer4)
		return err == nil && (&r.Paths[0].Record).DGID() == want
	})
	l.reaches(labMine4, labPeer4, "sib3")
	kernellab.Eventually(t, "the move is counted", func() bool { n, _ := l.views(); return n.Moved > 0 })
}

// field cases 18, 23 and 47: what becomes of our own addresses shows at once, by the
// kernel's word: added, removed, moved to another port, on an interface that is down
// or has another name.
func TestIPoIBNeighOwnAddresses(t *testing.T) {
	l, _ := startNeigh(t)
	l.reaches(labMine4, labPeer4, "sib2")
	const second = "10.9.0.11"
	owner := func(want string) {
		t.Helper()
		kernellab.Eventually(t, second+" belongs to "+want, func() bool { return l.owner(second) == want })
	}
	owner("")
	ip(t, "addr add "+second+"/32 dev ib1")
	owner("sib1")
	l.reaches(second, labPeer4, "sib2")
	ip(t, "addr del "+second+"/32 dev ib1")
	owner("")
	ip(t, "addr add "+second+"/32 dev ib0") // which is down
	owner("sib0")
	ip(t, "link set ib0 name storage")
	ip(t, "addr del "+second+"/32 dev storage")
	owner("")
	ip(t, "addr add "+second+"/32 dev storage")
	owner("sib0")
	ip(t, "addr del "+second+"/32 dev storage")
	ip(t, "link set storage name ib0")
	owner("")
	if _, h := l.views(); h.Events == 0 || h.Looks < 7 {
		t.Errorf("%+v", h)
	}
}
