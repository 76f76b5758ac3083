// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// machine prints what a reader must know to judge figures.
func (b *bench) machine() {
	t := newTable("what", "value")
	t.row("date", time.Now().UTC().Format("2006-01-02 15:04 MST"))
	t.row("processor", cpuModel())
	t.row("processors", runtime.NumCPU())
	var u unix.Utsname
	if err := unix.Uname(&u); err == nil {
		t.row("kernel", unix.ByteSliceToString(u.Release[:])+" "+unix.ByteSliceToString(u.Machine[:]))
	}
	t.row("load before", loadAverage())
	t.row("Go", runtime.Version())
	t.row("acmd", first(b.acmd, "-version"))
	t.row("compiler", first("cc", "--version"))
	for _, pkg := range []string{"ibacm", "opensm", "ibsim-utils", "librdmacm1", "libc6"} {
		t.row(pkg, first("dpkg-query", "-W", "-f", "${Version}", pkg))
	}
	for _, f := range []string{"spectre_v2", "retbleed"} {
		if text, err := os.ReadFile(filepath.Join("/sys/devices/system/cpu/vulnerabilities", f)); err == nil {
			t.row("mitigation of "+f, strings.TrimSpace(string(text)))
		}
	}
}

// first is the first line that a program prints, or why there is none.
func first(name string, args ...string) string {
	out, err := exec.Command(name, args...).Output()
	if err != nil {
		return fmt.Sprintf("unknown (%v)", err)
	}
	line, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	return line
}

func cpuModel() string {
	text, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return "unknown"
	}
	for line := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH
}

func loadAverage() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	return strings.Join(strings.Fields(string(text))[:3], " ")
}
