// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package sa

import (
	"math/bits"
	"testing"

	"acmd/mad"

	"pgregory.net/rapid"
)

func TestPathMask(t *testing.T) {
	for _, c := range []struct {
		name string
		set  func(*PathRecord)
		want ComponentMask
	}{
		{"nothing", func(*PathRecord) {}, 0},
		{"upper half of the service id", func(r *PathRecord) { r.SetServiceID(1 << 63) }, 0x3},
		{"lower half of the service id", func(r *PathRecord) { r.SetServiceID(1) }, 0x3},
		{"dgid", func(r *PathRecord) { r.SetDGID(mad.GID{15: 1}) }, 1 << 2},
		{"sgid", func(r *PathRecord) { r.SetSGID(mad.GID{0: 1}) }, 1 << 3},
		{"dlid", func(r *PathRecord) { r.SetDLID(0x8000) }, 1 << 4},
		{"slid", func(r *PathRecord) { r.SetSLID(1) }, 1 << 5},
		{"raw traffic", func(r *PathRecord) { r[44] = 0x80 }, 0},
		{"flow label", func(r *PathRecord) { r.SetFlowHop(0x80000, 0) }, 1 << 8},
		{"hop limit", func(r *PathRecord) { r.SetFlowHop(0, 1) }, 1 << 9},
		{"tclass", func(r *PathRecord) { r.SetTClass(1) }, 1 << 10},
		{"reversible", func(r *PathRecord) { r.SetReversibleNumPath(true, 0) }, 1 << 11},
		{"number of paths", func(r *PathRecord) { r.SetReversibleNumPath(false, 0x7f) }, 1 << 12},
		{"reversible_numpath 0x81", func(r *PathRecord) { r[49] = 0x81 }, 1<<11 | 1<<12},
		{"pkey", func(r *PathRecord) { r.SetPKey(0x8000) }, 1 << 13},
		{"qos class", func(r *PathRecord) { r.SetQoSClassSL(0x800, 0) }, 1 << 14},
		{"sl", func(r *PathRecord) { r.SetQoSClassSL(0, 8) }, 1 << 15},
		{"mtu", func(r *PathRecord) { r.SetMTU(Exactly, 4) }, 3 << 16},
		{"mtu greater than", func(r *PathRecord) { r.SetMTU(GreaterThan, 4) }, 1 << 17},
		{"largest mtu", func(r *PathRecord) { r.SetMTU(Largest, 0) }, 1 << 16},
		{"rate", func(r *PathRecord) { r.SetRate(LessThan, 3) }, 3 << 18},
		{"unknown rate", func(r *PathRecord) { r.SetRate(0, 63) }, 1 << 19},
		{"lifetime", func(r *PathRecord) { r.SetLifetime(Exactly, 18) }, 3 << 20},
		{"preference", func(r *PathRecord) { r.SetPreference(1) }, 1 << 22},
		{"reserved", func(r *PathRecord) { r[44] = 0x70; r[58], r[63] = 1, 1 }, 0},
		{"after a multicast answer", func(r *PathRecord) { r.SetDGID(gid1); r.SetSGID(gid5); r.SetPKey(0xffff) }, 0x200c},
		{"client path by LID", func(r *PathRecord) { r.SetDLID(1); r.SetSGID(gid5); r.SetSLID(4); r.SetPKey(0xffff) }, 0x2038},
		{"hosts file", func(r *PathRecord) {
			r.SetDGID(gid1)
			r.SetSLID(4)
			r.SetReversibleNumPath(true, 0)
			r.SetPKey(0xffff)
		}, 0x2824},
	} {
		var r PathRecord
		c.set(&r)
		if got := PathMask(&r); got != c.want {
			t.Errorf("%s: %#x, want %#x", c.name, got, c.want)
		}
	}
}

// One more bit in a record never takes a component away, and adds one or two at
// most.
func TestPathMaskGrows(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := PathRecord(rapid.SliceOfN(rapid.Byte(), 64, 64).Draw(t, "record"))
		before := PathMask(&r)
		r[rapid.IntRange(0, 63).Draw(t, "byte")] |= 1 << rapid.IntRange(0, 7).Draw(t, "bit")
		after := PathMask(&r)
		if before&^after != 0 || bits.OnesCount64(uint64(after&^before)) > 2 {
			t.Fatalf("%#x became %#x", before, after)
		}
	})
}
