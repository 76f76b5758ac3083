// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acmp

import (
	"testing"

	"acmd/mad"
	"acmd/mad/acm"
	"acmd/mad/fabric"
	"acmd/mad/ring"
	"acmd/mad/transport"
	"acmd/resolver"
	"acmd/resolver/sa"
)

// FuzzReceive gives a port with one joined endpoint and one lookup under way an
// arbitrary datagram. Nothing crashes, no state grows, and the lookup ends only
// by its TID and group or by the address that it looks for.
func FuzzReceive(f *testing.F) {
	group := fabric.ACMGroup(0xffff)
	var h mad.UserHeader
	h.SetLID(5)
	h.SetQPN(0x123)
	h.SetGID(mad.MakeGID(0xfe80<<48, 5))
	h.SetLength(mad.UserHeaderSize + mad.PacketSize)
	const tid = mad.TID(0x1122334455667788)
	wanted, me := v4(3), v4(0)
	var m mad.Packet
	acm.InitResponse(&m, tid, group)
	f.Add(h[:], m[:])
	acm.InitResponse(&m, tid, group)
	m.SetStatus(0x0100)
	f.Add(h[:], m[:])
	if err := acm.InitRequest(&m, 1, 2, me.Bytes(), 2, wanted.Bytes(), group); err != nil {
		f.Fatal(err)
	}
	f.Add(h[:], m[:])
	m[20] = 255
	f.Add(h[:], m[:])
	f.Add(h[:40], m[:30])
	f.Fuzz(func(t *testing.T, header, packet []byte) {
		r, err := ring.New(1, false)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		s := r.Get()
		defer s.Release()
		copy(s.Header()[:], header)
		copy(s.MAD()[:], packet)
		in := *s.MAD()

		src := New(Config{RouteACM: true}, nil)
		p := newPort(src, portKey{"dev", 1}, &sa.Client{})
		p.caps.Listens = true
		ep := &resolver.Endpoint{Slot: 1, PKey: 0xffff, Port: transport.PortInfo{PKeys: []mad.PKey{0xffff}}, Addrs: []resolver.LocalAddr{{Addr: me}}}
		mem := newMember(p, ep)
		mem.groups[0].joined = true
		p.members = []*member{mem}
		calls := 0
		l := &lookup{m: mem, dst: wanted, tid: tid, seat: 1, tries: 1, waiters: []waiter{{done: func(loc resolver.Location, err error) {
			calls++
			rec := acm.View(&in)
			src, _ := wireAddr(rec.SrcType(), rec.Src())
			if !(in.IsResponse() && in.TID() == tid || !in.IsResponse() && src == wanted) {
				t.Errorf("ended by %x", in)
			}
			if err == nil && (loc.GID != s.Header().GID() || loc.LID != s.Header().LID() || !loc.LID.IsUnicast() || loc.Route == nil) {
				t.Errorf("%+v", loc)
			}
		}}}}
		mem.seats = []*lookup{l}
		mem.lookups[wanted], p.byTID[tid.Low()] = l, l
		p.receive(s)
		p.receive(s)
		if calls > 1 || len(mem.lookups)+calls != 1 || len(p.byTID)+calls != 1 || len(mem.seats)+calls != 1 || len(mem.queue) != 0 {
			t.Errorf("%d calls, %d lookups, %d TIDs, %d seats", calls, len(mem.lookups), len(p.byTID), len(mem.seats))
		}
	})
}
