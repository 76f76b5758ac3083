// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acmsock

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"acmd/resolver"
)

// hitResolver answers everything at once and touches as little as it can.
type hitResolver struct {
	fakeResolver
	a resolver.Answer
}

func (h *hitResolver) Lookup(q *resolver.Query, now int64, a *resolver.Answer) bool {
	*a = h.a
	return true
}

// benchServer is the role of the server's process: it serves until its standard
// input ends.
func benchServer() {
	threads, _ := strconv.Atoi(os.Getenv("ACMSOCK_TEST_THREADS"))
	s, err := New(Config{RunDir: os.Getenv("ACMSOCK_TEST_DIR"), Threads: threads}, &hitResolver{a: resolver.Answer{Path: examplePath()}}, quiet())
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	s.Start()
	fmt.Println("ready")
	io.Copy(io.Discard, os.Stdin)
	s.Close()
}

// cpuNanos is the CPU time of all threads of a process (scheduler statistics,
// Documentation/scheduler/sched-stats.rst).
func cpuNanos(t testing.TB, pid int) int64 {
	t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil || len(files) == 0 {
		t.Fatalf("no scheduler statistics of process %d", pid)
	}
	var sum int64
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			continue // the thread is gone
		}
		n, err := strconv.ParseInt(strings.Fields(string(b))[0], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		sum += n
	}
	return sum
}

// floorBinary compiles the C side.
func floorBinary(b *testing.B, dir string) string {
	bin := filepath.Join(dir, "floor")
	out, err := exec.Command("cc", "-O2", "-pthread", "-o", bin, "testdata/floor.c").CombinedOutput()
	if err != nil {
		if os.Getenv("ACMD_CI") == "1" {
			b.Fatalf("cc: %v\n%s", err, out)
		}
		b.Skipf("cc: %v\n%s", err, out)
	}
	return bin
}

func startProcess(b *testing.B, cmd *exec.Cmd, ready bool) {
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		in.Close()
		if !ready {
			cmd.Process.Kill()
		}
		cmd.Wait()
	})
	if ready {
		if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
			b.Fatalf("server: %q %v", line, err)
		}
	}
}

// BenchmarkCachedResolve measures hits over a unix socket against a C epoll
// echo of the same sizes. cpu-s/1M is the CPU time of the server's process for
// a million resolves, all threads and the runtime included. Run it with
// -benchtime=100000x or so.
func BenchmarkCachedResolve(b *testing.B) {
	dir := shortDir(b)
	bin := floorBinary(b, dir)
	self, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	echoPath := filepath.Join(dir, "echo.sock")
	echo := exec.Command(bin, "echo", echoPath)
	startProcess(b, echo, false)
	eventually(b, "echo listens", func() bool { _, err := os.Stat(echoPath); return err == nil })
	server := exec.Command(self)
	server.Env = append(os.Environ(), roleEnv+"=bench-server", "ACMSOCK_TEST_DIR="+dir, "ACMSOCK_TEST_THREADS=1")
	startProcess(b, server, true)

	for _, load := range []struct{ conns, batch int }{{1, 1}, {4, 1}, {16, 1}, {64, 1}, {1, 32}} {
		for _, peer := range []struct {
			name, path string
			pid        int
		}{
			{"floor", echoPath, echo.Process.Pid},
			{"acmd", filepath.Join(dir, unixSocketName), server.Process.Pid},
		} {
			b.Run(fmt.Sprintf("%s/conns=%d/batch=%d", peer.name, load.conns, load.batch), func(b *testing.B) {
				n := max(1, b.N/(load.conns*load.batch)) * load.conns * load.batch
				before := cpuNanos(b, peer.pid)
				out, err := exec.Command(bin, "load", peer.path, strconv.Itoa(load.conns), strconv.Itoa(n), strconv.Itoa(load.batch)).Output()
				cpu := cpuNanos(b, peer.pid) - before
				if err != nil {
					b.Fatalf("load: %v", err)
				}
				var ns, bad int64
				if _, err := fmt.Sscan(string(out), &ns, &bad); err != nil || bad != 0 {
					b.Fatalf("load said %q", out)
				}
				b.ReportMetric(float64(cpu)/float64(n)/1e3, "cpu-s/1M")
				b.ReportMetric(float64(n)/float64(ns)*1e9, "resolves/s")
			})
		}
	}
}
