// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acmsock

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// field case 34 (and B-01): clients that ask and close at once, with replies
// pending, leave nothing behind; one that stays gets all its answers.
func TestCloseAtOnce(t *testing.T) {
	f := newFake()
	s := serve(t, f, func(c *Config) { c.Threads = 2 })
	stay := dialServer(t, s)
	mustWrite(t, stay, ask(1, 0, 1))
	wantAnswer(t, readReply(t, stay), 1, 1)
	var burst []byte
	for i := range 50 {
		burst = append(burst, ask(uint64(i+1), byte(i%4), i)...)
	}
	rounds := 10
	if os.Getenv("ACMD_CI") == "1" {
		rounds = 100
	}
	baseFiles, baseGo, baseHeap := openFiles(t), runtime.NumGoroutine(), heap()
	stop, stopLate, asked := make(chan struct{}), make(chan struct{}), make(chan int)
	var late sync.WaitGroup
	late.Go(func() { // the engine answers late, in any order
		for {
			select {
			case <-stopLate:
				return
			case <-time.After(200 * time.Microsecond):
				f.releaseAll()
			}
		}
	})
	go func() {
		n := 0
		for ; ; n++ {
			select {
			case <-stop:
				asked <- n
				return
			default:
			}
			stay.SetDeadline(time.Now().Add(patience))
			if _, err := stay.Write(ask(uint64(n+1), byte(n&1), n&0xffff)); err != nil {
				t.Error(err)
			}
			b := make([]byte, 88)
			if _, err := io.ReadFull(stay, b); err != nil || TID(b) != uint64(n+1) || b[offStatus] != 0 {
				t.Errorf("answer %d: % x, %v", n+1, b[:HeaderSize], err)
				<-stop
				asked <- n
				return
			}
		}
	}()
	for range rounds {
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for range 50 {
					// Clients that closed stay in the backlog until they are
					// accepted, and it is easily full.
					c, err := dialUnix(t.Context(), s.Addrs()[0].String())
					if err != nil {
						t.Error(err)
						return
					}
					c.Write(burst)
					c.Close()
				}
			})
		}
		wg.Wait()
	}
	close(stop)
	if n := <-asked; n == 0 {
		t.Error("the client that stayed got nothing")
	}
	close(stopLate)
	late.Wait()
	eventually(t, "everything answered and closed", func() bool {
		f.releaseAll()
		st := s.Stats()
		return st.Pending == 0 && st.Open == 1 && st.Accepted == uint64(200*rounds+1)
	})
	eventually(t, "descriptors back to base", func() bool { return openFiles(t) <= baseFiles })
	eventually(t, "goroutines back to base", func() bool { return runtime.NumGoroutine() <= baseGo })
	if grown := heap() - baseHeap; grown > 4<<20 {
		t.Errorf("heap has grown by %d bytes", grown)
	}
	for _, l := range s.loops {
		eventually(t, "an empty mailbox", func() bool { return l.box.pendingItems() == 0 })
	}
	st := s.Stats()
	if st.Closed[ClosedByClient] != uint64(200*rounds) {
		t.Errorf("closed %v", st.Closed)
	}
}

// heap is what is allocated after a collection.
func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func (m *mailbox) pendingItems() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.items)
}

// role starts the test binary as another process and returns a way to talk to
// it, line by line.
type role struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

func startRole(t *testing.T, name string, env ...string) *role {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	r := &role{cmd: exec.Command(self)}
	r.cmd.Env = append(append(os.Environ(), roleEnv+"="+name), env...)
	r.cmd.Stderr = os.Stderr
	if r.in, err = r.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := r.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	r.out = bufio.NewScanner(out)
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		r.in.Close()
		if err := r.cmd.Wait(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	})
	return r
}

func (r *role) line(t *testing.T) string {
	t.Helper()
	if !r.out.Scan() {
		t.Fatalf("the other process ended: %v", r.out.Err())
	}
	return r.out.Text()
}

// manyClients is the role of the process that connects: one process could not
// have both ends of 10,000 connections under the usual limit. It asks on every
// connection, then again on every one, and reports.
func manyClients() {
	n, _ := strconv.Atoi(os.Getenv("ACMSOCK_TEST_CLIENTS"))
	fail := func(err error) { fmt.Println("failed:", err); os.Exit(0) }
	conns := make([]int, n)
	sa := &unix.SockaddrUnix{Name: os.Getenv("ACMSOCK_TEST_SOCKET")}
	begin := time.Now()
	for i := range conns {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err == nil {
			err = unix.Connect(fd, sa)
		}
		if err != nil {
			fail(fmt.Errorf("client %d: %w", i, err))
		}
		conns[i] = fd
	}
	for range 2 {
		for i, fd := range conns {
			if _, err := unix.Write(fd, ask(uint64(i+1), 0, i)); err != nil {
				fail(fmt.Errorf("client %d: %w", i, err))
			}
		}
		b := make([]byte, MaxRequest)
		for i, fd := range conns {
			m, err := unix.Read(fd, b)
			if err != nil || m != 88 || TID(b) != uint64(i+1) || b[offStatus] != 0 {
				fail(fmt.Errorf("client %d: %d bytes, %w", i, m, err))
			}
		}
	}
	fmt.Println("served in", time.Since(begin).Round(time.Millisecond))
	io.Copy(io.Discard, os.Stdin)
}

