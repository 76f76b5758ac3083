// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package fabric

import (
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"acmd/mad"
	"acmd/mad/ring"
	"acmd/mad/transport"
)

// firstQPN is the queue pair number that the first opened port gets. Simulated
// services have theirs below, see peerQPN.
const firstQPN mad.QPN = 0x40000

// maxAttached bounds the groups a queue pair is attached to.
const maxAttached = 256

// Life of a port.
const (
	portOpen int32 = iota
	portGone
	portClosed
)

// port implements transport.Port.
type port struct {
	f     *Fabric
	host  *Host
	index int32
	node  int
	num   uint8
	ring  *ring.Ring
	caps  transport.Caps
	agent uint32 // upper half of the TIDs of its requests, with kernel timers

	life     atomic.Int32
	attached atomic.Pointer[[]mad.GID]
	attach   sync.Mutex

	stage []message // answers of the Send in progress
	in    inbox
}

var _ transport.Port = (*port)(nil)

func (f *Fabric) newPort(h *Host, num uint8) (*port, error) {
	r, err := ring.New(f.cfg.Slots, f.cfg.Poison)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	qpn, agent := f.nextQPN, f.nextAgt+1
	f.nextQPN = firstQPN + (qpn+1-firstQPN)%(1<<22)
	f.nextAgt = agent % (1 << 24)
	f.mu.Unlock()
	p := &port{
		f: f, host: h, index: f.index(h.node, num), node: h.node, num: num, ring: r, agent: agent,
		caps: transport.Caps{Multicast: true, Listens: true, QPN: qpn, Timers: f.cfg.KernelTimers},
	}
	if f.cfg.NoListen {
		p.caps.Listens, p.caps.QPN = false, mad.QP1
	}
	p.attached.Store(&[]mad.GID{})
	p.in.init(p, f.cfg.Queue)
	return p, nil
}

func (p *port) Ring() *ring.Ring     { return p.ring }
func (p *port) Caps() transport.Caps { return p.caps }

// dead says why the port is of no use any more, nil while it is.
func (p *port) dead() error {
	switch p.life.Load() {
	case portClosed:
		return fmt.Errorf("fabric: node %d port %d: %w", p.node, p.num, net.ErrClosed)
	case portGone:
		return fmt.Errorf("fabric: node %d port %d: %w", p.node, p.num, transport.ErrGone)
	}
	return nil
}

// Send implements [transport.Port]. The fabric does its work here: the answer of
// the SA is in the receive queue when Send returns, unless a rule delays it.
func (p *port) Send(slots []*ring.Slot) (int, error) {
	if err := p.dead(); err != nil {
		return 0, err
	}
	w := p.f.world.Load()
	defer p.flush()
	for i, s := range slots {
		if err := p.transmit(w, s.Header(), s.MAD()); err != nil {
			return i, err
		}
	}
	return len(slots), nil
}

// Recv implements [transport.Port].
func (p *port) Recv(slots []*ring.Slot, deadline time.Time) (int, error) {
	return p.in.recv(slots, deadline)
}

// Wake implements [transport.Port].
func (p *port) Wake() { p.in.interrupt() }

// JoinQP attaches the port's queue pair to a group. Packets come only while the
// SA has the port as a member, too. One queue pair is in all partitions here.
func (p *port) JoinQP(mgid mad.GID, mlid mad.LID, _ uint16) error {
	if err := p.checkGroup(mgid, mlid); err != nil || !p.caps.Listens {
		return err
	}
	p.attach.Lock()
	defer p.attach.Unlock()
	list := *p.attached.Load()
	if slices.Contains(list, mgid) {
		return nil
	}
	if len(list) == maxAttached {
		return fmt.Errorf("fabric: queue pair is in %d groups already", maxAttached)
	}
	list = append(slices.Clone(list), mgid)
	p.attached.Store(&list)
	return nil
}

// LeaveQP detaches it.
func (p *port) LeaveQP(mgid mad.GID, mlid mad.LID) error {
	if err := p.checkGroup(mgid, mlid); err != nil || !p.caps.Listens {
		return err
	}
	p.attach.Lock()
	defer p.attach.Unlock()
	list := slices.DeleteFunc(slices.Clone(*p.attached.Load()), func(g mad.GID) bool { return g == mgid })
	p.attached.Store(&list)
	return nil
}

func (p *port) checkGroup(mgid mad.GID, mlid mad.LID) error {
	if err := p.dead(); err != nil {
		return err
	}
	if !mgid.IsMulticast() || !isMulticast(mlid) {
		return fmt.Errorf("fabric: %v with LID %v is no multicast group", mgid, mlid)
	}
	return nil
}

// isMulticast reports whether a LID names a multicast group.
func isMulticast(l mad.LID) bool { return l >= maxUnicast && l != 0xffff }

// Close implements [transport.Port].
func (p *port) Close() error {
	if p.life.Swap(portClosed) == portClosed {
		return nil
	}
	p.in.stop()
	p.f.unregister(p)
	p.host.forget(p)
	return nil
}

// vanish is what the removal of the device does to an open port.
func (p *port) vanish() {
	if p.life.CompareAndSwap(portOpen, portGone) {
		p.in.stop()
	}
}
