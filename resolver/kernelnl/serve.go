// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package kernelnl

import (
	"errors"
	"sync/atomic"
	"time"

	"acmd/bpf"
	"acmd/mad"
	"acmd/resolver"

	"golang.org/x/sys/unix"
)

// An answer that comes after the kernel's wait finds it asking the SA; kernels
// without the fix then touch memory that was freed (field case 17). So the kernel
// is told "no" at tellAt of its wait, in thousandths, to have it by lastAt even on
// a busy machine, and nothing is sent after that.
const (
	tellAt = 900
	lastAt = 950
)

func (d *Door) after(thousandths time.Duration) time.Duration { return d.cfg.Wait / 1000 * thousandths }

// minOwnType is the first message type that is not netlink's own.
const minOwnType = 16

// message handles one message of the kernel.
func (d *Door) message(h Header, body []byte, arrived time.Time) {
	if h.Type < minOwnType {
		d.control(&h, body)
		return
	}
	switch err := Decode(h, body, &d.req); {
	case errors.Is(err, ErrUnknown):
		d.once("unknown", "operation refused", "client", h.Type>>10, "op", h.Type&0x3ff)
		d.count.unknown.Add(1)
		d.asked(bpf.KindInvalid)
		d.send(AppendFailure(d.out, &h))
	case err != nil:
		d.once("malformed", "request refused", "err", err)
		d.count.malformed.Add(1)
		d.asked(bpf.KindInvalid)
		d.send(AppendFailure(d.out, &h))
	case d.req.IsIP():
		d.count.ipResolves.Add(1)
		d.asked(bpf.KindAddress)
		d.resolveIP(arrived)
	default:
		d.count.resolves.Add(1)
		d.asked(bpf.KindPath)
		d.resolve(arrived)
	}
}

// asked counts a request.
func (d *Door) asked(k bpf.Kind) { d.cfg.Counters.Add(bpf.RequestWord(bpf.DoorNetlink, k), 1) }

// control takes a message of netlink itself.
func (d *Door) control(h *Header, body []byte) {
	e, ok := netlinkError(h, body)
	if !ok || e == 0 {
		d.count.control.Add(1)
		return
	}
	d.count.rejected.Add(1)
	d.once("rejected", "answer refused", "err", e)
}

// resolve answers a RESOLVE from the cache, or hands it to the engine.
func (d *Door) resolve(arrived time.Time) {
	h := &d.req.Header
	last := arrived.Add(d.after(lastAt))
	d.q = resolver.Query{Kind: resolver.ByPath, OwnDeadline: true, Path: d.req.Path}
	if d.cfg.Engine.Lookup(&d.q, d.cfg.Engine.Now(), &d.a) {
		d.cfg.Counters.Observe(bpf.LatHit, int64(time.Since(arrived)))
		switch {
		case d.a.Status != resolver.StatusSuccess:
			d.refuseBy(h, last, &d.count.failed)
		case d.sendBy(last, AppendPath(d.out, h, &d.a.Path)):
			d.count.hits.Add(1)
			d.count.answered.Add(1)
		}
		return
	}
	if d.ending {
		d.refuseBy(h, last, &d.count.failed)
		return
	}
	tag, ok := d.table.add(h, arrived.Add(d.after(tellAt)), last)
	if !ok {
		d.once("busy", "too many requests at a time, the kernel has to ask the SA", "limit", d.cfg.Pending)
		d.refuseBy(h, last, &d.count.busy)
		return
	}
	d.cfg.Engine.Resolve(&d.q, tag, &d.box)
}

// complete passes an answer of the engine on, if the kernel still waits for it.
func (d *Door) complete(c *completion) {
	s, ok := d.table.finish(c.tag)
	if !ok || !s.waiting {
		return
	}
	if !c.ok {
		d.refuseBy(&s.h, s.last, &d.count.failed)
	} else if d.sendBy(s.last, AppendPath(d.out, &s.h, &c.path)) {
		d.count.answered.Add(1)
	}
}

// expire tells the kernel about the requests whose time is nearly over.
func (d *Door) expire() {
	now := time.Now()
	for s, ok := d.table.due(now); ok; s, ok = d.table.due(now) {
		d.refuseBy(&s.h, s.last, &d.count.expired)
	}
}

// resolveIP answers an IP_RESOLVE: from the paths that are cached, else from the
// source of what somebody wrote down.
func (d *Door) resolveIP(arrived time.Time) {
	last := arrived.Add(d.after(lastAt))
	var gid mad.GID
	d.q = resolver.Query{Kind: resolver.ByAddress, Dst: d.req.IP}
	if d.cfg.Engine.Lookup(&d.q, d.cfg.Engine.Now(), &d.a) && d.a.Status == resolver.StatusSuccess {
		gid = d.a.Path.DGID()
	}
	hit := !gid.IsZero()
	if !hit {
		gid = d.static(&d.req.IP)
	}
	switch {
	case gid.IsZero():
		d.refuseBy(&d.req.Header, last, &d.count.failed)
	case d.sendBy(last, AppendGID(d.out, &d.req.Header, gid)):
		d.count.answered.Add(1)
		if hit {
			d.count.hits.Add(1)
		}
	}
}

// static asks the source that answers at once, zero: it does not know.
func (d *Door) static(ip *resolver.Addr) mad.GID {
	eps := d.cfg.Engine.Endpoints()
	if d.cfg.Static == nil || len(eps) == 0 {
		return mad.GID{}
	}
	var found atomic.Pointer[mad.GID]
	d.cfg.Static.Locate(eps[0], &resolver.Addr{}, ip, time.Now(), func(l resolver.Location, err error) {
		if err == nil {
			found.Store(&l.GID)
		}
	})
	if g := found.Load(); g != nil {
		return *g
	}
	return mad.GID{}
}

// refuseBy tells the kernel that there is no answer, unless it is too late.
func (d *Door) refuseBy(h *Header, last time.Time, as *atomic.Uint64) {
	if d.sendBy(last, AppendFailure(d.out, h)) {
		as.Add(1)
	}
}

// sendBy sends an answer unless it would be late.
func (d *Door) sendBy(last time.Time, b []byte) bool {
	if time.Now().After(last) {
		d.count.late.Add(1)
		d.once("late", "not answered in time, the kernel asks the SA", "wait", d.cfg.Wait)
		return false
	}
	return d.send(b)
}

// send sends an answer. What cannot be sent is lost: the kernel asks the SA when
// its wait is over.
func (d *Door) send(b []byte) bool {
	status := resolver.StatusSuccess
	if isFailure(b) {
		status = resolver.StatusNoData
	}
	d.cfg.Counters.Add(bpf.ReplyWord(bpf.DoorNetlink, uint8(status)), 1) // before anybody has it
	err := d.conn.Send(b)
	if err == nil {
		return true
	}
	d.count.sendErrors.Add(1)
	if errors.Is(err, unix.EPERM) {
		d.once("permission", "answers need CAP_NET_ADMIN", "err", err)
	} else {
		d.once("send", "answer not sent", "err", err)
	}
	return false
}
