// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package fastpath

import (
	"sync/atomic"

	"acmd/bpf"
	"acmd/resolver"
	"acmd/resolver/acmsock"
)

// Client is a connection of the TCP door that the kernel may answer on. Its
// methods belong to the loop that has the connection, and do not block.
type Client struct {
	s    *Service
	slot *bpf.FastConn
	port uint16

	asked atomic.Bool // it was to be put onto the map
	on    atomic.Bool // it is there, or about to be
	gone  atomic.Bool
	stays atomic.Bool // the kernel did not take it
}

// Accept takes a connection from 127.0.0.1:port that was just accepted, before
// anything is read from it. An older connection of this port must have been
// released. nil: there is no fast path.
func (s *Service) Accept(port uint16) acmsock.FastConn {
	if s.k == nil {
		return nil
	}
	c := &Client{s: s, slot: s.k.Conn(port), port: port}
	c.on.Store(s.cfg.All && s.on.Load())
	c.slot.Take()
	return c
}

// Release ends it, before the descriptor is closed.
func (c *Client) Release() {
	c.gone.Store(true)
	c.slot.Release()
}

// Publish says how many bytes of requests were answered and of replies written in
// all; before these replies are written.
func (c *Client) Publish(answered, replied uint64) { c.slot.Publish(answered, replied) }

// OnMap reports whether the socket is on the map: nobody should be kept waiting
// there, also while the fast path is switched off.
func (c *Client) OnMap() bool { return c.on.Load() }

// Offer has the kernel answer a question from now on, once there is an answer. It
// is one of those that the program can parse: a source and a destination in this
// order, a destination, or a path request. q is copied.
func (c *Client) Offer(q *resolver.Query) {
	s := c.s
	if !s.on.Load() || c.stays.Load() { // with the daemon each question would be offered
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.offers) >= maxOffers {
		s.count.full.Add(1)
		return
	}
	s.offers = append(s.offers, *q)
	s.poke()
}

// Insert has the socket of the connection put onto the map once what was offered
// before is in the kernel, and then calls done, see [acmsock.FastConn].
func (c *Client) Insert(done func(sent uint64, ok bool)) bool {
	s := c.s
	if c.asked.Load() || !s.on.Load() {
		return false
	}
	c.asked.Store(true)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting = append(s.waiting, insertion{c: c, done: done})
	s.poke()
	return true
}
