// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package main

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"acmd/resolver/service"
)

// SIGTERM counts also while SIGHUPs come faster than files can be read, and while a
// file hangs that is read again.
func TestTermDuringReloads(t *testing.T) {
	dir := t.TempDir()
	notify, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(dir, "notify"), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer notify.Close()
	if err := notify.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	told := func(state string) {
		t.Helper()
		var b [4096]byte
		if n, err := notify.Read(b[:]); err != nil || !strings.Contains(string(b[:n]), state) {
			t.Fatalf("told %q, %v, want %s", b[:n], err, state)
		}
	}
	d := start(t, setup{dir: dir, env: []string{"NOTIFY_SOCKET=" + filepath.Join(dir, "notify")}})
	told("READY=1")
	if err := syscall.Mkfifo(filepath.Join(dir, "addr.cfg"), 0o600); err != nil {
		t.Fatal(err)
	}
	hangUp := func() {
		t.Helper()
		if err := d.Process.Signal(syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
	}
	hangUp() // opens the FIFO and stays there
	told("RELOADING=1")
	for range 20 {
		hangUp()
	}
	if err := d.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	told("STOPPING=1")
	if code := d.end(t); code != 0 {
		t.Errorf("exit status %d", code)
	}
	if out := d.out.String(); !strings.Contains(out, "acmd stops") || strings.Contains(out, "msg=reloaded") {
		t.Errorf("it did not hang, this tests nothing:\n%s", out)
	}
}

// beTalkative makes the test binary one that says more than a pipe takes before it
// tells its parent that it serves, or before it fails.
const beTalkative = "ACMD_TEST_BE_TALKATIVE"

func talk(how string) {
	fmt.Fprintf(os.Stderr, "acmd: first\n%s\n", strings.Repeat("so much to say ", 20_000))
	if how == "fail" {
		os.Exit(exitStart)
	}
	if err := syscall.Dup3(int(devNull().Fd()), 2, 0); err != nil {
		os.Exit(1)
	}
	if _, err := os.NewFile(3, "ready").WriteString("ready\n"); err != nil {
		os.Exit(1)
	}
	os.Exit(0)
}

func devNull() *os.File {
	f, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		os.Exit(1)
	}
	return f
}

// Whoever starts acmd in the background is told what it says, however much that is.
func TestBackgroundSaysMuch(t *testing.T) {
	t.Setenv(beTalkative, "serve")
	var said bytes.Buffer
	if err := service.Daemonize(nil, &said); err != nil || !strings.HasPrefix(said.String(), "acmd: first\nso much to say ") {
		t.Errorf("%v, said %.40q", err, said.String())
	}
	t.Setenv(beTalkative, "fail")
	said.Reset()
	err := service.Daemonize(nil, &said)
	if err == nil || !strings.HasPrefix(err.Error(), "first\nso much to say ") || said.Len() > 0 {
		t.Errorf("error %.40q, said %.40q", err, said.String())
	}
}
