// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package service

import (
	"slices"

	"acmd/mad"
	"acmd/resolver"
	"acmd/resolver/config"
	"acmd/resolver/hostnet"
	"acmd/resolver/neigh"
)

// hostView is where the engine has addresses and sources from: the fabric, where it
// brings its own, else the kernel.
func (d *Daemon) hostView() resolver.Host {
	if d.fabric.host != nil {
		return d.fabric.host
	}
	d.host = hostnet.New(hostnet.Config{Log: d.log})
	return d.host
}

// watchHost has the kernel tell the running engine when addresses change.
func (d *Daemon) watchHost() {
	if d.host == nil {
		return
	}
	if err := d.host.Watch(d.engine.Kick); err != nil {
		d.log.Error("network changes show at the next poll only", "err", err)
		return
	}
	d.onStop(d.host.Close)
}

// hostState is what `acmctl state` shows of it.
func (d *Daemon) hostState() any {
	if d.host == nil {
		return nil
	}
	return d.host.Stats()
}

// startNeigh opens the kernel's neighbour table if it is to be asked. Without it the
// other sources of addr_prot have to do. It has three quarters of a request's time,
// so that the next source is asked while the client waits.
func (d *Daemon) startNeigh(s *config.Settings) {
	if !slices.Contains(s.AddrProt, neigh.Name) {
		return
	}
	if d.host == nil {
		d.log.Warn("addr_prot neigh has no effect on a fabric that brings its own addresses", "fabric", d.opts.Fabric)
		return
	}
	n, err := neigh.New(neigh.Config{
		Interfaces: d.host.Interfaces, Timeout: s.RequestTimeout / 4 * 3, Log: d.log,
		// What was told is told by the engine, which is there by then.
		Moved: func(was mad.GID) { d.engine.FlushGID(was) },
	})
	if err != nil {
		d.log.Error("the neighbour table is not asked", "err", err)
		return
	}
	d.neigh = n
	d.onStop(n.Close)
}

// neighState is what `acmctl state` shows of it.
func (d *Daemon) neighState() any {
	if d.neigh == nil {
		return nil
	}
	return d.neigh.Stats()
}
