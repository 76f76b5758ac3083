// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package resolver

import (
	"fmt"
	"strings"
	"time"

	"acmd/cache"
	"acmd/mad"
	"acmd/mad/transport"
)

// initProviders adds the built-in provider to those of the configuration and
// tells about rules that name none of them.
func (e *Engine) initProviders() error {
	e.providers = map[string]Provider{DefaultProviderName: &builtin{e: e}}
	for _, p := range e.cfg.Providers {
		name := strings.ToLower(p.Name())
		if e.providers[name] != nil {
			return fmt.Errorf("resolver: two providers are called %q", name)
		}
		e.providers[name] = p
	}
	for _, r := range e.cfg.ProviderRules {
		if e.providers[strings.ToLower(r.Name)] == nil {
			e.log.Warn("provider rule ignored: no such provider", "provider", r.Name, "prefix", fmt.Sprintf("0x%016x", r.Prefix))
		}
	}
	if e.providers[strings.ToLower(e.cfg.DefaultProvider)] == nil {
		e.log.Warn("default provider ignored: no such provider", "provider", e.cfg.DefaultProvider, "using", DefaultProviderName)
		e.cfg.DefaultProvider = DefaultProviderName
	}
	return nil
}

// providerFor selects by the subnet prefix of GID 0: the first rule that matches
// and names a provider we have, else the default. A port without a GID matches
// no rule (field case 21, B-62).
func (e *Engine) providerFor(info *transport.PortInfo) Provider {
	if g := gid0(info); isSet(g) {
		for _, r := range e.cfg.ProviderRules {
			if p := e.providers[strings.ToLower(r.Name)]; p != nil && r.Prefix == g.Prefix() {
				return p
			}
		}
	}
	return e.providers[strings.ToLower(e.cfg.DefaultProvider)]
}

// build opens what is not open yet and makes the snapshot.
func (e *Engine) build() *topology {
	s, t := &e.ports, newTopology()
	done := map[portID]bool{}
	for i := range s.devices {
		dev := &s.devices[i]
		for j := range dev.Ports {
			id := portID{dev.Name, dev.Ports[j].Num}
			p := s.ports[id]
			if p == nil || done[id] || dev.Ports[j].LinkLayer != transport.LinkInfiniBand {
				continue
			}
			if p.info.State != mad.PortActive {
				e.fileIdle(t, p)
				continue
			}
			done[id] = true
			err := e.openPort(p, dev)
			e.once("open "+p.name(), err != nil, func() {
				e.log.Error("port cannot be used, trying again", "device", id.dev, "port", id.num, "err", err)
			})
			if err != nil {
				s.again = true
				continue
			}
			t.add(e.viewOf(p, dev, t))
		}
	}
	t.devices, t.hosts = s.devices, s.hosts
	t.slots = len(s.slots)
	for id, n := range s.scopes {
		t.scopes[id.port] = append(t.scopes[id.port], n)
	}
	return t
}

func (p *portState) name() string { return fmt.Sprintf("%s/%d", p.id.dev, p.id.num) }

// openPort opens the SA client and the provider's device and port where they are
// not open.
func (e *Engine) openPort(p *portState, dev *transport.Device) error {
	if p.sa == nil {
		c, err := e.cfg.OpenSA(dev.Name, p.info)
		if err != nil {
			return fmt.Errorf("open for SA: %w", err)
		}
		p.sa, p.since = c, time.Now()
		e.inform(p)
	}
	if p.port != nil {
		return nil
	}
	prov := e.providerFor(&p.info)
	id := deviceID{dev.Name, prov.Name()}
	pd := e.ports.opened[id]
	if pd == nil {
		var err error
		if pd, err = prov.OpenDevice(dev); err != nil {
			return fmt.Errorf("provider %s: open device: %w", prov.Name(), err)
		}
		e.ports.opened[id] = pd
	}
	pp, err := pd.OpenPort(&OpenPort{Device: dev.Name, Info: p.info, SA: p.sa})
	if err != nil {
		e.closeIdleDevice(id)
		return fmt.Errorf("provider %s: open port: %w", prov.Name(), err)
	}
	p.prov, p.port = prov, pp
	return nil
}

