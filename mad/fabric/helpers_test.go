// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package fabric

import (
	"acmd/mad"
	"acmd/mad/ring"
	"acmd/mad/sa"
)

// toSM makes the header of a MAD to the SA.
func toSM(f *Fabric, s *ring.Slot) {
	h := s.Header()
	*h = mad.UserHeader{}
	h.SetLID(f.SMLID())
	h.SetQPN(mad.QP1)
	h.SetQKey(mad.WellKnownQKey)
	h.SetTimeoutMS(1000)
}

// query writes a PathRecord Get between two nodes, by the components of mask.
func query(f *Fabric, s *ring.Slot, tid mad.TID, mask sa.ComponentMask, from, to int) {
	toSM(f, s)
	p := s.MAD()
	sa.Init(p, mad.MethodGet, sa.AttrPathRecord, mask)
	p.SetTID(tid)
	r := sa.Path(p)
	if mask&sa.PathSGID != 0 {
		r.SetSGID(f.GID(from, 1))
	}
	if mask&sa.PathDGID != 0 {
		r.SetDGID(f.GID(to, 1))
	}
	if mask&sa.PathSLID != 0 {
		r.SetSLID(f.LID(from, 1))
	}
	if mask&sa.PathDLID != 0 {
		r.SetDLID(f.LID(to, 1))
	}
	if mask&sa.PathPKey != 0 {
		r.SetPKey(mad.DefaultPKey)
	}
}
