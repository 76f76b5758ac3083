// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package hostnet

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"acmd/mad"
	"acmd/resolver"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// tree is a sysfs and procfs made of files.
type tree struct {
	t    *testing.T
	root string
}

func newTree(t *testing.T) *tree { return &tree{t, t.TempDir()} }

func (x *tree) write(name, text string) {
	x.t.Helper()
	p := filepath.Join(x.root, name)
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		x.t.Fatal(err)
	}
	if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
		x.t.Fatal(err)
	}
}

func (x *tree) iface(name, typ, hw, pkey string) {
	x.write("sys/class/net/"+name+"/type", typ+"\n")
	x.write("sys/class/net/"+name+"/address", hw+"\n")
	if pkey != "" {
		x.write("sys/class/net/"+name+"/pkey", pkey+"\n")
	}
}

func (x *tree) host(addrs map[string][]string) *Host {
	return NewWith(Config{Sys: filepath.Join(x.root, "sys"), Proc: filepath.Join(x.root, "proc"),
		Addrs: func(name string) (out []netip.Addr, err error) {
			list, ok := addrs[name]
			if !ok {
				return nil, errors.New("no such interface")
			}
			for _, s := range list {
				out = append(out, netip.MustParseAddr(s))
			}
			return out, nil
		}})
}

const (
	hw1 = "80:00:01:48:fe:80:00:00:00:00:00:00:02:00:00:00:00:01:01:01"
	hw2 = "80:00:02:08:fe:80:00:00:00:00:00:00:02:00:00:00:00:01:01:02"
)

func gid(s string) mad.GID { return netip.MustParseAddr(s).As16() }

func TestAddresses(t *testing.T) {
	x := newTree(t)
	x.iface("eth0", "1", "52:54:00:12:34:56", "")
	x.iface("ib0", "32", hw1, "0xffff")
	x.iface("ib0.8001", "32", hw1, "0x8001") // child interface, field case 47
	x.iface("ib1", "32", hw2, "0xffff")
	x.iface("bond0", "32", hw2, "") // over ib1
	x.write("sys/class/net/bond0/bonding/active_slave", "ib1\n")
	x.iface("ib2", "32", "80:00:02:08:fe:80:00:00:00:00:00:00:00:00:00:00:00:00:00:00", "0xffff") // no GUID yet
	x.iface("ib3", "32", hw2, "0x8000")                                                           // no partition
	x.iface("ib4", "32", "80:00:02", "0xffff")
	x.iface("ib5", "32", hw2, "0xffff") // goes while it is looked at
	h := x.host(map[string][]string{
		"eth0": {"192.0.2.1"}, "ib0": {"10.0.0.1", "fe80::1%ib0", "2001:db8::1"}, "ib0.8001": {"10.1.0.1"},
		"ib1": {}, "bond0": {"::ffff:10.2.0.1"}, "ib2": {"10.9.0.2"}, "ib3": {"10.9.0.3"}, "ib4": {"10.9.0.4"},
	})
	got, err := h.Addresses()
	if err != nil {
		t.Fatal(err)
	}
	g1, g2 := gid("fe80::200:0:1:101"), gid("fe80::200:0:1:102")
	want := []resolver.HostAddr{
		{IP: netip.MustParseAddr("10.2.0.1"), Ifname: "bond0", GID: g2, PKey: 0xffff},
		{IP: netip.MustParseAddr("10.0.0.1"), Ifname: "ib0", GID: g1, PKey: 0xffff},
		{IP: netip.MustParseAddr("fe80::1"), Ifname: "ib0", GID: g1, PKey: 0xffff},
		{IP: netip.MustParseAddr("2001:db8::1"), Ifname: "ib0", GID: g1, PKey: 0xffff},
		{IP: netip.MustParseAddr("10.1.0.1"), Ifname: "ib0.8001", GID: g1, PKey: 0x8001},
	}
	if d := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{})); d != "" {
		t.Errorf("addresses (-want +got):\n%s", d)
	}
}

// field case 20: a machine without any interface directory is no error.
func TestNoSysfs(t *testing.T) {
	h := newTree(t).host(nil)
	if got, err := h.Addresses(); err != nil || len(got) != 0 {
		t.Errorf("Addresses() = %v, %v", got, err)
	}
}

