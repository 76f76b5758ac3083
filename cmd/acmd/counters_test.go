// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"acmd/bpf"
	"acmd/bpf/bpftest"
	"acmd/mad/fabric"
	"acmd/resolver"
	"acmd/resolver/acmsock"
	"acmd/resolver/control"
)

// pinned reads what a daemon has pinned.
func pinned(t *testing.T, dir string) (s bpf.Snapshot) {
	t.Helper()
	r, err := bpf.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := r.Read(&s); err != nil {
		t.Fatal(err)
	}
	return s
}

// replies sums the replies to RESOLVE requests; nothing else was asked.
func replies(s *bpf.Snapshot) (n uint64) {
	for st := range uint8(bpf.NumStatuses) {
		n += s.Words[bpf.ReplyWord(bpf.DoorUnix, st)]
	}
	return n
}

// traffic is what clients have sent and received so far.
type traffic struct{ sent, received atomic.Uint64 }

// hammer asks until the daemon is gone: hits, misses, failures of the engine and
// requests that the door refuses.
func (tr *traffic) hammer(ctx context.Context, service string, n int) error {
	c, err := acmsock.Dial(ctx, service)
	if err != nil {
		return err
	}
	defer c.Close()
	for i := n; ; i++ {
		src, dst := fabric.IPv4(0, 1), fabric.IPv4(i%16, 1)
		if i%7 == 0 {
			src = netip.MustParseAddr("203.0.113.1")
		}
		req := acmsock.AppendResolve(nil, uint64(i), acmsock.SourceRecord(resolver.IPAddr(src)), acmsock.DestRecord(resolver.IPAddr(dst), false))
		if i%11 == 0 {
			req = acmsock.AppendResolve(nil, uint64(i))
		}
		tr.sent.Add(1)
		if _, err := c.RoundTrip(ctx, req); err != nil {
			return err
		}
		tr.received.Add(1)
	}
}

