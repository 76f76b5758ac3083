// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package sa

import (
	"bytes"
	"encoding/hex"
	"strings"
	"testing"
	"unsafe"

	"acmd/mad"
)

// Sizes fixed by the standard; a wrong one does not compile.
var (
	_ = [1]struct{}{}[unsafe.Sizeof(PathRecord{})-64]
	_ = [1]struct{}{}[unsafe.Sizeof(MCMemberRecord{})-52]
	_ = [1]struct{}{}[unsafe.Sizeof(InformInfo{})-36]
	_ = [1]struct{}{}[unsafe.Sizeof(Notice{})-80]
	_ = [1]struct{}{}[unsafe.Sizeof(ClassPortInfo{})-72]
	_ = [1]struct{}{}[unsafe.Sizeof(RMPP{})-12]
	_ = [1]struct{}{}[DataSize-200]
	_ = [1]struct{}{}[RMPPHeaderInPayload-20]
)

var (
	gid1 = mad.MakeGID(0xfe80<<48, 0x100001)
	gid5 = mad.MakeGID(0xfe80<<48, 0x100005)
)

// unhex reads hex digits, spaces aside, and pads them with zeros to size.
func unhex(t testing.TB, size int, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.Join(strings.Fields(s), ""))
	if err != nil || len(b) > size {
		t.Fatalf("golden bytes: %d of %d, %v", len(b), size, err)
	}
	return append(b, make([]byte, size-len(b))...)
}

// dirty returns a packet full of somebody else's bytes, as a slot of a ring is.
func dirty() *mad.Packet {
	var p mad.Packet
	for i := range p {
		p[i] = 0xee
	}
	return &p
}

func same(t *testing.T, got, want []byte) {
	t.Helper()
	if !bytes.Equal(got, want) {
		t.Fatalf("got\n%swant\n%s", hex.Dump(got), hex.Dump(want))
	}
}

func TestGoldenPathQuery(t *testing.T) {
	want := unhex(t, 256, `
		01 03 02 01 00 00 00 00 00 00 00 00 00 00 00 03
		00 35 00 00 00 00 00 00 00 00 00 00 00 00 00 00
		00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
		00 00 00 00 00 00 20 2c 00 00 00 00 00 00 00 00
		fe 80 00 00 00 00 00 00 00 00 00 00 00 10 00 01
		fe 80 00 00 00 00 00 00 00 00 00 00 00 10 00 05
		00 00 00 04 00 00 00 00 00 00 ff ff 00 00 00 00`)
	p := dirty()
	Init(p, mad.MethodGet, AttrPathRecord, 0)
	p.SetTID(3)
	r := Path(p)
	r.SetDGID(gid1)
	r.SetSGID(gid5)
	r.SetSLID(4)
	r.SetPKey(0xffff)
	SetMask(p, PathMask(r))
	same(t, p[:], want)
	if m := Mask(p); m != PathDGID|PathSGID|PathSLID|PathPKey {
		t.Errorf("mask %#x", m)
	}
}

// What OpenSM answered to it. field case 13: DLID and SLID in network order.
func TestGoldenPathAnswer(t *testing.T) {
	var r PathRecord
	copy(r[:], unhex(t, 64, `0000000000000000
		fe800000000000000000000000100001 fe800000000000000000000000100005
		0001 0004 00000000 00 80 ffff 0000 84 83 92 00 000000000000`))
	if r.DGID() != gid1 || r.SGID() != gid5 || r.DLID() != 1 || r.SLID() != 4 || r.PKey() != 0xffff {
		t.Errorf("%v %v %v %v %v", r.DGID(), r.SGID(), r.DLID(), r.SLID(), r.PKey())
	}
	if r.ServiceID() != 0 || r.RawTraffic() || r.FlowLabel() != 0 || r.HopLimit() != 0 || r.TClass() != 0 ||
		!r.Reversible() || r.NumPath() != 0 || r.QoSClass() != 0 || r.SL() != 0 || r.Preference() != 0 {
		t.Errorf("small fields of %x", r)
	}
	if s, v := r.MTU(); s != Exactly || v != 4 {
		t.Errorf("mtu %d %d", s, v)
	}
	if s, v := r.Rate(); s != Exactly || v != 3 {
		t.Errorf("rate %d %d", s, v)
	}
	if s, v := r.Lifetime(); s != Exactly || v != 18 {
		t.Errorf("lifetime %d %d", s, v)
	}
	var built PathRecord
	built.SetDGID(gid1)
	built.SetSGID(gid5)
	built.SetDLID(1)
	built.SetSLID(4)
	built.SetReversibleNumPath(true, 0)
	built.SetPKey(mad.DefaultPKey)
	built.SetMTU(Exactly, 4)
	built.SetRate(Exactly, 3)
	built.SetLifetime(Exactly, 18)
	same(t, built[:], r[:])
}

