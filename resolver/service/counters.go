// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package service

import (
	"net/http"

	"acmd/bpf"
	"acmd/resolver/config"
	"acmd/resolver/control"
)

// openCounters opens what all rooms count in, before any of them is there. It is
// closed after them, so that nothing that they still do is lost.
func (d *Daemon) openCounters(s *config.Settings) (err error) {
	o := bpf.Options{RunDir: d.opts.RunDir, Log: d.log}
	if s.BPFDir != "" {
		o.Dir = bpf.PinDir(s.BPFDir, d.opts.RunDir)
	}
	if d.counters, err = bpf.Open(o); err != nil {
		return err
	}
	d.onStop(d.counters.Close)
	return nil
}

// serveCounters is for tools that find no pins.
func (d *Daemon) serveCounters(ctl *control.Server) {
	ctl.Handle("GET /v1/counters", func(w http.ResponseWriter, _ *http.Request) {
		var s bpf.Snapshot
		d.counters.Read(&s)
		control.WriteJSON(w, &s)
	})
}

// countersState is what `acmctl state` shows of them.
func (d *Daemon) countersState() map[string]any {
	st := map[string]any{"in": d.counters.Place().String()}
	if d.counters.Place() == bpf.Pinned {
		st["dir"] = d.counters.Dir()
	} else if err := d.counters.Reason(); err != nil {
		st["reason"] = err.Error()
	}
	return st
}
