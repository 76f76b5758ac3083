// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package resolver

import (
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"acmd/cache"
	"acmd/mad"
	"acmd/mad/transport"
)

// topoState is what the topology goroutine remembers between looks. Nobody else
// touches it, apart from portState.staleUntil.
type topoState struct {
	devices []transport.Device
	hosts   []HostAddr
	entries []AddressEntry
	looked  bool // at least one look succeeded
	again   bool // something did not open: look again though nothing changed

	ports   map[portID]*portState
	slots   map[slotID]uint16
	scopes  map[scopeID]cache.Scope
	opened  map[deviceID]ProviderDevice
	said    map[string]bool // messages that are due once until their cause ends
	lastErr string
}

type portID struct {
	dev string
	num uint8
}

// slotID is what a slot number stands for. gid is zero for the endpoint itself
// and the alias GID for addresses that have a source GID of their own.
type slotID struct {
	port portID
	part uint16
	gid  mad.GID
}

type scopeID struct {
	port portID
	gid  mad.GID
}

type deviceID struct{ dev, provider string }

// portState is what outlives snapshots about one InfiniBand port. It is never
// forgotten, so that a device that went and came back is the same port.
type portState struct {
	id portID
	// staleUntil makes entries older than an event due for refresh, and negative
	// ones void: those whose Meta.Refresh is not above it.
	staleUntil atomic.Int64

	info   transport.PortInfo // as last seen
	active transport.PortInfo // as last seen active; Num 0: never
	sa     SA
	since  time.Time // sa was opened
	prov   Provider
	port   ProviderPort
	eps    map[uint16]*epState // by partition
}

// epState is an endpoint that its provider has open.
type epState struct {
	ep    *Endpoint
	prov  ProviderEndpoint
	addrs map[Addr]ProviderAddress
}

func (s *topoState) init(entries []AddressEntry) {
	s.entries = entries
	s.ports = map[portID]*portState{}
	s.slots = map[slotID]uint16{}
	s.scopes = map[scopeID]cache.Scope{}
	s.opened = map[deviceID]ProviderDevice{}
	s.said = map[string]bool{}
}

// port returns the state of a port, made at first sight.
func (s *topoState) port(id portID) *portState {
	p := s.ports[id]
	if p == nil {
		p = &portState{id: id, eps: map[uint16]*epState{}}
		s.ports[id] = p
	}
	return p
}

// slot numbers an endpoint, or an alias GID of it, for the life of the process.
func (s *topoState) slot(id slotID) (uint16, bool) {
	n, ok := s.slots[id]
	if !ok {
		if len(s.slots) > 0xffff {
			return 0, false
		}
		n = uint16(len(s.slots))
		s.slots[id] = n
	}
	return n, true
}

// scope numbers a source GID of a port likewise; a zero GID stands for GID 0.
func (s *topoState) scope(id scopeID) (cache.Scope, bool) {
	n, ok := s.scopes[id]
	if !ok {
		if len(s.scopes) >= cache.MaxScopes {
			return 0, false
		}
		n = cache.Scope(len(s.scopes))
		s.scopes[id] = n
	}
	return n, true
}

// change is what the difference of two looks at a port means.
type change struct {
	identity bool      // LID, LMC or GID 0: every path from here is void
	parts    bool      // a partition went or changed its membership
	sm       bool      // another SM: ask it from now on, look again by and by
	lost     []mad.GID // alias GIDs that went
}

// diffPorts compares a port as it was when last active with now.
func diffPorts(old, now *transport.PortInfo) (c change) {
	if old.Num == 0 {
		return change{}
	}
	c.identity = old.LID != now.LID || old.LMC != now.LMC || gid0(old) != gid0(now)
	c.sm = old.SMLID != now.SMLID || old.SMSL != now.SMSL
	have := map[uint16]mad.PKey{}
	keys, _ := partitions(now.PKeys)
	for _, k := range keys {
		have[k.Number()] = k
	}
	keys, _ = partitions(old.PKeys)
	for _, k := range keys {
		c.parts = c.parts || have[k.Number()] != k
	}
	for i, g := range old.GIDs {
		if i > 0 && isSet(g) && !slices.Contains(now.GIDs, g) {
			c.lost = append(c.lost, g)
		}
	}
	return c
}

// samePort and sameDevices compare everything that a snapshot has.
func samePort(a, b *transport.PortInfo) bool {
	return a.Num == b.Num && a.LinkLayer == b.LinkLayer && a.State == b.State && a.LID == b.LID && a.LMC == b.LMC &&
		a.SMLID == b.SMLID && a.SMSL == b.SMSL && a.CapMask == b.CapMask && a.MTU == b.MTU && a.Rate == b.Rate &&
		a.SubnetTimeout == b.SubnetTimeout && slices.Equal(a.GIDs, b.GIDs) && slices.Equal(a.PKeys, b.PKeys)
}

func sameDevices(a, b []transport.Device) bool {
	return slices.EqualFunc(a, b, func(x, y transport.Device) bool {
		return x.Name == y.Name && x.NodeGUID == y.NodeGUID &&
			slices.EqualFunc(x.Ports, y.Ports, func(p, q transport.PortInfo) bool { return samePort(&p, &q) })
	})
}

// sameEndpoint compares what an Endpoint shows, so that an unchanged one keeps
// its identity from snapshot to snapshot.
func sameEndpoint(a, b *Endpoint) bool {
	return a.Slot == b.Slot && a.NodeGUID == b.NodeGUID && a.PhysPorts == b.PhysPorts && a.PKey == b.PKey &&
		a.PKeyIndex == b.PKeyIndex && a.GID == b.GID && a.Provider == b.Provider &&
		samePort(&a.Port, &b.Port) && slices.Equal(a.Addrs, b.Addrs)
}

// addressesOf collects the addresses of an endpoint: those of the system, then
// those of the address file, each once.
func addressesOf(dev string, p *transport.PortInfo, key, first mad.PKey, hosts []HostAddr, entries []AddressEntry) (out []LocalAddr) {
	seen := map[Addr]bool{}
	add := func(a LocalAddr) {
		if !a.Addr.IsZero() && !seen[a.Addr] {
			seen[a.Addr] = true
			out = append(out, a)
		}
	}
	for i := range hosts {
		h := &hosts[i]
		want := h.PKey
		if !want.IsValid() {
			want = first
		}
		if !key.Matches(want) || !ownsHost(dev, p, h) {
			continue
		}
		a := LocalAddr{Addr: IPAddr(h.IP), Text: h.IP.Unmap().WithZone("").String()}
		if isSet(h.GID) && h.GID != gid0(p) {
			a.GID = h.GID
		}
		add(a)
	}
	for i := range entries {
		n := &entries[i]
		want := n.PKey
		if n.Default {
			want = first
		}
		if n.Port == p.Num && key.Matches(want) && strings.EqualFold(n.Device, dev) {
			add(LocalAddr{Addr: n.Addr, Text: n.Text})
		}
	}
	return out
}

// ownsHost tells whether a system address belongs to a port: by GID, or by name
// where the interface has no GID to show.
func ownsHost(dev string, p *transport.PortInfo, h *HostAddr) bool {
	if h.GID.IsZero() {
		return h.Device == dev && h.Port == p.Num
	}
	return slices.Contains(p.GIDs, h.GID)
}