// A daemon that is killed in the middle of its work has counted every reply that
// anybody has received, and nothing that was not asked; the next one goes on from
// there, and tells the same by PERF_QUERY.
func TestCountersOutliveKill(t *testing.T) {
	root := bpftest.Mount(t)
	dir := t.TempDir()
	pins := bpf.PinDir(root, dir)
	opts := []string{"bpf_dir " + root}
	var tr traffic
	var before bpf.Snapshot
	for round := range 4 {
		d := start(t, setup{dir: dir, opts: opts})
		if !strings.Contains(d.out.String(), "counters are pinned") {
			t.Fatalf("not pinned:\n%s", d.out)
		}
		s := pinned(t, pins)
		if s.Totals != before.Totals || replies(&s) != replies(&before) || s.Boots != uint32(round+1) || s.PID != uint32(d.Process.Pid) {
			t.Fatalf("round %d: daemon %d (pid %d) begins with %v, the last one ended with %v", round, s.Boots, s.PID, s.Totals, before.Totals)
		}
		c, err := acmsock.Dial(t.Context(), d.sock())
		if err != nil {
			t.Fatal(err)
		}
		if row, err := c.Perf(t.Context(), 0); err != nil || fmt.Sprint(row) != fmt.Sprint(s.Totals) {
			t.Errorf("PERF_QUERY %v, %v, pins %v", row, err, s.Totals)
		}
		c.Close()
		perf := uint64(round + 1) // replies to PERF_QUERY
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		var clients sync.WaitGroup
		for i := range 4 {
			clients.Go(func() {
				if err := tr.hammer(ctx, d.sock(), 1000*i); ctx.Err() != nil {
					t.Error("the daemon does not answer:", err)
				}
			})
		}
		enough := tr.received.Load() + 3000
		wait(t, "traffic", func() bool { return tr.received.Load() >= enough })
		if err := d.Process.Signal(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		d.end(t)
		clients.Wait()
		cancel()
		before = pinned(t, pins)
		resolves, answered := before.Totals[bpf.CountResolve], replies(&before)-perf
		sent, received := tr.sent.Load(), tr.received.Load()
		t.Logf("received %d, answered %d, counted %d, sent %d", received, answered, resolves, sent)
		if received > resolves || resolves > sent || received > answered || answered > sent {
			t.Errorf("round %d: received %d, answered %d, counted %d, sent %d", round, received, answered, resolves, sent)
		}
	}
}

// With nothing in flight the counters are the replies received, to the last one,
// and each request was timed.
func TestCountersExact(t *testing.T) {
	root := bpftest.Mount(t)
	dir := t.TempDir()
	d := start(t, setup{dir: dir, opts: []string{"bpf_dir " + root}})
	ctx := t.Context()
	c, err := acmsock.Dial(ctx, d.sock())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var received, failed uint64
	for i := range 500 {
		src := fabric.IPv4(0, 1)
		if i%5 == 0 {
			src = netip.MustParseAddr("203.0.113.1")
		}
		_, err := c.ResolveIP(ctx, src, fabric.IPv4(i%16, 1), false)
		var st *acmsock.StatusError
		if errors.As(err, &st) {
			failed++
		} else if err != nil {
			t.Fatal(err)
		}
		received++
	}
	row, err := c.Perf(ctx, 0)
	if err != nil || row[bpf.CountResolve] != received || row[bpf.CountError] != failed || failed != 100 {
		t.Errorf("PERF_QUERY %v, %v, want %d resolves and %d errors", row, err, received, failed)
	}
	s := pinned(t, bpf.PinDir(root, dir))
	if fmt.Sprint(row) != fmt.Sprint(s.Totals) || replies(&s) != received+1 {
		t.Errorf("pins %v and %d replies, PERF_QUERY %v", s.Totals, replies(&s), row)
	}
	timed := s.Latency[bpf.LatHit].Count() + s.Latency[bpf.LatMiss].Count()
	if timed != received {
		t.Errorf("%d requests timed of %d", timed, received)
	}
	if s.Words[bpf.SASent] == 0 || s.Latency[bpf.LatSA].Count() != s.Words[bpf.SAAnswers] || s.Words[bpf.SAAnswers] == 0 {
		t.Errorf("SA: %d sent, %d answers, %d timed", s.Words[bpf.SASent], s.Words[bpf.SAAnswers], s.Latency[bpf.LatSA].Count())
	}
	if err := d.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	d.end(t)
	if after := pinned(t, bpf.PinDir(root, dir)); after.Totals != s.Totals || after.PID != 0 || after.Endpoints[1].Active {
		t.Errorf("after a clean end: %v, pid %d, %+v", after.Totals, after.PID, after.Endpoints[1])
	}
}

// Without any privilege everything works, counters end with the process, and the
// log and the state say why.
func TestCountersUnprivileged(t *testing.T) {
	var user uint32 // whoever runs this is without privileges already
	if os.Getuid() == 0 {
		user = 65534
	}
	dir := t.TempDir()
	for d := dir; d != os.TempDir(); d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	bin := filepath.Join(dir, "acmd")
	b, err := os.ReadFile("/proc/self/exe")
	if err == nil {
		err = os.WriteFile(bin, b, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	d := start(t, setup{dir: dir, program: bin, user: user})
	if out := d.out.String(); !strings.Contains(out, "counters end with this process") || !strings.Contains(out, "in=memory") || !strings.Contains(out, "operation not permitted") {
		t.Errorf("the log does not say where counters are:\n%s", out)
	}
	if err := resolve(t, d.sock()); err != nil {
		t.Fatal(err)
	}
	c, err := acmsock.Dial(t.Context(), d.sock())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if row, err := c.Perf(t.Context(), 0); err != nil || row[bpf.CountResolve] != 1 {
		t.Errorf("PERF_QUERY %v, %v", row, err)
	}
	var st struct {
		Counters struct{ In, Dir, Reason string }
	}
	if err := control.NewClient(dir).Do(t.Context(), "GET", "state", nil, &st); err != nil || st.Counters.In != "memory" || st.Counters.Reason == "" {
		t.Errorf("state %+v, %v", st, err)
	}
}
