// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package neigh

import (
	"errors"
	"os"
	"slices"
	"time"

	"acmd/resolver"
	"acmd/resolver/hostnet"
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
	switch {
	case n.Resolved():
		gid, ok := n.Hardware.GID()
		s.found(e, gid, ok, false)
	case n.State != unix.NUD_INCOMPLETE: // then the kernel is at it
		s.lost(e, n.State == unix.NUD_FAILED)
	}
}

// lost takes in that an entry failed, or went.
func (s *Source) lost(e entry, failed bool) {
	s.mu.Lock()
	var again *lookup
	if list := s.pending[e]; len(list) > 0 {
		again = list[0]
	}
	told, have := s.told[e]
	doubt := again == nil && failed && have && !told.doubted
	if doubt {
		s.told[e] = answer{told.gid, true}
	}
	s.mu.Unlock()
	switch {
	case again != nil:
		// Somebody else's tries may have been at their end when ours began, or the
		// table was flushed. The kernel asks anew if it is made to.
		select {
		case s.queue <- again:
		default: // its time ends it
		}
	case doubt:
		// The peer does not answer where it was; it may be elsewhere without having
		// said so. All are asked once. With no answer the path stays: as much as
		// that says a lost SM too, and then paths are to go on.
		all := s.cfg.Interfaces()
		if i := slices.IndexFunc(all, func(f hostnet.Interface) bool { return f.Index == e.index }); i >= 0 {
			s.begin(&lookup{dst: e.ip, on: all[i : i+1], done: func(resolver.Location, error) {}}, s.cfg.Timeout, time.Time{})
		}
	}
}
