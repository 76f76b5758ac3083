// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package rtnl

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// recorded returns the messages of a file of testdata, which are little endian.
func recorded(t testing.TB, name string) (list [][]byte) {
	t.Helper()
	if order.Uint16([]byte{1, 0}) != 1 {
		t.Skip("the recorded messages are little endian, this machine is not")
	}
	text, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
			continue
		}
		b, err := hex.DecodeString(line)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, b)
	}
	return list
}

// show writes what a message says in one line.
func show(b []byte) string {
	m, rest, err := Next(b)
	if err != nil || len(rest) != 0 {
		return fmt.Sprintf("%v, %d bytes left", err, len(rest))
	}
	switch m.Type {
	case unix.RTM_NEWLINK:
		l, err := DecodeLink(m.Body)
		gid, _ := l.Hardware.GID()
		pkey, _ := l.Broadcast.PKey()
		return fmt.Sprintln("link", l.Index, l.Name, "type", l.Type, "up", l.Flags&unix.IFF_UP != 0, "gid", gid, "pkey", pkey, err)
	case unix.RTM_NEWADDR:
		a, err := DecodeAddr(m.Body)
		return fmt.Sprintln("addr", a.Index, a.IP, err)
	case unix.RTM_NEWNEIGH:
		n, err := DecodeNeigh(m.Body)
		gid, ok := n.Hardware.GID()
		return fmt.Sprintln("neigh", n.Index, n.IP, "state", n.State, "resolved", n.Resolved(), gid, ok, err)
	}
	return fmt.Sprintln("type", m.Type)
}

func TestRecorded(t *testing.T) {
	const want = `link 1 lo type 772 up true gid :: pkey 0x0000 <nil>
link 2 ib0 type 32 up false gid fe80::200:0:1:1 pkey 0xffff <nil>
link 3 ib1 type 32 up true gid fe80::200:0:1:101 pkey 0xffff <nil>
link 6 ib1.8001 type 32 up true gid fe80::200:0:1:101 pkey 0x8001 <nil>
addr 1 127.0.0.1 <nil>
addr 3 10.9.0.1 <nil>
addr 1 ::1 <nil>
addr 3 2001:db8::1 <nil>
addr 3 fe80::200:0:1:101 <nil>
neigh 3 ff02::1:ff01:101 state 64 resolved true ff12:601b:ffff::1:ff01:101 false <nil>
neigh 3 2001:db8::2 state 2 resolved true fe80::200:0:1:201 true <nil>
neigh 3 ff02::2 state 64 resolved true ff12:601b:ffff::2 false <nil>
neigh 3 ff02::1:ff00:1 state 64 resolved true ff12:601b:ffff::1:ff00:1 false <nil>
neigh 3 fe80::200:0:1:201 state 8 resolved true fe80::200:0:1:201 true <nil>
neigh 3 ff02::1:ff00:2 state 64 resolved true ff12:601b:ffff::1:ff00:2 false <nil>
neigh 3 ff02::16 state 64 resolved true ff12:601b:ffff::16 false <nil>
neigh 3 10.9.0.2 state 2 resolved true fe80::200:0:1:301 true <nil>
neigh 3 10.9.0.77 state 32 resolved false :: false <nil>
`
	var got strings.Builder
	for _, b := range recorded(t, "ipoib.txt") {
		got.WriteString(show(b))
	}
	if d := cmp.Diff(want, got.String()); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}

// Cut at any length a message is an error, or one that ends on the boundary of an
// attribute; never more than what is there.
func TestCutShort(t *testing.T) {
	for i, b := range recorded(t, "ipoib.txt") {
		for n := range b {
			if _, _, err := Next(b[:n]); !errors.Is(err, errShort) {
				t.Errorf("message %d cut to %d bytes: %v", i, n, err)
			}
		}
	}
	for n := range unix.SizeofIfInfomsg {
		if _, err := DecodeLink(make([]byte, n)); err == nil {
			t.Errorf("a link of %d bytes", n)
		}
	}
	for n := range unix.SizeofIfAddrmsg {
		if _, err := DecodeAddr(make([]byte, n)); err == nil {
			t.Errorf("an address of %d bytes", n)
		}
	}
	for n := range unix.SizeofNdMsg {
		if _, err := DecodeNeigh(make([]byte, n)); err == nil {
			t.Errorf("a neighbour of %d bytes", n)
		}
		if _, err := DecodeRoute(make([]byte, n)); err == nil {
			t.Errorf("a route of %d bytes", n)
		}
	}
	long := appendAttr(make([]byte, unix.SizeofNdMsg), unix.NDA_DST, []byte{10, 0, 0, 1})
	order.PutUint16(long[unix.SizeofNdMsg:], 9) // one byte more than there is
	if _, err := DecodeNeigh(long); !errors.Is(err, errShort) {
		t.Errorf("an attribute that is longer than its message: %v", err)
	}
}

