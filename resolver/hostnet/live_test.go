// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package hostnet

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"acmd/mad/madtest"
	"acmd/resolver/rtnl"
	"acmd/resolver/rtnl/netns"
)

// patience is how long a busy machine may take.
const patience = time.Minute

// wires makes the interfaces ib0 and ib1, which are Ethernet to the kernel, and a
// Host that takes what is called ib... for IPoIB: all else is the kernel's own.
func wires(t *testing.T) *Host {
	t.Helper()
	netns.Pair(t, "ib0", "ib1")
	return New(Config{Look: func() ([]rtnl.Link, []rtnl.Addr, error) {
		links, addrs, err := kernelLook()
		for i := range links {
			if l := &links[i]; strings.HasPrefix(l.Name, "ib") {
				l.Type = rtnl.ARPInfiniBand
				l.Hardware[4], l.Hardware[5], l.Hardware[19] = 0xfe, 0x80, byte(l.Index)
				copy(l.Broadcast[4:], "\xff\x12\x40\x1b\xff\xff")
			}
		}
		return links, addrs, err
	}})
}

// follower does what the engine does: it looks when it is told to.
type follower struct {
	h    *Host
	kick chan struct{}
	stop chan struct{}
	done chan struct{}
}

func follow(t *testing.T, h *Host) *follower {
	t.Helper()
	f := &follower{h, make(chan struct{}, 1), make(chan struct{}), make(chan struct{})}
	go func() {
		defer close(f.done)
		for {
			select {
			case <-f.kick:
				if _, err := h.Addresses(); err != nil {
					t.Error(err)
				}
			case <-f.stop:
				return
			}
		}
	}()
	if err := h.Watch(func() {
		select {
		case f.kick <- struct{}{}:
		default:
		}
	}); err != nil {
		t.Fatal(err)
	}
	return f
}

func (f *follower) end(t *testing.T) {
	t.Helper()
	if err := f.h.Close(); err != nil {
		t.Error(err)
	}
	close(f.stop)
	<-f.done
}

// owned is what the last look found, as [ipAddr] writes it.
func (f *follower) owned() (list []string) {
	for _, i := range f.h.Interfaces() {
		for _, ip := range i.Addrs {
			list = append(list, i.Name+" "+ip.String())
		}
	}
	slices.Sort(list)
	return list
}

// ipAddr is what ip addr says that the interfaces have.
func ipAddr(t *testing.T) (list []string) {
	t.Helper()
	for line := range strings.Lines(netns.Run(t, "ip", "-o", "addr")) {
		f := strings.Fields(line) // 2: ib0    inet 10.0.0.1/32 ...
		if name, _, _ := strings.Cut(f[1], "@"); strings.HasPrefix(name, "ib") {
			list = append(list, name+" "+netip.MustParsePrefix(f[3]).Addr().String())
		}
	}
	slices.Sort(list)
	return list
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within %v", what, patience)
		}
	}
}

// same waits until the owners are those that ip addr shows. That is read each time:
// an interface that goes up has its link-local address a while later.
func (f *follower) same(t *testing.T, what string, least int) {
	t.Helper()
	eventually(t, what, func() bool {
		want := ipAddr(t)
		if len(want) < least {
			t.Fatalf("%s: only %d addresses", what, len(want))
		}
		return slices.Equal(f.owned(), want)
	})
}

