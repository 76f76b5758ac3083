// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package fastpath

import (
	"fmt"
	"time"

	"acmd/bpf"
	"acmd/resolver"
	"acmd/resolver/acmsock"
)

const (
	// tick is subtracted from the end of a path: the coarse clock may be that late
	// (CONFIG_HZ 100).
	tick = int64(10 * time.Millisecond)
	// keepAbsent is how long a question without an answer is remembered.
	keepAbsent = int64(time.Minute)
	// coldAfter is how long a path must not have been used to make room.
	coldAfter = 10 // seconds
	// clockSteps bounds the search for one.
	clockSteps = 1024
)

// owner is the one goroutine that writes the kernel's copy.
type owner struct {
	s      *Service
	k      Kernel
	round  uint64
	chosen uint64 // generation of chosen sources at the last sweep

	sources map[bpf.FastKey]uint16 // in the kernel
	due     []*item

	offers []resolver.Query
	dirty  []*item

	putKeys []bpf.FastKey
	puts    []bpf.FastPath
	putItem []*item
	delKeys []bpf.FastKey
	delItem []*item
	reply   []byte
}

func (o *owner) init(s *Service) {
	o.s, o.k = s, s.k
	o.sources = map[bpf.FastKey]uint16{}
}

// main works until the service stops. It wakes for what is queued, for the sweep
// while there is something to sweep, and for refreshes that are due.
func (o *owner) main() {
	defer o.s.over.Done()
	sweep := time.NewTicker(o.s.cfg.Sweep)
	defer sweep.Stop()
	pace := time.NewTimer(time.Hour)
	defer pace.Stop()
	for {
		var tick <-chan time.Time
		if len(o.s.tab.byKey) > 0 {
			tick = sweep.C
		}
		select {
		case <-o.s.stop:
			return
		case <-o.s.wake:
			o.work()
		case <-tick:
			o.sweep()
			if len(o.due) > 0 {
				pace.Reset(0)
			}
		case <-pace.C:
			if o.refreshOne(); len(o.due) > 0 {
				pace.Reset(time.Second / resolver.DefaultRefreshRate)
			}
		}
	}
}

// work does what is queued until nothing is.
func (o *owner) work() {
	s := o.s
	for {
		s.mu.Lock()
		if s.done == s.queued && len(s.offers) == 0 && len(s.waiting) == 0 || s.stopped {
			s.mu.Unlock()
			return
		}
		o.round++
		target := s.queued
		o.offers, s.offers = s.offers, o.offers[:0]
		o.dirty, s.tab.dirty = s.tab.dirty, o.dirty[:0]
		for _, it := range o.dirty {
			it.dirty = false
			it.round = o.round
		}
		if s.all || len(s.dropped) > 0 {
			for _, it := range s.tab.items {
				if it != nil && it.round != o.round && (s.all || s.dropped[it.gen]) {
					o.dirty = append(o.dirty, it)
				}
			}
			s.all = false
			clear(s.dropped)
		}
		sources := s.sources
		s.sources = false
		waiting := s.waiting
		s.waiting = nil
		s.mu.Unlock()

		if sources {
			o.followSources()
		}
		for i := range o.offers {
			o.offer(&o.offers[i])
		}
		for _, it := range o.dirty {
			if !it.dead {
				o.look(it)
			}
		}
		o.flush()
		clear(o.dirty)
		s.inserts.add(waiting)

		s.mu.Lock()
		s.done = target
		s.settled.Broadcast()
		s.mu.Unlock()
	}
}

// followSources makes the kernel's table of local addresses that of the engine.
// What went goes first.
func (o *owner) followSources() {
	want := make(map[bpf.FastKey]uint16, len(o.sources))
	for _, src := range o.s.e.Sources() {
		key, ok := sourceKey(&src.Addr)
		if !ok || src.Slot == bpf.FastNoSource || len(want) >= bpf.FastSources {
			continue // questions from it stay the daemon's
		}
		want[key] = src.Slot
	}
	var gone []bpf.FastKey
	for key := range o.sources {
		if _, ok := want[key]; !ok {
			gone = append(gone, key)
			delete(o.sources, key)
		}
	}
	if len(gone) > 0 {
		if err := o.k.DeleteSources(gone); err != nil {
			o.s.Fail(err)
		}
	}
	for key, slot := range want {
		if have, ok := o.sources[key]; ok && have == slot {
			continue
		}
		if err := o.k.PutSource(&key, slot); err != nil {
			o.s.Fail(err) // an old slot may be there
			return
		}
		o.sources[key] = slot
	}
}

// offer takes a question into the mirror.
func (o *owner) offer(q *resolver.Query) {
	s := o.s
	now := s.e.Now()
	var m resolver.Mirrored
	answered := s.e.Mirrored(q, now, &m)
	key, ok := keyOf(q, m.Slot)
	if !ok || !answered && !m.Mapped {
		return
	}
	if it := s.tab.byKey[key]; it != nil {
		it.since = now
		if answered && !it.queued && (!it.present || it.mirrored.Sources != m.Gen) {
			o.look(it) // its choice of a source has ended, or the kernel did not take it
		}
		return // what else happens to its answer somebody tells
	}
	if s.tab.full() && !o.evict() {
		s.count.full.Add(1)
		return
	}
	s.mu.Lock()
	it := s.tab.add(key, q, m.Key)
	it.since = now
	s.mu.Unlock()
	o.k.Forget(it.slot)
	o.look(it) // again, now that a change is told
}

