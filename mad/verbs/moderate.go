// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//go:build verbs && cgo

package verbs

// #include "shim.h"
import "C"

import "time"

// Each completion event wakes two goroutines. Neighbours decide how many come, so
// above a rate the queue is looked at by the clock instead of being armed: what a
// flood costs is bounded, and whoever asks this node waits for a look. A look
// costs the runtime five changes of thread, so there are few while most of what
// comes is not worth an answer. While answers to questions of our own may come,
// the queue is armed whatever the rate.
const (
	// floodWindow and floodCount: so many datagrams within such a time are a flood.
	floodWindow = 10 * time.Millisecond
	floodCount  = 20
	// lookEvery is how often the queue is looked at then, and restEvery how often if
	// fewer than one in worthOne was answered.
	lookEvery = time.Millisecond
	restEvery = 5 * time.Millisecond
	worthOne  = 4
	// lookMost is how many datagrams are taken within lookEvery, and from one look
	// to the next. More lie in the adapter until it has no buffer left and drops them.
	lookMost = 1024
	// askedTime is how long after a question of ours its answers are waited for.
	askedTime = 10 * time.Millisecond
)

// moderation says when the completion queue is armed, and how much is taken of it.
// It is Recv's.
type moderation struct {
	start  time.Time // of the window in which completions are counted
	count  int
	sent   uint64    // datagrams that we had sent at its start
	before bool      // the window before this one was a flood
	idle   bool      // and hardly any of it was answered
	look   time.Time // not armed: when to look next; zero: armed
	filled time.Time // when left was lookMost
	left   int       // what may still be taken
}

// noted counts the completions that a poll has brought. sent is how many datagrams
// have been sent so far; while no question of ours is out they are answers.
func (m *moderation) noted(n int, sent uint64, now time.Time) {
	m.left -= n
	if since := now.Sub(m.start); since > floodWindow {
		m.before = m.count >= floodCount && since <= 2*floodWindow
		m.idle = (sent-m.sent)*worthOne < uint64(m.count)
		m.start, m.count, m.sent = now, 0, sent
	}
	m.count += n
}

func (m *moderation) flood(now time.Time) bool {
	since := now.Sub(m.start)
	return m.count >= floodCount && since <= 2*floodWindow || m.before && since <= floodWindow
}

// pause is the time between two looks in a flood.
func (m *moderation) pause() time.Duration {
	if m.before && m.idle {
		return restEvery
	}
	return lookEvery
}

// decide says whether to look at the queue now, and whether to arm it before. fresh:
// the adapter told of completions; asking: answers to us may be among them.
func (m *moderation) decide(now time.Time, fresh, asking bool) (look, arm bool) {
	early := now.Before(m.look)
	switch {
	case early && m.left <= 0:
		return false, false
	case !asking && m.flood(now):
		if !fresh && early {
			return false, false
		}
		m.look = now.Add(m.pause())
	case !fresh && !asking && early:
		return false, false
	default:
		m.look, arm = time.Time{}, true
	}
	if now.Sub(m.filled) >= lookEvery {
		m.left, m.filled = lookMost, now
	}
	return true, arm
}

// room is how many of n completions may be taken. When lookMost were, the rest
// waits for the clock whatever else is true.
func (m *moderation) room(n int, now time.Time) int {
	if m.left <= 0 && m.look.IsZero() {
		m.look = now.Add(lookEvery)
	}
	return max(min(n, m.left), 0)
}

// due decides whether the completion queue is to be looked at now, and arms it if
// that is how the next look is to come. A loop that serves the port knows nothing
// of our clock: for that it is always armed.
func (p *Port) due(driven bool) bool {
	calm := &p.rx.calm
	fresh := p.fresh.Swap(false)
	if !fresh && calm.look.IsZero() {
		return false
	}
	now := time.Now()
	if driven {
		calm.left, calm.filled = lookMost, now
	}
	look, arm := calm.decide(now, fresh, driven || now.Sub(p.base) < time.Duration(p.asked.Load())+askedTime)
	if arm {
		// Before the queue is seen empty, so that nothing is missed. An error is the
		// device's end, of which an event tells.
		C.ibv_req_notify_cq(p.dev.rcq, 0)
	}
	return look
}

// ask notes that a question of ours goes out.
func (p *Port) ask() { p.asked.Store(int64(time.Since(p.base))) }
