// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acmtool

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"acmd/bpf"
	"acmd/bpf/bpftest"
	"acmd/cache"
	"acmd/mad/sa"
	"acmd/resolver/control"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// topReadings are two readings, two seconds apart.
func topReadings() (last, now bpf.Snapshot) {
	m := bpf.NewMemory()
	ep := m.Endpoint("mlx5_0", 1, 0xffff, 0x1234)
	m.Endpoint("mlx5_1", 2, 0x8001, 0x1235)
	m.SetActive([]*bpf.Endpoint{ep})
	sh := m.Shard()
	count := func(n uint64) {
		ep.Add(0, bpf.CountResolve, 4*n)
		ep.Add(0, bpf.CountRouteCache, 3*n)
		ep.Add(0, bpf.CountRouteQuery, n)
		sh.ObserveN(bpf.LatHit, 2000, 3*n)
		sh.ObserveN(bpf.LatMiss, 1_500_000, n)
		sh.Add(bpf.SASent, n)
	}
	count(100)
	m.None().Add(0, bpf.CountError, 5)
	sh.Observe(bpf.LatSA, 900_000)
	record := func(took time.Duration, kind cache.Kind, key []byte) {
		m.RecordSlow(&bpf.SlowRequest{When: time.Date(2026, 1, 2, 3, 4, 5, 0, time.Local), Took: took, Endpoint: ep.Row,
			Class: bpf.LatMiss, Status: 6, Kind: uint8(kind), Key: key})
	}
	record(2*time.Second, cache.KindName, []byte("bad\x1b[2Jname"))
	record(25*time.Millisecond, cache.KindIPv4, []byte{10, 0, 0, 7})
	var byGID, byLID sa.PathRecord
	byGID[8], byGID[23] = 0xfe, 9
	byLID.SetDLID(7)
	record(11*time.Millisecond, cache.KindPath, byGID[:])
	record(12*time.Millisecond, cache.KindPath, byLID[:])
	record(13*time.Millisecond, 77, nil)
	m.Read(&last)
	count(10)
	m.Read(&now)
	for _, s := range []*bpf.Snapshot{&last, &now} {
		s.PID, s.Boots, s.RunDir, s.FastOn = uint32(os.Getpid()), 3, "/run", true
		s.Start = time.Date(2026, 1, 2, 3, 0, 0, 0, time.Local)
		s.Time = s.Start.Add(time.Hour)
		// A hit in the kernel is in the endpoint's row as well.
		s.Kernel[bpf.KernelHit] = 1000
		s.Endpoints[1].Kernel[bpf.KernelHit] = 1000
	}
	now.Time = now.Time.Add(2 * time.Second)
	now.Kernel[bpf.KernelHit], now.Endpoints[1].Kernel[bpf.KernelHit] = 1060, 1060
	return last, now
}

func topText(v *topView) string {
	var out bytes.Buffer
	c := &ctl{Env: &Env{Stdout: &out}}
	if err := c.showTop(v); err != nil {
		return err.Error()
	}
	return out.String()
}

func TestTopText(t *testing.T) {
	last, now := topReadings()
	src := &topSource{from: "/sys/fs/bpf/acmd/v1"}
	v := newTop(src, &last, &now)
	got := strings.ReplaceAll(topText(v), "acmd "+number(uint64(os.Getpid())), "acmd PID")
	want, err := os.ReadFile("testdata/top.golden")
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), got); d != "" {
		t.Errorf("%s\nin all:\n%s", d, got)
	}
	// First reading: no rates, shares of everything.
	first := newTop(src, nil, &now)
	if first.Seconds != 0 || first.Answered[0].PerSecond != 0 || first.Latency[1].Recent || first.Answered[0].Share < 0.7 {
		t.Errorf("first screen %+v", first.Answered)
	}
	// Another daemon began from 0 in between.
	again := last
	again.Boots = 99
	if v := newTop(src, &again, &now); v.Seconds != 0 || v.Answered[1].PerSecond != 0 {
		t.Errorf("after pins were replaced: %+v", v.Answered)
	}
	for pid, want := range map[uint32]string{0: "no daemon since a clean end", 1 << 30: "acmd 1073741824 is gone without a clean end"} {
		now.PID = pid
		if got := newTop(src, &last, &now).head(); !strings.HasPrefix(got, want) || !strings.Contains(got, "fast path off") {
			t.Errorf("pid %d: %s", pid, got)
		}
	}
}

