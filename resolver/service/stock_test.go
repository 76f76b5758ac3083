// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package service

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"acmd/mad"
	"acmd/mad/ibsim"
	"acmd/mad/madtest/peer"
	madsa "acmd/mad/sa"
	"acmd/resolver"
	"acmd/resolver/acmsock"
	saclient "acmd/resolver/sa"
)

// GUIDs of small.net: node-b is the destination, acmd runs on node-c.
const (
	nodeBPort mad.GUID = 0x100003
	nodeC     mad.GUID = 0x100004
	nodeCPort mad.GUID = 0x100005
)

// site is a daemon on a simulated fabric with a real OpenSM.
type site struct {
	*Daemon
	fabric *peer.Fabric
	dir    string
	client peer.Client
	b, c   mad.LID
}

// startSite starts acmd on node-c. opts are lines of the options file; hosts has
// node-b's addresses unless it is empty.
func startSite(t *testing.T, hosts string, opts ...string) *site {
	t.Helper()
	f := peer.StartFabric(t, "small.net")
	s := &site{fabric: f, dir: t.TempDir(), b: f.LID(t, nodeBPort), c: f.LID(t, nodeCPort)}
	s.client = peer.Client{RunDir: s.dir, GUID: nodeC}
	write := func(name, text string) string {
		p := filepath.Join(s.dir, name)
		if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return p
	}
	opts = append(opts, "bpf_dir none", "log_file "+filepath.Join(s.dir, "log"), "log_level 1", "support_ips_in_addr_cfg 1")
	if hosts != "" {
		opts = append(opts, "addr_preload acm_hosts", "addr_data_file "+write("hosts", hosts))
	}
	d, err := Start(Options{
		OptionsFile: write("opts", strings.Join(opts, "\n")+"\n"),
		AddressFile: write("addr", "node-c ibsim0 1 default\n10.77.0.3 ibsim0 1 default\n127.0.0.1 ibsim0 1 default\nfd77::c ibsim0 1 default\n"),
		RunDir:      s.dir, Fabric: "ibsim:" + f.SockName + ",node=node-c", Version: "test",
		Getenv: func(string) string { return "" },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Stop(); err != nil {
			t.Errorf("stop: %v", err)
		}
	})
	s.Daemon = d
	return s
}

const hostsOfB = "10.77.0.2 fe80::10:3\nnode-b fe80::10:3\nfd77::b fe80::10:3\n127.0.0.2 fe80::10:3\n"

