// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package fabric

import (
	"acmd/mad"
	"acmd/mad/sa"
)

// smKeyOffset is where the SM_Key lies in an SA MAD.
const smKeyOffset = 36

// garbage follows the attribute in every answer, as stale memory does in
// OpenSM's: whoever reads past the attribute must not find zeros there.
const garbage = 0x5a

// serve turns the request in a into its answer, or returns false if there is
// none: for attributes and methods that the SA does not know, for an SM_Key, and
// for what is no request. A status other than 0 is answered instead.
//
// It never looks beyond the packet and does not trust any of its fields.
func (f *Fabric) serve(w *world, p *port, a *message, status mad.Status) bool {
	m := a.mad()
	if m.BaseVersion() != mad.BaseVersion || m.ClassVersion() != mad.SAClassVersion ||
		[8]byte(m[smKeyOffset:]) != [8]byte{} {
		f.count.ignored.Add(1)
		return false
	}
	if m.IsResponse() {
		if m.Method() == mad.MethodReportResp {
			f.informer.answered(p.index, m.TID())
		}
		return false
	}
	op := request{attr: m.AttrID(), method: m.Method()}
	if !f.countRequest(op) {
		return false
	}
	if status != 0 {
		refuse(m, status)
		return true
	}
	switch op {
	case request{sa.AttrPathRecord, mad.MethodGet}:
		f.servePath(w, m)
	case request{sa.AttrPathRecord, mad.MethodGetTable}:
		f.servePathTable(w, a)
	case request{sa.AttrMCMemberRecord, mad.MethodGet}, request{sa.AttrMCMemberRecord, mad.MethodGetTable}:
		f.serveMembers(a)
	case request{sa.AttrMCMemberRecord, mad.MethodSet}:
		f.serveJoin(p, m)
	case request{sa.AttrMCMemberRecord, mad.MethodDelete}:
		f.serveLeave(p, m)
	case request{sa.AttrInformInfo, mad.MethodSet}:
		f.serveInform(p, m)
	case request{sa.AttrClassPortInfo, mad.MethodGet}:
		f.serveClassPortInfo(m)
	}
	return true
}

// request is an operation of the SA.
type request struct {
	attr   uint16
	method uint8
}

// refuse makes an error answer: the request as it was, with response method and
// status, SM_Key 0.
func refuse(m *mad.Packet, status mad.Status) {
	m.SetMethod(responseMethod(m.Method()))
	m.SetStatus(status)
	clear(m[smKeyOffset : smKeyOffset+8])
}

// responseMethod is the method of the answer; Set is answered by GetResp.
func responseMethod(method uint8) uint8 {
	if method == mad.MethodSet {
		return mad.MethodGetResp
	}
	return method | mad.MethodResponse
}

// answer makes m a successful answer with an attribute of that size, which lies
// in place already; what follows it becomes garbage.
func answer(m *mad.Packet, size int) {
	m.SetMethod(responseMethod(m.Method()))
	m.SetStatus(0)
	clear(m[smKeyOffset : smKeyOffset+8])
	sa.SetAttrOffset(m, uint16((size+7)/8))
	copy(m[sa.DataOffset+size:], garbageBytes[:])
}

var garbageBytes = func() (b [mad.PacketSize]byte) {
	for i := range b {
		b[i] = garbage
	}
	return b
}()

func (f *Fabric) servePath(w *world, m *mad.Packet) {
	rec, status := f.getPath(w, sa.Mask(m), sa.Path(m))
	if status != 0 {
		refuse(m, status)
		return
	}
	*sa.Path(m) = rec
	answer(m, len(rec))
}

// What OpenSM 3.3.23 says of itself.
const (
	saCapMask  = 0x2602
	saCapMask2 = 0xb5e8
	saRespTime = 16
)

func (f *Fabric) serveClassPortInfo(m *mad.Packet) {
	var c sa.ClassPortInfo
	c.SetVersions(mad.BaseVersion, mad.SAClassVersion)
	mask := uint16(saCapMask)
	if f.cfg.NoMulticast {
		mask &^= sa.CapUDMulticast
	}
	c.SetCapMask(mask)
	c.SetCapMask2Time(saCapMask2, saRespTime)
	c.SetRedirect(mad.GID{}, 0, 0, mad.QP1, mad.WellKnownQKey)
	c.SetTrap(mad.GID{}, 0, 0, 0, 0, mad.WellKnownQKey)
	*sa.ClassInfo(m) = c
	answer(m, len(c))
}
