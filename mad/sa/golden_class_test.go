// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package sa

import (
	"strings"
	"testing"

	"acmd/mad"

	"github.com/google/go-cmp/cmp"
)

// OpenSM 3.3.23's ClassPortInfo.
func TestGoldenClassPortInfo(t *testing.T) {
	want := unhex(t, 72, `01 02 26 02 00 16 bd 10`+strings.Repeat("00", 24)+`00000001 80010000`+
		strings.Repeat("00", 24)+`00000001 80010000`)
	var r ClassPortInfo
	copy(r[:], want)
	if r.BaseVersion() != 1 || r.ClassVersion() != 2 || r.CapMask() != 0x2602 || r.CapMask2() != 0xb5e8 || r.ResponseTime() != 16 {
		t.Errorf("%d %d %#x %#x %d", r.BaseVersion(), r.ClassVersion(), r.CapMask(), r.CapMask2(), r.ResponseTime())
	}
	if r.CapMask() != CapNotice|CapUDMulticast|CapMultiPath|CapPortInfoMatch {
		t.Errorf("capabilities %#x", r.CapMask())
	}
	for _, bit := range []uint32{Cap2AliasGUIDs, Cap2ExtendedSpeeds, Cap2SendOnlyFull, Cap2LinkWidth2X, Cap2HDR} {
		if r.CapMask2()&bit == 0 {
			t.Errorf("capability %#x is missing", bit)
		}
	}
	if r.RedirectQPN() != mad.QP1 || r.RedirectQKey() != mad.WellKnownQKey || !r.RedirectGID().IsZero() || r.RedirectLID() != 0 {
		t.Errorf("redirect %#x %#x %v %v", r.RedirectQPN(), r.RedirectQKey(), r.RedirectGID(), r.RedirectLID())
	}
	var built ClassPortInfo
	built.SetVersions(1, 2)
	built.SetCapMask(0x2602)
	built.SetCapMask2Time(0xb5e8, 16)
	built.SetRedirect(mad.GID{}, 0, 0, mad.QP1, mad.WellKnownQKey)
	built.SetTrap(mad.GID{}, 0, 0, 0, mad.QP1, mad.WellKnownQKey)
	same(t, built[:], want)
}

// A redirect elsewhere, every field of it.
func TestGoldenRedirect(t *testing.T) {
	want := unhex(t, 72, `01 02 0002 00000000
		fe800000000000000000000000100005 aa 8 abcde c122 8123 00fffffe 80010000
		fe800000000000000000000000100001 bb 7 12345 0011 ffff 40000001 01234567`)
	var r ClassPortInfo
	r.SetVersions(1, 2)
	r.SetCapMask(CapNotice)
	r.SetRedirect(gid5, 0xc122, 0x8123, 0xfffffe, mad.WellKnownQKey)
	r.SetRedirectRoute(0xaa, 8, 0xabcde)
	r.SetTrap(gid1, 17, 0xffff, 64, mad.QP1, 0x01234567)
	r.SetTrapRoute(0xbb, 7, 0x12345)
	same(t, r[:], want)
	type dest struct {
		GID        mad.GID
		TClass, SL uint8
		Flow       uint32
		LID        mad.LID
		PKey       mad.PKey
		Hop        uint8
		QPN        mad.QPN
		QKey       mad.QKey
	}
	got := []dest{
		{r.RedirectGID(), r.RedirectTClass(), r.RedirectSL(), r.RedirectFlowLabel(), r.RedirectLID(), r.RedirectPKey(), 0, r.RedirectQPN(), r.RedirectQKey()},
		{r.TrapGID(), r.TrapTClass(), r.TrapSL(), r.TrapFlowLabel(), r.TrapLID(), r.TrapPKey(), r.TrapHopLimit(), r.TrapQPN(), r.TrapQKey()},
	}
	if d := cmp.Diff([]dest{
		{gid5, 0xaa, 8, 0xabcde, 0xc122, 0x8123, 0, 0xfffffe, 0x80010000},
		{gid1, 0xbb, 7, 0x12345, 17, 0xffff, 64, 1, 0x01234567},
	}, got); d != "" {
		t.Error(d)
	}
}

// The SA header: RMPP, SM_Key (not aligned), attribute offset, mask.
func TestGoldenHeader(t *testing.T) {
	want := unhex(t, 256, `01 03 02 92 00000000 0000000000000009 0035 0000 00000000
		01 01 9f 00 00000001 00000054 0123456789abcdef 0008 0000 00000000007fff7f`)
	p := dirty()
	Init(p, mad.MethodTableResp, AttrPathRecord, 0x7fff7f)
	p.SetTID(9)
	h := RMPPHeader(p)
	h.SetVersion(RMPPVersion)
	h.SetType(RMPPData)
	h.SetFlags(0x13, RMPPActive|RMPPFirst|RMPPLast)
	h.SetSegment(1)
	h.SetPayloadLength(84)
	SetSMKey(p, 0x0123456789abcdef)
	SetAttrOffset(p, 8)
	same(t, p[:], want)
	if h.Version() != 1 || h.Type() != RMPPData || h.Flags() != 7 || !h.IsActive() || h.ResponseTime() != 0x13 ||
		h.Status() != 0 || h.Segment() != 1 || h.PayloadLength() != 84 || h.NewWindow() != 84 {
		t.Errorf("RMPP %x", *h)
	}
	if SMKey(p) != 0x0123456789abcdef || AttrOffset(p) != 8 || Mask(p) != 0x7fff7f {
		t.Errorf("SM_Key %#x, offset %d, mask %#x", SMKey(p), AttrOffset(p), Mask(p))
	}
	h.SetType(RMPPAck)
	h.SetStatus(118)
	h.SetNewWindow(64)
	h.SetFlags(RMPPNoTime, RMPPActive)
	same(t, h[:], unhex(t, 12, "01 02 f9 76 00000001 00000040"))
}
