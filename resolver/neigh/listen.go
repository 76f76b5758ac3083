// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package neigh

import (
	"errors"
	"os"
	"time"

	"acmd/resolver/rtnl"

	"golang.org/x/sys/unix"
)

// listener hears what becomes of neighbour entries.
func (s *Source) listener() {
	defer s.done.Done()
	for {
		err := s.news.Receive(time.Time{}, func(m *rtnl.Message) {
			if m.Type != unix.RTM_NEWNEIGH && m.Type != unix.RTM_DELNEIGH {
				return
			}
			n, err := rtnl.DecodeNeigh(m.Body)
			if err != nil || !n.IP.IsValid() {
				return // a bridge's
			}
			if m.Type == unix.RTM_DELNEIGH {
				n.State = unix.NUD_NONE
			}
			s.heard(&n)
		})
		switch {
		case err == nil:
		case errors.Is(err, rtnl.ErrOverrun):
			s.count.overruns.Add(1)
			s.compare()
		case errors.Is(err, os.ErrClosed):
			return
		default:
			// Lookups still read the table, and go by their time where they wait.
			s.log.Error("the kernel tells of neighbours no more", "err", err)
			return
		}
	}
}

// compare reads the whole table, after notifications were lost.
func (s *Source) compare() {
	t, err := s.open()
	if err != nil {
		s.log.Warn("neighbours cannot be listed after notifications were lost", "err", err)
		return
	}
	defer t.Close()
	list, err := t.Neighs()
	if err != nil && !errors.Is(err, rtnl.ErrChanging) {
		s.log.Warn("neighbours cannot be listed after notifications were lost", "err", err)
		return
	}
	for i := range list {
		s.heard(&list[i])
	}
}

// heard takes in the state of one entry.
func (s *Source) heard(n *rtnl.Neigh) {
	e := entry{n.Index, n.IP}
	if !n.Resolved() {
		if n.State == unix.NUD_INCOMPLETE {
			return // the kernel is at it
		}
		// It failed, or was flushed, which looks the same; somebody else's tries may
		// have been at their end when ours began. The kernel asks anew if it is made to.
		s.mu.Lock()
		var again *lookup
		if list := s.pending[e]; len(list) > 0 {
			again = list[0]
		}
		s.mu.Unlock()
		if again != nil {
			select {
			case s.queue <- again:
			default: // its time ends it
			}
		}
		return
	}
	gid, ok := n.Hardware.GID()
	s.mu.Lock()
	was, told := s.told[e]
	moved := ok && told && was != gid
	if moved {
		s.told[e] = gid
	}
	s.mu.Unlock()
	if moved {
		s.count.moved.Add(1)
		if s.cfg.Moved != nil {
			s.cfg.Moved(was)
		}
	}
	s.found(e, gid, ok)
}
