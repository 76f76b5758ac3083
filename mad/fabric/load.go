// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package fabric

import (
	"sync/atomic"
	"time"
)

// saLoad is the SA as one server with a queue: so many answers a second, first
// come first served, and what would wait too long gets no answer at all, as
// OpenSM drops what is too old instead of saying BUSY.
type saLoad struct {
	start time.Time
	cost  atomic.Int64 // nanoseconds per answer; 0: no limit
	free  atomic.Int64 // when the server has done all it took, since start
}

// SetSARate limits the SA to so many answers per second from now on, 0 to none.
func (f *Fabric) SetSARate(perSecond int) {
	cost := int64(0)
	if perSecond > 0 {
		cost = max(1, int64(time.Second)/int64(perSecond))
	}
	f.load.cost.Store(cost)
}

// enter takes a request and returns how long its answer takes, or false if the
// queue is older than limit.
func (l *saLoad) enter(limit time.Duration) (time.Duration, bool) {
	cost := l.cost.Load()
	if cost == 0 {
		return 0, true
	}
	now := int64(time.Since(l.start))
	for {
		free := l.free.Load()
		begin := max(free, now)
		if begin-now > int64(limit) {
			return 0, false
		}
		if l.free.CompareAndSwap(free, begin+cost) {
			return time.Duration(begin + cost - now), true
		}
	}
}