func TestGeneration(t *testing.T) {
	const head = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\n"
	x := newTree(t)
	x.iface("ib0", "32", hw1, "0xffff")
	addrs := map[string][]string{"ib0": {"10.0.0.1"}}
	h := x.host(addrs)
	look := func() uint64 {
		t.Helper()
		if _, err := h.Addresses(); err != nil {
			t.Fatal(err)
		}
		return h.Generation()
	}
	x.write("proc/net/route", head+"ib0\t0000000A\t00000000\t0001\t0\t0\t0\t0000FFFF\n")
	x.write("proc/net/ipv6_route", "fe80 40 00 00 00 00000100 00000001 00000000 00000001 ib0\n")
	g := look()
	if n := look(); n != g {
		t.Errorf("generation moved from %d to %d though nothing changed", g, n)
	}
	x.write("proc/net/route", head+"ib0\t0000000A\t00000000\t0001\t3\t9\t0\t0000FFFF\n")
	x.write("proc/net/ipv6_route", "fe80 40 00 00 00 00000100 0000000f 000000aa 00000001 ib0\n")
	if n := look(); n != g {
		t.Errorf("generation moved because of use counts")
	}
	steps := []struct {
		what string
		do   func()
	}{
		{"IPv4 route", func() { x.write("proc/net/route", head+"ib1\t0000000A\t00000000\t0001\t3\t9\t0\t0000FFFF\n") }},
		{"IPv6 route", func() { x.write("proc/net/ipv6_route", "") }},
		{"address", func() { addrs["ib0"] = []string{"10.0.0.1", "10.0.0.2"} }},
		{"partition", func() { x.iface("ib0", "32", hw1, "0x8001") }},
	}
	for _, s := range steps {
		s.do()
		n := look()
		if n == g {
			t.Errorf("%s changed, generation did not", s.what)
		}
		g = n
	}
}

func TestSource(t *testing.T) {
	h := New()
	if got, err := h.Source(netip.MustParseAddr("127.0.0.1")); err != nil || got != netip.MustParseAddr("127.0.0.1") {
		t.Errorf("Source(127.0.0.1) = %v, %v", got, err)
	}
	// A mapped IPv4 address is IPv4.
	if got, err := h.Source(netip.MustParseAddr("::ffff:127.0.0.1")); err != nil || !got.Is4() {
		t.Errorf("Source(::ffff:127.0.0.1) = %v, %v", got, err)
	}
	for _, dst := range []netip.Addr{{}, netip.MustParseAddr("255.255.255.255"), netip.MustParseAddr("fe80::1")} {
		if got, err := h.Source(dst); err == nil {
			t.Errorf("Source(%v) = %v, want an error", dst, got)
		}
	}
	if got, err := h.Source(netip.MustParseAddr("fe80::1%no-such-if")); err == nil {
		t.Errorf("Source on an interface that is not there = %v, want an error", got)
	}
}

// field case 45: IPv6 is asked for by itself; without IPv6 it is a plain error.
func TestSourceIPv6(t *testing.T) {
	got, err := New().Source(netip.IPv6Loopback())
	if err != nil {
		if os.Getenv("ACMD_CI") == "1" {
			t.Fatal(err)
		}
		t.Skip("no IPv6 loopback here: ", err)
	}
	if got != netip.IPv6Loopback() {
		t.Errorf("Source(::1) = %v", got)
	}
}

func TestLinkLocal(t *testing.T) {
	x := newTree(t)
	x.iface("ib0", "32", hw1, "0xffff")
	x.iface("ib1", "32", hw2, "0xffff")
	addrs := map[string][]string{"ib0": {"10.0.0.1", "fe80::a"}, "ib1": {"10.0.0.2"}}
	h := x.host(addrs)
	dst := netip.MustParseAddr("fe80::9")
	if _, err := h.Addresses(); err != nil {
		t.Fatal(err)
	}
	if got, err := h.Source(dst); err != nil || got != netip.MustParseAddr("fe80::a") {
		t.Errorf("Source(%v) = %v, %v", dst, got, err)
	}
	addrs["ib1"] = []string{"fe80::b"}
	if _, err := h.Addresses(); err != nil {
		t.Fatal(err)
	}
	if got, err := h.Source(dst); !errors.Is(err, errAmbiguous) {
		t.Errorf("Source(%v) with two candidates = %v, %v", dst, got, err)
	}
}

func TestStatic(t *testing.T) {
	s := &Static{Addrs: []resolver.HostAddr{{IP: netip.MustParseAddr("10.0.0.1")}}}
	if got, err := s.Source(netip.MustParseAddr("10.0.0.9")); err != nil || got != s.Addrs[0].IP {
		t.Errorf("Source = %v, %v", got, err)
	}
	if _, err := s.Source(netip.MustParseAddr("2001:db8::9")); err == nil {
		t.Error("an IPv4 source was chosen for an IPv6 destination")
	}
	g := s.Generation()
	s.Set(nil)
	if s.Generation() == g {
		t.Error("Set did not raise the generation")
	}
	if got, err := s.Addresses(); err != nil || len(got) != 0 {
		t.Errorf("Addresses = %v, %v", got, err)
	}
	s.Choose = func(netip.Addr) (netip.Addr, error) { return netip.MustParseAddr("10.0.0.7"), nil }
	if got, _ := s.Source(netip.MustParseAddr("10.0.0.9")); got != netip.MustParseAddr("10.0.0.7") {
		t.Errorf("Choose was not asked: %v", got)
	}
}

func FuzzParseHardware(f *testing.F) {
	f.Add(hw1)
	f.Add("80:00:02")
	f.Add("")
	f.Add("80:00:01:48:fe:80:00:00:00:00:00:00:02:00:00:00:00:01:01:0z")
	f.Fuzz(func(t *testing.T, s string) {
		g, ok := parseHardware(s)
		if ok && (g.GUID() == 0 || len(s) != 59) {
			t.Errorf("parseHardware(%q) = %v", s, g)
		}
	})
}
