// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package service

import (
	"os"
	"path/filepath"
	"testing"
)

// Whoever starts the daemon is told before there is anything that a client could
// connect to, and that an end by a signal would leave behind.
func TestServing(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "opts")
	if err := os.WriteFile(file, []byte("bpf_dir none\nlog_file "+filepath.Join(dir, "log")+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	sockets := func() []string {
		found, err := filepath.Glob(filepath.Join(dir, "*.sock"))
		if err != nil {
			t.Fatal(err)
		}
		ctl, _ := filepath.Glob(filepath.Join(dir, "*.ctl"))
		return append(found, ctl...)
	}
	told := 0
	d, err := Start(Options{
		OptionsFile: file, AddressFile: filepath.Join(dir, "addr"), RunDir: dir, Fabric: "embedded:nodes=4",
		Version: "test", Getenv: func(string) string { return "" },
		Serving: func() {
			if told++; len(sockets()) != 0 {
				t.Errorf("too late: %v", sockets())
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if told != 1 || len(sockets()) == 0 {
		t.Errorf("told %d times, then there was %v", told, sockets())
	}
	if err := d.Stop(); err != nil {
		t.Error(err)
	}
}
