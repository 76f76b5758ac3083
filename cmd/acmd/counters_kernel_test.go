// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"acmd/bpf"
	"acmd/bpf/bpftest"
	"acmd/mad/fabric"
	"acmd/resolver"
	"acmd/resolver/acmsock"
	"acmd/resolver/control"
)

// beClient makes the test binary a client: "ADDRESS N" asks N times for node 5 at
// a TCP address, one after the other, and says on stdout how many requests were
// sent and how many right replies received when it is done or the service gone.
const beClient = "ACMD_TEST_BE_CLIENT"

func runClient(spec string) {
	var addr string
	var n, sent, received int
	if _, err := fmt.Sscan(spec, &addr, &n); err != nil {
		fmt.Println(err)
		return
	}
	c, err := net.Dial("tcp", addr)
	if errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET) {
		fmt.Println("sent 0 received 0") // it began after the service had gone
		return
	}
	if err != nil {
		fmt.Println(err)
		return
	}
	cl := acmsock.NewClient(c)
	defer cl.Close()
	src, dst := acmsock.SourceRecord(resolver.IPAddr(fabric.IPv4(0, 1))), acmsock.DestRecord(resolver.IPAddr(fabric.IPv4(5, 1)), false)
	for sent < n {
		sent++
		b, err := cl.RoundTrip(context.Background(), acmsock.AppendResolve(nil, uint64(sent), src, dst))
		if err != nil {
			break
		}
		if r, err := acmsock.DecodeResolve(b); err != nil || len(r.Paths) != 1 || r.Paths[0].Record.DLID() != 6 || acmsock.TID(b) != uint64(sent) {
			fmt.Printf("wrong reply % x to request %d\n", b, sent)
			return
		}
		received++
	}
	fmt.Println("sent", sent, "received", received)
}

// fastDaemon starts a daemon with pins below root whose clients the kernel answers,
// and returns it with the address for them.
func fastDaemon(t *testing.T, dir, root string) (*daemon, string) {
	t.Helper()
	d := start(t, setup{dir: dir, opts: []string{"bpf_dir " + root, "fast_path kernel", "fast_path_port 0"}})
	var st struct {
		On     bool
		Reason string
		Port   int
	}
	if err := control.NewClient(dir).Do(t.Context(), "GET", "fast-path", nil, &st); err != nil {
		t.Fatal(err)
	}
	if !st.On {
		bpftest.Missing(t, "the kernel does not answer: %s", st.Reason)
	}
	return d, fmt.Sprint("127.0.0.1:", st.Port)
}

// fromProcesses lets several processes ask n times each, runs meanwhile, and
// returns how many requests were sent and replies received in all.
func fromProcesses(t *testing.T, addr string, processes, n int, meanwhile func()) (sent, received uint64) {
	t.Helper()
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range processes {
		wg.Go(func() {
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %d", beClient, addr, n))
			cmd.Stderr = os.Stderr
			out, err := cmd.Output()
			var s, r uint64
			if _, serr := fmt.Sscanf(string(out), "sent %d received %d", &s, &r); err != nil || serr != nil {
				t.Errorf("client: %v, %s", err, out)
			}
			mu.Lock()
			defer mu.Unlock()
			sent, received = sent+s, received+r
		})
	}
	if meanwhile != nil {
		meanwhile()
	}
	wg.Wait()
	return sent, received
}

// kernelHits is what was counted for the first endpoint.
func kernelHits(s *bpf.Snapshot) uint64 { return s.Endpoints[1].Kernel[bpf.KernelHit] }

// countKernelHits checks that no hit is lost between processes and CPUs, and that
// each of them is in every total.
func countKernelHits(t *testing.T, processes, n int) {
	root, dir := bpftest.Mount(t), t.TempDir()
	d, addr := fastDaemon(t, dir, root)
	if err := resolve(t, d.sock()); err != nil {
		t.Fatal(err)
	}
	_, received := fromProcesses(t, addr, processes, n, nil)
	if received != uint64(processes*n) {
		t.Fatalf("%d replies of %d", received, processes*n)
	}
	s := pinned(t, bpf.PinDir(root, dir))
	hits := kernelHits(&s)
	if !s.FastOn {
		t.Error("the pins say that the kernel does not answer")
	}
	if n := s.Latency[bpf.LatKernel].Count(); n < hits/64/2 || n > hits/64*2 {
		t.Errorf("%d of %d kernel hits timed, want one in 64", n, hits)
	}
	if hits < received/2 {
		t.Errorf("%d of %d replies came from the kernel, the rest tests nothing: %v", hits, received, s.Kernel)
	}
	if s.Totals[bpf.CountResolve] != received+1 || s.Totals[bpf.CountError] != 0 {
		t.Errorf("%d replies received, counted %v, %d by the kernel", received+1, s.Totals, hits)
	}
	// The daemon answered the rest, and its doors say so.
	var byDaemon uint64
	for _, door := range []bpf.Door{bpf.DoorUnix, bpf.DoorTCP} {
		byDaemon += s.Words[bpf.ReplyWord(door, 0)]
	}
	if byDaemon+hits != received+1 {
		t.Errorf("%d replies of the daemon and %d of the kernel, received %d", byDaemon, hits, received+1)
	}
	c, err := acmsock.Dial(t.Context(), d.sock())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for index, want := range []bpf.Counters{s.Totals, s.Endpoints[1].Counters} {
		if row, err := c.Perf(t.Context(), uint8(index)); err != nil || fmt.Sprint(row) != fmt.Sprint(want) {
			t.Errorf("PERF_QUERY %d: %v, %v, pins %v", index, row, err, want)
		}
	}
	t.Logf("%d replies, %d of them from the kernel", received, hits)
}

// On CI these are ten million; the race detector makes clients that slow that a
// hundredth has to do.
func TestHitsInKernelCounted(t *testing.T) {
	n := 100_000
	if os.Getenv("ACMD_CI") == "1" && !raceDetector() {
		n = 10_000_000
	}
	countKernelHits(t, 4, n/4)
}

func raceDetector() bool {
	info, _ := debug.ReadBuildInfo()
	return slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}

// A daemon that is killed while the kernel answers has counted every reply.
func TestHitsInKernelOutliveKill(t *testing.T) {
	root, dir := bpftest.Mount(t), t.TempDir()
	pins := bpf.PinDir(root, dir)
	var total, before uint64 // requests sent, and hits counted, so far
	var got uint64           // replies received so far
	for round := range uint64(3) {
		d, addr := fastDaemon(t, dir, root)
		if err := resolve(t, d.sock()); err != nil {
			t.Fatal(err)
		}
		sent, received := fromProcesses(t, addr, 3, 1<<30, func() {
			wait(t, "kernel hits", func() bool {
				s := pinned(t, pins)
				return kernelHits(&s) >= before+5000
			})
			if err := d.Process.Signal(syscall.SIGKILL); err != nil {
				t.Error(err)
			}
			d.end(t)
		})
		total, got = total+sent+1, got+received+1
		s := pinned(t, pins)
		before = kernelHits(&s)
		counted := s.Totals[bpf.CountResolve]
		t.Logf("received %d, counted %d (%d by the kernel), sent %d", got, counted, before, total)
		if got > counted || counted > total {
			t.Errorf("round %d: received %d, counted %d, sent %d", round, got, counted, total)
		}
		if strings.Contains(d.out.String(), "replaced") {
			t.Errorf("pins were replaced:\n%s", d.out)
		}
	}
}
