// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

// Package bpftest gives tests a bpf file system of their own, and the counting
// helpers of the kernel's side as a program that can be called. A test that wants
// what the machine or the user does not have skips and says so; with ACMD_CI=1 it
// fails.
package bpftest

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

//go:generate go tool bpf2go -cc clang-14 -strip llvm-strip-14 -target bpfel -go-package bpftest Count count.bpf.c -- -mcpu=v3 -O2 -g -Wall -Werror -I.. -idirafter /usr/include/x86_64-linux-gnu

// NeedMaps skips the test unless it may make BPF maps.
func NeedMaps(t testing.TB) {
	t.Helper()
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1, Flags: unix.BPF_F_MMAPABLE})
	if err != nil {
		Missing(t, "BPF maps cannot be made (CAP_BPF): %v", err)
	}
	m.Close()
}

// Mount mounts a bpf file system on a new directory that everybody can get to, for
// the time of the test.
func Mount(t testing.TB) string {
	t.Helper()
	NeedMaps(t)
	dir := t.TempDir()
	for _, d := range []string{dir, filepath.Dir(dir)} {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mount("bpf", dir, "bpf", 0, ""); err != nil {
		Missing(t, "a bpf file system cannot be mounted (CAP_SYS_ADMIN): %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
		}
	})
	return dir
}

// Tool finds bpftool, which Debian keeps out of the PATH of ordinary users.
func Tool(t testing.TB) string {
	t.Helper()
	for _, name := range []string{"bpftool", "/usr/sbin/bpftool"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	Missing(t, "bpftool is missing: apt-get install bpftool")
	return ""
}

// Missing skips the test, or fails it with ACMD_CI=1.
func Missing(t testing.TB, format string, a ...any) {
	t.Helper()
	if os.Getenv("ACMD_CI") == "1" {
		t.Fatalf(format, a...)
	}
	t.Skipf(format, a...)
}
