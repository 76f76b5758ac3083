// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package sa

import "time"

// Timer calls a function on the owner goroutine at a time. The zero value needs
// Fire set before [Client.Start]. A timer belongs to the owner goroutine.
type Timer struct {
	Fire func()

	when  int64
	pos   int // index in the heap + 1, 0: not running
	owner *flight
}

// Start arms t to fire after d, in place of any earlier time. Owner goroutine
// only.
func (c *Client) Start(t *Timer, d time.Duration) { c.timers.set(t, c.clock()+int64(d)) }

// Stop disarms t. Owner goroutine only.
func (c *Client) Stop(t *Timer) { c.timers.remove(t) }

// timerHeap is a binary heap of timers by time. It grows to the largest number
// of timers that ran at once and allocates nothing after.
type timerHeap []*Timer

func (h *timerHeap) set(t *Timer, when int64) {
	t.when = when
	if t.pos == 0 {
		*h = append(*h, t)
		t.pos = len(*h)
	}
	h.up(t.pos - 1)
	h.down(t.pos - 1)
}

func (h *timerHeap) remove(t *Timer) {
	if t.pos == 0 {
		return
	}
	i, last := t.pos-1, len(*h)-1
	h.swap(i, last)
	(*h)[last] = nil
	*h = (*h)[:last]
	t.pos = 0
	if i < last {
		h.up(i)
		h.down(i)
	}
}

// due takes out a timer whose time has come, nil when there is none.
func (h *timerHeap) due(now int64) *Timer {
	if len(*h) == 0 || (*h)[0].when > now {
		return nil
	}
	t := (*h)[0]
	h.remove(t)
	return t
}

func (h timerHeap) swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].pos, h[j].pos = i+1, j+1
}

func (h timerHeap) up(i int) {
	for i > 0 {
		p := (i - 1) / 2
		if h[p].when <= h[i].when {
			return
		}
		h.swap(i, p)
		i = p
	}
}

func (h timerHeap) down(i int) {
	for {
		k := 2*i + 1
		if k >= len(h) {
			return
		}
		if k+1 < len(h) && h[k+1].when < h[k].when {
			k++
		}
		if h[i].when <= h[k].when {
			return
		}
		h.swap(i, k)
		i = k
	}
}
