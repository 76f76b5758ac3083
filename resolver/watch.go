// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package resolver

import (
	"slices"
	"time"

	"acmd/mad"
	"acmd/mad/transport"
)

// Events come in bursts. The first one is acted on at once, those that follow
// within quiet of each other cause one more look when they end, at the latest
// after burst.
const (
	quiet = 100 * time.Millisecond
	burst = 2 * time.Second
	// toldPolls is how many polls there are for one look at devices that tell of
	// their changes by themselves: events can be lost (field case 22).
	toldPolls = 10
	// lived is how long a port has to work until its next end is news.
	lived = time.Minute
)

// initTopology takes the first look.
func (e *Engine) initTopology() error {
	e.ports.init(slices.Clone(e.cfg.Addresses))
	return e.look(true)
}

// Kick makes the engine look at devices and addresses soon, for whoever knows
// that something changed.
func (e *Engine) Kick() {
	select {
	case e.kick <- struct{}{}:
	default:
	}
}

// SetAddresses replaces the entries of the address file and looks at everything;
// they are in force when it returns, unless the engine is closed. Not for use
// inside OnTopology or OnEvent.
func (e *Engine) SetAddresses(entries []AddressEntry) {
	req := setAddresses{slices.Clone(entries), make(chan struct{})}
	select {
	case e.setaddr <- req:
		select {
		case <-req.done:
		case <-e.stop:
		}
	case <-e.stop:
	}
}

type setAddresses struct {
	entries []AddressEntry
	done    chan struct{}
}

// topologyLoop looks at the devices after events and at each poll: events can be
// lost (field case 22).
func (e *Engine) topologyLoop() {
	defer e.done.Done()
	events := e.cfg.Fabric.Events()
	poll := time.NewTicker(e.cfg.Poll)
	defer poll.Stop()
	settle := time.NewTimer(time.Hour)
	settle.Stop()
	defer settle.Stop()
	var first time.Time // start of a burst
	polls := 0
	for {
		select {
		case <-e.stop:
			return
		case ev, ok := <-events:
			if !ok {
				events = nil
				continue
			}
			now := time.Now()
			if first.IsZero() {
				first = now
				e.lookLogged(true)
				settle.Reset(quiet)
			} else {
				settle.Reset(max(0, min(quiet, first.Add(burst).Sub(now))))
			}
			e.portEvent(ev)
		case <-settle.C:
			first = time.Time{}
			e.lookLogged(true)
		case <-e.kick:
			e.lookLogged(true)
		case <-poll.C:
			polls++
			e.lookLogged(polls%toldPolls == 0 || !e.told())
		case req := <-e.setaddr:
			e.ports.entries = req.entries
			e.ports.again = true
			e.lookLogged(true)
			close(req.done)
		}
	}
}

// lookLogged looks, at the devices too or at addresses alone, and logs a failure once until it changes.
func (e *Engine) lookLogged(devices bool) {
	s := &e.ports
	msg := ""
	if err := e.look(devices); err != nil {
		msg = err.Error()
		if msg != s.lastErr {
			e.log.Warn("devices or addresses cannot be listed", "err", err)
		}
	}
	s.lastErr = msg
}

// portEvent handles what a look cannot see: a reregistration. Events for
// Ethernet ports and ports that do not exist are fine (field case 21).
func (e *Engine) portEvent(ev transport.Event) {
	p := e.ports.ports[portID{ev.Device, ev.Port}]
	if p == nil {
		return
	}
	if ev.Type == transport.EventReregister {
		// The SM lost state, or this port is new to it. Known paths are served
		// and looked up again by and by; failures are forgotten (field cases 9, 26).
		e.doubtPort(p)
		reregister(p.sa)
		if p.port != nil {
			p.port.HandleEvent(ev.Type)
		}
	}
	if e.cfg.OnEvent != nil {
		e.cfg.OnEvent(ev)
	}
}

// look compares devices and addresses with the last look and acts on the
// difference.
func (e *Engine) look(devices bool) error {
	s := &e.ports
	e.closeDead()
	devs := s.devices
	if devices || s.again {
		var err error
		if devs, err = e.cfg.Fabric.Devices(); err != nil {
			return err
		}
	}
	hosts, hostErr := e.cfg.Host.Addresses()
	if hostErr != nil {
		hosts = s.hosts // names from the address file need no addresses
	}
	if s.looked && !s.again && sameDevices(devs, s.devices) && slices.Equal(hosts, s.hosts) {
		return hostErr
	}
	s.looked, s.again = true, false
	s.devices, s.hosts = devs, hosts
	e.apply()
	return hostErr
}

// told reports whether every device with an InfiniBand port has a source of events.
func (e *Engine) told() bool {
	w, ok := e.cfg.Fabric.(transport.Watcher)
	if !ok {
		return false
	}
	source := map[string]string{}
	for _, s := range w.EventSources() {
		source[s.Device] = s.Source
	}
	for i := range e.ports.devices {
		d := &e.ports.devices[i]
		for j := range d.Ports {
			if d.Ports[j].LinkLayer == transport.LinkInfiniBand && (source[d.Name] == "" || source[d.Name] == transport.SourcePoll) {
				return false
			}
		}
	}
	return len(e.ports.devices) > 0
}

