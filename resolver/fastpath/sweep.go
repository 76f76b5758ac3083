// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package fastpath

import "acmd/resolver"

// sweep looks at all stamps. What was used is asked for in the daemon as well: that
// marks it used for the cache, tells what is due for refresh, and renews the choice
// of a source. What nobody can ask for any more is forgotten.
func (o *owner) sweep() {
	s := o.s
	now := s.e.Now()
	s.mu.Lock()
	chosen := s.chosen
	s.mu.Unlock()
	if chosen != o.chosen {
		o.chosen = chosen
		for _, it := range s.tab.items {
			if it != nil && choosesSource(&it.q) {
				o.look(it)
			}
		}
	}
	for _, it := range s.tab.items {
		if it == nil {
			continue
		}
		stamp := o.k.Used(it.slot)
		used := stamp != it.stamp
		it.stamp = stamp
		switch {
		case it.present && used:
			o.touch(it, now)
		case it.present && now >= it.until:
			// Unused to its end. A choice of a source would be renewed for ever.
			o.delete(it)
			it.since = now
		case !it.present && now-it.since > keepAbsent:
			o.forget(it)
		}
	}
	o.flush()
}

func choosesSource(q *resolver.Query) bool {
	return q.Kind == resolver.ByAddress && q.Src.IsZero()
}

func (o *owner) touch(it *item, now int64) {
	var m resolver.Mirrored
	if !o.s.e.Mirrored(&it.q, now, &m) || m.Until != it.until || m.Gen != it.mirrored.Sources {
		o.look(it)
	}
	if m.Due && !it.due {
		it.due = true
		o.due = append(o.due, it)
	}
}

// refreshOne has the first of the due looked up again. They are spaced out as the
// engine's refresh rate is.
func (o *owner) refreshOne() {
	if len(o.due) == 0 {
		return
	}
	it := o.due[0]
	o.due[0] = nil
	o.due = o.due[1:]
	it.due = false
	if it.dead {
		return
	}
	q := it.q
	if choosesSource(&q) {
		var m resolver.Mirrored
		if !o.s.e.Mirrored(&q, o.s.e.Now(), &m) {
			return
		}
		q.Src = m.Src
	}
	o.s.count.refreshed.Add(1)
	o.s.e.RefreshSoon(&q, o.s.e.Now())
}
