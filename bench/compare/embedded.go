// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package main

import (
	"fmt"
	"path/filepath"
	"strings"

	"acmd/mad/fabric"
	"acmd/mad/transport"
	"acmd/resolver/service"
)

// embedded is a daemon inside this process, on the embedded fabric: what it sends is
// seen on the fabric itself.
type embedded struct {
	*service.Daemon
	fab  *fabric.Fabric
	dir  string // its run directory
	sock string
}

// startEmbedded starts one with so many nodes and more lines of options. observe has
// the fabric before the daemon does.
func (b *bench) startEmbedded(nodes int, options string, observe func(*fabric.Fabric)) *embedded {
	e := &embedded{dir: b.TempDir()}
	e.sock = filepath.Join(e.dir, "ibacm-unix.sock")
	b.write(filepath.Join(e.dir, "opts.cfg"), "log_file "+filepath.Join(e.dir, "log")+"\nlock_file "+filepath.Join(e.dir, "pid")+"\nbpf_dir none\n"+options)
	d, err := service.Start(service.Options{
		OptionsFile: filepath.Join(e.dir, "opts.cfg"), AddressFile: filepath.Join(e.dir, "none.cfg"), RunDir: e.dir,
		Fabric: fmt.Sprintf("embedded:nodes=%d", nodes), Version: "compare", Getenv: func(string) string { return "" },
		Observe: func(t transport.Fabric) {
			e.fab = t.(*fabric.Fabric)
			observe(e.fab)
		},
	})
	if err != nil {
		b.Fatal(err)
	}
	e.Daemon = d
	b.Cleanup(func() {
		if err := d.Stop(); err != nil {
			b.warn("embedded daemon: stop: %v", err)
		}
	})
	return e
}

// dests writes acmload's list of the first so many other nodes, by IPv4 address.
func (e *embedded) dests(b *bench, count int) string {
	var list strings.Builder
	for n := 1; n <= count; n++ {
		fmt.Fprintf(&list, "ip:%v %v %d\n", fabric.IPv4(n, 1), e.fab.GID(n, 1), e.fab.LID(n, 1))
	}
	file := filepath.Join(e.dir, "dests")
	b.write(file, list.String())
	return file
}

// src is the daemon's own address, for acmload.
func (e *embedded) src() string { return fmt.Sprintf("ip:%v", fabric.IPv4(0, 1)) }
