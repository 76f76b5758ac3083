// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package hostnet

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync/atomic"

	"acmd/mad"
	"acmd/resolver"
	"acmd/resolver/rtnl"
)

// Config says where the kernel's view comes from. The zero value is the running
// system, in the network namespace of the thread that looks.
type Config struct {
	// Look lists links and addresses. nil: the kernel's.
	Look func() ([]rtnl.Link, []rtnl.Addr, error)
	Log  *slog.Logger // nil: slog.Default
}

// Interface is an IPoIB interface with a port behind it. It is immutable.
type Interface struct {
	Index int
	Name  string
	GID   mad.GID  // of the port
	PKey  mad.PKey // full membership, whatever the port's table says
	Addrs []netip.Addr
}

// Host implements [resolver.Host] on the kernel. All methods are safe for
// concurrent use.
type Host struct {
	cfg   Config
	gen   resolver.Generation
	last  atomic.Pointer[[]Interface]
	watch atomic.Pointer[watcher] // nil: nobody tells of changes
	count counters
}

var _ resolver.Host = (*Host)(nil)

// New makes a Host. It reads nothing yet.
func New(cfg Config) *Host {
	if cfg.Look == nil {
		cfg.Look = kernelLook
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	h := &Host{cfg: cfg}
	h.last.Store(new([]Interface))
	return h
}

// kernelLook has a socket of its own, so that looks need no lock around system
// calls.
func kernelLook() (links []rtnl.Link, addrs []rtnl.Addr, err error) {
	c, err := rtnl.Dial()
	if err != nil {
		return nil, nil, err
	}
	defer c.Close()
	if links, err = c.Links(); err != nil && !errors.Is(err, rtnl.ErrChanging) {
		return nil, nil, fmt.Errorf("list network interfaces: %w", err)
	}
	// A list that is overtaken by changes is made good by the look that these cause.
	if addrs, err = c.Addrs(); err != nil && !errors.Is(err, rtnl.ErrChanging) {
		return nil, nil, fmt.Errorf("list addresses: %w", err)
	}
	return links, addrs, nil
}

// Addresses implements [resolver.Host]: the addresses of IPoIB interfaces, in
// order of interface indices. A machine without any is no error. An interface
// that has no GID yet is left out.
func (h *Host) Addresses() ([]resolver.HostAddr, error) {
	list, err := h.look()
	if err != nil {
		return nil, err
	}
	var out []resolver.HostAddr
	for i := range list {
		f := &list[i]
		for _, ip := range f.Addrs {
			out = append(out, resolver.HostAddr{IP: ip, Ifname: f.Name, GID: f.GID, PKey: f.PKey})
		}
	}
	return out, nil
}

// Interfaces returns the IPoIB interfaces as the last look found them, in order of
// their indices.
func (h *Host) Interfaces() []Interface { return *h.last.Load() }

// Generation implements [resolver.Host]. While a watch is
// on, the kernel's notifications raise it; otherwise each look does, as nothing
// tells of routes.
func (h *Host) Generation() *resolver.Generation { return &h.gen }

// look reads the kernel's view and remembers it.
func (h *Host) look() ([]Interface, error) {
	links, addrs, err := h.cfg.Look()
	if err != nil {
		return nil, err
	}
	h.count.looks.Add(1)
	list := interfaces(links, addrs)
	same := slices.EqualFunc(list, *h.last.Swap(&list), func(a, b Interface) bool {
		return a.Index == b.Index && a.GID == b.GID && a.PKey == b.PKey && slices.Equal(a.Addrs, b.Addrs)
	})
	if !same || h.watch.Load() == nil {
		h.gen.Raise()
	}
	return list, nil
}

// interfaces joins what a look found. Families are independent of each other: one
// that is switched off is one without addresses (field case 45).
func interfaces(links []rtnl.Link, addrs []rtnl.Addr) (list []Interface) {
	at := map[int]int{}
	for i := range links {
		l := &links[i]
		if l.Type != rtnl.ARPInfiniBand {
			continue
		}
		gid, ok := l.Hardware.GID()
		pkey, ok2 := l.Broadcast.PKey()
		if _, twice := at[l.Index]; !ok || !ok2 || twice {
			continue
		}
		at[l.Index] = len(list)
		list = append(list, Interface{Index: l.Index, Name: l.Name, GID: gid, PKey: pkey})
	}
	for _, a := range addrs {
		if i, ok := at[a.Index]; ok {
			list[i].Addrs = append(list[i].Addrs, a.IP.Unmap())
		}
	}
	slices.SortFunc(list, func(a, b Interface) int { return cmp.Compare(a.Index, b.Index) })
	return list
}