// 10,000 connections at a time are served, and the cost of one is small
// (field case 64 has 1,500).
func TestManyConnections(t *testing.T) {
	const n = 10000
	var lim unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &lim); err != nil {
		t.Fatal(err)
	}
	if lim.Max < n+200 {
		if os.Getenv("ACMD_CI") == "1" {
			t.Fatalf("hard limit of open files is %d", lim.Max)
		}
		t.Skipf("hard limit of open files is %d", lim.Max)
	}
	if _, err := RaiseNoFile(quiet(), n); err != nil {
		t.Fatal(err)
	}
	s := serve(t, newFake(), nil)
	before := heap()
	r := startRole(t, "many-clients", "ACMSOCK_TEST_SOCKET="+s.Addrs()[0].String(), "ACMSOCK_TEST_CLIENTS="+strconv.Itoa(n))
	got := r.line(t)
	if !strings.HasPrefix(got, "served") {
		t.Fatal(got)
	}
	each := (heap() - before) / n
	t.Logf("%d connections %s, %d bytes of heap each", n, got, each)
	if each > 1024 {
		t.Errorf("an idle connection costs %d bytes", each)
	}
	if open := s.Stats().Open; open != n {
		t.Errorf("%d connections open", open)
	}
	r.in.Close()
	eventually(t, "all closed", func() bool { return s.Stats().Open == 0 })
}

// field case 64, the door's part: 1,500 clients ask for 1,500 destinations at
// once, none of them cached; the engine answers all in reverse order. Everybody
// has the right reply long before the libraries give up at 2 s.
func TestFanIn(t *testing.T) {
	const n = 1500
	if lim, err := RaiseNoFile(quiet(), 2*n); err != nil || lim < 2*n+descriptorReserve {
		if os.Getenv("ACMD_CI") == "1" {
			t.Fatalf("limit of open files is %d, %v", lim, err)
		}
		t.Skipf("limit of open files is %d, %v", lim, err)
	}
	f := newFake()
	s := serve(t, f, func(c *Config) { c.Threads = 2 })
	conns := make([]net.Conn, n)
	for i := range conns {
		c, err := dialUnix(t.Context(), s.Addrs()[0].String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(patience))
		conns[i] = c
	}
	begin := cpuTime(t)
	for i, c := range conns {
		mustWrite(t, c, ask(uint64(i+1), 1, i))
	}
	eventually(t, "all wait", func() bool { return f.waiting() == n })
	f.releaseAll()
	for i, c := range conns {
		wantAnswer(t, readReply(t, c), uint64(i+1), i)
	}
	// By the processor's time: the machine may have other work.
	if d := cpuTime(t) - begin; d > 2*time.Second {
		t.Errorf("took %v", d)
	}
	eventually(t, "nothing pending", func() bool { return s.Stats().Pending == 0 })
}

// cpuTime is what this process has used, the clients of a test included.
func cpuTime(t *testing.T) time.Duration {
	t.Helper()
	var ru unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &ru); err != nil {
		t.Fatal(err)
	}
	return time.Duration(ru.Utime.Nano() + ru.Stime.Nano())
}

// fewFiles is the role of a server that has hardly any descriptors: it prints
// its counters and its CPU time whenever it is asked.
func fewFiles() {
	s, err := New(Config{RunDir: os.Getenv("ACMSOCK_TEST_DIR")}, newFake(), quiet())
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if os.Getenv("ACMSOCK_TEST_SPARE") == "no" {
		unix.Close(s.loops[0].spare)
		s.loops[0].spare = -1
	}
	limit := 0
	for free := 0; free < 10; limit++ { // below the limit ten are free
		if _, err := unix.FcntlInt(uintptr(limit), unix.F_GETFD, 0); err != nil {
			free++
		}
	}
	s.Start()
	lim := unix.Rlimit{Cur: uint64(limit), Max: uint64(limit)}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &lim); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	in := bufio.NewScanner(os.Stdin)
	for ok := true; ok; ok = in.Scan() {
		var ru unix.Rusage
		unix.Getrusage(unix.RUSAGE_SELF, &ru)
		st := s.Stats()
		fmt.Println(st.Open, st.Rejected[RejectedDescriptors], st.Paused, (ru.Utime.Nano()+ru.Stime.Nano())/1e6)
	}
	s.Close()
}

