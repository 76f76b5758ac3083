// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package bpf_test

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"acmd/bpf"
	"acmd/bpf/bpftest"

	"github.com/cilium/ebpf"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if role, dir, ok := strings.Cut(os.Getenv(roleEnv), " "); ok {
		runRole(role, dir)
		return
	}
	goleak.VerifyTestMain(m)
}

// open opens maps and returns them with what was logged.
func open(t *testing.T, dir string) (*bpf.Maps, string) {
	t.Helper()
	var log bytes.Buffer
	m, err := bpf.Open(bpf.Options{Dir: dir, RunDir: "/run/test", Log: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	return m, log.String()
}

func snapshot(m *bpf.Maps) (s bpf.Snapshot) {
	m.Read(&s)
	return s
}

// fill writes one of everything and returns the totals that must come out.
func fill(m *bpf.Maps) bpf.Counters {
	ep := m.Endpoint("mlx5_0", 1, 0xffff, 0x0002c90300001234)
	for s := range uintptr(8) {
		ep.Add(s, bpf.CountResolve, 1)
		ep.Add(s, bpf.CountRouteCache, 1)
	}
	m.None().Add(100, bpf.CountNoData, 1)
	sh := m.Shard()
	sh.Add(bpf.RequestWord(bpf.DoorUnix, bpf.KindAddress), 7)
	sh.Add(bpf.ReplyWord(bpf.DoorTCP, 200), 3)
	sh.Add(bpf.DoorRefused, 2)
	sh.Observe(bpf.LatHit, 1000)
	sh.ObserveN(bpf.LatMiss, 1_000_000, 5)
	m.RecordSlow(&bpf.SlowRequest{When: time.Unix(1, 2), Took: time.Second, Endpoint: ep.Row, Class: bpf.LatMiss, Status: 6, Kind: 1, Key: []byte("node7")})
	return bpf.Counters{bpf.CountError: 2, bpf.CountResolve: 10, bpf.CountNoData: 1, bpf.CountRouteCache: 8}
}

func checkFilled(t *testing.T, s *bpf.Snapshot, want bpf.Counters, times uint64) {
	t.Helper()
	for i := range want {
		want[i] *= times
	}
	if s.Totals != want {
		t.Errorf("totals %v, want %v", s.Totals, want)
	}
	if len(s.Endpoints) != 2 || s.Endpoints[1].Device != "mlx5_0" || s.Endpoints[1].Port != 1 || s.Endpoints[1].PKey != 0xffff ||
		s.Endpoints[1].NodeGUID != 0x0002c90300001234 || s.Endpoints[1].Counters[bpf.CountResolve] != 8*times {
		t.Errorf("endpoints %+v", s.Endpoints)
	}
	if got := s.Words[bpf.RequestWord(bpf.DoorUnix, bpf.KindAddress)]; got != 7*times {
		t.Errorf("%d requests", got)
	}
	if got := s.Words[bpf.ReplyWord(bpf.DoorTCP, 15)]; got != 3*times {
		t.Errorf("%d replies of an unknown status", got)
	}
	if h := &s.Latency[bpf.LatMiss]; h.Count() != 5*times || h.Sum != 5_000_000*times {
		t.Errorf("histogram: %d, %d ns", h.Count(), h.Sum)
	}
	if s.SlowTotal != times || uint64(len(s.Slow)) != times {
		t.Fatalf("slow %d, %+v", s.SlowTotal, s.Slow)
	}
	if r := s.Slow[0]; string(r.Key) != "node7" || r.Took != time.Second || r.Status != 6 || !r.When.Equal(time.Unix(1, 2)) {
		t.Errorf("slow request %+v", r)
	}
}

// All kinds of memory work alike.
func TestPlaces(t *testing.T) {
	t.Run("memory", func(t *testing.T) {
		m := bpf.NewMemory()
		want := fill(m)
		s := snapshot(m)
		checkFilled(t, &s, want, 1)
		if m.Place() != bpf.InMemory {
			t.Errorf("in %v", m.Place())
		}
		if _, err := m.Share(&ebpf.CollectionSpec{}); !errors.Is(err, bpf.ErrNoMaps) {
			t.Errorf("shared: %v", err)
		}
	})
	t.Run("anonymous", func(t *testing.T) {
		bpftest.NeedMaps(t)
		m, log := open(t, "")
		defer m.Close()
		want := fill(m)
		s := snapshot(m)
		checkFilled(t, &s, want, 1)
		if m.Place() != bpf.Anonymous || m.Reason() == nil || !strings.Contains(log, "no pin directory") {
			t.Errorf("in %v, %v, log %s", m.Place(), m.Reason(), log)
		}
	})
	t.Run("pinned", func(t *testing.T) {
		dir := filepath.Join(bpftest.Mount(t), "acmd", "v1")
		m, _ := open(t, dir)
		defer m.Close()
		want := fill(m)
		s := snapshot(m)
		checkFilled(t, &s, want, 1)
		if m.Place() != bpf.Pinned || m.Reason() != nil || m.Dir() != dir {
			t.Errorf("in %v, %v", m.Place(), m.Reason())
		}
	})
}

// The next daemon goes on from what the last one counted, and a tool reads it
// meanwhile.
func TestAdopt(t *testing.T) {
	dir := bpftest.Mount(t) + "/v1"
	var want bpf.Counters
	for i := range uint64(3) {
		m, log := open(t, dir)
		if strings.Contains(log, "replaced") {
			t.Fatalf("not adopted: %s", log)
		}
		want = fill(m)
		s := snapshot(m)
		checkFilled(t, &s, want, i+1)
		if s.Boots != uint32(i+1) || int(s.PID) != os.Getpid() || s.RunDir != "/run/test" {
			t.Errorf("boots %d, pid %d, run dir %q", s.Boots, s.PID, s.RunDir)
		}
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
		r, err := bpf.Load(dir)
		if err != nil {
			t.Fatal(err)
		}
		var read bpf.Snapshot
		if err := r.Read(&read); err != nil {
			t.Fatal(err)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		s.Time, s.PID = read.Time, 0 // closed since
		if d := cmp.Diff(s, read); d != "" {
			t.Errorf("read from the pins:\n%s", d)
		}
	}
}

// Everybody may read, only the owner write.
func TestModes(t *testing.T) {
	dir := bpftest.Mount(t) + "/acmd/v1"
	old := syscall.Umask(0o077)
	m, _ := open(t, dir)
	syscall.Umask(old)
	defer m.Close()
	list, err := os.ReadDir(dir)
	if err != nil || len(list) != 7 {
		t.Fatalf("%v, %v", list, err)
	}
	for _, e := range list {
		if st, err := e.Info(); err != nil || st.Mode().Perm() != 0o444 {
			t.Errorf("%s: %v, %v", e.Name(), st.Mode(), err)
		}
	}
	for _, d := range []string{dir, filepath.Dir(dir)} {
		if st, err := os.Stat(d); err != nil || st.Mode().Perm() != 0o755 {
			t.Errorf("%s: %v, %v", d, st.Mode(), err)
		}
	}
}

// The second daemon counts by itself and says so; the first one's counters are
// not touched.
func TestLocked(t *testing.T) {
	dir := bpftest.Mount(t) + "/v1"
	m, _ := open(t, dir)
	want := fill(m)
	second, log := open(t, dir)
	if second.Place() != bpf.Anonymous || !errors.Is(second.Reason(), bpf.ErrLocked) || !strings.Contains(log, "another daemon has it") {
		t.Errorf("second in %v: %v, log %s", second.Place(), second.Reason(), log)
	}
	fill(second)
	second.Close()
	s := snapshot(m)
	checkFilled(t, &s, want, 1)
	m.Close()
	third, _ := open(t, dir)
	defer third.Close()
	if third.Place() != bpf.Pinned {
		t.Errorf("after the first ended: %v, %v", third.Place(), third.Reason())
	}
}

// Without a bpf file system nothing is made there.
func TestNoBPFFS(t *testing.T) {
	dir := t.TempDir()
	m, log := open(t, filepath.Join(dir, "acmd", "v1"))
	defer m.Close()
	reason := "is not a bpf file system"
	if m.Place() == bpf.InMemory { // without privileges it does not come so far
		reason = "operation not permitted"
	}
	if m.Place() == bpf.Pinned || !strings.Contains(log, reason) {
		t.Errorf("in %v, log %s", m.Place(), log)
	}
	if list, _ := os.ReadDir(dir); len(list) != 0 {
		t.Errorf("made %v", list)
	}
	if _, err := bpf.Load(filepath.Join(dir, "acmd", "v1")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("load: %v", err)
	}
}

// No count is lost between writers, whoever of them shares a slot or has one of
// its own.
func TestExact(t *testing.T) {
	const writers, each = 150, 1000
	m := bpf.NewMemory()
	ep := m.Endpoint("mlx5_0", 1, 0x7fff, 1)
	var wg sync.WaitGroup
	for i := range writers {
		sh := m.Shard()
		if i%2 == 0 {
			sh = m.OwnShard()
		}
		wg.Go(func() {
			for n := range each {
				sh.Add(bpf.SASent, 1)
				sh.Observe(bpf.LatSA, int64(n))
				if m.Endpoint("mlx5_0", 1, 0xffff, 1).Row != ep.Row {
					t.Error("another row for a full member")
				}
				if n%100 == 0 {
					m.RecordSlow(&bpf.SlowRequest{Took: time.Duration(i), Key: []byte{byte(i)}})
				}
			}
		})
	}
	for range 20 {
		s := snapshot(m)
		for _, r := range s.Slow {
			if int(r.Took) != int(r.Key[0]) {
				t.Fatalf("torn record %+v", r)
			}
		}
	}
	wg.Wait()
	s := snapshot(m)
	if s.Words[bpf.SASent] != writers*each || s.Latency[bpf.LatSA].Count() != writers*each || s.SlowTotal != writers*each/100 {
		t.Errorf("%d, %d, %d", s.Words[bpf.SASent], s.Latency[bpf.LatSA].Count(), s.SlowTotal)
	}
}

// More endpoints than rows share row 0, and nothing is lost.
func TestEndpointsFull(t *testing.T) {
	m := bpf.NewMemory()
	seen := map[int]bool{}
	for i := range 1100 {
		e := m.Endpoint("mlx5_0", uint8(i>>8), 0x8000|uint16(i&0xff), 1)
		e.Add(uintptr(i), bpf.CountResolve, 1)
		if i < 1023 && (e.Row == 0 || seen[e.Row]) || i >= 1023 && e.Row != 0 {
			t.Fatalf("endpoint %d in row %d", i, e.Row)
		}
		seen[e.Row] = true
	}
	s := snapshot(m)
	if s.Totals[bpf.CountResolve] != 1100 || s.Words[bpf.EndpointsFull] != 77 {
		t.Errorf("total %d, full %d", s.Totals[bpf.CountResolve], s.Words[bpf.EndpointsFull])
	}
}
