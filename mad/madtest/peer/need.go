// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package peer

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
)

// packages names the Debian package of each program that tests ask for.
var packages = map[string]string{
	"ibsim":      "ibsim-utils",
	"umad2sim":   "ibsim-utils",
	"opensm":     "opensm",
	"saquery":    "infiniband-diags",
	"smpquery":   "infiniband-diags",
	"ibacm":      "ibacm",
	"ib_acme":    "ibacm",
	"gcc":        "gcc",
	"make":       "make",
	"prometheus": "prometheus",
	"promtool":   "prometheus",
	"verbs.h":    "libibverbs-dev",
	"rdma_cma.h": "librdmacm-dev",
}

// Need skips the test unless all tools are there, or fails it when ACMD_CI=1. A
// tool is a program, "umad2sim" for ibsim's preload library, or "verbs.h" and
// "rdma_cma.h" for what peerlab is built with.
func Need(t testing.TB, tools ...string) {
	t.Helper()
	for _, tool := range tools {
		if find(tool) != "" {
			continue
		}
		pkg := packages[tool]
		if pkg == "" {
			pkg = tool
		}
		if os.Getenv("ACMD_CI") == "1" {
			t.Fatalf("%s is missing: apt-get install %s", tool, pkg)
		}
		t.Skipf("%s is missing: apt-get install %s", tool, pkg)
	}
}

// Tool is [Need] for one program; it returns where that is.
func Tool(t testing.TB, tool string) string {
	t.Helper()
	Need(t, tool)
	return find(tool)
}

// find returns where a tool is, or "". System directories count even when they
// are not in the PATH: ibacm and opensm are there.
func find(tool string) string {
	var patterns []string
	switch tool {
	case "umad2sim":
		patterns = []string{"/usr/lib/*/umad2sim/libumad2sim.so", "/usr/lib*/umad2sim/libumad2sim.so"}
	case "verbs.h":
		patterns = []string{"/usr/include/infiniband/verbs.h"}
	case "rdma_cma.h":
		patterns = []string{"/usr/include/rdma/rdma_cma.h"}
	default:
		if p, err := exec.LookPath(tool); err == nil {
			return p
		}
		patterns = []string{"/usr/sbin/" + tool, "/sbin/" + tool, "/usr/bin/" + tool}
		if _, file, _, ok := runtime.Caller(0); ok { // what prometheus.sh put there
			patterns = append(patterns, filepath.Join(filepath.Dir(file), "../../../bench/lab/build", tool))
		}
	}
	for _, p := range patterns {
		if list, _ := filepath.Glob(p); len(list) > 0 {
			return list[0]
		}
	}
	return ""
}

// lab is bench/lab/peerlab, found from this file.
func lab(t testing.TB) string {
	t.Helper()
	dir, err := labDir()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func labDir() (string, error) {
	_, file, _, ok := runtime.Caller(0)
	if !ok {
		return "", errors.New("source of package peer is not known")
	}
	dir := filepath.Join(filepath.Dir(file), "../../../bench/lab/peerlab")
	if _, err := os.Stat(dir); err != nil {
		return "", fmt.Errorf("peerlab: %w", err)
	}
	return dir, nil
}

// FakeVerbs builds the preload library and returns its path. It is for a TestMain,
// which has no test to skip: an error names what is missing.
func FakeVerbs() (string, error) {
	for _, tool := range []string{"make", "gcc", "verbs.h", "rdma_cma.h"} {
		if find(tool) == "" {
			return "", fmt.Errorf("%s is missing: apt-get install %s", tool, packages[tool])
		}
	}
	dir, err := labDir()
	if err != nil {
		return "", err
	}
	if err := build(dir); err != nil {
		return "", err
	}
	return filepath.Join(dir, "build", "libfakeverbs.so"), nil
}

// Netlist returns the path of a netlist of peerlab, such as "small.net" (8
// adapters, node-a to node-g and sm-host) or "n600.net" (601, h1 to h600). A
// path is returned as it is.
func Netlist(t testing.TB, name string) string {
	t.Helper()
	if filepath.Base(name) != name {
		return name
	}
	return filepath.Join(lab(t), "netlists", name)
}

// build makes peerlab's C parts, once per test binary. Test binaries may build at
// the same time: make replaces files whole.
func build(dir string) error {
	buildOnce.Do(func() {
		if out, err := exec.Command("make", "-s", "-C", dir).CombinedOutput(); err != nil {
			buildOnce.err = fmt.Errorf("build peerlab: %w\n%s", err, out)
		}
	})
	return buildOnce.err
}

var buildOnce struct {
	sync.Once
	err error
}

// built builds peerlab's C parts and returns the path of one of them.
func built(t testing.TB, file string) string {
	t.Helper()
	Need(t, "make", "gcc", "verbs.h", "rdma_cma.h")
	dir := lab(t)
	if err := build(dir); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "build", file)
}
