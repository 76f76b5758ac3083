// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acmsock

import "time"

// timerKind numbers the two deadlines that a connection can have.
type timerKind uint8

const (
	timerPartial timerKind = iota // a message was begun
	timerBlocked                  // replies do not fit the socket buffer
	numTimers
)

// timerLink is a connection's place in a timerList.
type timerLink struct {
	prev, next *conn
	end        int64
	on         bool
}

// timerList has connections in the order of their deadlines. One time-out for
// all makes that the order of arrival: every operation is O(1).
type timerList struct {
	first, last *conn
	kind        timerKind
	timeout     time.Duration
}

// set puts c at the end if it is not in the list. now is the loop's clock.
func (t *timerList) set(c *conn, now int64) {
	l := &c.timers[t.kind]
	if l.on {
		return
	}
	*l = timerLink{prev: t.last, end: now + int64(t.timeout), on: true}
	if t.last != nil {
		t.last.timers[t.kind].next = c
	} else {
		t.first = c
	}
	t.last = c
}

// drop takes c out if it is in the list.
func (t *timerList) drop(c *conn) {
	l := &c.timers[t.kind]
	if !l.on {
		return
	}
	if l.prev != nil {
		l.prev.timers[t.kind].next = l.next
	} else {
		t.first = l.next
	}
	if l.next != nil {
		l.next.timers[t.kind].prev = l.prev
	} else {
		t.last = l.prev
	}
	*l = timerLink{}
}

// due returns the first connection whose deadline is over, nil if there is none.
func (t *timerList) due(now int64) *conn {
	if t.first == nil || t.first.timers[t.kind].end > now {
		return nil
	}
	return t.first
}

// next returns the earlier of end and the list's first deadline; 0 is never.
func (t *timerList) next(end int64) int64 {
	if t.first == nil {
		return end
	}
	if e := t.first.timers[t.kind].end; end == 0 || e < end {
		return e
	}
	return end
}
