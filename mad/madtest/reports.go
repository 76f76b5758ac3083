// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package madtest

import (
	"encoding/binary"
	"testing"

	"acmd/mad"
	"acmd/mad/ring"
	"acmd/mad/sa"
)

const trapGroupCreated = 66

// testReports subscribes to trap 66, creates a multicast group and expects the
// Report. The Report may come before the answer to the request that caused it.
func testReports(t *testing.T, e *env) {
	e.request(t, func(p *mad.Packet) { informInfo(p, e.h.ReportQPN, true) })

	mgid := mad.GID{0xff, 0x12, 0x7e, 0x57, 0xff, 0xff, 14: 0x7e, 15: 0x57}
	set := func(p *mad.Packet) {
		groupRecord(p, mad.MethodSet, mgid, e.info.GIDs[0], e.info.PKeys[e.info.SAPKeyIndex()])
	}
	report := e.expectReport(t, set)
	notice := report.MAD()[sa.DataOffset:]
	if notice[0]&0x80 == 0 || binary.BigEndian.Uint16(notice[4:]) != trapGroupCreated || mad.GID(notice[16:32]) != mgid {
		t.Errorf("report: %x, want generic trap 66 about %v", notice[:64], mgid)
	}
	if h := report.Header(); h.LID() != e.info.SMLID || h.Status() != 0 {
		t.Errorf("report from LID %v, status %d", h.LID(), h.Status())
	}
	// The answer goes to where the Report came from and stops the SM's retries.
	report.MAD().SetMethod(mad.MethodReportResp)
	lid, qpn, long := report.Header().LID(), report.Header().QPN(), *report.MAD()
	out := e.slot(t)
	e.address(out, lid, 0)
	out.Header().SetQPN(qpn)
	*out.MAD() = long
	e.send(t, out)
	out.Release()
	report.Release()

	e.request(t, func(p *mad.Packet) { groupRecord(p, mad.MethodDelete, mgid, e.info.GIDs[0], 0) })

	// OpenSM finds a subscription by comparing the reporter's address with memcmp,
	// padding included (opensm/osm_inform.c): by chance it does not know its own.
	unsubscribe := func(p *mad.Packet) { informInfo(p, e.h.ReportQPN, false) }
	if s := e.exchange(t, unsubscribe); s != 0 && s != mad.Status(sa.StatusRequestInvalid)<<8 {
		t.Errorf("unsubscribe: status %#x", s)
	}
}

// request sends what build writes and waits for its answer, status 0.
func (e *env) request(t *testing.T, build func(*mad.Packet)) {
	t.Helper()
	if s := e.exchange(t, build); s != 0 {
		t.Fatalf("status %#x", s)
	}
}

// exchange sends what build writes and returns the status of its answer.
func (e *env) exchange(t *testing.T, build func(*mad.Packet)) mad.Status {
	t.Helper()
	tid := e.ask(t, build)
	in := e.slots(t, 1)
	defer release(in)
	for {
		e.recv(t, in)
		p := in[0].MAD()
		if !p.IsResponse() && in[0].Header().Status() == 0 {
			continue // a Report that was repeated
		}
		if p.TID().Low() != tid || in[0].Header().Status() != 0 {
			t.Fatalf("attribute %#x method %#x: TID %#x, status %#x, packet status %d",
				p.AttrID(), p.Method(), p.TID().Low(), p.Status(), in[0].Header().Status())
		}
		return p.Status()
	}
}

func (e *env) ask(t *testing.T, build func(*mad.Packet)) uint32 {
	t.Helper()
	s := e.slot(t)
	defer s.Release()
	e.address(s, e.info.SMLID, AnswerTime)
	build(s.MAD())
	tid := e.nextTID()
	s.MAD().SetTID(tid)
	e.send(t, s)
	return tid.Low()
}

// expectReport sends a request and waits for both its answer and a Report, in
// either order, and returns the Report.
func (e *env) expectReport(t *testing.T, build func(*mad.Packet)) *ring.Slot {
	t.Helper()
	tid := e.ask(t, build)
	var report *ring.Slot
	for answered := false; report == nil || !answered; {
		in := e.slots(t, 1)
		e.recv(t, in)
		p := in[0].MAD()
		switch {
		case p.Method() == mad.MethodReport && p.AttrID() == sa.AttrNotice && report == nil:
			report = in[0]
			continue
		case p.TID().Low() == tid && p.IsResponse():
			if p.Status() != 0 {
				t.Fatalf("method %#x attribute %#x: status %#x", p.Method(), p.AttrID(), p.Status())
			}
			answered = true
		}
		release(in)
	}
	return report
}

// informInfo writes InformInfo Set for trap 66 of any port (IBTA vol. 1,
// 13.4.8.3). Unsubscribing repeats every field as the SA stored it.
func informInfo(p *mad.Packet, qpn mad.QPN, subscribe bool) {
	sa.Init(p, mad.MethodSet, sa.AttrInformInfo, 0)
	b := p[sa.DataOffset:]
	binary.BigEndian.PutUint16(b[16:], 0xffff) // every LID
	b[22] = 1                                  // generic
	if subscribe {
		b[23] = 1
	}
	binary.BigEndian.PutUint16(b[24:], 0xffff) // any type
	binary.BigEndian.PutUint16(b[26:], trapGroupCreated)
	binary.BigEndian.PutUint32(b[28:], uint32(max(qpn, mad.QP1))<<8|19) // response time 19
	copy(b[33:], []byte{0xff, 0xff, 0xff})                              // any producer
}

// groupRecord writes MCMemberRecord Set or Delete (IBTA vol. 1, 15.2.5.17).
func groupRecord(p *mad.Packet, method uint8, mgid, port mad.GID, pkey mad.PKey) {
	mask := sa.ComponentMask(1<<0 | 1<<1 | 1<<16) // MGID, port GID, join state
	if method == mad.MethodSet {
		mask |= 1<<2 | 1<<6 | 1<<7 | 1<<12 | 1<<13 // Q_Key, class, P_Key, SL, flow: to create it
	}
	sa.Init(p, method, sa.AttrMCMemberRecord, mask)
	b := p[sa.DataOffset:]
	copy(b[0:], mgid[:])
	copy(b[16:], port[:])
	if method == mad.MethodSet {
		binary.BigEndian.PutUint32(b[32:], 0x0b1b)
		binary.BigEndian.PutUint16(b[40:], uint16(pkey))
	}
	b[48] = 2<<4 | 1 // link-local scope, full member
}
