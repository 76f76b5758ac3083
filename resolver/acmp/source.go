// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acmp

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"acmd/mad"
	"acmd/mad/transport"
	"acmd/resolver"
	"acmd/resolver/sa"
)

// Source is the address source "acm". All methods are safe for concurrent use.
type Source struct {
	cfg Config
	log *slog.Logger

	mu    sync.Mutex
	ports map[portKey]*port
	byKey atomic.Pointer[map[portKey]*port] // the same, for Locate
	eps   []*resolver.Endpoint              // as last set
	told  [modes]bool                       // what was logged
	count counters
}

var _ resolver.AddressSource = (*Source)(nil)

type portKey struct {
	device string
	num    uint8
}

// New makes a source without ports. log may be nil.
func New(cfg Config, log *slog.Logger) *Source {
	cfg.normalize()
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	s := &Source{cfg: cfg, log: log, ports: map[portKey]*port{}}
	s.byKey.Store(&map[portKey]*port{})
	return s
}

// Attach makes c the way to the fabric for a port, in place of an earlier one.
// Endpoints of the port that SetEndpoints named, or will, join from then on. The
// port is detached when c ends. It fails with c's error if it has ended already.
func (s *Source) Attach(device string, num uint8, c *sa.Client) error {
	p := newPort(s, portKey{device, num}, c)
	s.mu.Lock()
	s.ports[p.key] = p
	s.publish()
	s.mu.Unlock()
	if err := c.AtEnd(p.end); err != nil {
		s.detach(p)
		return fmt.Errorf("acm: %w", err)
	}
	s.say(p)
	c.Handle(mad.ClassACM, p.receive)
	s.apply(p)
	return nil
}

func (s *Source) detach(p *port) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ports[p.key] == p {
		delete(s.ports, p.key)
		s.publish()
	}
}

// publish copies the map for readers; the caller holds s.mu.
func (s *Source) publish() {
	m := make(map[portKey]*port, len(s.ports))
	for k, p := range s.ports {
		m[k] = p
	}
	s.byKey.Store(&m)
}

// SetEndpoints tells the endpoints on active ports, all of them, whenever they
// change. New ones join their groups, those that are not named any more leave,
// and those whose port has another LID or SM join again. The endpoints must not
// be changed afterwards.
func (s *Source) SetEndpoints(eps []*resolver.Endpoint) {
	s.mu.Lock()
	s.eps = eps
	s.mu.Unlock()
	for _, p := range *s.byKey.Load() {
		s.apply(p)
	}
}

// apply has the port look at the endpoints.
func (s *Source) apply(p *port) {
	s.post(p, func() {
		s.mu.Lock()
		eps := s.eps
		s.mu.Unlock()
		p.setEndpoints(eps)
	})
}

// post runs fn on p's owner and does not give up while the owner is merely
// behind: what comes this way is rare and must not be lost.
func (s *Source) post(p *port, fn func()) {
	if err := p.client.Post(fn); errors.Is(err, sa.ErrQueueFull) {
		time.AfterFunc(10*time.Millisecond, func() { s.post(p, fn) })
	}
}

// Event tells what happened to a port. Client reregistration means that the SM
// has forgotten the memberships, a port that became active that it may have:
// both make its endpoints join again. Call it after SetEndpoints when the event
// changed those. Other events are passed over.
func (s *Source) Event(ev transport.Event) {
	var age time.Duration
	switch ev.Type {
	case transport.EventReregister:
	case transport.EventPortActive:
		age = time.Second // younger endpoints came with this event and join already
	default:
		return
	}
	for k, p := range *s.byKey.Load() {
		if k.device == ev.Device && (k.num == ev.Port || ev.Port == 0) {
			s.post(p, func() { p.rejoin(age) })
		}
	}
}

// Name implements resolver.AddressSource.
func (s *Source) Name() string { return resolver.SourceACM }

// Locate implements resolver.AddressSource: it asks the endpoint's group who has
// dst. Lookups of one destination share one request.
func (s *Source) Locate(ep *resolver.Endpoint, src, dst *resolver.Addr, deadline time.Time, done func(resolver.Location, error)) {
	p := (*s.byKey.Load())[portKey{ep.Device, ep.Port.Num}]
	switch {
	case p == nil:
		done(resolver.Location{}, fmt.Errorf("acm: %s port %d is not open: %w", ep.Device, ep.Port.Num, resolver.ErrDown))
		return
	case !p.caps.Multicast:
		done(resolver.Location{}, ErrNoMulticast)
		return
	}
	q := &ask{ep: ep, src: *src, dst: *dst, waiter: waiter{deadline, done}}
	// From here on, so that the event loop that brought the question sees that it
	// is worth having the port. A lookup has that of its own while it has a seat.
	p.client.Engage(1)
	err := p.client.Post(func() {
		p.locate(q)
		p.client.Engage(-1)
	})
	if err != nil {
		p.client.Engage(-1)
	}
	switch {
	case errors.Is(err, sa.ErrQueueFull):
		s.count.overload.Add(1)
		done(resolver.Location{}, fmt.Errorf("acm: %w: %w", resolver.ErrOverload, err))
	case err != nil:
		done(resolver.Location{}, fmt.Errorf("acm: %w: %w", resolver.ErrDown, err))
	}
}
