// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package main

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"acmd/mad/fabric"
	"acmd/mad/transport"
	"acmd/resolver/service"
)

// embedded is a daemon inside this process, on the embedded fabric: what it sends is
// seen on the fabric itself.
type embedded struct {
	*service.Daemon
	fab  *fabric.Fabric
	sock string
}

// startEmbedded starts one with so many nodes and more lines of options. observe has
// the fabric before the daemon does.
func (b *bench) startEmbedded(nodes int, options string, observe func(*fabric.Fabric)) *embedded {
	dir := b.TempDir()
	e := &embedded{sock: filepath.Join(dir, "ibacm-unix.sock")}
	b.write(filepath.Join(dir, "opts.cfg"), "log_file "+filepath.Join(dir, "log")+"\nlock_file "+filepath.Join(dir, "pid")+"\nbpf_dir none\n"+options)
	d, err := service.Start(service.Options{
		OptionsFile: filepath.Join(dir, "opts.cfg"), AddressFile: filepath.Join(dir, "none.cfg"), RunDir: dir,
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

// dests writes acmload's list of nodes 1 to count, by IPv4 address. A fabric of the
// daemon's configuration has the daemon's nodes.
func (b *bench) dests(f *fabric.Fabric, count int) string {
	return b.destsBy(f, count, func(n int) string { return fmt.Sprintf("ip:%v", fabric.IPv4(n, 1)) })
}

// destsBy is dests with another kind of address.
func (b *bench) destsBy(f *fabric.Fabric, count int, addr func(n int) string) string {
	var list strings.Builder
	for n := 1; n <= count; n++ {
		fmt.Fprintf(&list, "%s %v %d\n", addr(n), f.GID(n, 1), f.LID(n, 1))
	}
	file := filepath.Join(b.TempDir(), "dests")
	b.write(file, list.String())
	return file
}

// state reads what acmctl shows of it.
func (e *embedded) state(b *bench, into any) {
	text, err := json.Marshal(e.State())
	if err == nil {
		err = json.Unmarshal(text, into)
	}
	if err != nil {
		b.Fatalf("state: %w", err)
	}
}

// await waits until the daemon is ready for a comparison.
func (e *embedded) await(b *bench, what string, ready func() bool) {
	for begin := time.Now(); !ready(); time.Sleep(10 * time.Millisecond) {
		if time.Since(begin) > startLimit {
			b.Fatalf("%s: not within %v", what, startLimit)
		}
	}
}

// src is the daemon's own address, for acmload.
func (e *embedded) src() string { return fmt.Sprintf("ip:%v", fabric.IPv4(0, 1)) }
