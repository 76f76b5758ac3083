// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package service

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"acmd/mad/fabric"
	"acmd/resolver/control"
)

// The verb acquire, asked of a daemon on the embedded fabric: node 0 has GID and
// addresses by the fabric's formulas.
func TestAcquireVerb(t *testing.T) {
	dir := t.TempDir()
	opts := filepath.Join(dir, "opts.cfg")
	if err := os.WriteFile(opts, []byte("log_file "+filepath.Join(dir, "log")+"\nbpf_dir none\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	d, err := Start(Options{OptionsFile: opts, AddressFile: filepath.Join(dir, "none"), RunDir: dir, Fabric: "embedded:nodes=16", Getenv: func(string) string { return "" }})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := d.Stop(); err != nil {
			t.Error(err)
		}
	}()
	ep := d.engine.Endpoints()[0]
	gid, ip := ep.GID.String(), fabric.IPv4(0, 1).String()
	c := control.NewClient(dir)
	for _, x := range []struct {
		name string
		req  control.AcquireRequest
		err  string // prefix; "": found
	}{
		{"outgoing", control.AcquireRequest{SGID: gid, PKey: 0xffff, Source: ip, Service: 0x1234}, ""},
		{"incoming", control.AcquireRequest{Incoming: true, DGID: gid, Listener: ep.Device + "/1"}, ""},
		{"by LID", control.AcquireRequest{SLID: uint16(ep.Port.LID), Source: "gid:" + gid}, ""},
		{"by name", control.AcquireRequest{SGID: gid, Source: "name:" + fabric.NodeName(0, 1)}, ""},
		{"device", control.AcquireRequest{SGID: gid, Listener: "other0"}, "no device: "},
		{"port", control.AcquireRequest{SGID: gid, PKey: 0x8123}, "no port: "},
		{"entry", control.AcquireRequest{SGID: gid, Source: fabric.IPv4(5, 1).String()}, "no GID entry: "},
		{"bad GID", control.AcquireRequest{SGID: "10.0.0.1"}, `acquire: "10.0.0.1" is not a GID`},
		{"bad source", control.AcquireRequest{SGID: gid, Source: "gid:x"}, `acquire: "x" is not a GID`},
		{"bad listener", control.AcquireRequest{SGID: gid, Listener: ep.Device + "/0"}, `acquire: listener `},
		{"no device in the listener", control.AcquireRequest{SGID: gid, Listener: "/1"}, `acquire: listener `},
		{"nothing", control.AcquireRequest{}, "acquire: the path has neither GID nor LID at our end"},
		{"the peer's end", control.AcquireRequest{Incoming: true, SGID: gid}, "acquire: the path has neither GID nor LID at our end"},
	} {
		var got control.AcquireReply
		err := c.Do(t.Context(), "POST", "acquire", &x.req, &got)
		if x.err != "" {
			if err == nil || !strings.HasPrefix(err.Error(), x.err) {
				t.Errorf("%s: %v, want %s...", x.name, err, x.err)
			}
			continue
		}
		want := control.AcquireReply{Device: ep.Device, Port: 1, GID: gid, Type: "IB", Interface: "embedded"}
		if err != nil || got != want {
			t.Errorf("%s: %+v, %v, want %+v", x.name, got, err, want)
		}
	}
}
