// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package service

import (
	"errors"
	"os"
	"strings"
	"sync/atomic"

	"acmd/bpf"
)

// fabricTrace follows the SA requests through the kernel, where the kernel has
// tracepoints for that and lets us.
type fabricTrace struct {
	running atomic.Pointer[bpf.Trace]
	reason  atomic.Pointer[error] // why there is none, once that was said
	wanted  atomic.Bool           // the fabric is the kernel's, and nobody follows them yet; set and cleared on the topology goroutine
}

// state is what `acmctl state` shows.
func (f *fabricTrace) state() map[string]any {
	switch reason := f.reason.Load(); {
	case f.running.Load() != nil:
		return map[string]any{"on": true}
	case reason != nil:
		return map[string]any{"on": false, "reason": (*reason).Error()}
	}
	return map[string]any{"on": false, "reason": "the fabric is not the kernel's"}
}

// prepareTrace has the SA clients tell what they ask. It comes before the first
// port is opened.
func (d *Daemon) prepareTrace() {
	if !strings.HasPrefix(d.opts.Fabric, "umad") {
		return
	}
	d.trace.wanted.Store(true)
	d.ports.cfg.Asked = func(tid uint32) { d.trace.running.Load().Asked(tid) }
	d.onStop(func() error { return d.trace.running.Load().Close() })
}

// traceFabric attaches the programs. It is tried anew when the topology changes as
// long as the tracepoints do not exist: with the first device their modules come.
func (d *Daemon) traceFabric() {
	if !d.trace.wanted.Load() {
		return
	}
	t, err := d.counters.TraceFabric()
	if err == nil {
		d.trace.running.Store(t)
		d.log.Info("SA requests are followed through the kernel")
	} else if d.trace.reason.Swap(&err) == nil {
		d.log.Info("no latency of the fabric alone: the kernel's tracepoints are not to be had", "reason", err)
	}
	if !errors.Is(err, os.ErrNotExist) {
		d.trace.wanted.Store(false)
		d.releaseCapabilities(partTrace)
	}
}
