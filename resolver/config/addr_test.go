// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package config

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"
)

func readAddrs(t *testing.T, text string, allowIP bool) ([]AddrLine, []string) {
	t.Helper()
	lines, ps, err := ReadAddrs(strings.NewReader(text), "a.cfg", allowIP)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, p := range ps {
		if p.Fatal {
			t.Errorf("fatal: %v", p)
		}
		out = append(out, p.Error())
	}
	return lines, out
}

func TestAddressLines(t *testing.T) {
	text := "# address device port pkey\n" +
		"node1 mlx5_0 1 default\n" +
		"Node2.Cluster\tmlx5_0 2 8001\n" +
		"node3 mlx5_1 1 0x0123 extra\n" +
		"10.1.0.5 mlx5_0 1 DEFAULT\n" +
		"fe80::1 mlx5_0 1 0X7fff\n"
	want := []AddrLine{
		{"node1", "mlx5_0", 1, 0, Origin{File: "a.cfg", Line: 2}},
		{"Node2.Cluster", "mlx5_0", 2, 0x8001, Origin{File: "a.cfg", Line: 3}},
		{"node3", "mlx5_1", 1, 0x0123, Origin{File: "a.cfg", Line: 4}},
		{"10.1.0.5", "mlx5_0", 1, 0, Origin{File: "a.cfg", Line: 5}},
		{"fe80::1", "mlx5_0", 1, 0x7fff, Origin{File: "a.cfg", Line: 6}},
	}
	got, ps := readAddrs(t, text, true)
	if d := cmp.Diff(want, got); d != "" {
		t.Fatal(d)
	}
	if d := cmp.Diff([]string{`a.cfg:4: address line takes four words, "extra" ignored`}, ps); d != "" {
		t.Fatal(d)
	}
	// Field case 15: "default" is not a key but entry 0 of the table.
	if !got[0].IsDefault() || got[1].IsDefault() {
		t.Fatal("default")
	}
	got, ps = readAddrs(t, text, false)
	if len(got) != 3 || len(ps) != 3 || ps[1] != "a.cfg:5: IP address 10.1.0.5 needs support_ips_in_addr_cfg 1, line ignored" {
		t.Fatalf("%v\n%q", got, ps)
	}
}

// Field case 38: each bad row is refused alone, with its line number. A
// duplicate does not end the reading (field case 58: whatever its case).
func TestBadAddressLines(t *testing.T) {
	for _, c := range []struct{ line, want string }{
		{"node1 mlx5_0 1", "3 of 4 words (address, device, port, pkey)"},
		{"node1 mlx5_0 0 default", "port 0 is outside 1 ... 255"},
		{"node1 mlx5_0 256 default", "port 256 is outside 1 ... 255"},
		{"node1 mlx5_0 0x1 default", `port "0x1" is not a number`},
		{"node1 mlx5_0 1 0x12345", `pkey "0x12345" is neither "default" nor 16 bits in hex`},
		{"node1 mlx5_0 1 0x", `pkey "0x" is neither "default" nor 16 bits in hex`},
		{"node1 mlx5_0 1 8000", `pkey "8000" marks an empty table entry`},
		{"10.0.0.300 mlx5_0 1 default", `"10.0.0.300" is not an IPv4 address`},
		{"fe80::zz mlx5_0 1 default", `"fe80::zz" is not an IPv6 address`},
		{"fe80::1%ib0 mlx5_0 1 default", `"fe80::1%ib0": an address cannot have a zone`},
		{strings.Repeat("n", 65) + " mlx5_0 1 default", "name of 65 bytes, at most 64 fit"},
		{"node1 " + strings.Repeat("d", 64) + " 1 default", "device name of 64 bytes"},
	} {
		got, ps := readAddrs(t, "good mlx5_0 1 default\n"+c.line+"\nalso mlx5_0 1 default\n", true)
		if len(got) != 2 || len(ps) != 1 || ps[0] != "a.cfg:2: "+c.want+", line ignored" {
			t.Errorf("%s: %d lines, %q", c.line, len(got), ps)
		}
	}
	for _, c := range []struct{ a, b string }{
		{"Node1 mlx5_0 1 default", "nODE1 MLX5_0 1 default"},
		{"n mlx5_0 1 0x8001", "n mlx5_0 1 0001"},
		{"::ffff:10.0.0.1 mlx5_0 1 1", "10.0.0.1 mlx5_0 1 1"},
		{"fe80::1 mlx5_0 1 1", "FE80:0::0:1 mlx5_0 1 1"},
	} {
		got, ps := readAddrs(t, c.a+"\n"+c.b+"\nlast mlx5_0 1 1\n", true)
		if len(got) != 2 || len(ps) != 1 || !strings.Contains(ps[0], "a.cfg:2: ") || !strings.Contains(ps[0], "is already in line 1") {
			t.Errorf("%s, %s: %v %q", c.a, c.b, got, ps)
		}
	}
	if got, ps := readAddrs(t, "n a 1 1\nn a 2 1\nn b 1 1\nn a 1 2\n"+strings.Repeat("n", 64)+" a 1 1\n", false); len(got) != 5 || len(ps) != 0 {
		t.Fatal(got, ps)
	}
}

