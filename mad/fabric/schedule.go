// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package fabric

import "time"

// due is something that happens later at a port: a message arrives, or, with m
// nil, a request's time is over.
type due struct {
	at   time.Time
	seq  uint64 // keeps the order of what is due at the same time
	m    *message
	wait *pending
}

func (d *due) before(o *due) bool {
	if d.at.Equal(o.at) {
		return d.seq < o.seq
	}
	return d.at.Before(o.at)
}

// schedule is a binary heap with the first due on top. Not safe for concurrent
// use.
type schedule struct {
	heap     []due
	seq      uint64
	messages int // entries that are messages
	dead     int // time-outs of requests that are answered
}

// compactFrom is the size from which on dead entries are swept out.
const compactFrom = 128

// cancel notes that a time-out in the heap will not happen. They are swept out
// when they are most of it, so that the heap is never more than twice as large
// as what it is needed for.
func (s *schedule) cancel() {
	if s.dead++; s.dead*2 <= len(s.heap) || len(s.heap) < compactFrom {
		return
	}
	live := s.heap[:0]
	for _, d := range s.heap {
		if d.wait == nil || !d.wait.done {
			live = append(live, d)
		}
	}
	clear(s.heap[len(live):])
	s.heap, s.dead = live, 0
	for i := len(live)/2 - 1; i >= 0; i-- {
		s.down(i)
	}
}

// len counts messages only: time-outs do not fill the receive queue.
func (s *schedule) len() int { return s.messages }

func (s *schedule) empty() bool { return len(s.heap) == 0 }

func (s *schedule) first() *due { return &s.heap[0] }

func (s *schedule) add(d due) {
	s.seq++
	d.seq = s.seq
	if d.m != nil {
		s.messages++
	}
	s.heap = append(s.heap, d)
	for i := len(s.heap) - 1; i > 0; {
		up := (i - 1) / 2
		if !s.heap[i].before(&s.heap[up]) {
			break
		}
		s.heap[i], s.heap[up] = s.heap[up], s.heap[i]
		i = up
	}
}

func (s *schedule) pop() due {
	d, last := s.heap[0], len(s.heap)-1
	if d.m != nil {
		s.messages--
	}
	s.heap[0] = s.heap[last]
	s.heap[last] = due{}
	s.heap = s.heap[:last]
	s.down(0)
	if d.wait != nil && d.wait.done {
		s.dead--
	}
	return d
}

// down moves an entry to its place among those below it.
func (s *schedule) down(i int) {
	for n := len(s.heap); ; {
		next := 2*i + 1
		if next >= n {
			return
		}
		if r := next + 1; r < n && s.heap[r].before(&s.heap[next]) {
			next = r
		}
		if !s.heap[next].before(&s.heap[i]) {
			return
		}
		s.heap[i], s.heap[next] = s.heap[next], s.heap[i]
		i = next
	}
}
