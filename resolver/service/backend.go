// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package service

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"acmd/mad"
	"acmd/resolver/config"
	"acmd/resolver/control"
	"acmd/resolver/preload"
)

// Flush implements [control.Backend].
func (d *Daemon) Flush(_ context.Context, r control.FlushRequest) (n int, err error) {
	switch {
	case r.All:
		n = d.engine.FlushAll()
	case r.GID != "":
		gid, err := mad.ParseGID(r.GID)
		if err != nil {
			return 0, err
		}
		n = d.engine.FlushGID(gid)
	case r.LID != 0:
		if !mad.LID(r.LID).IsUnicast() {
			return 0, fmt.Errorf("%d is not a unicast LID", r.LID)
		}
		n = d.engine.FlushLID(mad.LID(r.LID))
	case r.Dest != "":
		addr, err := preload.ParseAddr(r.Dest)
		if err != nil {
			return 0, err
		}
		n = d.engine.FlushDest(addr)
	case r.Port != "":
		dev, port, ok := cutPort(r.Port)
		if !ok {
			return 0, fmt.Errorf("port %q: want DEVICE/PORT", r.Port)
		}
		if n, err = d.engine.FlushPort(dev, port); err != nil {
			return 0, err
		}
	}
	d.log.Info("flushed by request", "gid", r.GID, "lid", r.LID, "dest", r.Dest, "port", r.Port, "all", r.All, "dropped", n)
	return n, nil
}

// cutPort reads DEVICE/PORT.
func cutPort(text string) (device string, port uint8, ok bool) {
	device, num, _ := strings.Cut(text, "/")
	n, err := strconv.ParseUint(num, 10, 8)
	return device, uint8(n), err == nil && n != 0 && device != ""
}

// Config implements [control.Backend]: what is in force, which after a reload is
// not all what the file says.
func (d *Daemon) Config() []control.Setting {
	reloaded := map[string]config.Value{}
	for _, v := range d.settings.Load().Values() {
		reloaded[v.Name] = v
	}
	values := d.first.Values()
	list := make([]control.Setting, len(values))
	for i, v := range values {
		if slices.Contains(live, v.Name) {
			v = reloaded[v.Name]
		}
		list[i] = control.Setting{Name: v.Name, Value: v.Value, Origin: v.Origin}
	}
	return list
}

// live are the settings that a reload puts into force; all others wait for the
// next start, and a reload that changes one says so.
var live = []string{"log_file", "log_level", "support_ips_in_addr_cfg"}

// Reload implements [control.Backend], and is what SIGHUP does: it reads options,
// address file and preload files again and opens the log anew. Paths that are
// cached stay, but for those that a preload file now says otherwise, and so does what
// a file said that cannot be read now. Warnings have
// all that is wrong with the files, at most config.MaxProblems for each of them, and
// which file is gone: without one everything has its default.
func (d *Daemon) Reload() (warnings []string, err error) {
	d.reloading.Lock()
	defer d.reloading.Unlock()
	s, problems, err := d.opts.load(d.activated)
	if err != nil {
		d.log.Error("reload: options stay as they were", "err", err)
		return nil, err
	}
	was, found := d.settings.Load(), d.opts.find()
	warnings = d.opts.gone(d.found, found)
	d.found = found
	if err := d.logs.reopen(s.LogFile); err != nil {
		warnings = append(warnings, fmt.Sprintf("log stays where it is: %v", errors.Join(err, s.Keep("log_file", was))))
	}
	d.level.Set(s.SlogLevel())
	for _, name := range config.Changed(d.first, s) {
		if !slices.Contains(live, name) {
			warnings = append(warnings, fmt.Sprintf("%s has changed (%v); it takes effect at the next start", name, s.Origin(name)))
		}
	}
	addrs, ps, err := d.readAddresses(s)
	problems = append(problems, ps...)
	if err != nil {
		err = errors.Join(err, s.Keep("support_ips_in_addr_cfg", was))
		warnings = append(warnings, fmt.Sprintf("names stay as they were: %v", err))
	} else {
		d.engine.SetAddresses(addrs)
	}
	d.settings.Store(s)
	preloaded := d.preload.Reading()
	if ps, err = d.readPreload(d.engine.Endpoints()); err != nil {
		warnings = append(warnings, fmt.Sprintf("what was preloaded stays as it was: %v", err))
	}
	dropped := 0
	for a := range preloaded.Differ(d.preload.Reading()) {
		dropped += d.engine.FlushDest(a)
	}
	for _, p := range append(problems, ps...) {
		warnings = append(warnings, p.Error())
	}
	for _, w := range warnings {
		d.log.Warn("reload", "warning", w)
	}
	d.log.Info("reloaded", "paths_dropped", dropped)
	return warnings, nil
}

// State implements [control.Backend].
func (d *Daemon) State() any {
	type endpoint struct {
		Device    string   `json:"device"`
		Port      uint8    `json:"port"`
		PKey      string   `json:"pkey"`
		GID       string   `json:"gid"`
		LID       mad.LID  `json:"lid"`
		SMLID     mad.LID  `json:"sm_lid"`
		Provider  string   `json:"provider"`
		Addresses []string `json:"addresses"`
	}
	type port struct {
		Device string `json:"device"`
		Port   uint8  `json:"port"`
		SA     any    `json:"sa"`
		Queues any    `json:"queue_pairs,omitempty"`
	}
	type group struct {
		Device string  `json:"device"`
		Port   uint8   `json:"port"`
		PKey   string  `json:"pkey"`
		MGID   string  `json:"mgid"`
		Joined bool    `json:"joined"`
		MLID   mad.LID `json:"mlid"`
		Error  string  `json:"error,omitempty"`
	}
	eps, ports := []endpoint{}, []port{}
	for _, ep := range d.engine.Endpoints() {
		e := endpoint{ep.Device, ep.Port.Num, ep.PKey.String(), ep.GID.String(), ep.Port.LID, ep.Port.SMLID, ep.Provider, []string{}}
		for _, a := range ep.Addrs {
			e.Addresses = append(e.Addresses, a.Text)
		}
		eps = append(eps, e)
	}
	for _, p := range d.ports.list() {
		ports = append(ports, port{p.id.device, p.id.port, p.Client.Stats(), p.queuePairs()})
	}
	groups := []group{}
	for _, g := range d.acm.Groups() {
		st := group{g.Device, g.Port, g.PKey.String(), g.MGID.String(), g.Joined, g.MLID, ""}
		if g.Err != nil {
			st.Error = g.Err.Error()
		}
		groups = append(groups, st)
	}
	return map[string]any{
		"version":   d.opts.Version,
		"fabric":    d.opts.Fabric,
		"uptime_s":  int64(time.Since(d.started) / time.Second),
		"endpoints": eps,
		"ports":     ports,
		"events":    d.fabric.EventSources(),
		"engine":    d.engine.Stats(),
		"failures":  d.engine.Failures(),
		"acm":       d.acm.Stats(),
		"groups":    groups,
		"clients":   d.door.Stats(),
		"kernel":    d.kernel.state(),
		"host":      d.hostState(),
		"fast_path": d.fastPathState(),
		"neigh":     d.neighState(),
		"metrics":   d.metrics.Load().state(),
		"trace":     d.trace.state(),
		"counters":  d.countersState(),

		"capabilities": d.capabilityState(),
	}
}
