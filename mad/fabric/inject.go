// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package fabric

import (
	"fmt"

	"acmd/mad"
	"acmd/mad/acm"
)

// Multicast sends a MAD from a simulated port to a multicast group, whether or
// not the MAD makes sense: hostile ones are for testing the receivers. The QPN
// and GID that receivers see are those of the node's simulated ACM service.
func (f *Fabric) Multicast(node int, port uint8, mgid mad.GID, m *mad.Packet) error {
	if !f.exists(node, port) {
		return errNoPort(node, port)
	}
	w, src := f.world.Load(), f.index(node, port)
	g := f.groups.Load().byMGID[mgid]
	if g == nil {
		return fmt.Errorf("fabric: there is no group %v", mgid)
	}
	key := w.holds(src, g.rec.PKey())
	if key == 0 || !w.ports[src].up() {
		return fmt.Errorf("fabric: node %d port %d cannot send to group %v", node, port, mgid)
	}
	var h mad.UserHeader
	h.SetLID(g.mlid)
	h.SetQPN(mad.MulticastQPN)
	h.SetQKey(g.rec.QKey())
	h.SetSL(g.rec.SL())
	h.SetGID(mgid)
	h.SetHopLimit(g.rec.HopLimit())
	f.flood(w, g, &datagram{src: src, qpn: peerQPN(src), key: key, tid: m.TID(), h: &h, m: m})
	return nil
}

// Unicast sends a MAD from a simulated port to a queue pair of a local port.
func (f *Fabric) Unicast(node int, port uint8, lid mad.LID, qpn mad.QPN, m *mad.Packet) error {
	if !f.exists(node, port) {
		return errNoPort(node, port)
	}
	w, src := f.world.Load(), f.index(node, port)
	dst := w.at(lid)
	if dst < 0 {
		return fmt.Errorf("fabric: nobody has LID %v", lid)
	}
	key := w.common(w.ports[src].table, w.ports[dst].table, 0)
	if key == 0 {
		return fmt.Errorf("fabric: node %d port %d shares no partition with LID %v", node, port, lid)
	}
	var h mad.UserHeader
	h.SetLID(lid)
	h.SetQPN(qpn)
	h.SetQKey(mad.WellKnownQKey)
	h.SetGID(f.gid(w, dst))
	for _, o := range (*f.open.Load())[dst] {
		if o.caps.QPN == qpn || qpn == mad.QP1 {
			f.hand(w, o, &datagram{src: src, qpn: peerQPN(src), key: key, tid: m.TID(), h: &h, m: m})
			return nil
		}
	}
	return fmt.Errorf("fabric: no queue pair %d at LID %v", qpn, lid)
}

// PeerAsk lets a simulated node ask for an address by multicast, as its ACM
// service would for one of its users: source is the node's IPv4 address. Local
// ports in the group hear it whether or not they are asked.
func (f *Fabric) PeerAsk(node int, port uint8, key mad.PKey, tid mad.TID, destType uint8, dest []byte) error {
	src := IPv4(node, port).As4()
	mgid := acm.MGID(key, 0, acmRate, acmMTU)
	var m mad.Packet
	if err := acm.InitRequest(&m, tid, destType, dest, acm.TypeIPv4, src[:], mgid); err != nil {
		return err
	}
	return f.Multicast(node, port, mgid, &m)
}

// ACMGroup returns the MGID of the group that the simulated services of a
// partition are in.
func ACMGroup(key mad.PKey) mad.GID { return acm.MGID(key, 0, acmRate, acmMTU) }
