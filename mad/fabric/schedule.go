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
	for i := 0; ; {
		down := 2*i + 1
		if down >= last {
			break
		}
		if r := down + 1; r < last && s.heap[r].before(&s.heap[down]) {
			down = r
		}
		if !s.heap[down].before(&s.heap[i]) {
			break
		}
		s.heap[i], s.heap[down] = s.heap[down], s.heap[i]
		i = down
	}
	return d
}
