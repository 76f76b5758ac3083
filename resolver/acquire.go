// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package resolver

import (
	"errors"
	"fmt"
	"slices"
	"strconv"

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
	a := acquisition{t: e.topo.Load(), table: e.cfg.GIDTable, r: r, read: map[place][]transport.GIDEntry{}}
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
	read  map[place][]transport.GIDEntry // tables so far
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
	gid, lid := "GID "+a.sgid.String(), "LID "+a.slid.String()
	for _, way := range []struct {
		by    string
		given bool
		is    func(place) bool
	}{
		{gid, isSet(a.sgid), a.inTable}, {gid, isSet(a.sgid), a.onEthernet}, {lid, a.slid.IsUnicast(), a.hasLID},
	} {
		if !way.given {
			continue
		}
		for i := range a.t.devices {
			d := &a.t.devices[i]
			for j := range d.Ports {
				if p := (place{d.Name, &d.Ports[j]}); way.is(p) {
					list = append(list, p)
				}
			}
		}
		if len(list) > 0 {
			return list, way.by
		}
	}
	if isSet(a.sgid) {
		return nil, gid
	}
	return nil, lid
}

func (a *acquisition) inTable(p place) bool {
	return p.info.LinkLayer == transport.LinkInfiniBand && slices.Contains(p.info.GIDs, a.sgid)
}

// onEthernet reads the table, as the engine does not follow those of Ethernet ports.
func (a *acquisition) onEthernet(p place) bool {
	if p.info.LinkLayer != transport.LinkEthernet {
		return false
	}
	entries, err := a.entries(p)
	return err == nil && best(entries, a.sgid) != nil
}

func (a *acquisition) hasLID(p place) bool {
	mask := lidMask(p.info.LMC)
	return p.info.LinkLayer == transport.LinkInfiniBand && p.info.LID.IsUnicast() && a.slid&mask == p.info.LID&mask
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
