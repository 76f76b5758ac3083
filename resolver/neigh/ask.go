// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package neigh

import (
	"errors"
	"fmt"
	"slices"

	"acmd/mad"
	"acmd/resolver"
	"acmd/resolver/hostnet"
	"acmd/resolver/rtnl"

	"golang.org/x/sys/unix"
)

// asker owns the connection to the table and works the queue off.
func (s *Source) asker(t table) {
	defer s.done.Done()
	defer t.Close()
	for {
		select {
		case <-s.stop:
			return
		case l := <-s.queue:
			s.ask(t, l)
		}
	}
}

// ask looks l up, and makes the kernel ask where no entry is there. l is pending
// before the table is read, so that whatever happens to an entry afterwards comes
// by a notification.
func (s *Source) ask(t table, l *lookup) {
	var errs []error
	for i := range l.on {
		e := entry{l.on[i].Index, l.dst}
		if !s.await(e, l) {
			return // it is over
		}
		n, err := t.Neigh(e.index, e.ip)
		if err == nil && n.Resolved() {
			s.known(t, e, &n)
			return
		}
		if err != nil && !errors.Is(err, rtnl.ErrNotFound) {
			errs = append(errs, err)
		}
	}
	asked := false
	for i := range l.on {
		f := &l.on[i]
		err := onLink(t, f, l)
		if err == nil {
			s.count.asked.Add(1)
			if err = t.Solicit(f.Index, l.dst); err == nil {
				asked = true
				continue
			}
		}
		errs = append(errs, err)
	}
	if !asked {
		s.fail(l, &s.count.unknown, fmt.Errorf("neigh: %w: %w", resolver.ErrUnknown, errors.Join(errs...)))
	}
}

// known answers with what the table has. The kernel would send by a stale entry
// too, and is made to confirm it as it would be by sending.
func (s *Source) known(t table, e entry, n *rtnl.Neigh) {
	gid, ok := n.Hardware.GID()
	s.count.known.Add(1)
	s.found(e, gid, ok, true)
	if n.State == unix.NUD_STALE {
		if err := t.Solicit(e.index, e.ip); err != nil {
			s.log.Debug("neigh: a stale entry stays unconfirmed", "addr", e.ip, "err", err)
		}
	}
}

// onLink tells whether the destination of l would be a neighbour on f.
func onLink(t table, f *hostnet.Interface, l *lookup) error {
	r, err := t.Route(f.Index, l.dst)
	if err != nil {
		return fmt.Errorf("no route to %v through %s: %w", l.dst, f.Name, err)
	}
	if r.Type != unix.RTN_UNICAST {
		return fmt.Errorf("%v is local or no host's on %s", l.dst, f.Name)
	}
	if !slices.Contains(r.Hops, rtnl.Hop{Index: f.Index}) {
		return fmt.Errorf("%v is behind a router on %s", l.dst, f.Name)
	}
	return nil
}

// await makes l one that waits for an entry. It reports false when l is over.
func (s *Source) await(e entry, l *lookup) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l.over {
		return false
	}
	if !slices.Contains(l.entries, e) {
		l.entries = append(l.entries, e)
		s.pending[e] = append(s.pending[e], l)
	}
	return true
}

// found answers all who wait for an entry, and compares with what was told before.
// An entry without a GID, of an interface that is not IPoIB, answers nothing. What
// was read from the table may be older than a notification: it counts only as long
// as somebody waits, since a notification would have answered.
func (s *Source) found(e entry, gid mad.GID, ok, read bool) {
	s.mu.Lock()
	var list []*lookup
	for _, l := range slices.Clone(s.pending[e]) {
		if s.take(l) {
			list = append(list, l)
		}
	}
	was, told := s.told[e]
	told = told && ok && (len(list) > 0 || !read)
	if told || ok && len(list) > 0 {
		s.remember(e, answer{gid: gid})
	}
	s.mu.Unlock()
	if told && was.gid != gid {
		s.count.moved.Add(1)
		if s.cfg.Moved != nil {
			s.cfg.Moved(was.gid)
		}
	}
	for _, l := range list {
		if !ok {
			s.count.unknown.Add(1)
			l.done(resolver.Location{}, fmt.Errorf("neigh: the hardware address of %v has no GID: %w", e.ip, resolver.ErrUnknown))
			continue
		}
		s.count.found.Add(1)
		l.done(resolver.Location{GID: gid, Source: Name}, nil)
	}
}

// remember notes what was told of an entry. The caller holds the mutex.
func (s *Source) remember(e entry, a answer) {
	if _, have := s.told[e]; !have && len(s.told) >= MaxTold {
		for o := range s.told {
			delete(s.told, o)
			break
		}
		s.count.forgot.Add(1)
	}
	s.told[e] = a
}
