// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package resolver

import (
	"errors"
	"fmt"
	"slices"
	"strconv"

	"acmd/cache"
	"acmd/mad"
	"acmd/mad/sa"
	"acmd/mad/transport"
)

// What Acquire's errors wrap: which of the three was missing.
var (
	ErrNoDevice = errors.New("no device")
	ErrNoPort   = errors.New("no port")
	ErrNoGID    = errors.New("no GID entry")
)

// Listener is what a connection manager listens on. The zero value is bound to no
// device.
type Listener struct {
	Device string
	Port   uint8 // 0: any of the device
}

// AcquireRequest is a connection that is to be set up.
type AcquireRequest struct {
	Listener Listener
	// Incoming: Path is as the peer sees it, in the direction of the request, so
	// that its DGID and DLID are ours. Otherwise its SGID and SLID are.
	Incoming bool
	Path     sa.PathRecord
	// Source is our own address: IPv4, IPv6, GID or a name of the address file.
	// Zero: the path's GID is.
	Source Addr
	// Service is the service ID. One of IPoIB's port space is for InfiniBand ports
	// only.
	Service uint64
}

// Acquired is the answer to an AcquireRequest.
type Acquired struct {
	Device string
	Port   uint8
	SGID   transport.GIDEntry
}

// Acquire says which device, port and GID-table entry a connection uses: the
// counterpart of the kernel's cma_ib_acquire_dev (drivers/infiniband/core/cma.c),
// for connection managers in user space and for the choice of a source. Nothing is
// guessed: the entry exists, it is that of the source address, on the port that
// the path's source GID and P_Key name, and on what the listener is bound to.
// Otherwise the error wraps ErrNoDevice, ErrNoPort or ErrNoGID.
//
// Ports and P_Keys are those of the engine's last look, whatever their state; the
// GID table is read during the call. It may block for as long as that takes.
func (e *Engine) Acquire(r *AcquireRequest) (Acquired, error) {
	a := acquisition{t: e.topo.Load(), table: e.cfg.GIDTable, r: r}
	a.sgid, a.slid = r.Path.SGID(), r.Path.SLID()
	if r.Incoming {
		a.sgid, a.slid = r.Path.DGID(), r.Path.DLID()
	}
	p, err := a.port()
	if err != nil {
		return Acquired{}, err
	}
	return a.entry(p)
}

// acquisition is one run of Acquire.
type acquisition struct {
	t     *topology
	table func(device string, port uint8) ([]transport.GIDEntry, error)
	r     *AcquireRequest
	sgid  mad.GID // our end of the path
	slid  mad.LID
}

// place is a port of a device.
type place struct {
	dev  string
	info *transport.PortInfo
}

func (p place) String() string { return p.dev + "/" + strconv.Itoa(int(p.info.Num)) }

// fits tells whether a listener that is bound to a port, a device or nothing hears
// what comes in there.
func (l *Listener) fits(p place) bool {
	return l.Device == "" || l.Device == p.dev && (l.Port == 0 || l.Port == p.info.Num)
}

func (l *Listener) String() string {
	if l.Port == 0 {
		return l.Device
	}
	return l.Device + "/" + strconv.Itoa(int(l.Port))
}

// port finds the port that the path names, on what the listener is bound to.
func (a *acquisition) port() (place, error) {
	l := &a.r.Listener
	if err := a.bound(l); err != nil {
		return place{}, err
	}
	named, by := a.named()
	for _, p := range named {
		if l.fits(p) && p.inPartition(a.r.Path.PKey()) {
			return p, nil
		}
	}
	for _, p := range named {
		if l.fits(p) {
			return place{}, fmt.Errorf("%w: %s is not in partition %s", ErrNoPort, p, a.r.Path.PKey())
		}
	}
	switch {
	case len(named) > 0 && named[0].dev == l.Device:
		return place{}, fmt.Errorf("%w: the listener is bound to %s, %s is of %s", ErrNoPort, l, by, named[0])
	case len(named) > 0:
		return place{}, fmt.Errorf("%w: the listener is bound to %s, %s is of %s", ErrNoDevice, l, by, named[0])
	}
	return place{}, fmt.Errorf("%w: %s is of none here", ErrNoPort, by)
}

// bound checks that there is what the listener is bound to.
func (a *acquisition) bound(l *Listener) error {
	if len(a.t.devices) == 0 {
		return fmt.Errorf("%w: there is no RDMA device here", ErrNoDevice)
	}
	if l.Device == "" {
		return nil
	}
	for i := range a.t.devices {
		d := &a.t.devices[i]
		if d.Name != l.Device {
			continue
		}
		for j := range d.Ports {
			if l.fits(place{d.Name, &d.Ports[j]}) {
				return nil
			}
		}
		return fmt.Errorf("%w: the listener is bound to %s, which is not there", ErrNoPort, l)
	}
	return fmt.Errorf("%w: the listener is bound to %s, which is not there", ErrNoDevice, l)
}

// named lists the ports that our end of the path names, and says by what: its GID,
// or its LID where no table has the GID. So a GID that has just gone leads to the
// port that had it.
func (a *acquisition) named() (list []place, by string) {
	for _, gid := range []bool{true, false} {
		if by = "GID " + a.sgid.String(); !gid {
			by = "LID " + a.slid.String()
		}
		if gid && !isSet(a.sgid) || !gid && !a.slid.IsUnicast() {
			continue
		}
		for i := range a.t.devices {
			d := &a.t.devices[i]
			for j := range d.Ports {
				if p := (place{d.Name, &d.Ports[j]}); gid && a.hasGID(p) || !gid && p.hasLID(a.slid) {
					list = append(list, p)
				}
			}
		}
		if len(list) > 0 {
			return list, by
		}
	}
	if isSet(a.sgid) {
		by = "GID " + a.sgid.String()
	}
	return nil, by
}

func (a *acquisition) hasGID(p place) bool {
	switch p.info.LinkLayer {
	case transport.LinkInfiniBand:
		return slices.Contains(p.info.GIDs, a.sgid)
	case transport.LinkOther:
		return false // iWARP has no paths
	}
	// The engine does not follow the tables of Ethernet ports.
	entries, err := a.entries(p)
	return err == nil && best(entries, a.sgid) != nil
}

func (p place) hasLID(l mad.LID) bool {
	return p.info.LinkLayer == transport.LinkInfiniBand && p.info.LID.IsUnicast() &&
		l&lidMask(p.info.LMC) == p.info.LID&lidMask(p.info.LMC)
}

// inPartition compares without the membership bit, as the kernel does
// (ib_find_pkey). A RoCE port is in the default partition; 0 is any.
func (p place) inPartition(k mad.PKey) bool {
	if k == 0 {
		return true
	}
	if p.info.LinkLayer != transport.LinkInfiniBand {
		return k.Matches(mad.DefaultPKey)
	}
	keys, _ := partitions(p.info.PKeys)
	return hasPartition(keys, k.Number())
}

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

// entries reads the port's table. A fabric that has none beside the ports' GIDs
// has their entries.
func (a *acquisition) entries(p place) ([]transport.GIDEntry, error) {
	if a.table != nil {
		return a.table(p.dev, p.info.Num)
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
