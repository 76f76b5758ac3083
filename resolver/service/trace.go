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
	// Of the topology goroutine.
	wanted bool // the fabric is the kernel's
	said   bool // that there is no trace, and why
}

// prepareTrace has the SA clients tell what they ask. It comes before the first
// port is opened.
func (d *Daemon) prepareTrace() {
	if !strings.HasPrefix(d.opts.Fabric, "umad") {
		return
	}
	d.trace.wanted = true
	d.ports.cfg.Asked = func(tid uint32) { d.trace.running.Load().Asked(tid) }
	d.onStop(func() error { return d.trace.running.Load().Close() })
}

// traceFabric attaches the programs. It is tried anew when the topology changes as
// long as the tracepoints do not exist: with the first device their modules come.
func (d *Daemon) traceFabric() {
	if !d.trace.wanted {
		return
	}
	t, err := d.counters.TraceFabric()
	if err == nil {
		d.trace.running.Store(t)
		d.trace.wanted = false
		d.log.Info("SA requests are followed through the kernel")
		return
	}
	if !d.trace.said {
		d.trace.said = true
		d.log.Info("no latency of the fabric alone: the kernel's tracepoints are not to be had", "reason", err)
	}
	d.trace.wanted = errors.Is(err, os.ErrNotExist)
}