// What AppendNeigh writes is what the kernel wrote, up to the attributes that are
// nobody's business here.
func TestAppendNeigh(t *testing.T) {
	count := 0
	for _, b := range recorded(t, "ipoib.txt") {
		m, _, err := Next(b)
		if err != nil || m.Type != unix.RTM_NEWNEIGH {
			continue
		}
		n, err := DecodeNeigh(m.Body)
		if err != nil {
			t.Fatal(err)
		}
		got := AppendNeigh(nil, &n)
		want := slices.Clone(m.Body[:len(got)])
		want[10], want[11] = 0, 0 // flags and type, which come from the kernel only
		if !bytes.Equal(got, want) {
			t.Errorf("got  %x\nwant %x", got, want)
		}
		count++
	}
	if count < 9 {
		t.Errorf("only %d neighbours", count)
	}
}

// The local end of a point-to-point link is what belongs to us.
func TestPointToPoint(t *testing.T) {
	b := []byte{unix.AF_INET, 32, 0, 0, 7, 0, 0, 0}
	order.PutUint32(b[4:], 7)
	b = appendAttr(b, unix.IFA_ADDRESS, []byte{10, 0, 0, 2})
	b = appendAttr(b, unix.IFA_LOCAL, []byte{10, 0, 0, 1})
	b = appendAttr(b, unix.IFA_LABEL, []byte("ib0:1\x00"))
	if a, err := DecodeAddr(b); err != nil || a != (Addr{7, netip.MustParseAddr("10.0.0.1")}) {
		t.Errorf("%+v, %v", a, err)
	}
}

func TestRoutes(t *testing.T) {
	index := func(n uint32) []byte { return order.AppendUint32(nil, n) }
	head := make([]byte, unix.SizeofRtMsg)
	head[0], head[7] = unix.AF_INET, unix.RTN_UNICAST
	hop := func(n uint32, attrs []byte) []byte {
		b := order.AppendUint16(nil, uint16(unix.SizeofRtNexthop+len(attrs)))
		return append(append(append(b, 0, 0), index(n)...), attrs...)
	}
	gw := appendAttr(nil, unix.RTA_GATEWAY, []byte{10, 0, 0, 9})
	for _, tt := range []struct {
		name  string
		attrs []byte
		want  []Hop
	}{
		{"none", nil, nil},
		{"neighbour", appendAttr(nil, unix.RTA_OIF, index(3)), []Hop{{3, false}}},
		{"router", append(appendAttr(nil, unix.RTA_OIF, index(3)), gw...), []Hop{{3, true}}},
		{"IPv6 router for IPv4", append(appendAttr(nil, unix.RTA_OIF, index(3)), appendAttr(nil, unix.RTA_VIA, make([]byte, 18))...), []Hop{{3, true}}},
		{"several", appendAttr(nil, unix.RTA_MULTIPATH, append(hop(3, gw), hop(4, nil)...)), []Hop{{3, true}, {4, false}}},
	} {
		r, err := DecodeRoute(append(append([]byte{}, head...), tt.attrs...))
		if err != nil || r.Type != unix.RTN_UNICAST || !reflect.DeepEqual(r.Hops, tt.want) {
			t.Errorf("%s: %+v, %v, want %+v", tt.name, r, err, tt.want)
		}
	}
	short := append(append([]byte{}, head...), appendAttr(nil, unix.RTA_MULTIPATH, hop(3, gw)[:12])...)
	if r, err := DecodeRoute(short); err == nil {
		t.Errorf("a hop that is cut short: %+v", r)
	}
}

// FuzzDecode gives every decoder everything.
func FuzzDecode(f *testing.F) {
	for _, b := range recorded(f, "ipoib.txt") {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for left := b; len(left) > 0; {
			m, rest, err := Next(left)
			if err != nil {
				return
			}
			if len(rest) >= len(left) {
				t.Fatal("a message of no length")
			}
			left = rest
			_ = errno(m.Body)
			if l, err := DecodeLink(m.Body); err == nil {
				if g, ok := l.Hardware.GID(); ok && (g.GUID() == 0 || g[0] == 0xff) {
					t.Errorf("GID %v", g)
				}
				if k, ok := l.Broadcast.PKey(); ok && !k.IsValid() {
					t.Errorf("P_Key %v", k)
				}
			}
			if a, err := DecodeAddr(m.Body); err == nil && a.IP.Zone() != "" {
				t.Errorf("zone %v", a.IP)
			}
			if n, err := DecodeNeigh(m.Body); err == nil && n.IP.IsValid() && n.IP.Is4() != (m.Family() == unix.AF_INET) {
				t.Errorf("family %d, address %v", m.Family(), n.IP)
			}
			if r, err := DecodeRoute(m.Body); err == nil && len(r.Hops) > len(m.Body)/unix.SizeofRtNexthop+1 {
				t.Errorf("%d hops in %d bytes", len(r.Hops), len(m.Body))
			}
		}
	})
}
