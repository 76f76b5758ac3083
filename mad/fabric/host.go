// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package fabric

import (
	"fmt"
	"slices"
	"sync"

	"acmd/mad"
	"acmd/mad/transport"
)

// DeviceName is the name of every node's adapter in its own view.
const DeviceName = "fab0"

// What all ports of a generated fabric have in common.
const (
	gidTableSize    = 8
	capMask         = 0x02614848 // with client reregister (bit 25)
	subnetTimeout   = 18
	eventsBacklog   = 64
	etherGIDPattern = 0x02acd0ff // first bytes of an Ethernet port's interface identifier
)

// Host is the transport view of one node. All methods are safe for concurrent
// use.
type Host struct {
	f    *Fabric
	node int

	mu     sync.Mutex
	closed bool
	ports  []*port
	events chan transport.Event
}

var _ transport.Fabric = (*Host)(nil)

// Host returns the view of a node and makes the node local: its simulated ACM
// service ends. All calls for one node return the same view until it is closed.
// It returns a closed view for a node that does not exist or a closed fabric.
func (f *Fabric) Host(node int) *Host {
	f.mu.Lock()
	defer f.mu.Unlock()
	if h := f.hosts[node]; h != nil {
		return h
	}
	h := &Host{f: f, node: node, events: make(chan transport.Event, eventsBacklog)}
	if f.closed || !f.exists(node, 1) {
		h.closed = true
		close(h.events)
		return h
	}
	f.hosts[node] = h
	f.setSilent(node, true)
	return h
}

// setSilent turns the simulated ACM service of a node on or off.
func (f *Fabric) setSilent(node int, silent bool) {
	f.change(func(w *world) error { //nolint:errcheck // the closure cannot fail
		for num := range f.cfg.Ports {
			w.ports[f.index(node, uint8(num+1))].silent = silent
		}
		return nil
	})
}

// Name implements [transport.Fabric].
func (h *Host) Name() string { return "embedded" }

// Node returns the index of the node.
func (h *Host) Node() int { return h.node }

// Devices returns the node's adapter, nothing while it is pulled out.
func (h *Host) Devices() ([]transport.Device, error) {
	h.mu.Lock()
	closed := h.closed
	h.mu.Unlock()
	if closed {
		return nil, errClosed
	}
	f, w := h.f, h.f.world.Load()
	if w.ended[h.node] {
		return nil, nil
	}
	d := transport.Device{Name: DeviceName, NodeGUID: f.nodeGUID(h.node)}
	for num := uint8(1); int(num) <= f.cfg.Ports; num++ {
		d.Ports = append(d.Ports, f.portInfo(w, f.index(h.node, num)))
	}
	return []transport.Device{d}, nil
}

func (f *Fabric) portInfo(w *world, i int32) transport.PortInfo {
	p := &w.ports[i]
	_, num := f.owner(i)
	info := transport.PortInfo{
		Num: num, State: p.state, MTU: p.mtu, Rate: p.rate, LMC: f.cfg.LMC,
		GIDs: make([]mad.GID, gidTableSize), PKeys: slices.Clone(w.pkeys[p.table]),
	}
	if p.ethernet {
		info.LinkLayer, info.LMC = transport.LinkEthernet, 0
		info.GIDs[0] = mad.MakeGID(DefaultPrefix, mad.GUID(etherGIDPattern<<32|uint64(i)))
		return info
	}
	info.GIDs[0] = f.gid(w, i)
	info.CapMask, info.SubnetTimeout = capMask, subnetTimeout
	// A port that is down keeps what the subnet manager wrote last.
	info.LID, info.SMLID = p.lid, w.ports[w.sm].lid
	node, _ := f.owner(i)
	manager, _ := f.owner(w.sm)
	_, info.SMSL = f.shape.route(node, manager)
	return info
}

// Open opens a port of the node. Of several open handles of one port the first
// has the Reports, as with umad.
func (h *Host) Open(device string, num uint8) (transport.Port, error) {
	f := h.f
	f.reap()
	if device != DeviceName || !f.exists(h.node, num) || f.world.Load().ended[h.node] {
		return nil, fmt.Errorf("fabric: %q port %d: %w", device, num, transport.ErrNoPort)
	}
	p, err := f.newPort(h, num)
	if err != nil {
		return nil, err
	}
	h.mu.Lock()
	closed := h.closed
	if !closed {
		h.ports = append(h.ports, p)
	}
	h.mu.Unlock()
	if closed {
		p.ring.Close() //nolint:errcheck // nobody has seen the ring, no slot is out
		return nil, errClosed
	}
	f.register(p)
	return p, nil
}

// register enters a port into the table of handles, unless its view was closed
// or its device removed meanwhile.
func (f *Fabric) register(p *port) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if p.life.Load() == portClosed {
		return
	}
	if f.world.Load().ended[p.node] {
		p.vanish()
	}
	list := (*f.open.Load())[p.index]
	p.caps.Reports = !slices.ContainsFunc(list, func(o *port) bool { return o.caps.Reports })
	f.setOpen(p.index, append(slices.Clone(list), p))
}

// unregister takes it out.
func (f *Fabric) unregister(p *port) {
	f.mu.Lock()
	defer f.mu.Unlock()
	list := slices.Clone((*f.open.Load())[p.index])
	f.setOpen(p.index, slices.DeleteFunc(list, func(o *port) bool { return o == p }))
	if p.ring.Close() != nil {
		f.busy = append(f.busy, p)
	}
}

func (f *Fabric) setOpen(index int32, list []*port) {
	next := make(map[int32][]*port, len(*f.open.Load())+1)
	for i, l := range *f.open.Load() {
		next[i] = l
	}
	if len(list) == 0 {
		delete(next, index)
	} else {
		next[index] = list
	}
	f.open.Store(&next)
}

// Events tells what happens to the node's ports.
func (h *Host) Events() <-chan transport.Event { return h.events }

// notify reports an event; one that finds the channel full is lost.
func (h *Host) notify(t transport.EventType, num uint8) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return
	}
	select {
	case h.events <- transport.Event{Type: t, Device: DeviceName, Port: num}:
	default:
		h.f.count.eventsLost.Add(1)
	}
}

// Close ends the view and its ports. The view of node 0 ends with the Fabric.
func (h *Host) Close() error {
	h.f.mu.Lock()
	if h.f.hosts[h.node] == h {
		delete(h.f.hosts, h.node)
	}
	h.f.mu.Unlock()
	h.mu.Lock()
	if h.closed {
		h.mu.Unlock()
		return nil
	}
	h.closed = true
	close(h.events)
	ports := h.ports
	h.ports = nil
	h.mu.Unlock()
	for _, p := range ports {
		p.Close() //nolint:errcheck // a port that is closed already is what we want
	}
	return nil
}

// forget drops a port that was closed by its owner.
func (h *Host) forget(p *port) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ports = slices.DeleteFunc(h.ports, func(o *port) bool { return o == p })
}
