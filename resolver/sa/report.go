// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package sa

import (
	"fmt"
	"time"

	"acmd/mad"
	"acmd/mad/ring"
	madsa "acmd/mad/sa"
)

const (
	// maxReports bounds the Reports that are taken in one second.
	maxReports = 4096
	// overGap stands for what was missed when there were more: nobody knows.
	overGap = time.Hour
	// maxGone bounds the ports that are remembered to be out of service.
	maxGone = 4096
)

// takeReport takes a request of the SA class, that is, a Report. Only the SM's are
// believed. It is answered after it was acted on, with a copy of itself (13.4.9);
// what is refused is not, so that an SM that we do not know yet sends it again.
func (c *Client) takeReport(s *ring.Slot) {
	h, m := s.Header(), s.MAD()
	n := &c.notices
	size := madsa.DataOffset + len(madsa.Notice{})
	switch {
	case m.BaseVersion() != mad.BaseVersion || m.ClassVersion() != mad.SAClassVersion || m.Method() != mad.MethodReport ||
		m.AttrID() != madsa.AttrNotice || h.Length() != 0 && int(h.Length()) < mad.UserHeaderSize+size:
		c.count.malformed.Add(1)
		return
	case h.LID() != c.cur.SMLID || h.QPN() != mad.QP1:
		c.count.reportsForeign.Add(1)
		c.warn("report", "report", fmt.Errorf("from LID %d, queue pair %d, not the SM at LID %d", h.LID(), h.QPN(), c.cur.SMLID))
		return
	case !c.mayTake():
		return
	}
	c.count.reports.Add(1)
	no := madsa.Event(m)
	switch no.Trap() {
	case madsa.TrapGIDOutOfService:
		if len(n.gone) >= maxGone {
			clear(n.gone) // at the price of a second question each
		}
		n.gone[no.GID().GUID()] = struct{}{}
	case madsa.TrapGIDInService:
		delete(n.gone, no.GID().GUID())
	}
	n.sub.Notice(no)
	m.SetMethod(mad.MethodReportResp)
	c.Reply(s)
}

// mayTake takes one from this second's Reports. The SM sends those again that were
// not taken, but not for ever: that some may be missed is told like a gap.
func (c *Client) mayTake() bool {
	n := &c.notices
	if c.now-n.second >= int64(time.Second) {
		n.second, n.reports = c.now, 0
	}
	if n.reports++; n.reports <= maxReports {
		return true
	}
	c.count.reportsOver.Add(1)
	clear(n.gone) // that of a return may be among them
	if n.reports == maxReports+1 && n.held {
		n.sub.State(false, 0)
		n.sub.State(true, overGap)
	}
	return false
}

// isGone tells whether the destination of a path query is known to be out of
// service: then the answer that it has no path is no passing one.
func (c *Client) isGone(f *flight) bool {
	if len(c.notices.gone) == 0 || f.attr != madsa.AttrPathRecord || f.mask&madsa.PathDGID == 0 {
		return false
	}
	_, gone := c.notices.gone[f.port()]
	return gone
}

// isBack notes that the SA has a path to the destination of a query.
func (c *Client) isBack(f *flight) {
	if c.isGone(f) {
		delete(c.notices.gone, f.port())
	}
}

// port is the port that a path query asks for.
func (f *flight) port() mad.GUID { return (*madsa.PathRecord)(f.data[:64]).DGID().GUID() }
