// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package fabric

import (
	"fmt"
	"maps"
	"slices"

	"acmd/mad"
	"acmd/mad/sa"
	"acmd/mad/transport"
)

// errNoPort is what every setter says of a port that does not exist.
func errNoPort(node int, port uint8) error {
	return fmt.Errorf("fabric: node %d port %d: %w", node, port, transport.ErrNoPort)
}

// raise reports an event at a port, if its node is local.
func (f *Fabric) raise(p int32, t transport.EventType) {
	node, num := f.owner(p)
	f.mu.Lock()
	h := f.hosts[node]
	f.mu.Unlock()
	if h != nil {
		h.notify(t, num)
	}
}

// raiseAll reports an event at every local port.
func (f *Fabric) raiseAll(events ...transport.EventType) {
	f.mu.Lock()
	hosts := slices.SortedFunc(maps.Values(f.hosts), func(a, b *Host) int { return a.node - b.node })
	f.mu.Unlock()
	for _, h := range hosts {
		for num := range f.cfg.Ports {
			for _, t := range events {
				h.notify(t, uint8(num+1))
			}
		}
	}
}

// Raise reports an event at a local port without any change behind it, such as
// [transport.EventReregister].
func (f *Fabric) Raise(node int, port uint8, t transport.EventType) error {
	if node < 0 || node >= f.cfg.Nodes {
		return errNoPort(node, port)
	}
	f.mu.Lock()
	h := f.hosts[node]
	f.mu.Unlock()
	if h != nil {
		h.notify(t, port)
	}
	return nil
}

// MoveSM makes port 1 of another node the master subnet manager. The old one is
// silent from then on; ports know the new LID at once, whether or not they are
// told by events (EventSMChange, EventReregister, none). With keep false the new
// one knows neither subscriptions nor memberships of local ports.
func (f *Fabric) MoveSM(node int, keep bool, events ...transport.EventType) error {
	if !f.exists(node, 1) {
		return errNoPort(node, 1)
	}
	f.mu.Lock()
	f.change(func(w *world) error { w.sm = f.index(node, 1); return nil }) //nolint:errcheck // cannot fail
	if !keep {
		f.groups.Store(f.newGroups(f.world.Load()))
	}
	f.mu.Unlock()
	if !keep {
		f.informer.drop(-1)
	}
	f.raiseAll(events...)
	return nil
}

// SetLID gives a port another base LID, which must be free and, with an LMC, a
// multiple of 2^LMC. A local port gets EventLIDChange; others are told nothing.
func (f *Fabric) SetLID(node int, port uint8, lid mad.LID) error {
	if !f.exists(node, port) {
		return errNoPort(node, port)
	}
	i, n := f.index(node, port), 1<<f.cfg.LMC
	f.mu.Lock()
	err := f.change(func(w *world) error {
		p := &w.ports[i]
		if p.ethernet || lid == 0 || int(lid)%n != 0 || int(lid)+n > maxUnicast {
			return fmt.Errorf("fabric: node %d port %d cannot have LID %v", node, port, lid)
		}
		for k := range n {
			if o := w.byLID[int(lid)+k]; o >= 0 && o != i {
				return fmt.Errorf("fabric: LID %v is in use", lid)
			}
		}
		for k := range n {
			w.byLID[int(p.lid)+k] = -1
		}
		p.lid = lid
		w.setLID(i, lid, f.cfg.LMC)
		return nil
	})
	f.mu.Unlock()
	if err == nil {
		f.raise(i, transport.EventLIDChange)
	}
	return err
}

// SetPort changes the state of a port. Leaving or entering PortActive raises
// EventPortError or EventPortActive at a local port, makes trap 65 or 64 for the
// subscribers, and takes a port that left out of all groups. What should
// reregister after that is the caller's to raise.
func (f *Fabric) SetPort(node int, port uint8, state mad.State) error {
	if !f.exists(node, port) {
		return errNoPort(node, port)
	}
	i := f.index(node, port)
	f.setState(i, func(p *portState) { p.state = state })
	return nil
}

// setState applies a change of one port's state and its consequences.
func (f *Fabric) setState(i int32, set func(*portState)) {
	f.mu.Lock()
	before := f.world.Load().ports[i].up()
	f.change(func(w *world) error { set(&w.ports[i]); return nil }) //nolint:errcheck // cannot fail
	w := f.world.Load()
	after := w.ports[i].up()
	var ended []*group
	if before && !after {
		ended = f.leaveAll(i)
	}
	f.mu.Unlock()
	gid := f.gid(w, i)
	switch {
	case before && !after:
		f.informer.drop(i)
		f.raise(i, transport.EventPortError)
		f.informer.notify(sa.TrapGIDOutOfService, gid, 0)
		for _, g := range ended {
			f.informer.notify(sa.TrapGroupDeleted, g.mgid, g.rec.PKey())
		}
	case !before && after:
		f.raise(i, transport.EventPortActive)
		f.informer.notify(sa.TrapGIDInService, gid, 0)
	}
}

