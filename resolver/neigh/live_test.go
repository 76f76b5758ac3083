// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package neigh

import (
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"acmd/mad/madtest"
	"acmd/resolver"
	"acmd/resolver/hostnet"
	"acmd/resolver/privilege"
	"acmd/resolver/rtnl"
	"acmd/resolver/rtnl/netns"

	"golang.org/x/sys/unix"
)

// wire makes an Ethernet interface with 10.1.0.1 and a neighbour 10.1.0.5, and
// returns it as if it were IPoIB. Entries of IPoIB itself are for the kernel lab
// (cmd/acmd, TestIPoIBNeigh).
func wire(t *testing.T) hostnet.Interface {
	t.Helper()
	netns.Pair(t, "v0", "v1")
	for _, arg := range []string{
		"addr add 10.1.0.1/24 dev v0", "-6 addr add 2001:db8::1/64 dev v0 nodad", "link set v0 up", "link set v1 up",
		"neigh add 10.1.0.5 lladdr 02:00:00:00:00:05 dev v0",
	} {
		netns.Run(t, "ip", strings.Fields(arg)...)
	}
	ifi, err := net.InterfaceByName("v0")
	if err != nil {
		t.Fatal(err)
	}
	return hostnet.Interface{Index: ifi.Index, Name: "v0", GID: gid(1), PKey: 0xffff,
		Addrs: []netip.Addr{netip.MustParseAddr("10.1.0.1"), netip.MustParseAddr("2001:db8::1")}}
}

// The source on the real table: an entry that has no GID, one that nobody answers
// for, which ends in time, and an address that is behind no interface.
func TestLiveSource(t *testing.T) {
	if !netns.Enter(t, "ip") {
		return
	}
	madtest.CheckLeaks(t)
	f := wire(t)
	s, err := New(Config{Interfaces: func() []hostnet.Interface { return []hostnet.Interface{f} }, Timeout: 300 * time.Millisecond,
		Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, tt := range []struct {
		dst  string
		want error
		text string
	}{
		{"10.1.0.5", resolver.ErrUnknown, "no GID"}, {"10.1.0.77", resolver.ErrTimeout, "v0"}, {"2001:db8::77", resolver.ErrTimeout, "v0"},
		{"10.2.0.1", resolver.ErrUnknown, "no route"}, {"10.1.0.1", resolver.ErrUnknown, "local"}, {"10.1.0.255", resolver.ErrUnknown, "no host's"},
	} {
		done := make(chan error, 1)
		src, dst := resolver.Addr{}, addr(tt.dst)
		s.Locate(endpoint(), &src, &dst, time.Now().Add(time.Minute), func(_ resolver.Location, err error) { done <- err })
		if err := <-done; !errors.Is(err, tt.want) || !strings.Contains(err.Error(), tt.text) {
			t.Errorf("%s: %v, want %q", tt.dst, err, tt.text)
		}
	}
	if st := s.Stats(); st.Asked < 2 || st.Timeouts != 2 || st.Known != 1 || st.Unknown != 4 || st.Pending != 0 {
		t.Errorf("%+v", st)
	}
}

// Without CAP_NET_ADMIN the kernel asks to send a datagram, which nobody gets to see.
func TestLiveUnprivileged(t *testing.T) {
	if !netns.Enter(t, "ip") {
		return
	}
	madtest.CheckLeaks(t)
	f := wire(t)
	err := privilege.With(^privilege.Of(unix.CAP_NET_ADMIN), func() error {
		opened, err := openKernel()
		if err != nil {
			return err
		}
		defer opened.Close()
		k := opened.(*kernel)
		for _, dst := range []string{"10.1.0.77", "2001:db8::77"} {
			ip := netip.MustParseAddr(dst)
			if err := k.Use(f.Index, ip); !errors.Is(err, unix.EPERM) {
				t.Errorf("%s: NTF_USE without CAP_NET_ADMIN: %v", dst, err)
			}
			if n, err := k.Neigh(f.Index, ip); !errors.Is(err, rtnl.ErrNotFound) {
				t.Errorf("%s: %+v, %v", dst, n, err)
			}
			if err := k.Solicit(f.Index, ip); err != nil || !k.plain {
				t.Errorf("%s: %v", dst, err)
			}
			if n, err := k.Neigh(f.Index, ip); err != nil || n.State&(unix.NUD_INCOMPLETE|unix.NUD_FAILED) == 0 {
				t.Errorf("%s: %+v, %v", dst, n, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
