// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package fabric

import (
	"slices"
	"sync"
	"time"

	"acmd/mad"
	"acmd/mad/sa"
)

// Bounds of the event subscriptions and of Reports that wait for their answer.
const (
	maxSubs        = 1 << 16
	maxSubsPerPort = 64
	maxReports     = 1 << 16
)

// informer keeps the subscriptions of the SA and sends its Reports.
type informer struct {
	f *Fabric

	mu      sync.Mutex
	subs    []subscription
	waiting map[uint32]*report // by the low half of the TID
	nextTID uint32
	stopped bool
}

// subscription is an InformInfo as the SA stored it, with the QPN of its source.
type subscription struct {
	port int32
	info sa.InformInfo
}

// report is one Report that waits for its answer.
type report struct {
	port  int32
	left  int // tries
	tid   uint32
	mad   mad.Packet
	timer *time.Timer
}

func (n *informer) init(f *Fabric) {
	n.f = f
	n.waiting = map[uint32]*report{}
	n.nextTID = uint32(mix(f.cfg.Seed ^ 2))
}

// serveInform subscribes or unsubscribes the port that asked. The answer is a
// copy of the question.
func (f *Fabric) serveInform(p *port, m *mad.Packet) {
	info := *sa.Inform(m)
	var status mad.Status
	switch info.Subscribe() {
	case 1:
		status = f.informer.subscribe(p.index, info)
	case 0:
		status = f.informer.unsubscribe(p.index, info)
	default:
		status = classStatus(sa.StatusRequestInvalid)
	}
	if status != 0 {
		refuse(m, status)
		return
	}
	answer(m, len(info))
}

// securityTrap tells of traps that need an SM_Key, which nobody has here.
func securityTrap(t uint16) bool { return t >= 256 && t <= 259 }

func (n *informer) subscribe(p int32, info sa.InformInfo) mad.Status {
	if securityTrap(info.Trap()) {
		return classStatus(sa.StatusRequestInvalid)
	}
	// Reports go to the queue pair that asked, whatever the request says.
	info.SetQPNTime(mad.QP1, info.ResponseTime())
	n.mu.Lock()
	defer n.mu.Unlock()
	mine := 0
	for i := range n.subs {
		if n.subs[i].port != p {
			continue
		}
		if mine++; n.subs[i].info == info {
			return 0
		}
	}
	if mine >= maxSubsPerPort || len(n.subs) >= maxSubs {
		n.f.count.subsRefused.Add(1)
		return classStatus(sa.StatusNoResources)
	}
	n.subs = append(n.subs, subscription{p, info})
	return 0
}

// unsubscribe needs every field as the SA stored it.
func (n *informer) unsubscribe(p int32, info sa.InformInfo) mad.Status {
	info.SetSubscribe(true)
	n.mu.Lock()
	defer n.mu.Unlock()
	i := slices.Index(n.subs, subscription{p, info})
	if i < 0 {
		return classStatus(sa.StatusRequestInvalid)
	}
	n.subs = slices.Delete(n.subs, i, i+1)
	return 0
}

// drop forgets the subscriptions of a port, or, with -1, all of them.
func (n *informer) drop(p int32) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.subs = slices.DeleteFunc(n.subs, func(s subscription) bool { return p < 0 || s.port == p })
}

// notify sends a Report about one of the traps 64 to 67 to every subscriber who
// wants it and may know. about is the port's GID or the MGID. A group's P_Key is
// key; for a port it is 0, the port's own keys count.
func (n *informer) notify(trap uint16, about mad.GID, key mad.PKey) {
	f := n.f
	w := f.world.Load()
	var no sa.Notice
	no.SetGeneric(sa.NoticeSubnetMgmt, sa.ProducerClassManager)
	no.SetTrap(trap)
	no.SetIssuerLID(w.ports[w.sm].lid)
	copy(no[8:64], garbageBytes[:]) // OpenSM leaves what the trap does not define
	no.SetGID(about)
	no.SetIssuerGID(f.gid(w, w.sm))

	n.mu.Lock()
	var list []*report
	for i := range n.subs {
		s := &n.subs[i]
		if n.stopped || !s.wants(&no) || !f.mayKnow(w, s.port, about, key) {
			continue
		}
		if len(n.waiting) >= maxReports {
			f.count.reportsRefused.Add(1)
			continue
		}
		r := &report{port: s.port, left: f.cfg.ReportTries, tid: n.nextTID}
		n.nextTID++
		sa.Init(&r.mad, mad.MethodReport, sa.AttrNotice, 0)
		r.mad.SetTID(mad.TID(r.tid))
		*sa.Event(&r.mad) = no
		n.waiting[r.tid] = r
		list = append(list, r)
	}
	n.mu.Unlock()
	for _, r := range list {
		n.send(r)
	}
}

