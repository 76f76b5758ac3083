// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package resolver

import (
	"acmd/bpf"
	"acmd/cache"
	"acmd/mad"
	"acmd/mad/transport"
)

// topology is a snapshot of the endpoints on active ports and the ways to find
// them. It is immutable: readers load it once per query, a change makes a new
// one.
type topology struct {
	endpoints []*Endpoint
	ports     []*portView // active, with at least one endpoint, in table order
	bySource  map[Addr]sourceRef
	idle      map[Addr]error // addresses of ports that are not active: which, and how it is
	bySlot    map[uint16]*epView
	byGID     map[mad.GID][]*portView // a port for each GID of its table
	byPrefix  map[uint64][]*portView
	byLID     map[mad.LID][]*portView // a port for each LID of its LMC range

	// All devices, with ports of every state and link layer, and the addresses of
	// interfaces, as of the look.
	devices []transport.Device
	hosts   []HostAddr

	// What the cache may have, also of ports that are not active now.
	slots  int // slots are numbered from 0
	scopes map[portID][]cache.Scope
}

// portView is an active port in one snapshot.
type portView struct {
	state *portState
	info  transport.PortInfo
	eps   []*epView // in P_Key table order
	// scopes has the cache scope of each source GID that entries were made for
	// other than GID 0; scope is that of GID 0 and of everything else.
	scope  cache.Scope
	scopes map[mad.GID]cache.Scope
}

// epView is an endpoint in one snapshot.
type epView struct {
	ep   *Endpoint
	port *portView
	prov ProviderEndpoint
	row  *bpf.Endpoint
}

// sourceRef is what a local address leads to.
type sourceRef struct {
	ev    *epView
	gid   mad.GID // source GID
	slot  uint16  // of cache keys: that of the endpoint, or one of its own for an alias GID
	scope cache.Scope
}

// scopeOf returns the scope of entries whose source is g.
func (v *portView) scopeOf(g mad.GID) cache.Scope {
	if s, ok := v.scopes[g]; ok {
		return s
	}
	return v.scope
}

// lidMask returns the bits of a LID that name the port.
func lidMask(lmc uint8) mad.LID { return ^mad.LID(0) << (lmc & 7) }

// gid0 returns GID 0 of a port, zero when the table is empty.
func gid0(p *transport.PortInfo) mad.GID {
	if len(p.GIDs) == 0 {
		return mad.GID{}
	}
	return p.GIDs[0]
}

// isSet tells a GID from an empty table entry, which some drivers fill with the
// prefix alone.
func isSet(g mad.GID) bool { return g.GUID() != 0 }

func emptyTopology() *topology {
	return &topology{}
}

// add files a port and its endpoints. Ports come in table order.
func (t *topology) add(v *portView) {
	if len(v.eps) == 0 {
		return
	}
	t.ports = append(t.ports, v)
	for _, ev := range v.eps {
		t.endpoints = append(t.endpoints, ev.ep)
		t.bySlot[ev.ep.Slot] = ev
	}
	prefixes := make(map[uint64]bool, 2)
	for _, g := range v.info.GIDs {
		if !isSet(g) {
			continue
		}
		if l := t.byGID[g]; len(l) == 0 || l[len(l)-1] != v {
			t.byGID[g] = append(l, v)
		}
		if p := g.Prefix(); !prefixes[p] {
			prefixes[p] = true
			t.byPrefix[p] = append(t.byPrefix[p], v)
		}
	}
	if !v.info.LID.IsUnicast() {
		return
	}
	base := v.info.LID & lidMask(v.info.LMC)
	for i := range 1 << (v.info.LMC & 7) {
		l := base + mad.LID(i)
		t.byLID[l] = append(t.byLID[l], v)
	}
}

func newTopology() *topology {
	return &topology{
		bySource: map[Addr]sourceRef{}, idle: map[Addr]error{}, bySlot: map[uint16]*epView{}, byGID: map[mad.GID][]*portView{},
		byPrefix: map[uint64][]*portView{}, byLID: map[mad.LID][]*portView{}, scopes: map[portID][]cache.Scope{},
	}
}

// forPath finds the endpoint for a path request: the first port in table order
// that the source fields (else the destination's prefix) allow and that has the
// partition. Client protocol 3.3, with the search going on where a port has no
// such partition.
func (t *topology) forPath(sgid mad.GID, slid mad.LID, dgid mad.GID, pkey mad.PKey) *epView {
	ports := t.ports
	switch {
	case !sgid.IsZero():
		ports = t.byGID[sgid]
	case slid != 0:
		ports = t.byLID[slid]
	case !dgid.IsZero():
		ports = t.byPrefix[dgid.Prefix()]
	}
	for _, v := range ports {
		if ev := v.forPKey(pkey); ev != nil {
			return ev
		}
	}
	return nil
}

// forPKey finds the endpoint of a partition; 0 means the default partition where
// the port has it, else the first of the table.
func (v *portView) forPKey(k mad.PKey) *epView {
	want := k
	if k == 0 {
		want = mad.DefaultPKey
	}
	for _, ev := range v.eps {
		if ev.ep.PKey.Matches(want) {
			return ev
		}
	}
	if k == 0 && len(v.eps) > 0 {
		return v.eps[0]
	}
	return nil
}

// sourceGID chooses the source GID towards dgid: GID 0 unless only another one
// shares the destination's subnet prefix.
func (v *portView) sourceGID(dgid mad.GID) mad.GID {
	g := gid0(&v.info)
	if dgid.IsZero() || g.Prefix() == dgid.Prefix() {
		return g
	}
	for _, o := range v.info.GIDs {
		if isSet(o) && o.Prefix() == dgid.Prefix() {
			return o
		}
	}
	return g
}

// partitions lists the valid entries of a P_Key table, holes skipped, one per
// partition: the first wins. The index in the result is that of the table.
func partitions(table []mad.PKey) (keys []mad.PKey, index []uint16) {
	seen := make(map[uint16]bool, len(table))
	for i, k := range table {
		if !k.IsValid() || seen[k.Number()] || i > 0xffff {
			continue
		}
		seen[k.Number()] = true
		keys = append(keys, k)
		index = append(index, uint16(i))
	}
	return keys, index
}