// The numbers of the JSON are those of the counters.
func TestTopJSON(t *testing.T) {
	last, now := topReadings()
	var got struct {
		Alive    bool
		Totals   map[string]uint64
		Answered []struct {
			Name      string
			Count     uint64
			PerSecond float64 `json:"per_second"`
			Share     float64
		}
		Endpoints []struct {
			Device string
			Kernel uint64 `json:"kernel_hits"`
		}
		Slow []struct {
			Destination string
		}
	}
	b, err := json.Marshal(newTop(&topSource{}, &last, &now))
	if err == nil {
		err = json.Unmarshal(b, &got)
	}
	if err != nil {
		t.Fatal(err)
	}
	if a := got.Answered; len(a) != 3 || a[0].Count != 1060 || a[0].PerSecond != 30 || a[1].Count != 330 || a[1].PerSecond != 15 ||
		a[2].Count != 110 || a[2].PerSecond != 5 || a[0].Share != 0.6 || a[1].Share != 0.3 || a[2].Share != 0.1 {
		t.Errorf("answered %+v", a)
	}
	if got.Totals["resolve_count"] != 440 || got.Totals["error_count"] != 5 || !got.Alive {
		t.Errorf("totals %v", got.Totals)
	}
	if len(got.Endpoints) != 3 || got.Endpoints[0].Device != "" || got.Endpoints[1].Kernel != 1060 {
		t.Errorf("endpoints %+v", got.Endpoints)
	}
	var dests []string
	for _, s := range got.Slow {
		dests = append(dests, s.Destination)
	}
	if want := []string{"bad.[2Jname", "10.0.0.7", "-", "lid:7", "fe00::9"}; !cmp.Equal(dests, want) {
		t.Errorf("slowest %q, want %q", dests, want)
	}
}

// runTop runs the verb once and returns its output and what it said of errors.
func runTop(t *testing.T, runDir, bpfDir string, args ...string) (out, errs string, code int) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	env := &Env{Stdout: &stdout, Stderr: &stderr, RunDir: runDir}
	code = Main(t.Context(), env, append([]string{"acmctl", "top", "--bpf-dir", bpfDir}, args...))
	return stdout.String(), stderr.String(), code
}

// Pins are read whether their daemon lives or not.
func TestTopPins(t *testing.T) {
	root, run := bpftest.Mount(t), t.TempDir()
	m, err := bpf.Open(bpf.Options{Dir: bpf.PinDir(root, run), RunDir: run, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	m.Endpoint("mlx5_7", 3, 0xffff, 1).Add(0, bpf.CountResolve, 12345)
	for _, want := range []string{"up ", "no daemon since a clean end"} {
		out, errs, code := runTop(t, run, root, "--once")
		if code != ExitOK || !strings.Contains(out, want) || !strings.Contains(out, "mlx5_7/3") || !strings.Contains(out, "12345") {
			t.Errorf("exit code %d\n%s%s, want %q in it", code, out, errs, want)
		}
		if err := m.Close(); err != nil && want == "up " {
			t.Fatal(err)
		}
	}
}

// A daemon that has pinned nothing is asked; where there is none top says what it
// looked for.
func TestTopSocket(t *testing.T) {
	run := t.TempDir()
	if out, errs, code := runTop(t, run, "/nonexistent", "--once"); code != ExitUnreachable || out != "" ||
		!strings.Contains(errs, "no counters are pinned at /nonexistent/v1-") || !strings.Contains(errs, "no acmd listens there") {
		t.Errorf("nobody there: exit code %d, %s%s", code, out, errs)
	}
	srv, err := control.Listen(run, ctlBackend{}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer srv.Close()
	m := bpf.NewMemory()
	m.Endpoint("mlx5_7", 3, 0xffff, 1).Add(0, bpf.CountResolve, 12345)
	srv.Handle("GET /v1/counters", func(w http.ResponseWriter, _ *http.Request) {
		var s bpf.Snapshot
		m.Read(&s)
		control.WriteJSON(w, &s)
	})
	out, errs, code := runTop(t, run, "/nonexistent", "--once", "--json")
	if code != ExitOK || !strings.Contains(out, `"resolve_count": 12345`) || !strings.Contains(out, filepath.Join(run, control.SocketName)) {
		t.Errorf("exit code %d\n%s%s", code, out, errs)
	}
	// So is the daemon of somebody who may not look for pins.
	closed := filepath.Join(t.TempDir(), "closed")
	if err := os.Mkdir(closed, 0o700); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 {
		runtime.LockOSThread() // the user is the thread's
		_ = unix.Setfsuid(65534)
		out, errs, code = runTop(t, run, closed, "--once", "--json")
		_, nobody, nobodysCode := runTop(t, closed, closed, "--once")
		_ = unix.Setfsuid(0)
		runtime.UnlockOSThread()
		if code != ExitOK || !strings.Contains(out, `"resolve_count": 12345`) {
			t.Errorf("not allowed to look at pins: exit code %d\n%s%s", code, out, errs)
		}
		if nobodysCode == ExitOK || !strings.Contains(nobody, "permission denied") {
			t.Errorf("not allowed to look anywhere: exit code %d, %s", nobodysCode, nobody)
		}
	}
	if _, errs, code := runTop(t, run, "/nonexistent", "word"); code != ExitUsage {
		t.Errorf("a word: exit code %d, %s", code, errs)
	}
	// Interrupted, it ends well, with the first screen on the way.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var stdout bytes.Buffer
	c := &ctl{Env: &Env{Stdout: &stdout, RunDir: run}, ctx: ctx, timeout: time.Minute}
	c.flags = c.newFlags("top")
	src := &topSource{from: "here", read: func(s *bpf.Snapshot) error { m.Read(s); return nil }}
	if err := c.runTop(src, false); err != nil || !strings.Contains(stdout.String(), "mlx5_7/3") {
		t.Errorf("interrupted: %v\n%s", err, stdout.String())
	}
}
