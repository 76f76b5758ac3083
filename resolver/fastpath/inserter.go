// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package fastpath

import (
	"errors"
	"sync"
	"time"

	"acmd/bpf"
)

// gather is how long the iterator waits for more sockets before it walks over all
// of the host's.
const gather = 10 * time.Millisecond

// A client that lost its processor in the middle of a system call is asked for again
// after busyPause, and stays with the daemon after busyTime. Others do not wait for it.
const (
	busyPause = 5 * time.Millisecond
	busyTime  = 5 * time.Second
)

// inserter is the one goroutine that puts sockets onto the map. It is not the owner
// of the copy: a walk may take long, and an invalidation must not wait for it.
//
// Nobody takes sockets off: an answer that lies unread there would be lost with that.
// They leave when they are closed.
type inserter struct {
	mu   sync.Mutex
	list []insertion

	wake chan struct{}
}

// insertion is a client whose socket is to be put onto the map.
type insertion struct {
	c    *Client
	done func(sent uint64, ok bool)
	busy time.Time // since when its client is in a system call; zero: it is not
}

func (i *inserter) init() { i.wake = make(chan struct{}, 1) }

func (i *inserter) add(list []insertion) {
	if len(list) == 0 {
		return
	}
	i.mu.Lock()
	i.list = append(i.list, list...)
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
		case <-i.wake:
			timer.Reset(wait)
		case <-timer.C:
			i.mu.Lock()
			list := i.list
			i.list = nil
			i.mu.Unlock()
			again := i.insert(s, list)
			if len(again) == 0 {
				continue
			}
			i.mu.Lock()
			i.list = append(i.list, again...)
			i.mu.Unlock()
			timer.Reset(max(wait, busyPause)) // sooner if there are more
		}
	}
}

// insert marks clients before they are on the map, not after: from the first
// answer of the kernel on, nobody may wait there. It returns those that are to be
// asked for again.
func (i *inserter) insert(s *Service, list []insertion) (again []insertion) {
	byPort := make(map[uint16]insertion, len(list))
	ports := make([]uint16, 0, len(list))
	for _, in := range list {
		if in.c.gone.Load() {
			in.done(0, false)
			continue
		}
		in.c.on.Store(true)
		byPort[in.c.port] = in
		ports = append(ports, in.c.port)
	}
	if len(ports) == 0 {
		return nil
	}
	stays := func(in insertion) {
		s.count.refused.Add(1)
		in.c.stays.Store(true)
		in.c.on.Store(false)
		in.done(0, false)
	}
	err := s.k.Insert(ports, func(port uint16, sent uint64, err error) {
		in := byPort[port]
		delete(byPort, port)
		if err == nil {
			s.count.inserted.Add(1)
			in.done(sent, true)
			return
		}
		if in.busy.IsZero() {
			in.busy = time.Now()
		}
		if errors.Is(err, bpf.ErrFastBusy) && time.Since(in.busy) < busyTime {
			again = append(again, in)
			return
		}
		stays(in)
	})
	if err != nil {
		s.log.Warn("clients stay with the daemon", "count", len(byPort), "err", err)
		for _, in := range byPort {
			stays(in)
		}
	}
	return again
}
