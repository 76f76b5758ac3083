// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package main

import (
	"testing"

	"acmd/mad/sa"
	"acmd/mad/umad/kernellab"
)

// One question, whose answer the kernel puts together from several packets, has the
// paths to all adapters: each is the SA's 64 bytes, by GID and by LID, while no question
// for a single path reaches the SA. After a flush there is another one.
func TestKernelDaemonPrefetch(t *testing.T) {
	l := startLab(t, "route_preload sa")
	t.Cleanup(func() { kernellab.Control(t, "clear") })
	want := map[sa.PathRecord]sa.PathRecord{}
	for _, device := range []string{"sib0", "sib2", "sib3"} {
		for _, byLID := range []bool{false, true} {
			q := l.labQuery(device, byLID)
			want[q] = l.raw(q)
		}
	}
	for range 2 {
		tables := l.state().Engine.Tables
		l.flush()
		n := len(labDevices) // each has a table, with a path to each
		kernellab.Eventually(t, "the tables are there", func() bool {
			e := l.state().Engine
			return e.Tables >= tables+uint64(n) && e.TablePaths >= n*n
		})
		kernellab.Control(t, "clear\ndrop class=3 method=0x1 attr=0x35 from="+labSource)
		for q, w := range want {
			if got, err := l.ask(q); err != nil || got != w {
				t.Errorf("%v, %x,\nthe SA says %x", err, got, w)
			}
		}
		kernellab.Control(t, "clear")
	}
	if e := l.state().Engine; e.TableFailures != 0 || e.TableRoutes < 2*uint64(len(want)) {
		t.Errorf("%d tables failed, %d routes out of the others", e.TableFailures, e.TableRoutes)
	}
}
