// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package bpf_test

import (
	"encoding/json"
	"os/exec"
	"strings"
	"testing"
	"time"

	"acmd/bpf/bpftest"
)

// bpftool finds the map by its name and reads the counters with the names of the
// fields, while the daemon lives and afterwards.
func TestBpftool(t *testing.T) {
	tool := bpftest.Tool(t)
	dir := bpftest.Mount(t) + "/v1"
	m, _ := open(t, dir)
	fill(m)
	run := func(args ...string) ([]byte, error) {
		return exec.Command(tool, append([]string{"-j", "map"}, args...)...).Output()
	}
	type element struct {
		Formatted struct {
			Key   int
			Value struct {
				Device string
				Guid   uint64
				Port   int
				Count  [][]uint64
			}
		}
	}
	check := func(out []byte) {
		t.Helper()
		var list []element
		if err := json.Unmarshal(out, &list); err != nil {
			t.Fatalf("%v in %.300s", err, out)
		}
		if v := list[1].Formatted.Value; len(list) != 1024 || v.Device != "mlx5_0" || v.Guid != 0x0002c90300001234 || v.Port != 1 || v.Count[7][1] != 1 {
			t.Errorf("%d elements, the first endpoint is %+v", len(list), v)
		}
	}
	for _, when := range []string{"daemon alive", "daemon dead"} {
		out, err := run("dump", "pinned", dir+"/acm_ep")
		if err != nil {
			t.Fatal(when, err)
		}
		check(out)
		if out, err = run("show", "pinned", dir+"/acm_ep"); err != nil || !strings.Contains(string(out), `"name":"acm_ep"`) {
			t.Errorf("%s: %s, %v", when, out, err)
		}
		// By name it finds those of every daemon on the machine, and gives up when
		// one of them ends just then.
		for end := time.Now().Add(2 * time.Minute); ; time.Sleep(50 * time.Millisecond) {
			out, err = run("dump", "name", "acm_ep")
			if err == nil && strings.Contains(string(out), `"device":"mlx5_0"`) {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("%s: by name: %.300s, %v", when, out, err)
			}
		}
		if when == "daemon alive" {
			m.Close()
		}
	}
}
