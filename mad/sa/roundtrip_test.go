// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package sa

import (
	"bytes"
	"testing"

	"acmd/mad"

	"pgregory.net/rapid"
)

// field is one accessor pair of an attribute: what was read from one value and
// written to another, with the bits that the pair covers.
type field struct {
	name string
	copy func(to, from []byte)
}

func pathFields() []field {
	return []field{
		{"service id", func(a, b []byte) { path(a).SetServiceID(path(b).ServiceID()) }},
		{"dgid", func(a, b []byte) { path(a).SetDGID(path(b).DGID()) }},
		{"sgid", func(a, b []byte) { path(a).SetSGID(path(b).SGID()) }},
		{"dlid", func(a, b []byte) { path(a).SetDLID(path(b).DLID()) }},
		{"slid", func(a, b []byte) { path(a).SetSLID(path(b).SLID()) }},
		{"flow, hop", func(a, b []byte) { path(a).SetFlowHop(path(b).FlowLabel(), path(b).HopLimit()) }},
		{"tclass", func(a, b []byte) { path(a).SetTClass(path(b).TClass()) }},
		{"reversible, paths", func(a, b []byte) { path(a).SetReversibleNumPath(path(b).Reversible(), path(b).NumPath()) }},
		{"pkey", func(a, b []byte) { path(a).SetPKey(path(b).PKey()) }},
		{"qos, sl", func(a, b []byte) { path(a).SetQoSClassSL(path(b).QoSClass(), path(b).SL()) }},
		{"mtu", func(a, b []byte) { path(a).SetMTU(path(b).MTU()) }},
		{"rate", func(a, b []byte) { path(a).SetRate(path(b).Rate()) }},
		{"lifetime", func(a, b []byte) { path(a).SetLifetime(path(b).Lifetime()) }},
		{"preference", func(a, b []byte) { path(a).SetPreference(path(b).Preference()) }},
	}
}

func memberFields() []field {
	return []field{
		{"mgid", func(a, b []byte) { member(a).SetMGID(member(b).MGID()) }},
		{"port gid", func(a, b []byte) { member(a).SetPortGID(member(b).PortGID()) }},
		{"qkey", func(a, b []byte) { member(a).SetQKey(member(b).QKey()) }},
		{"mlid", func(a, b []byte) { member(a).SetMLID(member(b).MLID()) }},
		{"mtu", func(a, b []byte) { member(a).SetMTU(member(b).MTU()) }},
		{"tclass", func(a, b []byte) { member(a).SetTClass(member(b).TClass()) }},
		{"pkey", func(a, b []byte) { member(a).SetPKey(member(b).PKey()) }},
		{"rate", func(a, b []byte) { member(a).SetRate(member(b).Rate()) }},
		{"lifetime", func(a, b []byte) { member(a).SetLifetime(member(b).Lifetime()) }},
		{"sl, flow, hop", func(a, b []byte) {
			member(a).SetSLFlowHop(member(b).SL(), member(b).FlowLabel(), member(b).HopLimit())
		}},
		{"scope, join", func(a, b []byte) { member(a).SetScopeJoin(member(b).Scope(), member(b).JoinState()) }},
		{"proxy", func(a, b []byte) { member(a).SetProxyJoin(member(b).ProxyJoin()) }},
	}
}

func informFields() []field {
	return []field{
		{"gid", func(a, b []byte) { inform(a).SetGID(inform(b).GID()) }},
		{"lids", func(a, b []byte) { inform(a).SetLIDRange(inform(b).LIDBegin(), inform(b).LIDEnd()) }},
		{"type", func(a, b []byte) { inform(a).SetType(inform(b).Type()) }},
		{"trap", func(a, b []byte) { inform(a).SetTrap(inform(b).Trap()) }},
		{"qpn, time", func(a, b []byte) { inform(a).SetQPNTime(inform(b).QPN(), inform(b).ResponseTime()) }},
		{"producer", func(a, b []byte) { inform(a).SetProducer(inform(b).Producer()) }},
	}
}

