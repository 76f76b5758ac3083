// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acmp

import (
	"time"

	"acmd/mad"
)

// Bounds of what clients and other nodes can make grow.
const (
	// AutoDepth is the automatic window of an endpoint, MaxDepth the largest.
	AutoDepth = 16
	MaxDepth  = 1024
	// MaxLookups bounds the lookups of an endpoint, those in the window included.
	MaxLookups = 4096
	// MaxWaiters bounds those who wait for one lookup.
	MaxWaiters = 1024
	// MaxAnswers bounds the answers a port sends within a second. Above it
	// requests are dropped: their senders ask again.
	MaxAnswers = 50_000

	firstGap   = 500 * time.Millisecond
	maxRetries = 32
)

// Config has the settings of a source; the zero value has the defaults.
type Config struct {
	// RouteACM: a path is made of the parameters of the group both nodes share
	// (route_prot acm), not asked of the SA.
	RouteACM bool
	// MinMTU and MinRate are the codes that make up the common group; 0: 4 (2048
	// bytes) and 3 (10 Gb/s). All nodes must agree.
	MinMTU  mad.MTU
	MinRate mad.Rate
	// Timeout, with the port's subnet time-out on top, is the longest gap between
	// two tries of a request; Retries is the number of tries after the first.
	// Timeout 0: 2 s.
	Timeout time.Duration
	Retries int
	// Depth is how many lookups of an endpoint may be on their first gap at a
	// time; 0 or 1: AutoDepth. A lookup that was not answered by then goes on
	// but no longer keeps others waiting.
	Depth int
}

func (c *Config) normalize() {
	if c.MinMTU == 0 {
		c.MinMTU = 4
	}
	if c.MinRate == 0 {
		c.MinRate = 3
	}
	if c.Timeout <= 0 {
		c.Timeout = 2 * time.Second
	}
	c.Timeout = max(c.Timeout, time.Millisecond)
	c.Retries = min(max(c.Retries, 0), maxRetries)
	if c.Depth <= 1 {
		c.Depth = AutoDepth
	}
	c.Depth = min(c.Depth, MaxDepth)
}

// longestGap is Timeout and the time that the subnet says packets may take: 2 to
// the power of (exponent - 8) ms, the usual reading of 4.096 us x 2^exponent.
// That part is bounded by Timeout, as exponents up to 31 mean hours.
func (c *Config) longestGap(exponent uint8) time.Duration {
	exponent &= 0x1f
	var subnet time.Duration
	if exponent >= 8 {
		subnet = time.Duration(1<<(exponent-8)) * time.Millisecond
	}
	return c.Timeout + min(subnet, c.Timeout)
}

// gap is the time from try n (from 0) to the next, or to giving up after the
// last. Gaps start short, so that a lost datagram is made good before a client
// gives up, and double up to the longest; the last is the longest, as the peer
// may be slow.
func (c *Config) gap(n int, exponent uint8) time.Duration {
	longest := c.longestGap(exponent)
	if n >= c.Retries {
		return longest
	}
	g := firstGap
	for ; n > 0 && g < longest; n-- {
		g *= 2
	}
	return min(g, longest)
}
