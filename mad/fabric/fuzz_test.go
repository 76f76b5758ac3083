// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package fabric

import (
	"testing"
	"time"

	"acmd/mad"
	"acmd/mad/acm"
	"acmd/mad/ring"
	"acmd/mad/sa"
)

// Any header and any MAD, one after the other on one fabric: no panic, no
// unbounded growth, and the SA still answers a good request.
func FuzzSend(f *testing.F) {
	fab, err := New(Config{Nodes: 40, LMC: 1, Ports: 2, Topology: Torus, Queue: 1000, Slots: 64})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { fab.Close() })
	seed := func(write func(h *mad.UserHeader, m *mad.Packet)) {
		var h mad.UserHeader
		var m mad.Packet
		h.SetLID(fab.SMLID())
		h.SetQPN(mad.QP1)
		h.SetQKey(mad.WellKnownQKey)
		write(&h, &m)
		f.Add(h[:], m[:])
	}
	for _, method := range []uint8{mad.MethodGet, mad.MethodSet, mad.MethodGetTable, mad.MethodDelete, mad.MethodReportResp, 0x14} {
		for _, attr := range []uint16{sa.AttrPathRecord, sa.AttrMCMemberRecord, sa.AttrInformInfo, sa.AttrClassPortInfo, sa.AttrMultiPathRecord} {
			seed(func(h *mad.UserHeader, m *mad.Packet) {
				sa.Init(m, method, attr, ^sa.ComponentMask(0))
				*sa.Path(m) = question(fab, byGIDs, 0, 3)
			})
		}
	}
	seed(func(h *mad.UserHeader, m *mad.Packet) {
		sa.Init(m, mad.MethodGet, sa.AttrPathRecord, byGIDs)
		*sa.Path(m) = question(fab, byGIDs, 0, 3)
	})
	seed(func(h *mad.UserHeader, m *mad.Packet) {
		sa.Init(m, mad.MethodSet, sa.AttrMCMemberRecord, stockJoin)
		*sa.Member(m) = joinRecord(fab, 0)
	})
	seed(func(h *mad.UserHeader, m *mad.Packet) {
		h.SetLID(0xc001)
		h.SetGID(ACMGroup(mad.DefaultPKey))
		h.SetQPN(mad.MulticastQPN)
		acm.InitRequest(m, 1, acm.TypeName, []byte("node0003"), acm.TypeName, []byte("node0000"), ACMGroup(mad.DefaultPKey))
	})
	c := open(f, fab, 0)
	c.join(mad.DefaultPKey)
	in := make([]*ring.Slot, 8)
	c.p.Ring().GetN(in)
	f.Fuzz(func(t *testing.T, header, packet []byte) {
		c := client{t: t, f: fab, p: c.p}
		s := c.slot()
		defer s.Release()
		*s.Header(), *s.MAD() = mad.UserHeader{}, mad.Packet{}
		copy(s.Header()[:], header)
		copy(s.MAD()[:], packet)
		before := *s.MAD()
		c.put(s)
		if *s.MAD() != before {
			t.Fatal("the sender's slot was changed")
		}
		query(fab, s, 0xffee, byGIDs, 0, 3)
		c.put(s)
		for found := false; !found; {
			n, err := c.p.Recv(in, time.Now())
			if n == 0 || err != nil {
				t.Fatalf("the good request got no answer: %d, %v", n, err)
			}
			for _, m := range in[:n] {
				found = found || m.MAD().TID() == 0xffee && m.MAD().Status() == 0 && sa.Path(m.MAD()).DGID() == fab.GID(3, 1)
				if l := m.Long(); l != nil && len(l) > sa.DataOffset+maxTable*64 {
					t.Fatalf("%d bytes of answer", len(l))
				}
			}
		}
		if n := len(fab.groups.Load().byMGID); n > maxGroups {
			t.Fatalf("%d groups", n)
		}
		if n := fab.informer.subscriptions(); n > maxSubsPerPort {
			t.Fatalf("%d subscriptions", n)
		}
	})
}
