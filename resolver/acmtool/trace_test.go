// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acmtool

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"acmd/bpf"
	"acmd/bpf/bpftest"
	"acmd/mad/madtest"
	"acmd/mad/madtest/peer"
)

// watched is a stock librdmacm of the test's own, so that no other program's calls
// are seen, and a service for raitest to ask.
type watched struct {
	library string
	client  peer.Client
}

func watchClients(t *testing.T) *watched {
	t.Helper()
	peer.Need(t, "gcc", "make", "verbs.h", "rdma_cma.h")
	from := findLibrary()
	if from == "" {
		t.Fatal("no librdmacm.so.1")
	}
	b, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	w := &watched{library: filepath.Join(dir, filepath.Base(from)), client: peer.Client{RunDir: t.TempDir(), GUID: 1}}
	if err := os.WriteFile(w.library, b, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("LD_LIBRARY_PATH", dir)
	ln, err := net.Listen("unix", filepath.Join(w.client.RunDir, "ibacm.sock"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	new(standIn).serve(t, ln)
	return w
}

// begun tells of the first write.
type begun struct {
	madtest.Output
	once sync.Once
	seen chan struct{}
}

func (b *begun) Write(p []byte) (int, error) {
	defer b.once.Do(func() { close(b.seen) })
	return b.Output.Write(p)
}

// trace runs acmctl trace clients while raitest makes its calls.
func (w *watched) trace(t *testing.T, calls int, args ...string) string {
	t.Helper()
	if probes, err := bpf.TraceClients(w.library, 0); err != nil {
		bpftest.Missing(t, "programs cannot be probed: %v", err)
	} else if err := probes.Close(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var out bytes.Buffer
	errs := &begun{seen: make(chan struct{})}
	env := &Env{Stdout: &out, Stderr: errs, RunDir: w.client.RunDir}
	code := make(chan int, 1)
	go func() {
		code <- Main(ctx, env, append([]string{"acmctl", "trace", "clients", "--lib", w.library}, args...))
	}()
	select {
	case <-errs.seen:
	case <-time.After(time.Minute):
		t.Fatal("acmctl does not begin")
	}
	text, status := peer.Raitest(t, w.client, "10.77.0.1", "10.77.0.2", calls)
	cancel()
	if c := <-code; c != ExitOK {
		t.Fatalf("exit code %d: %s", c, errs)
	}
	if status != 0 {
		t.Fatalf("raitest: %d\n%s", status, text)
	}
	return out.String()
}

// Every call of the stock library is counted, with its time, under the process
// that made it; slow ones are told one by one.
func TestTraceClients(t *testing.T) {
	madtest.CheckLeaks(t)
	w := watchClients(t)
	var doc struct {
		Library, Probe string
		Callers        []caller
		Slow           []slowCall
		Lost           losses
	}
	out := w.trace(t, 200, "--json", "--slow", "1ns")
	if err := json.Unmarshal([]byte(out), &doc); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if doc.Library != w.library || len(doc.Callers) != 1 || doc.Lost != (losses{}) {
		t.Fatalf("%s", out)
	}
	c := doc.Callers[0]
	if c.Command != "raitest" || c.Calls != 200 || c.Failed != 0 || len(doc.Slow) != 200 {
		t.Fatalf("%s", out)
	}
	var calls uint64
	var sum, slowest int64
	for _, b := range c.Buckets {
		calls += b.Calls
	}
	for _, s := range doc.Slow {
		if s.PID != c.PID || s.Command != "raitest" || s.Result != 0 || s.Took <= 0 {
			t.Errorf("slow call %+v", s)
		}
		sum, slowest = sum+s.Took, max(slowest, s.Took)
	}
	if calls != c.Calls || sum/200 != c.Mean || slowest != c.Slowest || c.P50 <= 0 || c.P50 > c.P99 {
		t.Errorf("%d calls in buckets; mean %v, of the calls one by one %v; slowest %v and %v; median %v, p99 %v", calls, c.Mean, sum/200, c.Slowest, slowest, c.P50, c.P99)
	}

	// For people.
	out = w.trace(t, 50, "--slow", "1h")
	if !regexp.MustCompile(`(?m)^PID +COMMAND +CALLS +FAILED +MEAN +P50 +P99 +SLOWEST\n\d+ +raitest +50 +0 +\S+ +\S+ +\S+ +\S+\n\n\d+ \(raitest\)\n( +to \S+ +#* +\d+\n)+$`).MatchString(out) {
		t.Errorf("%s", out)
	}
}

// The command line, and what has no such function.
func TestTraceClientsUsage(t *testing.T) {
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"trace"}, ExitUsage, "trace what? trace clients"},
		{[]string{"trace", "servers"}, ExitUsage, "trace what? trace clients"},
		{[]string{"trace", "clients", "--slow", "-1s"}, ExitUsage, "no negative times"},
		{[]string{"trace", "clients", "--lib", "/nonexistent"}, ExitFailed, "/nonexistent"},
		{[]string{"trace", "clients", "--lib", "/proc/self/exe"}, ExitFailed, "trace clients: "},
	} {
		var errs bytes.Buffer
		env := &Env{Stdout: io.Discard, Stderr: &errs, RunDir: t.TempDir()}
		if code := Main(t.Context(), env, append([]string{"acmctl"}, c.args...)); code != c.code || !strings.Contains(errs.String(), c.want) {
			t.Errorf("%v: exit code %d, %q; want %d, %q", c.args, code, errs.String(), c.code, c.want)
		}
	}
}