// viewOf brings the endpoints of an open port up to date and files its addresses
// in t. An address that two endpoints claim belongs to the first.
func (e *Engine) viewOf(p *portState, dev *transport.Device, t *topology) *portView {
	v := &portView{state: p, info: p.info}
	scope, ok := e.ports.scope(scopeID{port: p.id})
	if !ok {
		e.once("scopes", true, func() { e.log.Error("more ports than the cache has scopes", "limit", cache.MaxScopes) })
		return v
	}
	v.scope = scope
	for i, g := range p.info.GIDs {
		if n, ok := e.ports.scopes[scopeID{p.id, g}]; ok && i > 0 && g != gid0(&p.info) {
			v.addScope(g, n)
		}
	}
	keys, index := partitions(p.info.PKeys)
	for part, es := range p.eps {
		if !hasPartition(keys, part) {
			e.closeEndpoint(es)
			delete(p.eps, part)
		}
	}
	for i, k := range keys {
		ep := &Endpoint{
			Device: dev.Name, NodeGUID: dev.NodeGUID, Port: p.info, PhysPorts: uint8(min(len(dev.Ports), 255)),
			PKey: k, PKeyIndex: index[i], GID: gid0(&p.info), Provider: p.prov.Name(),
			Addrs: addressesOf(dev.Name, &p.info, k, keys[0], e.ports.hosts, e.ports.entries),
		}
		if ep.Slot, ok = e.ports.slot(slotID{port: p.id, part: k.Number()}); !ok {
			e.once("slots", true, func() { e.log.Error("more endpoints than can be numbered", "limit", 1<<16) })
			break
		}
		es, err := e.openEndpoint(p, ep)
		e.once(fmt.Sprintf("endpoint %s/%s", p.name(), k), err != nil, func() {
			e.log.Error("endpoint cannot be used, trying again", "device", dev.Name, "port", p.id.num, "pkey", k, "err", err)
		})
		if err != nil {
			e.ports.again = true
			continue
		}
		ev := &epView{ep: es.ep, port: v, prov: es.prov, row: e.counters.endpoint(ep)}
		v.eps = append(v.eps, ev)
		e.fileAddresses(t, v, ev)
	}
	return v
}

func (v *portView) addScope(g mad.GID, n cache.Scope) {
	if v.scopes == nil {
		v.scopes = map[mad.GID]cache.Scope{}
	}
	v.scopes[g] = n
}

func hasPartition(keys []mad.PKey, part uint16) bool {
	for _, k := range keys {
		if k.Number() == part {
			return true
		}
	}
	return false
}

// fileAddresses files the addresses of an endpoint. An address whose interface
// has a GID of its own gets a slot and a scope of its own, as its paths start
// elsewhere (field case 50).
func (e *Engine) fileAddresses(t *topology, v *portView, ev *epView) {
	for i := range ev.ep.Addrs {
		a := &ev.ep.Addrs[i]
		if o, taken := t.bySource[a.Addr]; taken {
			e.once("dup "+a.Text, true, func() {
				e.log.Warn("address belongs to two endpoints, the first one has it", "addr", a.Text,
					"first", o.ev.ep.label(), "second", ev.ep.label())
			})
			continue
		}
		ref := sourceRef{ev: ev, gid: ev.ep.GID, slot: ev.ep.Slot, scope: v.scope}
		if !a.GID.IsZero() {
			slot, ok1 := e.ports.slot(slotID{v.state.id, ev.ep.PKey.Number(), a.GID})
			scope, ok2 := e.ports.scope(scopeID{v.state.id, a.GID})
			if !ok1 || !ok2 {
				e.once("aliases", true, func() { e.log.Error("more source GIDs than can be numbered", "first", a.Text) })
				continue
			}
			ref.gid, ref.slot, ref.scope = a.GID, slot, scope
			v.addScope(a.GID, scope)
		}
		t.bySource[a.Addr] = ref
	}
}