// fewFilesServer talks to that role.
type fewFilesServer struct {
	*role
	path string
}

func startFewFiles(t *testing.T, spare string) *fewFilesServer {
	dir := shortDir(t)
	f := &fewFilesServer{startRole(t, "few-files", "ACMSOCK_TEST_DIR="+dir, "ACMSOCK_TEST_SPARE="+spare), filepath.Join(dir, unixSocketName)}
	f.line(t) // ready
	return f
}

func (f *fewFilesServer) status(t *testing.T) (open, rejected, paused, cpu int) {
	t.Helper()
	fmt.Fprintln(f.in)
	if _, err := fmt.Sscan(f.line(t), &open, &rejected, &paused, &cpu); err != nil {
		t.Fatal(err)
	}
	return open, rejected, paused, cpu
}

// try connects and asks; it tells whether it was served or closed, or neither
// in time.
func (f *fewFilesServer) try(t *testing.T, wait time.Duration) (c net.Conn, served, closed bool) {
	t.Helper()
	c, err := net.Dial("unix", f.path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(wait))
	c.Write(ask(1, 0, 1))
	_, err = io.ReadFull(c, make([]byte, 88))
	c.SetDeadline(time.Now().Add(patience))
	return c, err == nil, err != nil && !errors.Is(err, os.ErrDeadlineExceeded)
}

// Without descriptors clients are turned away at once, those that are connected
// are served, and there is room again when one leaves.
func TestNoDescriptors(t *testing.T) {
	f := startFewFiles(t, "yes")
	var good []net.Conn
	turnedAway := 0
	for range 30 {
		c, served, closed := f.try(t, patience)
		switch {
		case served:
			good = append(good, c)
		case closed:
			turnedAway++
		default:
			t.Fatal("neither served nor turned away")
		}
	}
	if len(good) == 0 || turnedAway < 15 {
		t.Fatalf("%d served, %d turned away", len(good), turnedAway)
	}
	// The last client sees its connection close a moment before it is counted.
	eventually(t, "all are counted", func() bool {
		open, rejected, _, _ := f.status(t)
		return open == len(good) && rejected == turnedAway
	})
	mustWrite(t, good[0], ask(2, 0, 2))
	wantAnswer(t, readReply(t, good[0]), 2, 2)
	good[0].Close()
	eventually(t, "one has left", func() bool { open, _, _, _ := f.status(t); return open == len(good)-1 })
	if _, served, _ := f.try(t, patience); !served {
		t.Error("turned away although there is room")
	}
}

// Without the spare one accepting pauses and does not spin; clients that are
// connected are served, and the one that waits is when there is room.
func TestNoSpareDescriptor(t *testing.T) {
	f := startFewFiles(t, "no")
	var good []net.Conn
	paused := func() (n int) { _, _, n, _ = f.status(t); return n }
	for tries := 0; paused() == 0; tries++ {
		if tries > 100 {
			t.Fatal("no end of descriptors")
		}
		c, served, closed := f.try(t, 200*time.Millisecond)
		if closed {
			t.Fatal("turned away without a spare descriptor")
		}
		if served {
			good = append(good, c)
		}
	}
	if len(good) == 0 {
		t.Fatal("nobody was served")
	}
	if _, served, closed := f.try(t, 200*time.Millisecond); served || closed { // it waits in the backlog
		t.Fatalf("served %v, closed %v without a descriptor", served, closed)
	}
	begin := time.Now()
	_, _, paused0, cpu0 := f.status(t)
	time.Sleep(500 * time.Millisecond)
	_, _, paused1, cpu1 := f.status(t)
	took := time.Since(begin)
	if n := paused1 - paused0; n > int(took/acceptPause)+2 {
		t.Errorf("accepting paused %d times in %v", n, took)
	}
	if cpu1-cpu0 > int(took.Milliseconds())/2 {
		t.Errorf("%d ms of CPU time in %v", cpu1-cpu0, took)
	}
	eventually(t, "it is tried again", func() bool { return paused() > paused0 })
	mustWrite(t, good[0], ask(3, 0, 3))
	wantAnswer(t, readReply(t, good[0]), 3, 3)
	for _, c := range good {
		c.Close()
	}
	if _, served, _ := f.try(t, patience); !served {
		t.Error("not served although there is room")
	}
}
