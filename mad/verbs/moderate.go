// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//go:build verbs && cgo

package verbs

// #include "shim.h"
import "C"

import "time"

// Each completion event wakes two goroutines. Neighbours decide how many come, so
// above a rate the queue is looked at by the clock instead of being armed: what a
// flood costs is bounded, and whoever asks this node waits a millisecond longer.
// While answers to questions of our own may come, it is armed whatever the rate.
const (
	// floodWindow and floodCount: so many datagrams within such a time are a flood.
	floodWindow = 10 * time.Millisecond
	floodCount  = 20
	// lookEvery is how often the queue is looked at then.
	lookEvery = time.Millisecond
	// askedTime is how long after a question of ours its answers are waited for.
	askedTime = 10 * time.Millisecond
)

// moderation says when the completion queue is armed. It is Recv's.
type moderation struct {
	start  time.Time // of the window in which completions are counted
	count  int
	before bool      // the window before this one was a flood
	look   time.Time // not armed: when to look next; zero: armed
}

// noted counts the completions that a look has found.
func (m *moderation) noted(n int, now time.Time) {
	if since := now.Sub(m.start); since > floodWindow {
		m.before = m.count >= floodCount && since <= 2*floodWindow
		m.start, m.count = now, 0
	}
	m.count += n
}

func (m *moderation) flood(now time.Time) bool {
	since := now.Sub(m.start)
	return m.count >= floodCount && since <= 2*floodWindow || m.before && since <= floodWindow
}

// due decides whether the completion queue is to be looked at now, and arms it if
// that is how the next look is to come. A loop that serves the port knows nothing
// of our clock: for that it is always armed.
func (p *Port) due(driven bool) bool {
	rx := &p.rx
	fresh := p.fresh.Swap(false)
	if !fresh && rx.calm.look.IsZero() {
		return false
	}
	now := time.Now()
	asking := driven || now.Sub(p.base) < time.Duration(p.asked.Load())+askedTime
	switch {
	case !asking && rx.calm.flood(now):
		if !fresh && now.Before(rx.calm.look) {
			return false
		}
		rx.calm.look = now.Add(lookEvery)
	case !fresh && !asking && now.Before(rx.calm.look):
		return false
	default:
		// Armed before the queue is seen empty, so that nothing is missed. An error
		// is the device's end, of which an event tells.
		rx.calm.look = time.Time{}
		C.ibv_req_notify_cq(p.dev.rcq, 0)
	}
	return true
}

// ask notes that a question of ours goes out.
func (p *Port) ask() { p.asked.Store(int64(time.Since(p.base))) }
