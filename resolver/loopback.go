// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package resolver

import (
	"acmd/mad"
	"acmd/mad/sa"
)

// loopback answers for a destination that is a local address, also of another
// own port, without the fabric (client protocol 3.5; field case 59). It reports
// false where no such path exists: other partition, other subnet, or two limited
// members of one on different ports.
func loopback(t *topology, q *Query, tg *target, a *Answer) bool {
	d, ok := t.bySource[q.Dst]
	if !ok || !d.ev.ep.PKey.Matches(tg.ev.ep.PKey) {
		return false
	}
	src, dst := &tg.ev.port.info, &d.ev.port.info
	if tg.ev.port != d.ev.port {
		if tg.sgid.Prefix() != d.gid.Prefix() || !tg.ev.ep.PKey.IsFull() && !d.ev.ep.PKey.IsFull() {
			return false
		}
	}
	r := &a.Path
	*r = sa.PathRecord{}
	r.SetDGID(d.gid)
	r.SetSGID(tg.sgid)
	r.SetDLID(dst.LID)
	r.SetSLID(src.LID)
	r.SetReversibleNumPath(true, 0)
	r.SetPKey(tg.ev.ep.PKey)
	// No selectors, as ibacm writes it.
	r[54] = uint8(min(src.MTU, dst.MTU)) & 0x3f
	r[55] = uint8(slower(src.Rate, dst.Rate)) & 0x3f
	a.Status, a.Origin, a.Err = StatusSuccess, OriginLoopback, nil
	return true
}

// tenthGbps has the rates in tenths of Gb/s: the codes are not in order of speed
// (IBTA vol. 1, PathRecord). 0: unknown.
var tenthGbps = [64]uint32{
	2: 25, 5: 50, 3: 100, 11: 140, 6: 200, 15: 250, 19: 280, 4: 300, 7: 400, 20: 500, 12: 560, 8: 600, 9: 800,
	16: 1000, 13: 1120, 10: 1200, 14: 1680, 17: 2000, 18: 3000, 21: 4000, 22: 6000, 23: 8000, 24: 12000,
}

// slower returns the slower of two rate codes, the one that is known where one
// is not.
func slower(a, b mad.Rate) mad.Rate {
	x, y := tenthGbps[a&0x3f], tenthGbps[b&0x3f]
	if x == 0 || y != 0 && y < x {
		return b
	}
	return a
}