// SetPKeys replaces the P_Key table of a node's ports and raises EventPKeyChange
// at local ones. Groups for new partitions are made as at the beginning.
func (f *Fabric) SetPKeys(node int, keys []mad.PKey) error {
	if !f.exists(node, 1) {
		return errNoPort(node, 1)
	}
	f.mu.Lock()
	err := f.change(func(w *world) error {
		table, err := w.table(slices.Clone(keys))
		if err != nil {
			return fmt.Errorf("fabric: node %d: %w", node, err)
		}
		for num := range f.cfg.Ports {
			w.ports[f.index(node, uint8(num+1))].table = table
		}
		return nil
	})
	if err == nil {
		t := f.groups.Load().clone()
		t.addPeers(f, keys)
		f.groups.Store(t)
	}
	f.mu.Unlock()
	if err != nil {
		return err
	}
	for num := range f.cfg.Ports {
		f.raise(f.index(node, uint8(num+1)), transport.EventPKeyChange)
	}
	return nil
}

// SetPrefix changes the subnet prefix of all GIDs and raises EventGIDChange at
// every local port.
func (f *Fabric) SetPrefix(prefix uint64) {
	f.mu.Lock()
	f.change(func(w *world) error { w.prefix = prefix; return nil }) //nolint:errcheck // cannot fail
	f.mu.Unlock()
	f.raiseAll(transport.EventGIDChange)
}

// SetRouter makes a port the router to another subnet: paths to GIDs with that
// prefix end there and have hop limit 255.
func (f *Fabric) SetRouter(prefix uint64, node int, port uint8) error {
	if !f.exists(node, port) {
		return errNoPort(node, port)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.change(func(w *world) error {
		if w.routes == nil {
			w.routes = map[uint64]int32{}
		}
		w.routes[prefix] = f.index(node, port)
		return nil
	})
}

// SetSilent ends or starts the simulated ACM service of a node that has no view.
func (f *Fabric) SetSilent(node int, silent bool) error {
	if !f.exists(node, 1) {
		return errNoPort(node, 1)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.hosts[node] == nil {
		f.setSilent(node, silent)
	}
	return nil
}

// RemoveDevice pulls a node's adapter out: its ports go down, open handles fail
// with [transport.ErrGone], and a view gets EventDeviceFatal and
// EventDeviceRemove.
func (f *Fabric) RemoveDevice(node int) error {
	if !f.exists(node, 1) {
		return errNoPort(node, 1)
	}
	f.mu.Lock()
	f.change(func(w *world) error { //nolint:errcheck // cannot fail
		if w.ended == nil {
			w.ended = map[int]bool{}
		}
		w.ended[node] = true
		return nil
	})
	f.mu.Unlock()
	for num := range f.cfg.Ports {
		i := f.index(node, uint8(num+1))
		for _, p := range (*f.open.Load())[i] {
			p.vanish()
		}
		f.setState(i, func(p *portState) { p.state = mad.PortDown })
	}
	f.raise(f.index(node, 1), transport.EventDeviceFatal)
	f.raiseDevice(node, transport.EventDeviceRemove)
	return nil
}

// RestoreDevice plugs it in again, all ports active. Open it anew.
func (f *Fabric) RestoreDevice(node int) error {
	if !f.exists(node, 1) {
		return errNoPort(node, 1)
	}
	f.mu.Lock()
	f.change(func(w *world) error { delete(w.ended, node); return nil }) //nolint:errcheck // cannot fail
	f.mu.Unlock()
	f.raiseDevice(node, transport.EventDeviceAdd)
	for num := range f.cfg.Ports {
		f.setState(f.index(node, uint8(num+1)), func(p *portState) { p.state = mad.PortActive })
	}
	return nil
}

// raiseDevice reports an event of the whole adapter.
func (f *Fabric) raiseDevice(node int, t transport.EventType) {
	f.mu.Lock()
	h := f.hosts[node]
	f.mu.Unlock()
	if h != nil {
		h.notify(t, 0)
	}
}

// Notify sends a Report to the subscribers without any change behind it: trap 64
// to 67, about a GID. It goes to all partitions.
func (f *Fabric) Notify(trap uint16, about mad.GID) { f.informer.notify(trap, about, 0) }
