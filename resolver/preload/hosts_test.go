// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package preload

import (
	"bytes"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"acmd/mad"
	"acmd/resolver"
	"acmd/resolver/config"
)

func readHosts(t *testing.T, text string) (*Hosts, []string) {
	t.Helper()
	h, ps, err := ReadHosts(strings.NewReader(text), "hosts")
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, p := range ps {
		out = append(out, p.Error())
	}
	return h, out
}

// Field case 38: good rows are loaded, each bad one gives one message with its
// line number, the row count is that of the good rows.
func TestHostsRows(t *testing.T) {
	long := strings.Repeat("n", 64)
	h, ps := readHosts(t, strings.Join([]string{
		"# a comment",              // 1
		"10.0.0.3 fe80::10:3",      // 2
		"2001:db8::3\tfe80::10:3 ", // 3
		"10.0.0.300 fe80::1",       // 4 bad
		long[:63] + " fe80::63",    // 5
		long + " fe80::64",         // 6
		long + "n fe80::65",        // 7 bad
		"node9",                    // 8 bad
		"10.0.0.3 fe80::10:4",      // 9 bad
		"10.0.0.3 FE80:0::10:3",    // 10 the same again
		"",                         // 11
		"Node07.Cluster fe80::7",   // 12
		"node07.cluster fe80::8",   // 13 bad
		"node8 fe80::zz",           // 14 bad
		"node8 10.0.0.1",           // 15 bad
		"node8 ff12::1",            // 16 bad
		"node8 fe80:: extra",       // 17 bad
		"fe80::1%ib0 fe80::1",      // 18 bad
		"node8 fe80::8 # rack 3",   // 19
		"last fe80::9",             // 20, no newline
	}, "\n"))
	want := []string{
		`hosts:4: "10.0.0.300" is not an IPv4 address, row ignored`,
		"hosts:7: name of 65 bytes, at most 64 fit, row ignored",
		`hosts:8: no GID for "node9", row ignored`,
		"hosts:9: 10.0.0.3 has GID fe80::10:3 in line 2 already, row ignored",
		"hosts:13: node07.cluster has GID fe80::7 in line 12 already, row ignored",
		`hosts:14: "fe80::zz" is not a GID, row ignored`,
		`hosts:15: "10.0.0.1" is not a GID, row ignored`,
		`hosts:16: "ff12::1" is not the GID of a port, row ignored`,
		`hosts:17: "extra": a third word, row ignored`,
		`hosts:18: "fe80::1%ib0": an address cannot have a zone, row ignored`,
	}
	if d := cmp.Diff(want, ps); d != "" {
		t.Error(d)
	}
	if h.Len() != 7 {
		t.Errorf("%d rows", h.Len())
	}
	for text, gid := range map[string]string{
		"10.0.0.3": "fe80::10:3", "2001:db8:0::3": "fe80::10:3", "::ffff:10.0.0.3": "fe80::10:3",
		"NODE07.CLUSTER": "fe80::7", // field case 58
		long:             "fe80::64", long[:63]: "fe80::63", "node8": "fe80::8", "last": "fe80::9",
		"node07": "", "10.0.0.4": "",
	} {
		a, err := ParseAddr(text)
		if err != nil {
			t.Fatal(err)
		}
		g, ok := h.Lookup(&a)
		if want, _ := mad.ParseGID(gid); g != want || ok != (gid != "") {
			t.Errorf("%s: %v %v", text, g, ok)
		}
	}
	if h, ps := readHosts(t, ""); h.Len() != 0 || len(ps) != 0 {
		t.Error("empty file")
	}
}

// An editor that writes a byte order mark spoils no row, nor a comment.
func TestHostsMark(t *testing.T) {
	for _, text := range []string{"\ufeff10.0.0.3 fe80::3\r\n", "\ufeff# hosts\n10.0.0.3 fe80::3\n"} {
		if h, ps := readHosts(t, text); h.Len() != 1 || len(ps) > 0 {
			t.Errorf("%q: %d rows, %q", text, h.Len(), ps)
		}
	}
}