// field case 18: 20,000 changes, and more, as fast as ip makes them; in the end the
// owners are those that ip addr shows.
func TestLiveChanges(t *testing.T) {
	if !netns.Enter(t, "ip") {
		return
	}
	madtest.CheckLeaks(t)
	h := wires(t)
	f := follow(t, h)
	defer f.end(t)
	const addresses = 12_500
	var batch strings.Builder
	changes := 0
	do := func(what string, i int) {
		changes++
		if i%8 == 0 {
			fmt.Fprintf(&batch, "addr %s 2001:db8::%x/128 dev ib%d%s\n", what, i, i%2, map[string]string{"add": " nodad"}[what])
			return
		}
		fmt.Fprintf(&batch, "addr %s 10.%d.%d.%d/32 dev ib%d\n", what, 1+i>>16, i>>8&0xff, i&0xff, i/8%2)
	}
	for i := range addresses {
		do("add", i)
		switch {
		case i%3 == 1:
			do("del", i)
		case i%3 == 0 && i > 600:
			do("del", i-600)
		}
	}
	file := filepath.Join(t.TempDir(), "batch")
	if err := os.WriteFile(file, []byte(batch.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	if changes < 20_000 {
		t.Fatalf("only %d changes", changes)
	}
	begin := time.Now()
	netns.Run(t, "ip", "-batch", file)
	took := time.Since(begin)
	f.same(t, "after the changes", addresses/4)
	t.Logf("%d changes in %v, the same %v later: %+v", changes, took, time.Since(begin)-took, h.Stats())
	// Moved to the other interface, one by one.
	batch.Reset()
	for i := 10; i < 1010; i++ {
		fmt.Fprintf(&batch, "addr add 10.200.%d.%d/32 dev ib%d\n", i>>8, i&0xff, i%2)
	}
	for i := 10; i < 1010; i++ {
		fmt.Fprintf(&batch, "addr del 10.200.%d.%d/32 dev ib%d\naddr add 10.200.%d.%d/32 dev ib%d\n", i>>8, i&0xff, i%2, i>>8, i&0xff, 1-i%2)
	}
	if err := os.WriteFile(file, []byte(batch.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	netns.Run(t, "ip", "-batch", file)
	f.same(t, "after the moves", 1000)
	// A label is no interface (field case 47).
	netns.Run(t, "ip", "addr", "add", "10.201.0.1/24", "dev", "ib0", "label", "ib0:1")
	f.same(t, "with a label", 1000)
	// Up, down and renamed: nothing changes owners.
	for _, arg := range []string{"link set ib0 up", "link set ib1 up", "link set ib0 down", "link set ib0 name ib7"} {
		netns.Run(t, "ip", strings.Fields(arg)...)
		f.same(t, arg, 100)
	}
	netns.Run(t, "ip", "link", "del", "ib1")
	f.same(t, "without interfaces", 0)
	if len(f.owned()) != 0 {
		t.Errorf("left: %v", f.owned())
	}
}

// What decides about sources raises the generation without a look: routes of both
// families, rules, next hops, links.
func TestLiveGeneration(t *testing.T) {
	if !netns.Enter(t, "ip") {
		return
	}
	madtest.CheckLeaks(t)
	h := wires(t)
	f := follow(t, h)
	defer f.end(t)
	for _, name := range []string{"ib0", "ib1"} { // no addresses that come by themselves
		netns.Run(t, "ip", "link", "set", name, "addrgenmode", "none")
	}
	for _, arg := range []string{
		"addr add 10.0.0.1/24 dev ib0", "addr add 10.0.0.2/24 dev ib0", "-6 addr add 2001:db8::1/64 dev ib0 nodad",
		"link set ib0 up", "link set ib1 up", "route add 10.9.0.0/16 dev ib0", "route add 10.9.9.9 dev ib0 src 10.0.0.2 table 77",
		"rule add to 10.9.9.9 lookup 77", "rule del to 10.9.9.9 lookup 77",
		"-6 route add 2001:db9::/64 dev ib0", "-6 rule add to 2001:db9::9 lookup 77", "-6 rule del to 2001:db9::9 lookup 77",
		"-6 route del 2001:db9::/64 dev ib0", "route del 10.9.0.0/16 dev ib0",
		"nexthop add id 5 dev ib0", "nexthop del id 5", "link set ib1 down",
	} {
		if strings.HasPrefix(arg, "nexthop") && !hasNexthops() {
			continue
		}
		g := f.quiet(t)
		netns.Run(t, "ip", strings.Fields(arg)...)
		eventually(t, arg, func() bool { return h.Generation().Load() != g })
	}
}

// quiet waits until the kernel has told what it had to tell, so that what raises
// the generation is what comes next, and returns the generation.
func (f *follower) quiet(t *testing.T) (gen uint64) {
	t.Helper()
	eventually(t, "quiet", func() bool {
		gen = f.h.Generation().Load()
		time.Sleep(spacing)
		return f.h.Generation().Load() == gen
	})
	return gen
}

// hasNexthops tells whether kernel and ip know objects of next hops (5.3).
func hasNexthops() bool { return exec.Command("ip", "nexthop").Run() == nil }

// The source follows a rule and a route as soon as they are there.
func TestLiveSource(t *testing.T) {
	if !netns.Enter(t, "ip") {
		return
	}
	h := wires(t)
	for _, arg := range []string{
		"addr add 10.0.0.1/24 dev ib0", "addr add 10.0.0.2/24 dev ib0", "link set ib0 up", "link set ib1 up",
		"route add 10.9.0.0/16 dev ib0", "route add 10.9.9.9 dev ib0 src 10.0.0.2 table 77",
	} {
		netns.Run(t, "ip", strings.Fields(arg)...)
	}
	ask := func() string {
		t.Helper()
		got, err := h.Source(netip.MustParseAddr("10.9.9.9"))
		if err != nil {
			t.Fatal(err)
		}
		return got.String()
	}
	for _, step := range []struct{ arg, want string }{
		{"rule list", "10.0.0.1"}, {"rule add to 10.9.9.9 lookup 77", "10.0.0.2"}, {"rule del to 10.9.9.9 lookup 77", "10.0.0.1"},
		{"route add 10.9.9.0/24 dev ib0 src 10.0.0.2", "10.0.0.2"}, {"route del 10.9.9.0/24 dev ib0", "10.0.0.1"},
	} {
		netns.Run(t, "ip", strings.Fields(step.arg)...)
		if got := ask(); got != step.want {
			t.Errorf("after %s: %s, want %s", step.arg, got, step.want)
		}
	}
}