// Only what trap 144 has; the GID of traps 64 to 67 lies over it.
func noticeFields() []field {
	return []field{
		{"type, producer", func(a, b []byte) { notice(a).SetGeneric(notice(b).Type(), notice(b).Producer()) }},
		{"trap", func(a, b []byte) { notice(a).SetTrap(notice(b).Trap()) }},
		{"issuer lid", func(a, b []byte) { notice(a).SetIssuerLID(notice(b).IssuerLID()) }},
		{"toggle, count", func(a, b []byte) { notice(a).SetToggleCount(notice(b).Toggle(), notice(b).Count()) }},
		{"switch lid", func(a, b []byte) { notice(a).SetSwitchLID(notice(b).SwitchLID()) }},
		{"lid", func(a, b []byte) { notice(a).SetLID(notice(b).LID()) }},
		{"other changes", func(a, b []byte) { notice(a).SetOtherChanges(notice(b).OtherChanges()) }},
		{"capabilities", func(a, b []byte) { notice(a).SetCapMask(notice(b).CapMask()) }},
		{"changes", func(a, b []byte) { notice(a).SetChanges(notice(b).Changes()) }},
		{"capabilities 2", func(a, b []byte) { notice(a).SetCapMask2(notice(b).CapMask2()) }},
		{"issuer gid", func(a, b []byte) { notice(a).SetIssuerGID(notice(b).IssuerGID()) }},
	}
}

func classFields() []field {
	return []field{
		{"versions", func(a, b []byte) { class(a).SetVersions(class(b).BaseVersion(), class(b).ClassVersion()) }},
		{"capabilities", func(a, b []byte) { class(a).SetCapMask(class(b).CapMask()) }},
		{"capabilities 2, time", func(a, b []byte) { class(a).SetCapMask2Time(class(b).CapMask2(), class(b).ResponseTime()) }},
		{"redirect", func(a, b []byte) {
			r := class(b)
			class(a).SetRedirect(r.RedirectGID(), r.RedirectLID(), r.RedirectPKey(), r.RedirectQPN(), r.RedirectQKey())
		}},
		{"redirect route", func(a, b []byte) {
			class(a).SetRedirectRoute(class(b).RedirectTClass(), class(b).RedirectSL(), class(b).RedirectFlowLabel())
		}},
		{"trap", func(a, b []byte) {
			r := class(b)
			class(a).SetTrap(r.TrapGID(), r.TrapLID(), r.TrapPKey(), r.TrapHopLimit(), r.TrapQPN(), r.TrapQKey())
		}},
		{"trap route", func(a, b []byte) {
			class(a).SetTrapRoute(class(b).TrapTClass(), class(b).TrapSL(), class(b).TrapFlowLabel())
		}},
	}
}

func path(b []byte) *PathRecord       { return (*PathRecord)(b) }
func member(b []byte) *MCMemberRecord { return (*MCMemberRecord)(b) }
func inform(b []byte) *InformInfo     { return (*InformInfo)(b) }
func notice(b []byte) *Notice         { return (*Notice)(b) }
func class(b []byte) *ClassPortInfo   { return (*ClassPortInfo)(b) }

// attribute is what the round-trip property runs on. Reserved has a bit set for
// every bit that no accessor covers.
type attribute struct {
	name     string
	size     int
	fields   func() []field
	reserved map[int]byte
}

func reservedBytes(m map[int]byte, from, to int) map[int]byte {
	for i := from; i < to; i++ {
		m[i] = 0xff
	}
	return m
}

var attributes = []attribute{
	{"PathRecord", 64, pathFields, reservedBytes(map[int]byte{44: 0xf0}, 58, 64)},
	{"MCMemberRecord", 52, memberFields, map[int]byte{49: 0x7f, 50: 0xff, 51: 0xff}},
	{"InformInfo", 36, informFields, map[int]byte{20: 0xff, 21: 0xff, 22: 0xff, 23: 0xff, 31: 0xe0, 32: 0xff}},
	{"Notice", 80, noticeFields, reservedBytes(map[int]byte{0: 0x80, 14: 0xff, 15: 0xfe}, 24, 64)},
	{"ClassPortInfo", 72, classFields, map[int]byte{32: 0xff}},
}

// Copying an attribute field by field, through host order, in any order, gives
// the same bytes: each getter reads what its setter writes, the fields cover the
// attribute, and none disturbs another. Unknown codes of MTU and rate are bits
// like others (field case 56).
func TestRoundTrip(t *testing.T) {
	for _, a := range attributes {
		t.Run(a.name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				from := rapid.SliceOfN(rapid.Byte(), a.size, a.size).Draw(t, "from")
				to := make([]byte, a.size)
				for _, f := range rapid.Permutation(a.fields()).Draw(t, "order") {
					f.copy(to, from)
				}
				for i := range from {
					covered := ^a.reserved[i]
					if a.name == "Notice" && i == 0 {
						covered &= 0x7f // generic is always set by SetGeneric
					}
					if (from[i]^to[i])&covered != 0 {
						t.Fatalf("byte %d: %#02x became %#02x, covered bits %#02x", i, from[i], to[i], covered)
					}
				}
			})
		})
	}
}

