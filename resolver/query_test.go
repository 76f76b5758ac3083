// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package resolver

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"acmd/cache"
	"acmd/mad"
	"acmd/mad/sa"
	"acmd/mad/transport"
)

// field cases 4, 58: what is the same address is the same value.
func TestAddrs(t *testing.T) {
	same := [][2]Addr{
		{NameAddr("node7"), NameAddr("NODE7\x00\xff\xff")},
		{NameAddr(strings.Repeat("x", 64)), NameAddr(strings.Repeat("X", 80))},
		{ip("10.0.0.1"), ip("::ffff:10.0.0.1")},
		{ip("fe80::1"), IPAddr(netip.MustParseAddr("fe80::1%lo"))},
	}
	for _, p := range same {
		if p[0] != p[1] {
			t.Errorf("%v and %v differ", p[0], p[1])
		}
	}
	if NameAddr("a") == NameAddr("b") || ip("::1") == ip("::2") || GIDAddr(gidOf(1)) == ip("fe80::1") || LIDAddr(1) == LIDAddr(256) {
		t.Error("different addresses are equal")
	}
	for _, s := range []string{"10.0.0.1", "2001:db8::1"} {
		a := ip(s)
		if a.IP().String() != s {
			t.Errorf("%s became %v", s, a.IP())
		}
	}
	name := NameAddr("x")
	if name.IP().IsValid() {
		t.Error("a name is an IP address")
	}
}

func FuzzNameAddr(f *testing.F) {
	for _, s := range []string{"", "node1", "NODE1\x00rest", strings.Repeat("Ä", 40), "\x00"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		a := NameAddr(s)
		if a.Kind != cache.KindName || int(a.Len) > len(a.Data) || a != NameAddr(string(a.Bytes())) {
			t.Errorf("NameAddr(%q) = %v", s, a)
		}
		for i, c := range a.Data {
			if 'A' <= c && c <= 'Z' || i >= int(a.Len) && c != 0 {
				t.Errorf("NameAddr(%q) has %#x at %d", s, c, i)
			}
		}
	})
}

// Whatever a client puts into a path request, it gets one answer that keeps to
// the table of statuses.
func FuzzPathQuery(f *testing.F) {
	l := newLab(f, func(l *lab, _ *Config) { l.sa.delay, l.acm.delay = 0, 0 })
	l.sa.lids[gidOf(9)] = 9
	gid := byGID(gidOf(9)).Path
	lid := byLID(9).Path
	f.Add(gid[:], uint8(ByPath))
	f.Add(lid[:], uint8(AskSA))
	f.Add(make([]byte, 64), uint8(ByPath))
	f.Add([]byte(strings.Repeat("\xff", 64)), uint8(ByPath))
	f.Fuzz(func(t *testing.T, b []byte, kind uint8) {
		q := Query{Kind: QueryKind(kind)}
		copy(q.Path[:], b)
		box := newInbox()
		l.submit(q, 1, box)
		a := box.one(t, 1)
		if a.Status > StatusDestType || (a.Err == nil) != (a.Status == StatusSuccess) {
			t.Errorf("%+v", a)
		}
	})
}

// field case 5: a limited member asks with its own key, whichever form the client
// names; the SA may answer with either.
func TestLimitedMember(t *testing.T) {
	p := port(1, 5)
	p.PKeys = []mad.PKey{0x7fff, 0x0123}
	for _, answer := range []mad.PKey{0x0123, 0x8123} {
		bubble(t, func(l *lab, _ *Config) {
			l.fab.devs = []transport.Device{device("mlx5_0", p)}
			l.host.addrs = []HostAddr{{IP: netip.MustParseAddr("10.1.0.5"), GID: gidOf(5), PKey: 0x8123}}
			l.acm.gids[ip("10.1.0.6")] = gidOf(6)
			l.sa.respond = func(_ sa.ComponentMask, rec *sa.PathRecord) (SAResult, time.Duration) {
				r := SAResult{Path: *rec, Valid: true}
				r.Path.SetPKey(answer)
				return r, time.Millisecond
			}
		}, func(t *testing.T, l *lab) {
			src := ip("10.1.0.5")
			if ep := l.e.BySource(&src); ep == nil || ep.PKey != 0x0123 || ep.PKeyIndex != 1 {
				t.Fatalf("endpoint %+v", ep)
			}
			if a := l.want(byIP("10.1.0.5", "10.1.0.6"), StatusSuccess); a.Path.PKey() != answer {
				t.Errorf("P_Key %v", a.Path.PKey())
			}
			q := byGID(gidOf(7))
			q.Path.SetPKey(0x8123)
			l.want(q, StatusSuccess)
			for _, rec := range l.sa.records {
				if rec.PKey() != 0x0123 {
					t.Errorf("asked with P_Key %v", rec.PKey())
				}
			}
			q.Kind = AskSA
			l.want(q, StatusSuccess)
		})
	}
}
