// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package verbs

import (
	"errors"
	"log/slog"
)

// ErrNotBuilt is what Wrap fails with in a binary without libibverbs.
var ErrNotBuilt = errors.New("this binary was built without libibverbs; acmd-verbs is built with it")

// Config sizes the queue pairs. The zero value has the defaults.
type Config struct {
	// RecvDepth is how many receive buffers a queue pair has, 0 for 1024. With
	// many partitions each has fewer: a port posts no more than maxPosted.
	RecvDepth int
	// SendDepth is how many datagrams a queue pair may have under way; 0 or 1:
	// 64. More wait in Send, for a short time.
	SendDepth int
	// Poison overwrites released slots; for tests.
	Poison bool
	// Log is told once per device why it has no queue pair; nil: nobody is.
	Log *slog.Logger
}

const (
	defaultRecvDepth = 1024
	defaultSendDepth = 64
	maxSendDepth     = 256
	// baseSlots is what a port's ring has beside the buffers of queue pairs.
	baseSlots = 512
	// maxPosted bounds the receive buffers of a port, whatever the number of its
	// partitions; they are pinned memory.
	maxPosted = 8192
	// minDepth is the least that a queue pair is worth having with.
	minDepth = 16
)

func (c *Config) normalize() {
	if c.RecvDepth <= 0 {
		c.RecvDepth = defaultRecvDepth
	}
	c.RecvDepth = max(min(c.RecvDepth, maxPosted), minDepth)
	if c.SendDepth <= 1 {
		c.SendDepth = defaultSendDepth
	}
	c.SendDepth = min(c.SendDepth, maxSendDepth)
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
}

// depth is how many receive buffers each queue pair of a port with this number of
// partitions gets.
func (c *Config) depth(partitions int) int {
	return max(min(c.RecvDepth, maxPosted/max(partitions, 1)), minDepth)
}

// slots is the size of the ring of such a port.
func (c *Config) slots(partitions int) int {
	n := max(partitions, 1)
	return baseSlots + min(n*(c.depth(n)+c.SendDepth), 2*maxPosted)
}