func (s *site) logText(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(s.dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// askSA asks OpenSM directly, as another program on acmd's node would.
func (s *site) askSA(t *testing.T, mask madsa.ComponentMask, rec madsa.PathRecord) madsa.PathRecord {
	t.Helper()
	f, err := ibsim.New(ibsim.Config{Base: s.fabric.SockName, Node: "node-c"})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	devs, err := f.Devices()
	if err != nil || len(devs) != 1 {
		t.Fatalf("devices: %v, %v", devs, err)
	}
	p, err := f.Open(devs[0].Name, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	c := saclient.Open(p, devs[0].Ports[0], saclient.Config{}, s.Log())
	defer c.Close()
	type outcome struct {
		rec madsa.PathRecord
		err error
	}
	got := make(chan outcome, 1)
	c.Path(mask, &rec, func(r *saclient.Result) {
		o := outcome{err: r.Err}
		if r.Path() != nil {
			o.rec = *r.Path()
		}
		got <- o
	})
	select {
	case o := <-got:
		if o.err != nil {
			t.Fatalf("SA: %v", o.err)
		}
		return o.rec
	case <-time.After(20 * time.Second):
		t.Fatal("SA client gave no result")
	}
	panic("unreachable")
}

// Masks that acmd's questions have (sa-and-mad, component mask).
const (
	maskByGID = madsa.PathDGID | madsa.PathSGID | madsa.PathSLID | madsa.PathPKey | madsa.PathReversible | madsa.PathNumPath
	maskByLID = madsa.PathDLID | madsa.PathSGID | madsa.PathSLID | madsa.PathPKey | madsa.PathReversible | madsa.PathNumPath
)

func (s *site) question(byLID bool) (rec madsa.PathRecord) {
	if byLID {
		rec.SetDLID(s.b)
	} else {
		rec.SetDGID(mad.MakeGID(0xfe80000000000000, nodeBPort))
	}
	rec.SetSGID(mad.MakeGID(0xfe80000000000000, nodeCPort))
	rec.SetSLID(s.c)
	rec.SetPKey(mad.DefaultPKey)
	rec.SetReversibleNumPath(true, 1)
	return rec
}

// The 64 bytes that a client gets are those of the SA's answer to the same
// component mask, however the destination was spelled.
func TestRecordsAreTheSAs(t *testing.T) {
	s := startSite(t, hostsOfB)
	byGID := s.askSA(t, maskByGID, s.question(false))
	byLID := s.askSA(t, maskByLID, s.question(true))
	if byGID.DLID() != s.b || byLID.DLID() != s.b {
		t.Fatalf("SA's own answers name LIDs %v and %v, want %v", byGID.DLID(), byLID.DLID(), s.b)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	c, err := acmsock.Dial(ctx, filepath.Join(s.dir, "ibacm-unix.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	path := func(set func(*madsa.PathRecord)) madsa.PathRecord {
		var p madsa.PathRecord
		p.SetReversibleNumPath(true, 1)
		set(&p)
		return p
	}
	for round := range 2 { // from the SA, then from the cache
		for _, tc := range []struct {
			name string
			ask  func() (acmsock.Resolved, error)
			want madsa.PathRecord
		}{
			{"IPv4", func() (acmsock.Resolved, error) {
				return c.ResolveIP(ctx, netip.MustParseAddr("10.77.0.3"), netip.MustParseAddr("10.77.0.2"), false)
			}, byGID},
			{"IPv6", func() (acmsock.Resolved, error) {
				return c.ResolveIP(ctx, netip.MustParseAddr("fd77::c"), netip.MustParseAddr("fd77::b"), false)
			}, byGID},
			{"name", func() (acmsock.Resolved, error) { return c.ResolveName(ctx, "node-c", "NODE-B", false) }, byGID},
			{"GID", func() (acmsock.Resolved, error) {
				return c.ResolvePath(ctx, path(func(p *madsa.PathRecord) { p.SetDGID(byGID.DGID()) }), false)
			}, byGID},
			{"LID", func() (acmsock.Resolved, error) {
				return c.ResolvePath(ctx, path(func(p *madsa.PathRecord) { p.SetDLID(s.b) }), false)
			}, byLID},
		} {
			got, err := tc.ask()
			if err != nil {
				t.Errorf("round %d, %s: %v", round, tc.name, err)
				continue
			}
			if len(got.Paths) != 1 || got.Paths[0].Record != tc.want {
				t.Errorf("round %d, %s:\n got %x\nwant %x", round, tc.name, got.Paths, tc.want)
			}
		}
	}
	totals := s.engine.Totals()
	if n := totals[resolver.CounterRouteQuery]; n != 2 {
		t.Errorf("%d route queries for ten requests, want 2: one by GID for all spellings, one by LID", n)
	}
	if n := totals[resolver.CounterResolve]; n != 10 {
		t.Errorf("resolve count %d, want 10", n)
	}
}

// Every mode of the stock ib_acme, and rdma_getaddrinfo of the stock librdmacm,
// over both kinds of socket.
func TestStockClients(t *testing.T) {
	port := freePort(t)
	for _, mode := range []struct {
		name, service string
		opts          []string
	}{
		{"unix", "", nil},
		{"tcp", "localhost", []string{"server_mode loop", fmt.Sprintf("server_port %d", port)}},
	} {
		t.Run(mode.name, func(t *testing.T) {
			s := startSite(t, hostsOfB, mode.opts...)
			acme := func(args ...string) string {
				t.Helper()
				if mode.service != "" {
					args = append([]string{"-S", mode.service}, args...)
				}
				out, status := peer.IbAcme(t, s.client, args...)
				if status != 0 {
					t.Errorf("ib_acme %q: exit status %d\n%s", args, status, out)
				}
				return out
			}
			path := []string{"dgid: fe80::10:3", "sgid: fe80::10:5", fmt.Sprintf("dlid: %d", s.b), fmt.Sprintf("slid: %d", s.c),
				"reversible: 1", "pkey: 0xffff", "mtu: 4", "rate: 3", "packet lifetime: 18"}
			for _, args := range [][]string{
				{"-f", "i", "-s", "10.77.0.3", "-d", "10.77.0.2", "-v"},
				{"-f", "i", "-s", "fd77::c", "-d", "fd77::b", "-v"},
				{"-f", "i", "-d", "127.0.0.2", "-v"}, // routing chooses 127.0.0.1
				{"-f", "n", "-s", "node-c", "-d", "node-b", "-v"},
				{"-f", "l", "-s", fmt.Sprint(s.c), "-d", fmt.Sprint(s.b), "-v"},
				{"-f", "l", "-d", fmt.Sprint(s.b), "-v"},
				{"-f", "g", "-s", "fe80::10:5", "-d", "fe80::10:3", "-v"},
				{"-f", "g", "-d", "fe80::10:3", "-v"},
				{"-f", "n", "-s", "node-c", "-d", "node-b", "-c"}, // cached by now
			} {
				out := acme(args...)
				for _, want := range path {
					if !strings.Contains(out, "  "+want+"\n") {
						t.Errorf("ib_acme %q: no %q in\n%s", args, want, out)
					}
				}
				if args[len(args)-1] == "-v" && !strings.Contains(out, "SA verification: success") {
					t.Errorf("ib_acme %q: not verified\n%s", args, out)
				}
			}
			before := s.engine.Totals()
			acme("-f", "i", "-s", "10.77.0.3", "-d", "10.77.0.2", "-C", "50")
			after := s.engine.Totals()
			if hits := after[resolver.CounterRouteCache] - before[resolver.CounterRouteCache]; hits != 50 {
				t.Errorf("-C 50: %d cache hits", hits)
			}
			perf := acme("-P")
			if m := regexp.MustCompile(`,0,(\d+),0,0,\d+,(\d+),(\d+)\n`).FindStringSubmatch(perf); m == nil {
				t.Errorf("-P: %s", perf)
			}
			acme("-P", "all")
			acme("-P", "col")
			acme("-P", "s", "-f", "n", "-s", "node-c")
			if eps := acme("-e"); !strings.Contains(eps, ",0x0000000000100004,1,0xffff,1,ibacmp,node-c,10.77.0.3,127.0.0.1,fd77::c\n") {
				t.Errorf("-e: %s", eps)
			}
			const calls = 20000
			out, status := peer.Raitest(t, s.client, "10.77.0.3", "10.77.0.2", calls)
			if status != 0 || !strings.Contains(out, fmt.Sprintf("%d of %d with a route", calls, calls)) {
				t.Errorf("rdma_getaddrinfo: status %d\n%s", status, out)
			}
			// Every reply that the library has got is counted, and ib_acme says so.
			after = s.engine.Totals()
			if n := after[resolver.CounterResolve] - before[resolver.CounterResolve] - 50; n != calls {
				t.Errorf("%d resolves counted, %d replies received", n, calls)
			}
			row := strings.ReplaceAll(strings.Trim(fmt.Sprint(after), "[]"), " ", ",")
			if perf := acme("-P"); !strings.Contains(perf, ","+row+"\n") {
				t.Errorf("-P: %s, want %s", perf, row)
			}
			if want := fmt.Sprintf("sgid fe80::10:5 dgid fe80::10:3 slid %d dlid %d pkey 0xffff mtu 4 rate 3", s.c, s.b); !strings.Contains(out, want) {
				t.Errorf("rdma_getaddrinfo: no %q in\n%s", want, out)
			}
			t.Log(lastLine(out))
		})
	}
}

// The simulator carries no multicast: without a hosts file nobody can say where a
// name is. The client learns that in time, the log says which step failed and why.
func TestNoGroupOnThisTransport(t *testing.T) {
	s := startSite(t, "")
	begin := time.Now()
	out, status := peer.IbAcme(t, s.client, "-f", "i", "-s", "10.77.0.3", "-d", "10.77.0.2")
	if status != 0 && !strings.Contains(out, "timed out") {
		t.Errorf("ib_acme: %s", out)
	}
	if d := time.Since(begin); d > 15*time.Second {
		t.Errorf("answered after %v", d)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	c, err := acmsock.Dial(ctx, filepath.Join(s.dir, "ibacm-unix.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, err = c.ResolveIP(ctx, netip.MustParseAddr("10.77.0.3"), netip.MustParseAddr("10.77.0.2"), false)
	var st *acmsock.StatusError
	if !errors.As(err, &st) || st.Status != resolver.StatusTimedOut {
		t.Errorf("status %v, want %d", err, resolver.StatusTimedOut)
	}
	if text := s.logText(t); !strings.Contains(text, "address step: ") || !strings.Contains(text, "no group on this transport") {
		t.Errorf("the log does not say which step failed:\n%s", text)
	}
}

func lastLine(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return lines[len(lines)-1]
}

// freePort is a port that is free and that nobody is given who does not name it: it
// lies below the range for outgoing sockets.
func freePort(t *testing.T) int {
	t.Helper()
	for range 100 {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 10000+rand.IntN(10000)))
		if err != nil {
			continue
		}
		defer l.Close()
		return l.Addr().(*net.TCPAddr).Port
	}
	t.Fatal("no free TCP port")
	return 0
}