// Every field of a PathRecord at its place: field case 13, and field case 44 for
// LIDs above 32767.
func TestGoldenPathFields(t *testing.T) {
	want := unhex(t, 64, `0123456789abcdef
		fe800000000000000000000000100001 fe800000000000000000000000100005
		c123 bfff 0abcde40 aa 83 8123 1238 45 96 d3 07 000000000000`)
	var r PathRecord
	r.SetServiceID(0x0123456789abcdef)
	r.SetDGID(gid1)
	r.SetSGID(gid5)
	r.SetDLID(0xc123)
	r.SetSLID(0xbfff)
	r.SetFlowHop(0xabcde, 0x40)
	r.SetTClass(0xaa)
	r.SetReversibleNumPath(true, 3)
	r.SetPKey(0x8123)
	r.SetQoSClassSL(0x123, 8)
	r.SetMTU(LessThan, 5)
	r.SetRate(Exactly, 22)
	r.SetLifetime(Largest, 19)
	r.SetPreference(7)
	same(t, r[:], want)
	if r.DLID().String() != "49443" || r.SLID().String() != "49151" {
		t.Errorf("LIDs print as %v and %v", r.DLID(), r.SLID())
	}
	r[44] |= 0x80
	if !r.RawTraffic() || r.FlowLabel() != 0xabcde || r.HopLimit() != 0x40 {
		t.Errorf("raw %v, flow %#x, hop %d", r.RawTraffic(), r.FlowLabel(), r.HopLimit())
	}
	// dlid 17 is 00 11 on the wire.
	r.SetDLID(17)
	same(t, r[40:42], []byte{0x00, 0x11})
}

// field case 13: Q_Key 0x80010000 is sent as 80 01 00 00.
func TestGoldenJoin(t *testing.T) {
	want := unhex(t, 256, `
		01 03 02 02 00 00 00 00 00 00 00 00 00 00 00 01
		00 38 00 00 00 00 00 00 00 00 00 00 00 00 00 00
		00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
		00 00 00 00 00 01 b3 f7 ff 15 40 01 ff ff 00 03
		04 00 00 00 00 00 00 00 fe 80 00 00 00 00 00 00
		00 00 00 00 00 10 00 05 80 01 00 00 00 00 84 00
		ff ff 83 00 00 00 00 00 51 00 00 00 00 00 00 00`)
	mgid, err := mad.ParseGID("ff15:4001:ffff:3:400::")
	if err != nil {
		t.Fatal(err)
	}
	p := dirty()
	Init(p, mad.MethodSet, AttrMCMemberRecord, MCMGID|MCPortGID|MCQKey|MCMTUSel|MCMTU|MCTClass|MCPKey|
		MCRateSel|MCRate|MCSL|MCFlowLabel|MCScope|MCJoinState)
	p.SetTID(1)
	r := Member(p)
	r.SetMGID(mgid)
	r.SetPortGID(gid5)
	r.SetQKey(mad.WellKnownQKey)
	r.SetMTU(Exactly, 4)
	r.SetPKey(mad.DefaultPKey)
	r.SetRate(Exactly, 3)
	r.SetScopeJoin(ScopeSiteLocal, JoinFull)
	same(t, p[:], want)
	if MCLeave != 0x10003 {
		t.Errorf("mask of a leave %#x", MCLeave)
	}
}

// field case 13: the MLID of an answer, C0 01 on the wire, is 0xC001.
func TestGoldenJoinAnswer(t *testing.T) {
	var r MCMemberRecord
	copy(r[:], unhex(t, 52, `ff15 4001 ffff 0003 0400 0000 0000 0000
		fe800000000000000000000000100005
		80010000 c001 84 00 ffff 83 80 8abcde40 51 80 0000`))
	if r.MGID() != (mad.GID{0xff, 0x15, 0x40, 1, 0xff, 0xff, 0, 3, 4}) || r.PortGID() != gid5 {
		t.Errorf("mgid %v, port gid %v", r.MGID(), r.PortGID())
	}
	if r.MLID() != 0xc001 || r.MLID().IsUnicast() || r.QKey() != mad.WellKnownQKey || r.PKey() != 0xffff || r.TClass() != 0 {
		t.Errorf("mlid %#x, qkey %#x, pkey %v, tclass %d", uint16(r.MLID()), uint32(r.QKey()), r.PKey(), r.TClass())
	}
	if s, v := r.MTU(); s != Exactly || v != 4 {
		t.Errorf("mtu %d %d", s, v)
	}
	if s, v := r.Rate(); s != Exactly || v != 3 {
		t.Errorf("rate %d %d", s, v)
	}
	if s, v := r.Lifetime(); s != Exactly || v != 0 {
		t.Errorf("lifetime %d %d", s, v)
	}
	if r.SL() != 8 || r.FlowLabel() != 0xabcde || r.HopLimit() != 0x40 || r.Scope() != 5 || r.JoinState() != 1 || !r.ProxyJoin() {
		t.Errorf("sl %d, flow %#x, hop %d, scope %d, join %d", r.SL(), r.FlowLabel(), r.HopLimit(), r.Scope(), r.JoinState())
	}
	var built MCMemberRecord
	built.SetMGID(r.MGID())
	built.SetPortGID(gid5)
	built.SetQKey(mad.WellKnownQKey)
	built.SetMLID(0xc001)
	built.SetMTU(Exactly, 4)
	built.SetPKey(0xffff)
	built.SetRate(Exactly, 3)
	built.SetLifetime(Exactly, 0)
	built.SetSLFlowHop(8, 0xabcde, 0x40)
	built.SetScopeJoin(ScopeSiteLocal, JoinFull)
	built.SetProxyJoin(true)
	same(t, built[:], r[:])
}

