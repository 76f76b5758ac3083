// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acmp

import madsa "acmd/mad/sa"

// Notice tells what the SM reported to a port. A group of ours that has ended took
// our membership with it, and one that came to be can be joined at last: both are
// joined soon. The Report of a group that our own join makes comes before the answer
// to that join, and asks for nothing.
func (s *Source) Notice(device string, num uint8, n *madsa.Notice) {
	trap, mgid := n.Trap(), n.GID()
	if trap != madsa.TrapGroupCreated && trap != madsa.TrapGroupDeleted {
		return
	}
	p := (*s.byKey.Load())[portKey{device, num}]
	if p == nil {
		return
	}
	s.post(p, func() {
		for _, m := range p.members {
			for _, g := range m.groups {
				if g.mgid == mgid && !g.joining && g.joined == (trap == madsa.TrapGroupDeleted) {
					g.rejoin()
				}
			}
		}
	})
}
