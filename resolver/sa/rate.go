// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package sa

import "time"

// rateLimit bounds the sends within any window of one second, not on average:
// it remembers when each of the last limit sends was.
type rateLimit struct {
	at   []int64 // ring of send times
	next int
	full bool
}

func newRateLimit(perSecond int) *rateLimit {
	if perSecond <= 0 {
		return nil
	}
	return &rateLimit{at: make([]int64, perSecond)}
}

// ready returns the time from which on a send is allowed; a nil limit always is.
func (r *rateLimit) ready() int64 {
	if r == nil || !r.full {
		return 0
	}
	// A send exactly one second after the oldest is in another window.
	return r.at[r.next] + int64(time.Second)
}

func (r *rateLimit) note(now int64) {
	if r == nil {
		return
	}
	r.at[r.next] = now
	if r.next++; r.next == len(r.at) {
		r.next, r.full = 0, true
	}
}
