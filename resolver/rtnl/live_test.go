// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package rtnl

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"acmd/mad/madtest"
	"acmd/resolver/rtnl/netns"

	"golang.org/x/sys/unix"
)

// patience is how long a busy machine may take.
const patience = 30 * time.Second

// pair makes two interfaces joined by a wire and returns the index of the first.
func pair(t *testing.T) int {
	t.Helper()
	netns.Pair(t, "v0", "v1")
	for _, arg := range []string{
		"addr add 10.1.0.1/24 dev v0", "-6 addr add 2001:db8::1/64 dev v0 nodad",
		"link set v0 up", "link set v1 up",
		"neigh add 10.1.0.5 lladdr 02:00:00:00:00:05 dev v0", "route add 10.2.0.0/16 via 10.1.0.9 dev v0",
	} {
		netns.Run(t, "ip", strings.Fields(arg)...)
	}
	return linkIndex(t, "v0")
}

func linkIndex(t *testing.T, name string) int {
	t.Helper()
	c := dial(t)
	list, err := c.Links()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range list {
		if l.Name == name {
			return l.Index
		}
	}
	t.Fatalf("no link %s in %+v", name, list)
	return 0
}

func dial(t *testing.T) *Conn {
	t.Helper()
	c, err := Dial()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func TestLiveTables(t *testing.T) {
	if !netns.Enter(t, "ip") {
		return
	}
	madtest.CheckLeaks(t)
	index := pair(t)
	c := dial(t)
	links, err := c.Links()
	if err != nil || len(links) < 3 { // some kernels put more into a new namespace
		t.Errorf("links %+v, %v", links, err)
	}
	for _, l := range links {
		if _, ok := l.Hardware.GID(); ok || l.Type == ARPInfiniBand {
			t.Errorf("%+v looks like IPoIB", l)
		}
	}
	addrs, err := c.Addrs()
	if err != nil || !has(addrs, Addr{index, netip.MustParseAddr("10.1.0.1")}) || !has(addrs, Addr{index, netip.MustParseAddr("2001:db8::1")}) {
		t.Errorf("addresses %+v, %v", addrs, err)
	}
	n, err := c.Neigh(index, netip.MustParseAddr("10.1.0.5"))
	if err != nil || n.State != unix.NUD_PERMANENT || !n.Resolved() || n.Hardware != (LinkAddr{}) {
		t.Errorf("neighbour %+v, %v", n, err)
	}
	list, err := c.Neighs()
	if err != nil || !has(list, n) {
		t.Errorf("neighbours %+v, %v", list, err)
	}
	if n, err := c.Neigh(index, netip.MustParseAddr("10.1.0.6")); !errors.Is(err, ErrNotFound) {
		t.Errorf("a neighbour that is not there: %+v, %v", n, err)
	}
	for dst, want := range map[string]string{
		"10.1.0.77": fmt.Sprint(unix.RTN_UNICAST, []Hop{{index, false}}), "10.2.0.1": fmt.Sprint(unix.RTN_UNICAST, []Hop{{index, true}}),
		"10.1.0.255": fmt.Sprint(unix.RTN_BROADCAST, []Hop{{index, false}}), "2001:db8::77": fmt.Sprint(unix.RTN_UNICAST, []Hop{{index, false}}),
	} {
		if r, err := c.Route(index, netip.MustParseAddr(dst)); err != nil || fmt.Sprint(r.Type, r.Hops) != want {
			t.Errorf("route to %s: %+v, %v, want %s", dst, r, err, want)
		}
	}
	for _, dst := range []string{"10.3.0.1", "2001:db9::1"} {
		if r, err := c.Route(index, netip.MustParseAddr(dst)); err == nil {
			t.Errorf("route to %s: %+v, want none", dst, r)
		}
	}
	// An answer that nobody read is not taken for that to the next question.
	if err := c.send(unix.RTM_GETNEIGH, 0, AppendNeigh(nil, &n)); err != nil {
		t.Fatal(err)
	}
	if again, err := c.Addrs(); err != nil || len(again) != len(addrs) {
		t.Errorf("addresses behind an old answer: %+v, %v", again, err)
	}
}

func has[T comparable](list []T, want T) bool {
	for _, x := range list {
		if x == want {
			return true
		}
	}
	return false
}

// Use makes the kernel ask; with nobody there the entry fails.
func TestLiveUse(t *testing.T) {
	if !netns.Enter(t, "ip") {
		return
	}
	madtest.CheckLeaks(t)
	index := pair(t)
	m, err := Listen(unix.RTNLGRP_NEIGH)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	c := dial(t)
	dst := netip.MustParseAddr("10.1.0.77")
	if err := c.Use(index, dst); err != nil {
		t.Fatal(err)
	}
	if n, err := c.Neigh(index, dst); err != nil || n.Resolved() {
		t.Errorf("right after: %+v, %v", n, err)
	}
	end := time.Now().Add(patience)
	for failed := false; !failed; {
		err := m.Receive(end, func(msg *Message) {
			n, err := DecodeNeigh(msg.Body)
			failed = failed || err == nil && n.IP == dst && n.State == unix.NUD_FAILED
		})
		if err != nil {
			t.Fatalf("no word of the failure: %v", err)
		}
	}
	if err := c.Use(1<<30, dst); err == nil {
		t.Error("a neighbour on an interface that does not exist")
	}
}

// field case 18: whoever does not read loses notifications, is told so, and goes on.
func TestLiveOverrun(t *testing.T) {
	if !netns.Enter(t, "ip") {
		return
	}
	madtest.CheckLeaks(t)
	pair(t)
	m, err := Listen(unix.RTNLGRP_IPV4_IFADDR, 1<<20) // the second is no group
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if err := unix.SetsockoptInt(int(m.file.Fd()), unix.SOL_SOCKET, unix.SO_RCVBUF, 1); err != nil {
		t.Fatal(err)
	}
	if err := unix.SetNonblock(int(m.file.Fd()), true); err != nil { // Fd made it block
		t.Fatal(err)
	}
	for i := range 100 {
		netns.Run(t, "ip", "addr", "add", fmt.Sprintf("10.9.0.%d/32", i+1), "dev", "v0")
	}
	told, overruns := 0, 0
	for {
		err := m.Receive(time.Now().Add(time.Second), func(*Message) { told++ })
		if errors.Is(err, ErrOverrun) {
			overruns++
			continue
		}
		if err != nil {
			if !errors.Is(err, ErrDeadline) {
				t.Fatal(err)
			}
			break
		}
	}
	if overruns == 0 || told >= 100 {
		t.Errorf("%d overruns, %d notifications", overruns, told)
	}
	netns.Run(t, "ip", "addr", "add", "10.9.1.1/32", "dev", "v0")
	if err := m.Receive(time.Now().Add(patience), func(*Message) { told++ }); err != nil {
		t.Errorf("after the overrun: %v", err)
	}
}

// A Receive that waits ends with Close.
func TestCloseEndsReceive(t *testing.T) {
	madtest.CheckLeaks(t)
	m, err := Listen()
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Receive(time.Now().Add(10*time.Millisecond), nil); !errors.Is(err, ErrDeadline) {
		t.Errorf("deadline: %v", err)
	}
	done := make(chan error, 1)
	go func() { done <- m.Receive(time.Time{}, nil) }()
	time.Sleep(10 * time.Millisecond) // most often it waits by then
	m.Close()
	if err := <-done; !errors.Is(err, os.ErrClosed) {
		t.Errorf("Receive after Close: %v", err)
	}
}
