// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package sa

import (
	"time"

	"acmd/bpf"
)

// Limits and defaults of [Config].
const (
	// DefaultTimeout is the longest gap between the tries of a flight.
	DefaultTimeout = 2 * time.Second
	// MinGap is the first gap. An SA that is too busy to answer is not helped by
	// a second copy of the question that comes any sooner.
	MinGap = 500 * time.Millisecond
	// AutoWindow is the largest automatic window, MaxDepth the largest fixed one.
	AutoWindow = 16
	MaxDepth   = 4096
	// DefaultQueue bounds the flights of a client, those in the window included.
	DefaultQueue = 16384
	// MaxRetries and MaxRateLimit clamp what a configuration may ask for.
	MaxRetries   = 32
	MaxRateLimit = 1 << 20

	// suspectAfter is the number of time-outs in a row after which the port's
	// attributes are doubted.
	suspectAfter = 3
	// suspectHold is how long sends wait for Update after Suspect was called: a
	// re-read takes microseconds, a try to a dead LID costs a gap.
	suspectHold = 100 * time.Millisecond
	// timerMargin is how much later than the kernel's the own timer of a try is.
	timerMargin = 250 * time.Millisecond
	// queueLife bounds the wait for the window. Whoever asked has given up by then.
	queueLife = 30 * time.Second
	// retargetSpread spreads what is asked again when the SM has moved.
	retargetSpread = 250 * time.Millisecond
)

// Config has the settings of a client. The zero value is usable; values out of
// range are clamped.
type Config struct {
	// Timeout is the longest gap between two tries before jitter; values below
	// MinGap count as MinGap. 0: DefaultTimeout.
	Timeout time.Duration
	// Retries is the number of tries beyond the first that a flight makes when
	// nothing comes back. A try that was answered BUSY does not count. Negative: 0.
	Retries int
	// Depth is the window: 0 or 1 automatic (4 at first, one more per answer up
	// to AutoWindow, halved by time-outs and BUSY), above 1 fixed.
	Depth int
	// Queue bounds the flights in hand; the next is refused with ErrQueueFull.
	// It also bounds what is posted and not yet run. 0: DefaultQueue.
	Queue int
	// MaxRate bounds the SA sends within any second, retries included. 0: none.
	MaxRate int
	// RetryNoRecords is how often a path query that the SA answered "no records"
	// is asked again, a gap later each time, while the flight lives. The answer
	// may be wrong for the seconds of an SM's sweep.
	RetryNoRecords int
	// Counters is where the client counts beside its own [Stats]; nil: nowhere.
	Counters *bpf.Shard
	// Asked, if set, is called on the owner goroutine with the TID of each SA
	// request right before it is given to the transport, retries included. It must
	// not block.
	Asked func(tid uint32)
	// Suspect is called on the owner goroutine when SA traffic goes nowhere: the
	// port's attributes should be read again and given to Update. It must not
	// block; it may call Update itself. It is called at most once per MinGap.
	Suspect func()
}

func (c *Config) normalize() {
	if c.Counters == nil {
		c.Counters = bpf.NewShard()
	}
	if c.Timeout <= 0 {
		c.Timeout = DefaultTimeout
	}
	c.Timeout = max(c.Timeout, MinGap)
	c.Retries = min(max(c.Retries, 0), MaxRetries)
	c.Depth = min(max(c.Depth, 1), MaxDepth)
	if c.Queue <= 0 {
		c.Queue = DefaultQueue
	}
	c.MaxRate = min(max(c.MaxRate, 0), MaxRateLimit)
	c.RetryNoRecords = min(max(c.RetryNoRecords, 0), MaxRetries)
}
