// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package hostnet

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"acmd/mad"
	"acmd/mad/madtest"
	"acmd/mad/sa"
	"acmd/mad/transport"
	"acmd/mad/umad"
	"acmd/resolver"
	"acmd/resolver/rtnl"

	gocmp "github.com/google/go-cmp/cmp"
)

// table is what the kernel would list, in the text form of testdata:
//
//	link INDEX NAME TYPE HARDWARE BROADCAST   addresses in hex with colons, or -
//	addr INDEX IP
type table struct {
	links []rtnl.Link
	addrs []rtnl.Addr
	err   error
	looks int
}

func (x *table) host() *Host {
	return New(Config{Log: slog.New(slog.DiscardHandler), Look: func() ([]rtnl.Link, []rtnl.Addr, error) {
		x.looks++
		return x.links, x.addrs, x.err
	}})
}

func parseTable(t testing.TB, text string) *table {
	t.Helper()
	x := &table{}
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) == 0 || f[0] == "#" {
			continue
		}
		index, err := strconv.Atoi(f[1])
		switch {
		case err == nil && f[0] == "link" && len(f) == 6:
			typ, err := strconv.ParseUint(f[3], 10, 16)
			if err != nil {
				t.Fatal(err)
			}
			x.links = append(x.links, rtnl.Link{Index: index, Name: f[2], Type: uint16(typ), Hardware: parseLinkAddr(t, f[4]), Broadcast: parseLinkAddr(t, f[5])})
		case err == nil && f[0] == "addr" && len(f) == 3:
			x.addrs = append(x.addrs, rtnl.Addr{Index: index, IP: netip.MustParseAddr(f[2])})
		default:
			t.Fatalf("what is %q?", line)
		}
	}
	return x
}

// parseLinkAddr reads an address of 20 bytes; a shorter one is that of a link of
// another kind, as which rtnl shows it.
func parseLinkAddr(t testing.TB, text string) (a rtnl.LinkAddr) {
	t.Helper()
	parts := strings.Split(text, ":")
	if len(parts) != len(a) {
		return a
	}
	for i, p := range parts {
		v, err := strconv.ParseUint(p, 16, 8)
		if err != nil {
			t.Fatal(err)
		}
		a[i] = byte(v)
	}
	return a
}

func show(list []resolver.HostAddr) string {
	var b strings.Builder
	for _, a := range list {
		fmt.Fprintln(&b, a.Ifname, a.IP, a.GID, a.PKey)
	}
	return b.String()
}

// field cases 23, 45 and 47. Each file of testdata has a table and who owns what;
// those that are named as one of mad/umad show the same host, and the endpoints that
// adapters and addresses make together.
func TestHosts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) < 6 {
		t.Fatalf("fixtures: %v, %v", files, err)
	}
	whole := 0
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			f := madtest.Archive(t, file)
			h := parseTable(t, f["table"]).host()
			got, err := h.Addresses()
			if err != nil {
				t.Fatal(err)
			}
			if d := gocmp.Diff(f["want"], show(got)); d != "" {
				t.Errorf("owners (-want +got)\n%s", d)
			}
			adapters := filepath.Join("../../mad/umad", file)
			if _, err := os.Stat(adapters); err != nil {
				return
			}
			whole++
			if d := gocmp.Diff(f["endpoints"], endpoints(t, madtest.Archive(t, adapters), h)); d != "" {
				t.Errorf("endpoints (-want +got)\n%s", d)
			}
		})
	}
	if whole < 5 {
		t.Errorf("only %d hosts have adapters", whole)
	}
}

// endpoints has an engine look at a host with these files in its sysfs.
func endpoints(t *testing.T, sysfs map[string]string, h *Host) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range sysfs {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	fabric, err := umad.New(umad.Config{SysRoot: filepath.Join(root, "sys"), DevRoot: filepath.Join(root, "dev")})
	if err != nil {
		t.Fatal(err)
	}
	defer fabric.Close()
	e, err := resolver.New(resolver.Config{Fabric: fabric, Host: h, Log: slog.New(slog.DiscardHandler),
		OpenSA: func(string, transport.PortInfo) (resolver.SA, error) { return noSA{}, nil }})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	var b strings.Builder
	for _, ep := range e.Endpoints() {
		fmt.Fprintf(&b, "%s/%d pkey %v index %d lid %v:", ep.Device, ep.Port.Num, ep.PKey, ep.PKeyIndex, ep.Port.LID)
		for _, a := range ep.Addrs {
			fmt.Fprint(&b, " ", a.Text)
			if !a.GID.IsZero() {
				fmt.Fprint(&b, " from ", a.GID)
			}
		}
		fmt.Fprintln(&b)
	}
	return b.String()
}

// noSA is an SA that is never asked.
type noSA struct{}

func (noSA) Path(sa.ComponentMask, *sa.PathRecord, func(resolver.SAResult)) {}
func (noSA) Update(transport.PortInfo)                                      {}
func (noSA) Close()                                                         {}

const (
	oneLink = "link 4 ib0 32 80:00:01:48:fe:80:00:00:00:00:00:00:02:00:00:00:00:01:01:01 00:ff:ff:ff:ff:12:40:1b:ff:ff:00:00:00:00:00:00:ff:ff:ff:ff\n"
	twoLink = oneLink + "link 5 ib1 32 80:00:02:08:fe:80:00:00:00:00:00:00:02:00:00:00:00:01:01:02 00:ff:ff:ff:ff:12:40:1b:ff:ff:00:00:00:00:00:00:ff:ff:ff:ff\n"
)

// Without a watch a look raises the generation, as routes may have changed; an
// error leaves everything as it is.
func TestLookFails(t *testing.T) {
	x := parseTable(t, oneLink+"addr 4 10.0.0.1")
	h := x.host()
	if _, err := h.Addresses(); err != nil {
		t.Fatal(err)
	}
	g := h.Generation().Load()
	if _, err := h.Addresses(); err != nil || h.Generation().Load() == g {
		t.Errorf("generation %d after another look, %v", h.Generation().Load(), err)
	}
	g = h.Generation().Load()
	x.err = errors.New("no sockets left")
	if got, err := h.Addresses(); !errors.Is(err, x.err) || got != nil || h.Generation().Load() != g {
		t.Errorf("%v, %v, generation %d", got, err, h.Generation().Load())
	}
	if got := h.Interfaces(); len(got) != 1 || got[0].Name != "ib0" || got[0].Index != 4 || got[0].PKey != mad.DefaultPKey {
		t.Errorf("interfaces %+v", got)
	}
}

func TestSource(t *testing.T) {
	h := New(Config{})
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
	got, err := New(Config{}).Source(netip.IPv6Loopback())
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
	x := parseTable(t, twoLink+"addr 4 10.0.0.1\naddr 4 fe80::a\naddr 5 10.0.0.2")
	h := x.host()
	dst := netip.MustParseAddr("fe80::9")
	if _, err := h.Addresses(); err != nil {
		t.Fatal(err)
	}
	if got, err := h.Source(dst); err != nil || got != netip.MustParseAddr("fe80::a") {
		t.Errorf("Source(%v) = %v, %v", dst, got, err)
	}
	x.addrs = append(x.addrs, rtnl.Addr{Index: 5, IP: netip.MustParseAddr("fe80::b")})
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
	g := s.Generation().Load()
	s.Set(nil)
	if s.Generation().Load() == g {
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
