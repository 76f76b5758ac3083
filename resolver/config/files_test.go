// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package config

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestMain lets the test binary stand in for a second instance.
func TestMain(m *testing.M) {
	if path := os.Getenv("ACMD_TEST_LOCK"); path != "" {
		if _, err := Lock(path); err != nil {
			fmt.Println(err)
			os.Exit(3)
		}
		fmt.Println("locked")
		select {}
	}
	os.Exit(m.Run())
}

func mode(t *testing.T, path string) os.FileMode {
	t.Helper()
	fi, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	return fi.Mode()
}

// Field case 36: modes do not depend on the umask.
func TestModesWithoutUmask(t *testing.T) {
	for _, mask := range []int{0, 0o777, 0o22} {
		t.Run(fmt.Sprintf("%03o", mask), func(t *testing.T) {
			dir := t.TempDir()
			old := unix.Umask(mask)
			f, err := OpenLog(filepath.Join(dir, "log"))
			l, lerr := Lock(filepath.Join(dir, "pid"))
			unix.Umask(old)
			if err != nil || lerr != nil {
				t.Fatal(err, lerr)
			}
			defer f.Close()
			defer l.Close()
			for _, name := range []string{"log", "pid"} {
				if m := mode(t, filepath.Join(dir, name)); m != 0o640 {
					t.Errorf("%s has mode %v", name, m)
				}
			}
		})
	}
}

func TestLogIsAppendedAndTightened(t *testing.T) {
	p := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(p, []byte("old\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(p, 0o666); err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{"one\n", "two\n"} {
		f, err := OpenLog(p)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteString(s); err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	b, _ := os.ReadFile(p)
	if string(b) != "old\none\ntwo\n" || mode(t, p) != 0o644 {
		t.Fatalf("%q, %v", b, mode(t, p))
	}
}

// Field case 36: what others may have planted at the path is not written to.
func TestPlantedFilesAreRefused(t *testing.T) {
	dir := t.TempDir()
	target := filepath.Join(dir, "target")
	if err := os.WriteFile(target, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	in := func(name string) string { return filepath.Join(dir, name) }
	for name, plant := range map[string]func(string) error{
		"symbolic link": func(p string) error { return os.Symlink(target, p) },
		"dangling link": func(p string) error { return os.Symlink(in("nowhere"), p) },
		"hard link":     func(p string) error { return os.Link(target, p) },
		"fifo":          func(p string) error { return unix.Mkfifo(p, 0o666) },
		"directory":     func(p string) error { return os.Mkdir(p, 0o777) },
	} {
		p := in(name)
		if err := plant(p); err != nil {
			t.Fatal(err)
		}
		if f, err := OpenLog(p); err == nil {
			t.Errorf("log: %s was opened", name)
			f.Close()
		}
		if l, err := Lock(p); err == nil {
			t.Errorf("lock: %s was opened", name)
			l.Close()
		}
		if name == "hard link" {
			if err := os.Remove(p); err != nil {
				t.Fatal(err)
			}
		}
	}
	if b, _ := os.ReadFile(target); string(b) != "x" {
		t.Fatalf("target has %q", b)
	}
	if _, err := os.Lstat(in("nowhere")); err == nil {
		t.Fatal("the dangling link's target was created")
	}
	if os.Geteuid() == 0 {
		p := in("foreign")
		if err := os.WriteFile(p, nil, 0o666); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(p, 12345, 12345); err != nil {
			t.Fatal(err)
		}
		if f, err := OpenLog(p); err == nil {
			f.Close()
			t.Error("another user's file was opened")
		}
	}
}

func TestLogWords(t *testing.T) {
	if f, err := OpenLog("stdout"); f != os.Stdout || err != nil {
		t.Fatal(err)
	}
	if f, err := OpenLog("stderr"); f != os.Stderr || err != nil {
		t.Fatal(err)
	}
	f, err := OpenLog("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	if m := mode(t, "/dev/null"); m&0o666 != 0o666 {
		t.Fatal("the device's mode was changed")
	}
	if _, err := OpenLog(filepath.Join(t.TempDir(), "no", "log")); !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
}

func instance(t *testing.T, path string) (*exec.Cmd, string) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "ACMD_TEST_LOCK="+path)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return cmd, strings.TrimSpace(line)
}

// Field case 77: one instance at a time; the lock of a killed one is gone.
func TestLock(t *testing.T) {
	p := filepath.Join(t.TempDir(), "ibacm.pid")
	l, err := Lock(p)
	if err != nil {
		t.Fatal(err)
	}
	if b, _ := os.ReadFile(p); string(b) != fmt.Sprintf("%d\n", os.Getpid()) {
		t.Fatalf("%q", b)
	}
	if _, err := Lock(p); !errors.Is(err, ErrLocked) {
		t.Fatal(err)
	}
	cmd, said := instance(t, p)
	if err := cmd.Wait(); err == nil || !strings.Contains(said, fmt.Sprintf("another instance is running (process %d)", os.Getpid())) {
		t.Fatal(said, err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	cmd, said = instance(t, p)
	if said != "locked" {
		t.Fatal(said)
	}
	if _, err := Lock(p); !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), fmt.Sprint(cmd.Process.Pid)) {
		t.Fatal(err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()
	if l, err = Lock(p); err != nil {
		t.Fatal(err)
	}
	l.Close()
}
