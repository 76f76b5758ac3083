// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acmsock

import "time"

const (
	// Looking costs a processor. So lingerFrom questions must be in the engine, and
	// something have come by a port within lingerSince: to those that nobody answers
	// the next answer is far.
	lingerFrom  = 4
	lingerSince = int64(time.Millisecond)
	lingerFor   = int64(100 * time.Microsecond)
	// A yield that takes longer than lingerLost went to somebody who computes: time
	// slices have 0.7 ms and more, and who answers or asks sleeps again sooner.
	lingerLost = int64(500 * time.Microsecond)
	minRest    = int64(100 * time.Millisecond)
	maxRest    = int64(800 * time.Millisecond)
)

// lingerer lets a loop look for what comes next for a while before it sleeps. While
// many answers are outstanding, the next one is nearer than it takes to sleep and to be
// woken, and whoever brings it goes on working instead of waking somebody: more
// comes together. Between the looks the loop gives way to others on its processor. If
// one of them computes, as a job that polls does, that costs a whole time slice: then it
// rests, each time for longer. A look that finds nothing is the last one until a port
// brings something. Goroutines that need the loop's P wait until it sleeps, or for
// yieldEvery.
type lingerer struct {
	yield func()
	came  int64 // when a port brought something last, loop's clock
	rest  int64 // how long it rests, 0: it does not
	until int64 // when it has rested
}

// linger returns the number of events in l.events, 0 if none came.
func (l *loop) linger() int {
	g := &l.lingerer
	if l.driving == 0 || l.srv.pending.Load() < lingerFrom {
		return 0
	}
	begin := l.clock()
	if begin-g.came > lingerSince || begin < g.until || l.timeout() == 0 {
		return 0
	}
	for now := begin; now-begin < lingerFor; {
		if l.box.full.Load() || l.box.poked.Load() {
			return 0 // wait looks once and does not sleep
		}
		if n := pollNow(l.ep, l.events[:]); n > 0 {
			if now > begin {
				g.rest = 0
			}
			return n
		}
		g.yield()
		last := now
		if now = l.clock(); now-last > lingerLost {
			g.rest = min(max(2*g.rest, minRest), maxRest)
			g.until = now + g.rest
		}
	}
	g.came = begin - lingerSince - 1
	return 0
}
