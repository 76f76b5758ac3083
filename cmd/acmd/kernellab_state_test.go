// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package main

import (
	"encoding/json"
	"errors"
	"slices"
	"testing"

	"acmd/mad/umad/kernellab"
	"acmd/resolver"
	"acmd/resolver/acmsock"
	"acmd/resolver/kernelnl"
	"acmd/resolver/sa"
)

// What the tests under a real kernel wait for. A guest has one processor, and that
// one is shared: between any two things that happen one after the other in different
// processes seconds may pass. So a state is waited for until it is there, and nothing
// is compared with a figure that was read while something was under way.

// labState is what of acmctl state these tests look at.
type labState struct {
	Ports []struct {
		Device string
		SA     sa.Stats
	}
	Groups []struct{ Joined bool }
	Events []struct{ Device, Source string }
	Engine resolver.Stats
	ACM    struct{ Found uint64 }
}

func (l *kernelLab) state() (s labState) {
	l.t.Helper()
	if err := json.Unmarshal([]byte(l.acmctl("--json", "state")), &s); err != nil {
		l.t.Fatal(err)
	}
	return s
}

// port is the SA client of a device's port; false: the port is not open.
func (s *labState) port(device string) (sa.Stats, bool) {
	for i := range s.Ports {
		if p := &s.Ports[i]; p.Device == device {
			return p.SA, true
		}
	}
	return sa.Stats{}, false
}

// isOpen tells whether the daemon has the port of a device.
func (l *kernelLab) isOpen(device string) bool {
	l.t.Helper()
	s := l.state()
	_, ok := s.port(device)
	return ok
}

// source is the SA client of the source's port, which has to be open.
func (l *kernelLab) source() sa.Stats {
	l.t.Helper()
	s := l.state()
	p, ok := s.port(labSource)
	if !ok {
		l.t.Fatalf("the daemon does not have the port of %s", labSource)
	}
	return p
}

// isQuiet tells whether the daemon is done with what a start, a new port or a new SM
// makes it ask: each port has its notices and its group, and nothing is on its way.
func (l *kernelLab) isQuiet() bool {
	l.t.Helper()
	s := l.state()
	for i := range s.Ports {
		if p := &s.Ports[i].SA; p.Subscribed != len(resolver.Traps) || p.Outstanding+p.Queued != 0 {
			return false
		}
	}
	for _, g := range s.Groups {
		if !g.Joined {
			return false
		}
	}
	return len(s.Ports) == len(labDevices) && s.Engine.Flights == 0
}

// subscribed waits until the source port has subscribed to notices n times.
func (l *kernelLab) subscribed(n uint64) {
	l.t.Helper()
	kernellab.Eventually(l.t, "subscription to notices", func() bool {
		s := l.state()
		p, ok := s.port(labSource)
		return ok && p.Subscribed == len(resolver.Traps) && p.Subscriptions >= n
	})
}

// counted waits until the counters of the kernel's door are as they should be, and
// returns them. A reply is written before it is counted, so whoever has it may look
// too early.
func (l *kernelLab) counted(what string, ok func(kernelnl.Stats) bool) (s kernelnl.Stats) {
	l.t.Helper()
	defer func() {
		if l.t.Failed() {
			l.t.Logf("%s: counters %+v", what, s)
		}
	}()
	kernellab.Eventually(l.t, what, func() bool { s = l.counts(); return s.Pending == 0 && ok(s) })
	return s
}

// refused waits until a path is refused with one of these statuses. before is done
// before each try; nil: nothing.
func (l *kernelLab) refused(what string, device string, before func(), statuses ...resolver.Status) {
	l.t.Helper()
	var last error
	defer func() {
		if l.t.Failed() {
			l.t.Logf("%s: last %v, want one of %v", what, last, statuses)
		}
	}()
	kernellab.Eventually(l.t, what, func() bool {
		if before != nil {
			before()
		}
		_, last = l.ask(l.labQuery(device, false))
		return slices.Contains(statuses, statusOf(last))
	})
}

// statusOf is the status that an error of the client has.
func statusOf(err error) resolver.Status {
	var se *acmsock.StatusError
	if !errors.As(err, &se) {
		return resolver.StatusSuccess
	}
	return se.Status
}

// wireQueries counts the path queries of the source that f makes the daemon ask,
// each once: an SA that takes its time is asked again.
func (l *kernelLab) wireQueries(f func()) int {
	l.t.Helper()
	again := l.source().Retries
	kernellab.ClearTrace(l.t)
	f()
	n := queries(l.t, labSource)
	return n - int(l.source().Retries-again)
}

// labDevices are the adapters of the guest.
var labDevices = []string{"sib0", "sib1", "sib2", "sib3"}

// settle makes the fabric one that no earlier test has touched.
func settle(t *testing.T) {
	t.Helper()
	kernellab.Need(t, kernellab.Softib, kernellab.IPoIB)
	kernellab.Control(t, "clear")
	kernellab.Settled(t, labDevices...)
}