// evict makes room: the first answer that the clock's hand finds unused. It is
// out of the kernel before the table forgets it, so that no invalidation misses it.
func (o *owner) evict() bool {
	t := &o.s.tab
	seconds := o.s.e.Now() / int64(time.Second)
	for range min(clockSteps, len(t.items)) {
		if t.hand++; int(t.hand) >= len(t.items) {
			t.hand = 0
		}
		it := t.items[t.hand]
		if it == nil || it.present && int64(o.k.Used(it.slot))+coldAfter > seconds {
			continue
		}
		o.flush()
		o.delete(it)
		o.flush()
		if it.present {
			return false // the delete failed
		}
		o.forget(it)
		return true
	}
	return false
}

func (o *owner) forget(it *item) {
	o.s.mu.Lock()
	o.s.tab.remove(it)
	o.s.mu.Unlock()
}

// look asks the engine what is true for an item and has the kernel's copy follow.
// Generation and version are read before the engine is asked: what voids the answer
// in between voids also what is written after it.
func (o *owner) look(it *item) {
	s := o.s
	if it.queued {
		o.flush() // what was true before comes first
	}
	var m resolver.Mirrored
	for range 8 {
		gen, version := o.k.Generation(it.gen), o.k.Version(it.slot)
		ok := s.e.Mirrored(&it.q, s.e.Now(), &m)
		if m.Mapped && m.Key != it.from { // it comes from another entry now
			s.mu.Lock()
			s.tab.unlink(it)
			s.tab.link(it, m.Key)
			s.mu.Unlock()
			continue
		}
		if key, _ := keyOf(&it.q, m.Slot); ok && key != it.key {
			ok = false // its source address has another slot; that is another question
		}
		if !ok {
			o.delete(it)
			return
		}
		if g := genOf(m.Scope); g != it.gen {
			it.gen = g
			continue
		}
		o.put(it, &m, gen, version)
		return
	}
	o.delete(it) // the topology changes under it; the next offer tries again
}

func (o *owner) put(it *item, m *resolver.Mirrored, gen, version uint64) {
	a := resolver.Answer{Status: resolver.StatusSuccess, Path: m.Path}
	if it.q.Kind == resolver.ByAddress && it.q.Src.IsZero() {
		a.Src = m.Src
	}
	var header [acmsock.HeaderSize]byte
	o.reply = acmsock.AppendAnswer(o.reply[:0], header[:], &a)
	p := bpf.FastPath{Gen: gen, Version: version, Sources: m.Gen, GenSlot: it.gen, UseSlot: it.slot, Endpoint: uint16(m.Row),
		Len: uint16(len(o.reply)), Expires: uint64(max(m.Until-tick, 0))}
	copy(p.Reply[:], o.reply[acmsock.HeaderSize:])
	it.until = m.Until
	it.since = o.s.e.Now()
	if it.present && it.mirrored == p {
		return
	}
	it.mirrored, it.queued = p, true
	o.putKeys, o.puts, o.putItem = append(o.putKeys, it.key), append(o.puts, p), append(o.putItem, it)
	if len(o.putKeys) == bpf.FastBatch {
		o.flush()
	}
}

// delete takes an answer out of the kernel with the next flush.
func (o *owner) delete(it *item) {
	if !it.present || it.queued {
		return
	}
	it.queued = true
	o.delKeys, o.delItem = append(o.delKeys, it.key), append(o.delItem, it)
	if len(o.delKeys) == bpf.FastBatch {
		o.flush()
	}
}

// flush writes. An answer that cannot be deleted must not be served: then the
// fast path goes off.
func (o *owner) flush() {
	s := o.s
	if len(o.delKeys) > 0 {
		if err := o.k.DeletePaths(o.delKeys); err != nil {
			s.Fail(err)
		} else {
			s.count.deletes.Add(uint64(len(o.delKeys)))
			for _, it := range o.delItem {
				it.present = false
			}
		}
	}
	if len(o.putKeys) > 0 {
		if err := o.k.PutPaths(o.putKeys, o.puts); err == nil {
			s.count.puts.Add(uint64(len(o.putKeys)))
			for _, it := range o.putItem {
				it.present = true
			}
		} else if derr := o.k.DeletePaths(o.putKeys); derr != nil {
			s.Fail(fmt.Errorf("%w; %w", err, derr))
		} else {
			s.count.lost.Add(uint64(len(o.putKeys)))
			for _, it := range o.putItem {
				it.present = false
			}
		}
	}
	for _, list := range [][]*item{o.delItem, o.putItem} {
		for _, it := range list {
			it.queued = false
		}
		clear(list)
	}
	o.delKeys, o.delItem = o.delKeys[:0], o.delItem[:0]
	o.putKeys, o.puts, o.putItem = o.putKeys[:0], o.puts[:0], o.putItem[:0]
}
