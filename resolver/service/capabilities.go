// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package service

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"acmd/resolver/fastpath"
	"acmd/resolver/privilege"

	"golang.org/x/sys/unix"
)

// Parts of the daemon that need a capability after the start, as the log and the
// state call them. README.md has the table.
const (
	partKernel = "kernel"    // each answer to the kernel's questions is looked at
	partNeigh  = "neigh"     // a neighbour is looked for without a packet of ours
	partQueues = "verbs"     // queue pairs of ports that come up: the Q_Key, the ring's memory
	partTrace  = "trace"     // tracepoints of modules that are not loaded yet
	partFast   = "fast_path" // kernels before 5.19 let nobody call bpf() without
	partFiles  = "files"     // files of other users that are opened again
)

// need is what a part needs.
type need struct {
	part string
	caps privilege.Set
}

// capabilities is what the process keeps, and why.
type capabilities struct {
	changing sync.Mutex // one change at a time
	needs    []need
	err      atomic.Pointer[error]  // nil: nothing was dropped yet; else why not all is gone that should be
	shown    atomic.Pointer[[]need] // a copy of needs
}

// needs are those that are known from what runs.
func (d *Daemon) needs() (list []need) {
	if d.kernel != nil {
		list = append(list, need{partKernel, privilege.Of(unix.CAP_NET_ADMIN)})
	}
	if d.neigh != nil {
		list = append(list, need{partNeigh, privilege.Of(unix.CAP_NET_ADMIN)})
	}
	if strings.HasSuffix(d.opts.Fabric, queuePairs) {
		list = append(list, need{partQueues, privilege.Of(unix.CAP_NET_RAW, unix.CAP_IPC_LOCK)})
	}
	if d.trace.wanted.Load() {
		list = append(list, need{partTrace, privilege.Of(unix.CAP_BPF, unix.CAP_PERFMON)})
	}
	return list
}

func union(needs []need) (s privilege.Set) {
	for _, n := range needs {
		s |= n.caps
	}
	return s
}

// withhold calls a function without the capabilities that are not in a set;
// [privilege.With] outside of tests.
type withhold func(privilege.Set, func() error) error

// dropCapabilities gives up what nobody needs any more, now that all is open, and
// has the fast path work once more. k is nil without one; the error tells that it
// does not work any more.
func (d *Daemon) dropCapabilities(k fastpath.Kernel) (unproven error) {
	if !d.opts.DropCapabilities {
		return nil
	}
	c := &d.caps
	c.changing.Lock()
	defer c.changing.Unlock()
	held, err := privilege.Read()
	if err != nil {
		c.err.Store(&err)
		d.log.Error("capabilities stay as they are", "err", err)
		return nil
	}
	c.needs = d.needs()
	if k != nil {
		more, why := proofNeeds(union(c.needs), privilege.With, k.Prove)
		if more != 0 {
			d.log.Info("the fast path keeps capabilities", "caps", more, "why", why)
			c.needs = append(c.needs, need{partFast, more})
		}
	}
	if file := outOfReach(union(c.needs), privilege.With, d.laterFiles()); file != "" {
		d.log.Info("a file that is opened again later is another user's", "file", file)
		c.needs = append(c.needs, need{partFiles, privilege.Of(unix.CAP_DAC_OVERRIDE)})
	}
	for i := range c.needs {
		c.needs[i].caps &= held.Permitted
	}
	d.keepNeeded()
	if k == nil {
		return nil
	}
	if err := k.Prove(); err != nil {
		return errors.Join(errors.New("not without the capabilities that were dropped"), err)
	}
	return nil
}

// proofSteps are what the fast path gets back if it does not work without.
var proofSteps = []privilege.Set{
	0, privilege.Of(unix.CAP_BPF), privilege.Of(unix.CAP_BPF, unix.CAP_NET_ADMIN, unix.CAP_PERFMON),
}

// proofNeeds finds the least that has to be kept beside keep for the fast path, and
// what happens with less. If nothing is enough, it is what loading took.
func proofNeeds(keep privilege.Set, with withhold, prove func() error) (more privilege.Set, why error) {
	for _, more = range proofSteps {
		err := with(keep|more, prove)
		if err == nil {
			break
		}
		why = err
	}
	return more, why
}

// releaseCapabilities drops what a part has needed until now. Before the daemon is
// set up it does nothing.
func (d *Daemon) releaseCapabilities(part string) {
	c := &d.caps
	c.changing.Lock()
	defer c.changing.Unlock()
	for i, n := range c.needs {
		if n.part == part {
			c.needs = append(c.needs[:i], c.needs[i+1:]...)
			d.keepNeeded()
			return
		}
	}
}

// keepNeeded drops all but the needs, and says what is left. One at a time.
func (d *Daemon) keepNeeded() {
	c := &d.caps
	err := privilege.Keep(union(c.needs))
	c.err.Store(&err)
	c.shown.Store(new(slices.Clone(c.needs)))
	held, readErr := privilege.Read()
	if readErr != nil {
		d.log.Error("capabilities cannot be read", "err", readErr)
		return
	}
	var parts []string
	for _, n := range c.needs {
		if n.caps != 0 {
			parts = append(parts, n.part)
		}
	}
	log := d.log.With("kept", held.Permitted, "for", strings.Join(parts, ","), "bounding", held.Bounding)
	if err != nil {
		log.Error("not all capabilities are dropped that are not needed any more", "err", err)
		return
	}
	log.Info("capabilities that are not needed any more are dropped")
}

// capabilityState is what `acmctl state` shows.
func (d *Daemon) capabilityState() any {
	st := struct {
		Kept     []string            `json:"kept"`     // permitted now
		Bounding []string            `json:"bounding"` // what an execve() by root could give
		For      map[string][]string `json:"for"`      // by part
		Dropped  bool                `json:"dropped"`
		Error    string              `json:"error,omitempty"`
	}{For: map[string][]string{}}
	held, err := privilege.Read()
	st.Kept, st.Bounding = held.Permitted.Names(), held.Bounding.Names()
	if needs := d.caps.shown.Load(); needs != nil {
		for _, n := range *needs {
			st.For[n.part] = n.caps.Names()
		}
	}
	if dropErr := d.caps.err.Load(); dropErr != nil {
		st.Dropped = *dropErr == nil
		err = errors.Join(err, *dropErr)
	}
	if err != nil {
		st.Error = err.Error()
	}
	return st
}
