// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package resolver

import (
	"fmt"

	"acmd/cache"
	"acmd/mad"
	"acmd/mad/transport"
)

// entry finds the entry of the source address in the port's table.
func (a *acquisition) entry(p place) (Acquired, error) {
	ib := p.info.LinkLayer == transport.LinkInfiniBand
	if !ib && isIPoIB(a.r.Service) {
		return Acquired{}, fmt.Errorf("%w: service 0x%016x is of IPoIB, %s is no InfiniBand port", ErrNoPort, a.r.Service, p)
	}
	want, ifname, ok := a.source(p, ib)
	if !ok {
		return Acquired{}, fmt.Errorf("%w: %s is no address of %s", ErrNoGID, a.r.Source.String(), p)
	}
	entries, err := a.entries(p)
	if err != nil {
		return Acquired{}, fmt.Errorf("%w: the table of %s cannot be read: %w", ErrNoGID, p, err)
	}
	found := best(entries, want)
	if found == nil {
		return Acquired{}, fmt.Errorf("%w: %s is not in the table of %s", ErrNoGID, want, p)
	}
	got := Acquired{Device: p.dev, Port: p.info.Num, SGID: *found}
	if ib {
		got.SGID.Interface = ifname // the table of an InfiniBand port has none
	}
	return got, nil
}

// isIPoIB tells services of the port space RDMA_PS_IPOIB (rdma_cm.h).
func isIPoIB(service uint64) bool { return service>>16 == 0x0102 }

// source maps the source address to the GID that it has on a port, and to the
// interface where that is known.
func (a *acquisition) source(p place, ib bool) (g mad.GID, ifname string, ok bool) {
	src := &a.r.Source
	switch {
	case src.IsZero():
		g = a.sgid
	case src.Kind == cache.KindGID:
		g = mad.GID(src.Data[:16])
	case !ib && src.isIP():
		return src.IP().As16(), "", true // an IPv4 address as ::ffff:a.b.c.d (rdma_ip2gid)
	case ib:
		return a.local(p)
	}
	if ib {
		ifname = a.interfaceOf(p, g)
	}
	return g, ifname, isSet(g)
}

// local finds a source address among those of the interfaces on a port, and of the
// address file.
func (a *acquisition) local(p place) (g mad.GID, ifname string, ok bool) {
	for i := range a.t.hosts {
		h := &a.t.hosts[i]
		if ownsHost(p.dev, p.info, h) && IPAddr(h.IP) == a.r.Source {
			if g = h.GID; g.IsZero() {
				g = gid0(p.info)
			}
			return g, h.Ifname, true
		}
	}
	ref, ok := a.t.bySource[a.r.Source]
	if !ok || ref.ev.ep.Device != p.dev || ref.ev.ep.Port.Num != p.info.Num {
		return g, "", false
	}
	return ref.gid, a.interfaceOf(p, ref.gid), true
}

// interfaceOf names the IPoIB interface that has a GID, preferably the one in the
// path's partition; "": none has an address.
func (a *acquisition) interfaceOf(p place, g mad.GID) (name string) {
	for i := range a.t.hosts {
		h := &a.t.hosts[i]
		if !ownsHost(p.dev, p.info, h) || h.GID != g && (!h.GID.IsZero() || g != gid0(p.info)) {
			continue
		}
		if h.PKey.Matches(a.r.Path.PKey()) {
			return h.Ifname
		}
		if name == "" {
			name = h.Ifname
		}
	}
	return name
}

// entries reads the port's table, once: one of a RoCE port has a thousand files. A
// fabric that has none beside the ports' GIDs has their entries.
func (a *acquisition) entries(p place) ([]transport.GIDEntry, error) {
	if list, ok := a.read[p]; ok {
		return list, nil
	}
	if a.table != nil {
		list, err := a.table(p.dev, p.info.Num)
		if err == nil {
			a.read[p] = list
		}
		return list, err
	}
	var list []transport.GIDEntry
	for i, g := range p.info.GIDs {
		list = append(list, transport.GIDEntry{Index: uint16(i), GID: g})
	}
	return list, nil
}

// best finds the entry of a GID: of the newest type that there is, as the kernel
// chooses for RoCE; nil when it has gone.
func best(entries []transport.GIDEntry, g mad.GID) (found *transport.GIDEntry) {
	for i := range entries {
		if x := &entries[i]; x.GID == g && isSet(g) && (found == nil || x.Type > found.Type) {
			found = x
		}
	}
	return found
}
