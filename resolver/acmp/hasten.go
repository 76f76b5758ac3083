// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acmp

import "time"

const (
	// maxQuick is how many extra copies of a request may be sent early.
	maxQuick = 2
	// minQuick is the least time before such a copy.
	minQuick = 2 * time.Millisecond
)

// hasten is for when one of several requests was answered: what its answer took is
// what the others should take. Those that are late by as much again are sent once
// more, without waiting for their gap. It makes good what a stock peer drops:
// while that asks the SA for the path to us, for the answer to our first request,
// it forgets all others of ours (B-30, B-31).
//
// Copies are extra: tries and the time until the lookup is given up stay as they
// are. The port's kernel would not take them where it keeps the time itself.
func (m *member) hasten(answered *lookup) {
	if len(m.seats) < 2 || m.port.caps.Timers && !m.port.caps.Listens {
		return
	}
	now := time.Now()
	late := max(now.Sub(answered.sent), minQuick)
	for _, l := range m.seats {
		if l == answered || l.quick >= maxQuick || !l.again.IsZero() {
			continue
		}
		if at := now.Add(late << l.quick); at.Before(l.next) {
			l.quick++
			l.again = at
			l.arm()
		}
	}
}