// Subscription to trap 65 from all ports.
func TestGoldenSubscribe(t *testing.T) {
	head := unhex(t, 56, "01 03 02 02 00000000 0000000000000007 0003 0000 00000000")
	data := unhex(t, 200, strings.Repeat("00", 16)+"ff ff 00 00 00 00 01 01 ff ff 00 41 00 00 01 13 00 ff ff ff")
	p := dirty()
	Init(p, mad.MethodSet, AttrInformInfo, 0)
	p.SetTID(7)
	r := Inform(p)
	r.SetLIDRange(AnyLID, 0)
	r.SetGeneric(true)
	r.SetSubscribe(true)
	r.SetType(AnyType)
	r.SetTrap(TrapGIDOutOfService)
	r.SetQPNTime(mad.QP1, 19)
	r.SetProducer(AnyProducer)
	same(t, p[:], append(head, data...))
	if !r.GID().IsZero() || r.LIDBegin() != AnyLID || r.LIDEnd() != 0 || !r.IsGeneric() || r.Subscribe() != 1 ||
		r.Type() != AnyType || r.Trap() != 65 || r.QPN() != mad.QP1 || r.ResponseTime() != 19 || r.Producer() != AnyProducer {
		t.Errorf("read back %x", *r)
	}
	r.SetSubscribe(false)
	if r.Subscribe() != 0 {
		t.Error("still subscribed")
	}
}

// OpenSM's Report of trap 66, the bytes that it leaves undefined included.
func TestGoldenReport(t *testing.T) {
	var n Notice
	copy(n[:], unhex(t, 80, `83 00 00 04 00 42 00 01 95 8d a0 a1 a2 a3 a4 a5
		ff15 4001 ffff 0002 0300 0000 0000 0000`+strings.Repeat("5a", 32)+"fe80000000000000 0000000000100001"))
	if !n.IsGeneric() || n.Type() != NoticeSubnetMgmt || n.Producer() != ProducerClassManager ||
		n.Trap() != TrapGroupCreated || n.IssuerLID() != 1 || n.IssuerGID() != gid1 {
		t.Errorf("%v %d %d %d %v %v", n.IsGeneric(), n.Type(), n.Producer(), n.Trap(), n.IssuerLID(), n.IssuerGID())
	}
	if want := (mad.GID{0xff, 0x15, 0x40, 1, 0xff, 0xff, 0, 2, 3}); n.GID() != want {
		t.Errorf("mgid %v, want %v", n.GID(), want)
	}
	if !n.Toggle() || n.Count() != 0x158d {
		t.Errorf("toggle %v, count %#x", n.Toggle(), n.Count())
	}
}

// Traps 128 and 144, built field by field.
func TestGoldenTraps(t *testing.T) {
	var link Notice
	link.SetGeneric(NoticeUrgent, ProducerSwitch)
	link.SetTrap(TrapLinkStateChange)
	link.SetIssuerLID(0xbfff)
	link.SetSwitchLID(0xbfff)
	link.SetIssuerGID(gid5)
	same(t, link[:], append(unhex(t, 64, "81 00 00 02 00 80 bf ff 00 00 bf ff"), gid5[:]...))
	if link.SwitchLID() != 0xbfff {
		t.Errorf("switch %v", link.SwitchLID())
	}

	var local Notice
	local.SetGeneric(NoticeInformational, ProducerCA)
	local.SetTrap(TrapLocalChanges)
	local.SetIssuerLID(0x1234)
	local.SetToggleCount(true, 0x7001)
	local.SetLID(0x1234)
	local.SetOtherChanges(true)
	local.SetCapMask(0x0251086a)
	local.SetChanges(ChangeNodeDescription | ChangeCapMask2)
	local.SetCapMask2(0x00ab)
	local.SetIssuerGID(gid1)
	same(t, local[:], append(unhex(t, 64, "84 00 00 01 00 90 12 34 f0 01 00 00 12 34 00 01 0251086a 0021 00ab"), gid1[:]...))
	if local.LID() != 0x1234 || !local.OtherChanges() || local.CapMask() != 0x0251086a || local.Changes() != 0x21 ||
		local.CapMask2() != 0xab || !local.Toggle() || local.Count() != 0x7001 {
		t.Errorf("read back %x", local)
	}

	var gone Notice
	gone.SetGeneric(NoticeSubnetMgmt, ProducerClassManager)
	gone.SetTrap(TrapGIDOutOfService)
	gone.SetIssuerLID(1)
	gone.SetGID(gid5)
	gone.SetIssuerGID(gid1)
	want := unhex(t, 64, "83 00 00 04 00 41 00 01 00000000 00000000 fe80000000000000 0000000000100005")
	same(t, gone[:], append(want, gid1[:]...))
}