// fileIdle notes the addresses of a port that is not active, for whoever asks from
// one of them to be told so.
func (e *Engine) fileIdle(t *topology, p *portState) {
	err := fmt.Errorf("source address is that of %s, which is not active (%v)", p.name(), p.info.State)
	keys, _ := partitions(p.info.PKeys)
	for _, k := range keys {
		for _, a := range addressesOf(p.id.dev, &p.info, k, keys[0], e.ports.hosts, e.ports.entries) {
			t.idle[a.Addr] = err
		}
	}
}

func (ep *Endpoint) label() string { return fmt.Sprintf("%s/%d/%s", ep.Device, ep.Port.Num, ep.PKey) }

// openEndpoint opens an endpoint, or brings the addresses of an open one up to
// date. A changed membership makes it another endpoint to its provider.
func (e *Engine) openEndpoint(p *portState, ep *Endpoint) (*epState, error) {
	part := ep.PKey.Number()
	es := p.eps[part]
	if es != nil && es.ep.PKey != ep.PKey {
		e.closeEndpoint(es)
		delete(p.eps, part)
		es = nil
	}
	if es == nil {
		pe, err := p.port.OpenEndpoint(ep)
		if err != nil {
			return nil, fmt.Errorf("provider %s: open endpoint: %w", p.prov.Name(), err)
		}
		es = &epState{prov: pe, addrs: map[Addr]ProviderAddress{}}
		p.eps[part] = es
	}
	ep.Addrs = e.syncAddresses(es, ep)
	if es.ep == nil || !sameEndpoint(es.ep, ep) {
		es.ep = ep
	}
	return es, nil
}

// syncAddresses adds and removes the difference and returns the addresses that
// are in force: one that the provider refuses is left out and tried again.
func (e *Engine) syncAddresses(es *epState, ep *Endpoint) (ok []LocalAddr) {
	want := make(map[Addr]bool, len(ep.Addrs))
	for i := range ep.Addrs {
		want[ep.Addrs[i].Addr] = true
	}
	for a, pa := range es.addrs {
		if !want[a] {
			pa.Remove()
			delete(es.addrs, a)
		}
	}
	for i := range ep.Addrs {
		a := &ep.Addrs[i]
		if es.addrs[a.Addr] == nil {
			pa, err := es.prov.AddAddress(a)
			e.once("address "+ep.label()+" "+a.Text, err != nil, func() {
				e.log.Error("address cannot be used, trying again", "addr", a.Text, "endpoint", ep.label(), "err", err)
			})
			if err != nil {
				e.ports.again = true
				continue
			}
			es.addrs[a.Addr] = pa
		}
		ok = append(ok, *a)
	}
	return ok
}

// closeEndpoint removes the addresses and closes.
func (e *Engine) closeEndpoint(es *epState) {
	for a, pa := range es.addrs {
		pa.Remove()
		delete(es.addrs, a)
	}
	es.prov.Close()
}

// closePort closes what the provider has of a port, in reverse order of opening.
func (e *Engine) closePort(p *portState) {
	if p.port == nil {
		return
	}
	for part, es := range p.eps {
		e.closeEndpoint(es)
		delete(p.eps, part)
	}
	p.port.Close()
	id := deviceID{p.id.dev, p.prov.Name()}
	p.port, p.prov = nil, nil
	e.closeIdleDevice(id)
}

// closeIdleDevice closes a provider's device when none of its ports is open.
func (e *Engine) closeIdleDevice(id deviceID) {
	for _, p := range e.ports.ports {
		if p.id.dev == id.dev && p.port != nil && p.prov.Name() == id.provider {
			return
		}
	}
	if pd := e.ports.opened[id]; pd != nil {
		delete(e.ports.opened, id)
		pd.Close()
	}
}

func (e *Engine) closeSA(p *portState) {
	if p.sa != nil {
		p.sa.Close()
		p.sa = nil
	}
}

// closeTopology closes everything at the end.
func (e *Engine) closeTopology() {
	for _, p := range e.ports.ports {
		e.closePort(p)
		e.closeSA(p)
	}
}
