// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package preload

import (
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"acmd/mad"
	"acmd/mad/sa"
	"acmd/mad/transport"
	"acmd/resolver"
)

func gid(t *testing.T, s string) mad.GID {
	t.Helper()
	g, err := mad.ParseGID(s)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func endpoint(t *testing.T) *resolver.Endpoint {
	return &resolver.Endpoint{
		Device: "mlx5_0", PKey: 0x8123, GID: gid(t, "fe80::10:5"),
		Port: transport.PortInfo{Num: 1, LID: 4, SubnetTimeout: 18},
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func load(t *testing.T, hosts, dump string) (*Source, *resolver.Endpoint) {
	t.Helper()
	dir := t.TempDir()
	hf, df := "", ""
	if hosts != "" {
		hf = filepath.Join(dir, "hosts")
		write(t, hf, hosts)
	}
	if dump != "" {
		df = filepath.Join(dir, "dump")
		write(t, df, dump)
	}
	s, ep := New(hf, df), endpoint(t)
	if ps, err := s.Load([]*resolver.Endpoint{ep}); err != nil || len(ps) != 0 {
		t.Fatal(ps, err)
	}
	return s, ep
}

func locate(t *testing.T, s *Source, ep *resolver.Endpoint, dst resolver.Addr) (loc resolver.Location, err error) {
	t.Helper()
	calls := 0
	s.Locate(ep, &resolver.Addr{}, &dst, time.Time{}, func(l resolver.Location, e error) {
		calls++
		loc, err = l, e
	})
	if calls != 1 {
		t.Fatalf("done was called %d times", calls)
	}
	return loc, err
}

const hosts = "node1 fe80::10:1\nother fe80::99\nrouted fec0::10:1\noff fe80::10:9\n"

// The record of a path line, byte for byte: exact MTU 4, rate 16, lifetime 18.
func TestRouteRecord(t *testing.T) {
	s, ep := load(t, hosts, small)
	dst := resolver.LIDAddr(2)
	r, ok := s.Route(ep, dst)
	const want = "0000000000000000" + "fe800000000000000000000000200000" + "fe800000000000000000000000100005" +
		"0002" + "0004" + "00000000" + "00" + "80" + "8123" + "0001" + "85" + "90" + "92" + "00" + "000000000000"
	if got := hex.EncodeToString(r[:]); !ok || got != want {
		t.Fatalf("%v\n got %s\nwant %s", ok, got, want)
	}
	self := resolver.LIDAddr(4)
	if r, ok := s.Route(ep, self); !ok || r[56] != 0x80 {
		t.Fatalf("own LID: lifetime %#x", r[56])
	}
}

func TestRoutes(t *testing.T) {
	s, ep := load(t, hosts, small)
	for _, c := range []struct {
		dst  resolver.Addr
		dlid mad.LID // 0: not there
		gid  string
	}{
		{resolver.GIDAddr(gid(t, "fe80::10:1")), 1, "fe80::10:1"},
		{resolver.LIDAddr(1), 1, "fe80::10:1"},
		{resolver.LIDAddr(5), 5, "fe80::10:5"},   // LMC of our own port
		{resolver.LIDAddr(11), 11, "fe80::10:a"}, // LMC of the router
		{resolver.GIDAddr(gid(t, "fe80::10:a")), 10, "fe80::10:a"},
		{resolver.LIDAddr(9), 0, ""}, // UNREACHABLE
		{resolver.GIDAddr(gid(t, "fe80::10:9")), 0, ""},
		{resolver.GIDAddr(gid(t, "fec0::10:1")), 0, ""}, // other subnet
		{resolver.LIDAddr(0xc001), 0, ""},
		{resolver.NameAddr("node1"), 0, ""}, // not a route's key
	} {
		r, ok := s.Route(ep, c.dst)
		if ok != (c.dlid != 0) {
			t.Errorf("%v: %v", c.dst.Bytes(), ok)
		}
		if ok && (r.DLID() != c.dlid || r.DGID() != gid(t, c.gid)) {
			t.Errorf("%v: %d %v", c.dst.Bytes(), r.DLID(), r.DGID())
		}
	}
	var lids []mad.LID
	for _, p := range s.now.Load().dump.blocks[portOf(ep)] {
		lids = append(lids, p.DLID)
	}
	if d := cmp.Diff([]mad.LID{1, 2, 4, 5, 10, 11}, lids); d != "" {
		t.Error(d)
	}
	if h, p, n := s.Counts(); h != 4 || p != 5 || n != 6 {
		t.Error(h, p, n)
	}
}

func TestLocate(t *testing.T) {
	s, ep := load(t, hosts, small)
	loc, err := locate(t, s, ep, resolver.NameAddr("NODE1"))
	if err != nil || loc.GID != gid(t, "fe80::10:1") || loc.LID != 1 || loc.Route == nil || loc.Origin != resolver.OriginPreload || loc.Source != "preload" {
		t.Fatalf("%+v %v", loc, err)
	}
	for _, name := range []string{"other", "routed", "off"} { // a GID, but no path in the dump
		if loc, err := locate(t, s, ep, resolver.NameAddr(name)); err != nil || loc.GID.IsZero() || loc.Route != nil || loc.Origin != resolver.OriginNone {
			t.Errorf("%s: %+v %v", name, loc, err)
		}
	}
	if loc, err := locate(t, s, ep, resolver.LIDAddr(1)); err != nil || loc.GID != gid(t, "fe80::10:1") || loc.Route == nil {
		t.Errorf("%+v %v", loc, err)
	}
	for _, dst := range []resolver.Addr{resolver.NameAddr("nobody"), resolver.LIDAddr(9), {}} {
		if _, err := locate(t, s, ep, dst); !errors.Is(err, resolver.ErrUnknown) {
			t.Errorf("%v: %v", dst.Bytes(), err)
		}
	}
}

// Field case 38: addresses without a route file.
func TestHostsWithoutDump(t *testing.T) {
	s, ep := load(t, hosts, "")
	if loc, err := locate(t, s, ep, resolver.NameAddr("node1")); err != nil || loc.GID != gid(t, "fe80::10:1") || loc.Route != nil {
		t.Fatalf("%+v %v", loc, err)
	}
	if s.Stale([]*resolver.Endpoint{ep}) {
		t.Error("stale without a dump")
	}
	if _, ok := s.Route(ep, resolver.LIDAddr(1)); ok {
		t.Error("a route")
	}
}

// Files that were never read are stale whatever the ports, once.
func TestStaleUntilLoad(t *testing.T) {
	dir := t.TempDir()
	hf := filepath.Join(dir, "hosts")
	write(t, hf, hosts)
	for _, tc := range []struct {
		hosts, dump string
		want        bool
	}{{"", "", false}, {hf, "", true}, {"", filepath.Join(dir, "none"), true}} {
		s := New(tc.hosts, tc.dump)
		if got := s.Stale(nil); got != tc.want {
			t.Errorf("%q %q: stale %v before Load", tc.hosts, tc.dump, got)
		}
		if _, err := s.Load(nil); (err != nil) != (tc.dump != "") {
			t.Errorf("%q %q: %v", tc.hosts, tc.dump, err)
		}
		if s.Stale(nil) {
			t.Errorf("%q %q: stale after Load", tc.hosts, tc.dump)
		}
	}
}

func TestLoadAgain(t *testing.T) {
	s, ep := load(t, hosts, small)
	if s.Stale([]*resolver.Endpoint{ep}) {
		t.Fatal("stale after Load")
	}
	moved := endpoint(t)
	moved.Port.LID = 6
	eps := []*resolver.Endpoint{ep, moved}
	if !s.Stale(eps) {
		t.Fatal("not stale with a new LID")
	}
	ps, err := s.Load(eps)
	if err != nil || len(ps) != 1 || ps[0].Text != "no paths from port 0x0000000000100005 with base LID 6" || s.Stale(eps) {
		t.Fatal(ps, err)
	}
	// A file that went away leaves what it said in force.
	write(t, s.hostsFile, "new fe80::10:1\n")
	if err := os.Remove(s.dumpFile); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Load(eps); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), s.dumpFile) {
		t.Fatal(err)
	}
	if loc, err := locate(t, s, ep, resolver.NameAddr("new")); err != nil || loc.Route == nil {
		t.Fatalf("%+v %v", loc, err)
	}
	if _, err := locate(t, s, ep, resolver.NameAddr("node1")); !errors.Is(err, resolver.ErrUnknown) {
		t.Fatal(err)
	}
}

// Readers see either the old or the new files, never a mixture.
func TestLoadUnderReaders(t *testing.T) {
	s, ep := load(t, hosts, small)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			dst := resolver.NameAddr("node1")
			for {
				select {
				case <-stop:
					return
				default:
				}
				s.Locate(ep, nil, &dst, time.Time{}, func(l resolver.Location, err error) {
					if err != nil || l.Route == nil || l.Route.DLID() != 1 {
						t.Errorf("%+v %v", l, err)
					}
				})
			}
		})
	}
	for range 50 {
		if _, err := s.Load([]*resolver.Endpoint{ep}); err != nil {
			t.Error(err)
		}
	}
	close(stop)
	wg.Wait()
}

func BenchmarkRoute(b *testing.B) {
	d, _, err := ReadDump(strings.NewReader(string(dumpText(40_000, 1))), "d", func(g mad.GUID, _ mad.LID) bool { return g == 1 })
	if err != nil {
		b.Fatal(err)
	}
	s := New("", "")
	s.now.Store(&snapshot{dump: d})
	ep := &resolver.Endpoint{GID: mad.MakeGID(0xfe80<<48, 1), Port: transport.PortInfo{LID: 1}}
	dst := resolver.GIDAddr(mad.MakeGID(0xfe80<<48, 30_000))
	var r sa.PathRecord
	for b.Loop() {
		var ok bool
		if r, ok = s.Route(ep, dst); !ok {
			b.Fatal("no route")
		}
	}
	_ = r
}
