// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package main

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"acmd/mad"
	"acmd/mad/sa"
	"acmd/mad/umad/kernellab"
	"acmd/resolver/kernelnl"

	"golang.org/x/sys/unix"
)

// Addresses of the IPoIB network: ib1 is here, ib2 in a network namespace of its
// own, and the way to 10.20.0.0/16 leads through it.
var (
	ipoibHere    = netip.MustParseAddr("10.9.0.2")
	ipoibThere   = netip.MustParseAddr("10.9.0.3")
	ipoibBehind  = netip.MustParseAddr("10.20.0.9") // in the hosts file
	ipoibNowhere = netip.MustParseAddr("10.20.0.10")
)

// ipoibNet sets the network up for the time of the test. The interfaces start
// without a neighbour.
func ipoibNet(t *testing.T) {
	t.Helper()
	kernellab.Need(t, kernellab.IPoIB)
	ns := exec.Command("unshare", "-n", "sleep", "100000")
	if err := ns.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = ns.Process.Kill() // ib2 comes back with its end
		_ = ns.Wait()
		kernellab.Eventually(t, "ib2 is back", func() bool { _, err := os.Stat("/sys/class/net/ib2"); return err == nil })
		kernellab.Run(t, "ip", "addr", "flush", "dev", "ib1")
		kernellab.Run(t, "ip", "link", "set", "ib1", "down")
	})
	there := fmt.Sprint(ns.Process.Pid)
	kernellab.Eventually(t, "the namespace", func() bool {
		a, err1 := os.Readlink("/proc/self/ns/net")
		b, err2 := os.Readlink("/proc/" + there + "/ns/net")
		return err1 == nil && err2 == nil && a != b
	})
	kernellab.Run(t, "ip", "link", "set", "ib2", "netns", there)
	kernellab.Run(t, "nsenter", "-t", there, "-n", "sh", "-c", fmt.Sprintf("ip addr add %s/24 dev ib2; ip link set ib2 up", ipoibThere))
	kernellab.Run(t, "ip", "addr", "add", ipoibHere.String()+"/24", "dev", "ib1")
	kernellab.Run(t, "ip", "link", "set", "ib1", "up")
	kernellab.Run(t, "ip", "route", "add", "10.20.0.0/16", "via", ipoibThere.String(), "dev", "ib1")
}

// ping sends until there is an answer: an interface that was just brought up is
// not in its group yet.
func ping(t *testing.T, ip netip.Addr) {
	t.Helper()
	kernellab.Eventually(t, "ping "+ip.String(), func() bool {
		return exec.Command("ping", "-c", "1", "-W", "1", ip.String()).Run() == nil
	})
}

// What IPoIB asks for the first packet to a neighbour, what rdma_cm asks for a
// neighbour's address, and for one behind a gateway (field case 62).
func TestIPoIBRequests(t *testing.T) {
	ipoibNet(t)
	hosts := filepath.Join(t.TempDir(), "hosts")
	if err := os.WriteFile(hosts, fmt.Appendf(nil, "%s %s\n", ipoibBehind, kernellab.GID(t, "sib2")), 0o644); err != nil {
		t.Fatal(err)
	}
	l := startLab(t, longWait, "addr_preload acm_hosts", "addr_data_file "+hosts)

	before := l.counts()
	ping(t, ipoibThere)
	s := l.counted("a ping", func(s kernelnl.Stats) bool { return s.Answered > before.Answered })
	if s.Failed != before.Failed || s.Malformed+s.Unknown != 0 {
		t.Errorf("a ping: counters %+v, before %+v", s, before)
	}
	t.Logf("a ping: %d requests, %d answered", s.Resolves-before.Resolves, s.Answered-before.Answered)

	route := func(ip netip.Addr) sa.PathRecord {
		t.Helper()
		c := kernellab.OpenCM(t)
		start := time.Now()
		c.ResolveIP(netip.AddrPortFrom(ip, labService), 6*time.Second)
		if event, status := c.Event(); event != kernellab.CMAddrResolved {
			t.Fatalf("%s: event %d, status %d", ip, event, status)
		}
		found := time.Since(start)
		c.ResolveRoute(labHelp)
		if event, status := c.Event(); event != kernellab.CMRouteResolved {
			t.Fatalf("%s: event %d, status %d", ip, event, status)
		}
		t.Logf("%s: address after %v, route after %v", ip, found.Round(time.Millisecond), time.Since(start).Round(time.Millisecond))
		return c.Path()
	}
	q := l.labQuery("sib2", false)
	q.SetServiceID(0x013f<<16 | labService) // port space and port
	q.SetPKey(mad.DefaultPKey)
	for _, ip := range []netip.Addr{ipoibThere, ipoibBehind} {
		before := l.counts()
		got := route(ip)
		if own, err := l.ask(q); err != nil || own != got {
			t.Errorf("%s:\nkernel %x\nacmd   %x (%v)", ip, got, own, err)
		}
		l.same("sib2", got, q)
		l.counted(ip.String()+" is asked for, and nothing refused", func(s kernelnl.Stats) bool {
			return (ip != ipoibBehind || s.IPResolves > before.IPResolves) && s.Failed == before.Failed
		})
	}

	before = l.counts()
	c := kernellab.OpenCM(t)
	c.ResolveIP(netip.AddrPortFrom(ipoibNowhere, labService), time.Second)
	if event, status := c.Event(); event != kernellab.CMAddrError || status != -int32(unix.ETIMEDOUT) {
		t.Errorf("%s: event %d, status %d", ipoibNowhere, event, status)
	}
	// The kernel asks again whenever any neighbour changes meanwhile.
	l.counted(ipoibNowhere.String()+" is refused, and nothing else told", func(s kernelnl.Stats) bool {
		return s.Failed > before.Failed && s.Failed-before.Failed == s.IPResolves-before.IPResolves && s.Answered == before.Answered
	})
}
