// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package fastpath

import "acmd/bpf"

// State is what operators see.
type State struct {
	On     bool          `json:"on"`
	Reason string        `json:"reason,omitempty"` // why it cannot be on
	Plan   *bpf.FastPlan `json:"plan,omitempty"`   // how this kernel does it
	Paths  int           `json:"paths"`            // questions that are mirrored

	Puts      uint64 `json:"puts"`      // answers written
	Deletes   uint64 `json:"deletes"`   // answers taken out
	Full      uint64 `json:"full"`      // questions that found no room
	Lost      uint64 `json:"lost"`      // answers that the kernel did not take
	Inserted  uint64 `json:"inserted"`  // sockets put onto the map
	Refused   uint64 `json:"refused"`   // sockets that stayed with the daemon
	Refreshed uint64 `json:"refreshed"` // refreshes for hits in the kernel

	// Messages is what became of the messages of clients on the map.
	Messages map[string]uint64 `json:"messages,omitempty"`
}

// State reads it.
func (s *Service) State() State {
	c := &s.count
	st := State{
		On: s.on.Load(), Puts: c.puts.Load(), Deletes: c.deletes.Load(), Full: c.full.Load(), Lost: c.lost.Load(),
		Inserted: c.inserted.Load(), Refused: c.refused.Load(), Refreshed: c.refreshed.Load(),
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	st.Reason, st.Paths = s.reason, len(s.tab.byKey)
	if s.k == nil || s.stopped {
		return st
	}
	plan := s.k.Plan()
	st.Plan, st.Messages = &plan, map[string]uint64{}
	for i, n := range s.k.Counts() {
		if name := bpf.KernelWord(i).String(); name != "" {
			st.Messages[name] = n
		}
	}
	return st
}

// Programs asks the kernel what the programs cost. It must not run at the same
// time as Stop.
func (s *Service) Programs() []bpf.ProgramStats {
	s.mu.Lock()
	k, stopped := s.k, s.stopped
	s.mu.Unlock()
	if f, ok := k.(*bpf.Fast); ok && !stopped {
		return f.Programs()
	}
	return nil
}
