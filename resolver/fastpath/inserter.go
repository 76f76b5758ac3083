// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package fastpath

import (
	"sync"
	"time"

	"acmd/bpf"
)

// gather is how long the iterator waits for more sockets before it walks over all
// of the host's.
const gather = 10 * time.Millisecond

// inserter is the one goroutine that changes the map of sockets. It is not the
// owner of the copy: a walk may take long, and an invalidation must not wait for it.
type inserter struct {
	mu      sync.Mutex
	clients []*Client

	wake  chan struct{}
	evict chan chan error // take all sockets off
}

func (i *inserter) init() { i.wake, i.evict = make(chan struct{}, 1), make(chan chan error) }

func (i *inserter) add(clients []*Client) {
	if len(clients) == 0 {
		return
	}
	i.mu.Lock()
	i.clients = append(i.clients, clients...)
	i.mu.Unlock()
	select {
	case i.wake <- struct{}{}:
	default:
	}
}

func (i *inserter) main(s *Service) {
	defer s.over.Done()
	var wait time.Duration
	if s.k.Plan().Insert == bpf.FastInsertIter {
		wait = gather
	}
	timer := time.NewTimer(time.Hour)
	timer.Stop()
	defer timer.Stop()
	for {
		select {
		case <-s.stop:
			return
		case done := <-i.evict:
			s.epoch.Add(1)
			done <- s.k.Evict()
		case <-i.wake:
			timer.Reset(wait)
		case <-timer.C:
			i.mu.Lock()
			clients := i.clients
			i.clients = nil
			i.mu.Unlock()
			i.insert(s, clients)
		}
	}
}

// evictAll takes all sockets off the map. Those that are waiting stay off as well
// while the fast path is off.
func (i *inserter) evictAll(s *Service) error {
	done := make(chan error, 1)
	select {
	case i.evict <- done:
		return <-done
	case <-s.stop:
		return nil
	}
}

// insert marks clients before they are on the map, not after: from the first
// answer of the kernel on, nobody may wait there.
func (i *inserter) insert(s *Service, clients []*Client) {
	if !s.on.Load() {
		return
	}
	epoch := s.epoch.Load()
	byPort := make(map[uint16]*Client, len(clients))
	ports := make([]uint16, 0, len(clients))
	for _, c := range clients {
		if !c.gone.Load() && c.asked.Load() == epoch {
			c.on.Store(epoch)
			byPort[c.port] = c
			ports = append(ports, c.port)
		}
	}
	if len(ports) == 0 {
		return
	}
	left := len(ports)
	err := s.k.Insert(ports, func(port uint16, err error) {
		left--
		if err == nil {
			s.count.inserted.Add(1)
			return
		}
		s.count.refused.Add(1)
		byPort[port].on.Store(0)
	})
	if err != nil {
		s.count.refused.Add(uint64(left))
		for _, c := range byPort {
			c.on.Store(0)
		}
		s.log.Warn("clients stay with the daemon", "count", left, "err", err)
	}
}
