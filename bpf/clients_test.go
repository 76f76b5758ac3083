// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package bpf

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"acmd/bpf/bpftest"
	"acmd/mad/madtest"
	"acmd/mad/madtest/peer"
)

// privateLibrary is a copy of the stock librdmacm that only this test's programs
// load.
func privateLibrary(t *testing.T) string {
	t.Helper()
	peer.Need(t, "gcc", "make", "verbs.h", "rdma_cma.h")
	found, err := filepath.Glob("/usr/lib/*/librdmacm.so.1")
	if err != nil || len(found) == 0 {
		bpftest.Missing(t, "librdmacm is missing: apt-get install librdmacm1")
	}
	b, err := os.ReadFile(found[0])
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), filepath.Base(found[0]))
	if err := os.WriteFile(file, b, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("LD_LIBRARY_PATH", filepath.Dir(file))
	return file
}

// Both kinds of probes see every call of the stock library, none before they are
// there and none after Stop. There is no service: the calls have no route and are
// quick.
func TestClientProbes(t *testing.T) {
	for _, multi := range []bool{true, false} {
		madtest.CheckLeaks(t)
		library := privateLibrary(t)
		client := peer.Client{RunDir: t.TempDir(), GUID: 1}
		peer.Raitest(t, client, "10.77.0.1", "10.77.0.2", 5)
		probes, err := traceClients(library, 0, multi)
		if err != nil {
			bpftest.Missing(t, "programs cannot be probed (multi %v): %v", multi, err)
		}
		peer.Raitest(t, client, "10.77.0.1", "10.77.0.2", 30)
		peer.Raitest(t, client, "10.77.0.1", "10.77.0.2", 70)
		if err := probes.Stop(); err != nil {
			t.Error(err)
		}
		peer.Raitest(t, client, "10.77.0.1", "10.77.0.2", 5)

		list, lost, err := probes.Read()
		if err != nil || lost != (ClientLosses{}) || len(list) != 2 {
			t.Fatalf("%v: %+v, lost %+v, %v", probes.How(), list, lost, err)
		}
		for _, c := range list {
			if c.Command != "raitest" || c.Failed != 0 || c.Latency.Count() != c.Calls || c.Latency.Sum == 0 || c.Slowest == 0 {
				t.Errorf("%s: %+v", probes.How(), c)
			}
		}
		if a, b := list[0].Calls, list[1].Calls; min(a, b) != 30 || max(a, b) != 70 {
			t.Errorf("%s: %d and %d calls, want 30 and 70", probes.How(), a, b)
		}
		var slow int
		for {
			s, err := probes.NextSlow()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			if s.Command != "raitest" || s.Took <= 0 || s.Result != 0 || s.PID != list[0].PID && s.PID != list[1].PID {
				t.Errorf("%s: %+v", probes.How(), s)
			}
			slow++
		}
		if slow != 100 {
			t.Errorf("%s: %d calls one by one", probes.How(), slow)
		}
		if err := probes.Close(); err != nil {
			t.Error(err)
		}
		if _, err := probes.NextSlow(); !errors.Is(err, os.ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
	}
}

// What is no library, or has no such function, is an error that names it.
func TestClientProbesRefused(t *testing.T) {
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, []byte("no ELF"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, library := range []string{"/nonexistent", text, "/proc/self/exe"} {
		if probes, err := TraceClients(library, time.Second); err == nil {
			probes.Close()
			t.Errorf("%s was taken", library)
		}
	}
}