func TestHostsRoundTrip(t *testing.T) {
	name := rapid.StringMatching(`[A-Za-z_][A-Za-z0-9._-]{0,63}`)
	rapid.Check(t, func(t *rapid.T) {
		var text strings.Builder
		want := map[resolver.Addr]mad.GID{}
		for range rapid.IntRange(0, 50).Draw(t, "n") {
			var s string
			switch rapid.IntRange(0, 2).Draw(t, "kind") {
			case 0:
				s = name.Draw(t, "name")
			case 1:
				s = netip.AddrFrom4([4]byte(rapid.SliceOfN(rapid.Byte(), 4, 4).Draw(t, "v4"))).String()
			case 2:
				s = netip.AddrFrom16([16]byte(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "v6"))).String()
			}
			g := mad.MakeGID(0xfe80<<48, mad.GUID(rapid.Uint64Min(1).Draw(t, "guid")))
			fmt.Fprintf(&text, "%s %v\n", s, g)
			a, err := ParseAddr(s)
			if err != nil {
				t.Fatal(err)
			}
			if _, ok := want[a]; !ok {
				want[a] = g
			}
		}
		h, _, err := ReadHosts(strings.NewReader(text.String()), "h")
		if err != nil || h.Len() != len(want) {
			t.Fatal(h.Len(), len(want), err)
		}
		for a, g := range want {
			if got, ok := h.Lookup(&a); !ok || got != g {
				t.Fatal(got, g)
			}
		}
	})
}

func hostsText(n int) []byte {
	var b bytes.Buffer
	for i := range n {
		switch i % 3 {
		case 0:
			fmt.Fprintf(&b, "10.%d.%d.%d fe80::%x:%x\n", i>>16, i>>8&255, i&255, i>>16+1, i&0xffff)
		case 1:
			fmt.Fprintf(&b, "node%05d.cluster fe80::%x:%x\n", i, i>>16+1, i&0xffff)
		case 2:
			fmt.Fprintf(&b, "2001:db8::%x:%x fe80::%x:%x\n", i>>16, i&0xffff, i>>16+1, i&0xffff)
		}
	}
	return b.Bytes()
}

func BenchmarkHosts40k(b *testing.B) {
	text := hostsText(40_000)
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		h, ps, err := ReadHosts(bytes.NewReader(text), "h")
		if err != nil || len(ps) != 0 || h.Len() != 40_000 {
			b.Fatal(h.Len(), ps, err)
		}
	}
}

func FuzzReadHosts(f *testing.F) {
	f.Add([]byte("10.0.0.3 fe80::10:3\nnode1 fe80::1\nNODE1 fe80::2\n"))
	f.Add([]byte("#\n10.0.0.300 fe80::1\n\x00 \x00\n::1 ::1\nx ff02::1 y"))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, _, err := ReadHosts(bytes.NewReader(b), "h")
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for a, gid := range h.rowsInOrder() {
			if g, ok := h.Lookup(&a); !ok || g != gid || a.IsZero() || gid.GUID() == 0 {
				t.Fatalf("%+v %v", a, gid)
			}
			n++
		}
		if n != h.Len() {
			t.Fatalf("%d rows of %d", n, h.Len())
		}
	})
}

// endless is a device that never ends.
type endless struct{}

func (endless) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = '0'
	}
	return len(b), nil
}

// A file without an end of line is refused, not read for ever; one with a long line
// loses that line alone.
func TestEndlessFile(t *testing.T) {
	for name, read := range map[string]func(io.Reader) error{
		"hosts": func(r io.Reader) error { _, _, err := ReadHosts(r, "f"); return err },
		"dump":  func(r io.Reader) error { _, _, err := ReadDump(r, "f", nil); return err },
	} {
		if err := read(endless{}); err == nil || !strings.Contains(err.Error(), "line 1 is longer than") {
			t.Errorf("%s: %v", name, err)
		}
		if err := read(io.LimitReader(endless{}, 3*config.MaxLine)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
