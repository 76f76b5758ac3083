// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package service

import (
	"acmd/resolver"
	"acmd/resolver/hostnet"
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
