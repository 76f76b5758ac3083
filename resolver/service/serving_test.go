// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package service

import (
	"path/filepath"
	"testing"
)

// Whoever starts the daemon is told before there is anything that a client could
// connect to, and that an end by a signal would leave behind.
func TestServing(t *testing.T) {
	o := embedded(t)
	sockets := func() []string {
		found, err := filepath.Glob(filepath.Join(o.RunDir, "*.sock"))
		if err != nil {
			t.Fatal(err)
		}
		ctl, _ := filepath.Glob(filepath.Join(o.RunDir, "*.ctl"))
		return append(found, ctl...)
	}
	told := 0
	o.Serving = func() {
		if told++; len(sockets()) != 0 {
			t.Errorf("too late: %v", sockets())
		}
	}
	d, err := Start(o)
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