// closeDead closes ports whose SA client has ended by itself (field case 76), so
// that they are opened anew even if the device looks as it did before. One that ends
// again and again is told once, until it has lived for a while.
func (e *Engine) closeDead() {
	for _, p := range e.ports.ports {
		d, ok := p.sa.(interface{ Done() <-chan struct{} })
		if !ok {
			continue
		}
		select {
		case <-d.Done():
			end := "end " + p.name()
			if time.Since(p.since) >= lived {
				delete(e.ports.said, end)
			}
			e.once(end, true, func() {
				e.log.Warn("port has ended, opening it again", "device", p.id.dev, "port", p.id.num)
			})
			e.closePort(p)
			e.closeSA(p)
			e.ports.again = true
		default:
		}
	}
}

// apply turns the last look into a new snapshot. The order matters: what died is
// closed, then opened anew; what the cache has of the old state is dropped before
// the snapshot is published, so that nobody finds it by the new one, and again
// after it: a flight takes its epoch before it loads the snapshot, so nothing
// learned through the old one survives.
func (e *Engine) apply() {
	s := &e.ports
	old := e.topo.Load()
	seen := map[portID]bool{}
	var drops []func()
	ib := 0
	for i := range s.devices {
		dev := &s.devices[i]
		for j := range dev.Ports {
			info := &dev.Ports[j]
			id := portID{dev.Name, info.Num}
			if info.LinkLayer != transport.LinkInfiniBand || seen[id] {
				continue
			}
			seen[id] = true
			ib++
			drops = append(drops, e.preparePort(s.port(id), info)...)
		}
	}
	for id, p := range s.ports {
		if !seen[id] && p.info.Num != 0 {
			e.closePort(p)
			e.closeSA(p)
			drops = append(drops, e.scopeDrops(p)...)
			p.info, p.active = transport.PortInfo{}, transport.PortInfo{}
			e.log.Info("port is gone", "device", id.dev, "port", id.num)
		}
	}
	t := e.build()
	dropAll := func() {
		for _, d := range drops {
			d()
		}
	}
	dropAll()
	e.topo.Store(t)
	e.counters.setActive(t)
	dropAll()
	e.dropLocals(old, t)
	e.prefetch.wake()
	e.report(old, t, ib)
}

// preparePort takes in how a port is now. It closes what has to be opened anew
// and returns what to drop from the cache once the snapshot is out.
func (e *Engine) preparePort(p *portState, info *transport.PortInfo) (drops []func()) {
	was := p.info
	p.info = *info
	if info.State != mad.PortActive {
		if was.State == mad.PortActive {
			e.log.Info("port is down", "device", p.id.dev, "port", p.id.num, "state", info.State)
		}
		e.closePort(p)
		if p.sa != nil && !samePort(&was, info) {
			p.sa.Update(*info)
		}
		return nil
	}
	c := diffPorts(&p.active, info)
	p.active = *info
	if c.identity {
		e.closePort(p)
	}
	if p.sa != nil && !samePort(&was, info) {
		p.sa.Update(*info)
	}
	if c.identity || c.parts {
		drops = e.scopeDrops(p)
	}
	for _, g := range c.lost {
		if n, ok := e.ports.scopes[scopeID{p.id, g}]; ok {
			drops = append(drops, func() { e.dropScope(n) })
		}
	}
	if c.sm {
		drops = append(drops, func() { e.markStale(p) })
	}
	if c.identity || c.parts || c.sm || was.State != mad.PortActive {
		e.log.Info("port is active", "device", p.id.dev, "port", p.id.num, "lid", info.LID, "smlid", info.SMLID,
			"gid", gid0(info), "paths_dropped", c.identity || c.parts)
	}
	return drops
}

// report tells about a new snapshot: the log, and whoever follows the endpoints.
func (e *Engine) report(old, t *topology, ib int) {
	s := &e.ports
	e.once("no-port", len(t.endpoints) == 0, func() {
		if ib == 0 {
			e.log.Warn("no InfiniBand port yet")
		} else {
			e.log.Warn("no active InfiniBand port yet", "ports", ib)
		}
	})
	if e.cfg.OnTopology != nil && (!s.said["reported"] || !slices.Equal(old.endpoints, t.endpoints)) {
		s.said["reported"] = true
		e.cfg.OnTopology(slices.Clone(t.endpoints))
	}
}

// once runs f when a condition begins to hold.
func (e *Engine) once(what string, holds bool, f func()) {
	if holds && !e.ports.said[what] {
		f()
	}
	if holds {
		e.ports.said[what] = true
	} else {
		delete(e.ports.said, what)
	}
}
