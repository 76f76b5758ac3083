// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acmp

import (
	"fmt"
	"time"

	"acmd/mad"
	"acmd/mad/acm"
	"acmd/resolver"
)

// member is an endpoint in its groups.
type member struct {
	port   *port
	ep     *resolver.Endpoint
	own    map[resolver.Addr]struct{} // what it answers for
	groups []*group                   // by preference, the common one first

	lookups map[resolver.Addr]*lookup
	queue   []*lookup // wait for the window
	seats   []*lookup // lookups on their first gap
	since   time.Time // when it was made
	gone    bool
}

func newMember(p *port, ep *resolver.Endpoint) *member {
	m := &member{port: p, since: time.Now(), lookups: map[resolver.Addr]*lookup{}}
	m.take(ep)
	cfg := &p.src.cfg
	m.groups = append(m.groups, newGroup(m, cfg.MinRate, cfg.MinMTU))
	if cfg.RouteACM && ep.Port.Rate != 0 && ep.Port.MTU != 0 && (ep.Port.Rate != cfg.MinRate || ep.Port.MTU != cfg.MinMTU) {
		m.groups = append(m.groups, newGroup(m, ep.Port.Rate, ep.Port.MTU))
	}
	return m
}

func (m *member) take(ep *resolver.Endpoint) {
	m.ep = ep
	m.own = make(map[resolver.Addr]struct{}, len(ep.Addrs))
	for i := range ep.Addrs {
		m.own[ep.Addrs[i].Addr] = struct{}{}
	}
}

// same reports whether ep is in the same groups under the same identity.
func (m *member) same(ep *resolver.Endpoint) bool {
	o := m.ep
	return o.GID == ep.GID && o.PKey == ep.PKey && o.PKeyIndex == ep.PKeyIndex &&
		(!m.port.src.cfg.RouteACM || o.Port.Rate == ep.Port.Rate && o.Port.MTU == ep.Port.MTU)
}

// update takes a new form of the endpoint. A new LID or SM means that the
// memberships may be lost, whether an event told so or not.
func (m *member) update(ep *resolver.Endpoint) {
	moved := m.ep.Port.LID != ep.Port.LID || m.ep.Port.SMLID != ep.Port.SMLID
	m.take(ep)
	if moved {
		for _, g := range m.groups {
			g.rejoin()
		}
	}
}

// start joins groups that were never tried.
func (m *member) start() {
	for _, g := range m.groups {
		if g.since.IsZero() {
			g.since = time.Now()
			g.join()
		}
	}
}

// leave ends the membership of an endpoint that is no more.
func (m *member) leave() {
	m.gone = true
	m.fail(fmt.Errorf("acm: endpoint went down: %w", resolver.ErrDown))
	for _, g := range m.groups {
		g.leave()
	}
}

// fail ends all lookups.
func (m *member) fail(err error) {
	for _, l := range m.lookups {
		l.fail(err)
	}
}

// common finds the group that both we and the sender of r are in: the most
// wanted of the sender's list. nil if there is none.
func (m *member) common(r *acm.Resolve) *group {
	for i := r.GIDCount() - 1; i >= 0; i-- {
		if g := m.group(r.GID(i)); g != nil {
			return g
		}
	}
	return nil
}

// group finds a joined group by its MGID.
func (m *member) group(mgid mad.GID) *group {
	for _, g := range m.groups {
		if g.joined && g.mgid == mgid {
			return g
		}
	}
	return nil
}