// wants matches a notice against a subscription.
func (s *subscription) wants(no *sa.Notice) bool {
	i := &s.info
	if gid := i.GID(); !gid.IsZero() {
		if gid != no.IssuerGID() {
			return false
		}
	} else if i.LIDBegin() != sa.AnyLID {
		last := max(i.LIDBegin(), i.LIDEnd())
		if no.IssuerLID() < i.LIDBegin() || no.IssuerLID() > last {
			return false
		}
	}
	return i.IsGeneric() == no.IsGeneric() &&
		(i.Type() == sa.AnyType || i.Type() == uint16(no.Type())) &&
		(i.Trap() == sa.AnyTrap || i.Trap() == no.Trap()) &&
		(i.Producer() == sa.AnyProducer || i.Producer() == no.Producer())
}

// mayKnow is the partition check of a Report.
func (f *Fabric) mayKnow(w *world, sub int32, about mad.GID, key mad.PKey) bool {
	if key != 0 {
		return w.holds(sub, key) != 0
	}
	p := f.byGUID(about.GUID())
	return p < 0 || w.common(w.ports[sub].table, w.ports[p].table, 0) != 0
}

// send makes one try and sets the timer for the next. A Report whose subscriber
// cannot be reached gets lost like any other MAD and is tried again.
func (n *informer) send(r *report) {
	f := n.f
	n.mu.Lock()
	if n.stopped || n.waiting[r.tid] != r {
		n.mu.Unlock()
		return
	}
	if r.left == 0 {
		delete(n.waiting, r.tid)
		n.mu.Unlock()
		f.count.reportsGivenUp.Add(1)
		return
	}
	r.left--
	if r.timer == nil {
		r.timer = time.AfterFunc(f.cfg.ReportInterval, func() { n.send(r) })
	} else {
		r.timer.Reset(f.cfg.ReportInterval)
	}
	n.mu.Unlock()

	f.count.reports.Add(1)
	w := f.world.Load()
	for _, o := range (*f.open.Load())[r.port] {
		if o.caps.Reports && w.ports[r.port].up() {
			f.hand(w, o, &datagram{src: w.sm, qpn: mad.QP1, key: f.saKey(w, r.port), tid: r.mad.TID(), h: &mad.UserHeader{}, m: &r.mad})
			return
		}
	}
	f.count.lost[LostNoDest].Add(1)
}

// saKey is the P_Key with which the SA writes to a port: the default partition,
// else the first that the port has. The SM's port is a full member everywhere.
func (f *Fabric) saKey(w *world, p int32) mad.PKey {
	if w.holds(p, mad.DefaultPKey) != 0 {
		return mad.DefaultPKey
	}
	for _, k := range w.pkeys[w.ports[p].table] {
		if k.IsValid() {
			return k.Full()
		}
	}
	return 0
}

// answered ends a Report that its subscriber confirmed.
func (n *informer) answered(p int32, tid mad.TID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	r := n.waiting[tid.Low()]
	if r == nil || r.port != p {
		return
	}
	delete(n.waiting, r.tid)
	if r.timer != nil { // nil: answered by guess before the first try
		r.timer.Stop()
	}
}

// stop ends all Reports.
func (n *informer) stop() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.stopped = true
	for _, r := range n.waiting {
		if r.timer != nil {
			r.timer.Stop()
		}
	}
	clear(n.waiting)
}