// A setter changes only its own bits, whatever was there before.
func TestSettersKeepOthers(t *testing.T) {
	for _, a := range attributes {
		t.Run(a.name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				from := rapid.SliceOfN(rapid.Byte(), a.size, a.size).Draw(t, "from")
				to := bytes.Clone(from)
				for _, f := range rapid.Permutation(a.fields()).Draw(t, "order") {
					f.copy(to, from)
				}
				for i := range from {
					// Bits that change may only be the reserved ones beside a field,
					// which setters clear.
					if diff := from[i] ^ to[i]; diff&^a.reserved[i] != 0 {
						t.Fatalf("byte %d: %#02x became %#02x", i, from[i], to[i])
					}
				}
			})
		})
	}
}

// field case 56: codes of rate and MTU that nobody knows yet pass through, with
// every selector.
func TestUnknownCodes(t *testing.T) {
	for code := range uint8(64) {
		for sel := GreaterThan; sel <= Largest; sel++ {
			var r PathRecord
			var m MCMemberRecord
			r.SetRate(sel, mad.Rate(code))
			r.SetMTU(sel, mad.MTU(code))
			m.SetRate(sel, mad.Rate(code))
			m.SetMTU(sel, mad.MTU(code))
			wire := uint8(sel)<<6 | code
			if r[55] != wire || r[54] != wire || m[42] != wire || m[38] != wire {
				t.Fatalf("selector %d, code %d: %#x %#x %#x %#x", sel, code, r[54], r[55], m[38], m[42])
			}
			if s, v := r.Rate(); s != sel || uint8(v) != code {
				t.Fatalf("rate %d %d became %d %d", sel, code, s, v)
			}
			if s, v := m.MTU(); s != sel || uint8(v) != code {
				t.Fatalf("mtu %d %d became %d %d", sel, code, s, v)
			}
		}
	}
}

// Values wider than their field are cut, and do not reach the neighbour.
func TestSettersCut(t *testing.T) {
	var r PathRecord
	r.SetFlowHop(0xfffabcde, 1)
	r.SetQoSClassSL(0xf123, 0xf8)
	r.SetReversibleNumPath(false, 0xff)
	r.SetRate(0, 0xff)
	if r[44] != 0x0a || r.FlowLabel() != 0xabcde || r.QoSClass() != 0x123 || r.SL() != 8 || r.Reversible() || r.NumPath() != 0x7f || r[55] != 0x3f {
		t.Errorf("path %x", r[44:58])
	}
	var m MCMemberRecord
	m.SetSLFlowHop(0xf8, 0xfffabcde, 1)
	m.SetScopeJoin(0xf5, 0xf1)
	if m.SL() != 8 || m.FlowLabel() != 0xabcde || m.Scope() != 5 || m.JoinState() != 1 {
		t.Errorf("member %x", m[44:49])
	}
	var i InformInfo
	i.SetQPNTime(0xff000001, 0xff)
	i.SetProducer(0xff000004)
	if i.QPN() != 1 || i.ResponseTime() != 0x1f || i[32] != 0 || i.Producer() != 4 {
		t.Errorf("inform %x", i[28:])
	}
	var n Notice
	n.SetGeneric(0xff, 0xff000004)
	if n.Type() != 0x7f || n.Producer() != 4 {
		t.Errorf("notice %x", n[:4])
	}
	var c ClassPortInfo
	c.SetCapMask2Time(0xffffffff, 0xf0)
	c.SetRedirect(mad.GID{}, 0, 0, 0xff000001, 0)
	c.SetRedirectRoute(0, 0xf8, 0xfff00000)
	c.SetTrap(mad.GID{}, 0, 0, 0, 0xff000001, 0)
	if c.CapMask2() != 1<<27-1 || c.ResponseTime() != 0x10 || c[32] != 0 || c.RedirectSL() != 8 || c.RedirectTClass() != 0 || c.TrapHopLimit() != 0 {
		t.Errorf("class port info %x", c)
	}
}