func TestMissingAddressFile(t *testing.T) {
	if _, _, err := LoadAddrs(filepath.Join(t.TempDir(), "none"), false); !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
}

var ports = []Port{{"mlx5_0", 1, false}, {"mlx5_0", 2, true}, {"mlx5_1", 1, true}}

// What stock ib_acme -A writes on a host "node7.cluster" with these ports.
func TestGenerateAddrs(t *testing.T) {
	var b bytes.Buffer
	if err := WriteAddrs(&b, "node7.cluster", ports); err != nil {
		t.Fatal(err)
	}
	if want := "\nnode7-1 mlx5_0 1 default\nnode7 mlx5_0 2 default\nnode7-2 mlx5_0 2 default\nnode7-3 mlx5_1 1 default\n"; !strings.HasSuffix(b.String(), want) {
		t.Fatalf("%s", b.String())
	}
	p := filepath.Join(t.TempDir(), "a.cfg")
	if err := os.WriteFile(p, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	got, ps, err := LoadAddrs(p, false)
	if err != nil || len(ps) != 0 {
		t.Fatal(ps, err)
	}
	if d := cmp.Diff(GenerateAddrs("node7.cluster", ports), got, cmpopts.IgnoreFields(AddrLine{}, "Origin")); d != "" {
		t.Fatal(d)
	}
	if n := len(GenerateAddrs("x", nil)); n != 0 {
		t.Fatal(n)
	}
}

func TestAddressRoundTrip(t *testing.T) {
	name := rapid.StringMatching(`[A-Za-z][A-Za-z0-9.-]{0,63}`)
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 20).Draw(t, "n")
		var text strings.Builder
		var want []AddrLine
		for i := range n {
			a := AddrLine{
				Addr: name.Draw(t, "addr"), Device: fmt.Sprintf("dev%d", i),
				Port: rapid.Uint8Range(1, 255).Draw(t, "port"),
			}
			a.PKey = PKeyGen.Draw(t, "pkey")
			fmt.Fprintf(&text, "%s %s %d %v\n", a.Addr, a.Device, a.Port, a.PKey)
			want = append(want, a)
		}
		got, ps, err := ReadAddrs(strings.NewReader(text.String()), "a", false)
		if err != nil || len(ps) != 0 {
			t.Fatal(ps, err)
		}
		if d := cmp.Diff(want, got, cmpopts.IgnoreFields(AddrLine{}, "Origin")); d != "" {
			t.Fatal(d)
		}
	})
}

func FuzzReadAddrs(f *testing.F) {
	f.Add([]byte("node1 mlx5_0 1 default\nnode1 mlx5_0 1 0x8001\n10.0.0.1 a 2 1\n"), true)
	f.Add([]byte("a b c d e\n#\n\x00\nfe80::1 d 255 ffff"), false)
	f.Fuzz(func(t *testing.T, b []byte, allowIP bool) {
		lines, ps, err := ReadAddrs(bytes.NewReader(b), "a", allowIP)
		if err != nil || len(ps) > MaxProblems+1 {
			t.Fatal(len(ps), err)
		}
		for _, a := range lines {
			_, isIP, err := Identity(a.Addr)
			if err != nil || a.Port == 0 || a.Device == "" || isIP && !allowIP || !a.IsDefault() && !a.PKey.IsValid() {
				t.Fatalf("%+v %v", a, err)
			}
		}
	})
}
