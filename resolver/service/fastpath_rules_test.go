// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package service

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"acmd/bpf"
	"acmd/mad/fabric"
	madsa "acmd/mad/sa"
	"acmd/resolver"
	"acmd/resolver/acmsock"

	"golang.org/x/sys/unix"
)

// What the kernel answers and what it leaves to the daemon, by the request alone.
func TestFastPathRules(t *testing.T) {
	s := startFast(t, "kernel", "negative_timeout 600000") // who asks twice is told the same
	k := s.dial(t)
	for _, h := range shapes {
		s.warm(k, s.get(h, 1))
	}
	src, dst := acmsock.SourceRecord(ip4(0)), acmsock.DestRecord(ip4(2), false)
	flagged := func(r acmsock.Record, more uint32) acmsock.Record {
		r.Flags |= more
		return r
	}
	gid := shapes[0].dst(s, 2)
	pair := func(a, b acmsock.Record) []byte { return acmsock.AppendResolve(nil, 9, a, b) }
	upper := spelled(fabric.NodeName(2, 1))
	tail := resolver.NameAddr(fabric.NodeName(2, 1))
	tail.Data[60] = 'x' // behind the NUL
	sameByBit := resolver.NameAddr("node0`02")
	for _, tc := range []struct {
		name   string
		req    []byte
		kernel bool
	}{
		{"NODELAY", pair(src, flagged(dst, acmsock.FlagNoDelay)), true},
		{"NODELAY on a path request", acmsock.AppendResolve(nil, 9, flagged(gid, acmsock.FlagNoDelay)), true},
		{"capital letters", pair(acmsock.SourceRecord(name(0)), acmsock.DestRecord(upper, false)), true},
		{"bytes behind the name", pair(acmsock.SourceRecord(name(0)), acmsock.DestRecord(tail, false)), false},
		{"a character that only a careless fold takes for a letter", pair(acmsock.SourceRecord(name(0)), acmsock.DestRecord(sameByBit, true)), false},
		{"QUERY_SA", acmsock.AppendResolve(nil, 9, flagged(gid, acmsock.FlagQuerySA)), false},
		{"another flag", pair(src, flagged(dst, 4)), false},
		{"both flags in one record", acmsock.AppendResolve(nil, 9, flagged(src, acmsock.FlagDest)), false},
		{"destination first", pair(dst, src), false},
		{"a path record behind the destination", pair(dst, gid), false},
		{"three records", acmsock.AppendResolve(nil, 9, src, dst, gid), false},
		{"GID as an address", acmsock.AppendResolve(nil, 9, acmsock.DestRecord(resolver.GIDAddr(s.f.GID(2, 1)), false)), false},
		{"source that is not ours", pair(acmsock.SourceRecord(ip4(5)), dst), false},
		{"no record", acmsock.AppendResolve(nil, 9), false},
		{"unknown destination", pair(src, acmsock.DestRecord(resolver.NameAddr("nobody"), true)), false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			k.t = t
			for i := range 3 { // the third time all is known that can be
				if hit := s.ask(k, tc.req); i == 2 && hit != tc.kernel || hit && !tc.kernel {
					t.Fatalf("request %d answered by the kernel: %v, want %v", i, hit, tc.kernel)
				}
				for end := time.Now().Add(patience); tc.kernel && i == 1 && !s.ask(k, tc.req); time.Sleep(time.Millisecond) {
					if time.Now().After(end) {
						t.Fatal("never answered by the kernel")
					}
				}
			}
		})
	}
	k.t = t
	if r := s.get(shapes[2], 1); !bytes.Equal(s.want(r)[:16], append([]byte{1, 1, 0, 0, 0, 0, 88, 0}, r[8:16]...)) {
		t.Errorf("a success begins with % x", s.want(r)[:16])
	}
}

// Each flush is in force when it returns, and so is the switch.
func TestFastPathFlushes(t *testing.T) {
	s := startFast(t, "kernel")
	k := s.dial(t)
	ep := s.engine.Endpoints()[0]
	for _, h := range shapes {
		req := s.get(h, 3)
		dst := ip4(4)
		switch h.name {
		case "IPv6", "source and IPv6":
			dst = ip6(4)
		case "source and name":
			dst = resolver.NameAddr(fabric.NodeName(4, 1))
		case "path by GID":
			dst = resolver.GIDAddr(s.f.GID(4, 1))
		}
		lid := (*madsa.PathRecord)(s.want(req)[24:88]).DLID()
		for name, flush := range map[string]func(){
			"all":  func() { s.engine.FlushAll() },
			"GID":  func() { s.engine.FlushGID(s.f.GID(4, 1)) },
			"LID":  func() { s.engine.FlushLID(lid) },
			"dest": func() { s.engine.FlushDest(dst) },
			"port": func() {
				if _, err := s.engine.FlushPort(ep.Device, ep.Port.Num); err != nil {
					t.Error(err)
				}
			},
		} {
			s.warm(k, req)
			flush()
			before := s.hits()
			k.send(req)
			k.message() // no data, as nobody waits on a connection of the map
			if s.hits() != before || s.counts(bpf.KernelMiss)+s.counts(bpf.KernelStale) == 0 {
				t.Errorf("%s: answered by the kernel after a flush by %s", h.name, name)
			}
		}
		s.warm(k, req)
		k.send(req) // answered, and read when it is switched off
		if err := s.switchFastPath(false); err != nil {
			t.Fatal(err)
		}
		s.replies(k, req)
		s.mustPass(k, req)
		if err := s.switchFastPath(true); err != nil {
			t.Fatal(err)
		}
		s.mustHit(k, req) // on the old connection
	}
}

// The kernel's hits are counted where the daemon's are, each once, whoever asks.
func TestFastPathCountsExactly(t *testing.T) {
	for _, mode := range fastModes {
		t.Run(mode, func(t *testing.T) {
			s := startFast(t, mode)
			s.t = t
			for _, h := range shapes {
				s.warmAll(h)
			}
			want := map[string][]byte{}
			for _, h := range shapes {
				for tid := 1; tid <= 100; tid++ {
					want[string(s.get(h, tid))] = s.want(s.get(h, tid))
				}
			}
			before, hits := s.engine.Totals(), s.hits()
			const clients, asks = 8, 2000
			enough, end := hits+clients*asks/2, time.Now().Add(patience)
			var asked atomic.Uint64
			var wg sync.WaitGroup
			for c := range clients {
				wg.Go(func() {
					k := s.dial(t)
					defer k.close()
					// How soon a socket is on the map is the machine's affair.
					for i := 0; i < asks || s.hits() < enough && time.Now().Before(end); i++ {
						req := s.get(shapes[(c+i)%len(shapes)], 1+i%100)
						asked.Add(1)
						k.send(req)
						if got := k.message(); !bytes.Equal(got, want[string(req)]) {
							t.Errorf("client %d: got %x\nwant %x", c, got, want[string(req)])
							return
						}
					}
				})
			}
			wg.Wait()
			after := s.engine.Totals()
			if n := after[resolver.CounterResolve] - before[resolver.CounterResolve]; n != asked.Load() {
				t.Errorf("%d resolves counted for %d replies", n, asked.Load())
			}
			if s.hits() < enough {
				t.Errorf("the kernel answered %d of %d", s.hits()-hits, asked.Load())
			}
		})
	}
}

// Connections come and go, with replies read and unread.
func TestFastPathConnectClose(t *testing.T) {
	for _, mode := range fastModes {
		t.Run(mode, func(t *testing.T) {
			s := startFast(t, mode)
			s.t = t
			h := shapes[2]
			s.warmAll(h)
			for i := range 300 {
				k := s.dial(t)
				s.ask(k, s.get(h, 1))
				s.ask(k, s.get(h, 2))
				if i%3 == 0 {
					k.send(s.get(h, 3))
				}
				k.close()
			}
			for end := time.Now().Add(patience); s.door.Stats().Open > 1; time.Sleep(time.Millisecond) {
				if time.Now().After(end) {
					t.Fatalf("%d connections are left", s.door.Stats().Open)
				}
			}
		})
	}
}

// A client resets its connection while an answer is owed, and the next one has the
// same port: what the daemon still owes the first does not count for the second.
func TestFastPathPortReuse(t *testing.T) {
	for _, mode := range fastModes {
		t.Run(mode, func(t *testing.T) {
			s := startFast(t, mode, "fast_path_miss wait")
			s.t = t
			h := shapes[2]
			s.warmAll(h)
			server := &unix.SockaddrInet4{Port: s.port, Addr: [4]byte{127, 0, 0, 1}}
			any := &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}
			k := newClient(t, unix.AF_INET, server, any)
			again := 0
			for i := range 50 {
				name, err := unix.Getsockname(k.fd)
				if err != nil {
					t.Fatal(err)
				}
				k.send(s.miss(h, 1))
				if err := unix.SetsockoptLinger(k.fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}); err != nil {
					t.Fatal(err)
				}
				k.close()
				if k, err = tryClient(t, unix.AF_INET, server, name); err == nil {
					again++
				} else { // somebody else has the port now
					k = newClient(t, unix.AF_INET, server, any)
				}
				a, b, c := s.get(h, i), s.miss(h, i+1), s.get(h, i+2)
				k.send(a)
				s.replies(k, a)
				k.send(b)
				k.send(c)
				s.replies(k, b, c)
				s.warm(k, a)
			}
			if again == 0 {
				t.Error("no port was used twice")
			}
		})
	}
}

// Other loopback addresses are served by the daemon alone.
func TestFastPathOtherLoopback(t *testing.T) {
	for _, mode := range fastModes {
		t.Run(mode, func(t *testing.T) {
			s := startFast(t, mode)
			s.t = t
			s.warmAll(shapes[2])
			k := newClient(t, unix.AF_INET, &unix.SockaddrInet4{Port: s.port, Addr: [4]byte{127, 0, 0, 1}},
				&unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 2}})
			for i := range 50 {
				s.mustPass(k, s.get(shapes[2], i))
			}
		})
	}
}

// Another network namespace has a 127.0.0.1 of its own.
func TestFastPathOtherNamespace(t *testing.T) {
	s := startFast(t, "kernel-all")
	s.warmAll(shapes[2])
	req := s.get(shapes[2], 1)
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with its namespace
		done <- foreignServer(s.port, req)
	}()
	if err := <-done; err != nil {
		if errors.Is(err, unix.EPERM) && os.Getenv("ACMD_CI") != "1" {
			t.Skip("no network namespace can be made: ", err)
		}
		t.Fatal(err)
	}
}

// foreignServer listens on the same port in a namespace of its own, and reports
// whether a request gets there instead of being answered.
func foreignServer(port int, req []byte) error {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return err
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	ifr, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	ifr.SetUint16(unix.IFF_UP)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, ifr); err != nil {
		return err
	}
	l, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(l)
	sa := &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}}
	if err := errors.Join(unix.Bind(l, sa), unix.Listen(l, 5)); err != nil {
		return err
	}
	c, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(c)
	if err := unix.Connect(c, sa); err != nil {
		return err
	}
	a, _, err := unix.Accept(l)
	if err != nil {
		return err
	}
	defer unix.Close(a)
	if _, err := unix.Write(c, req); err != nil {
		return err
	}
	if n, err := unix.Read(a, make([]byte, 200)); n != len(req) {
		return errors.Join(err, errors.New("the request did not come to the other server"))
	}
	if n, _, err := unix.Recvfrom(c, make([]byte, 200), unix.MSG_DONTWAIT); !errors.Is(err, unix.EAGAIN) {
		return errors.Join(err, errors.New("the client was answered"), unix.Errno(n))
	}
	return nil
}

// Without a listener there is no fast path, and the service goes on.
func TestFastPathPortTaken(t *testing.T) {
	s := startFast(t, "kernel")
	file := filepath.Join(t.TempDir(), "opts")
	text := "log_file /dev/null\nbpf_dir none\nfast_path kernel\nfast_path_port " + strconv.Itoa(s.port) + "\n"
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	d, err := Start(Options{OptionsFile: file, AddressFile: filepath.Join(dir, "addr"), RunDir: dir, Fabric: "embedded:nodes=16",
		Getenv: func(string) string { return "" }})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Stop()
	st := d.fastPathState()
	if st.On || st.Reason == "" {
		t.Errorf("state %+v", st)
	}
	if _, err := os.Lstat(filepath.Join(dir, "ibacm.port")); !os.IsNotExist(err) {
		t.Error("a port file without a fast path")
	}
	k := newClient(t, unix.AF_UNIX, &unix.SockaddrUnix{Name: filepath.Join(dir, "ibacm.sock")}, nil)
	k.send(s.get(shapes[2], 1))
	if r := k.message(); r[2] != 0 {
		t.Errorf("reply % x", r)
	}
}

// With a TCP mode its own listener carries the fast path, and its port file stays
// whatever becomes of that.
func TestFastPathTCPModes(t *testing.T) {
	for _, mode := range []string{"loop", "open"} {
		t.Run(mode, func(t *testing.T) {
			port := freePort(t)
			s := startFast(t, "kernel", "server_mode "+mode, "server_port "+strconv.Itoa(port))
			if s.port != port {
				t.Fatalf("fast path on port %d, want %d", s.port, port)
			}
			k := s.dial(t)
			req := s.get(shapes[2], 1)
			for end := time.Now().Add(patience); s.hits() == 0; time.Sleep(time.Millisecond) {
				k.send(req)
				if r := k.message(); r[2] != 0 && r[2] != byte(resolver.StatusNoData) {
					t.Fatalf("reply % x", r)
				}
				if time.Now().After(end) {
					t.Fatalf("no hit: %+v", s.fast.State())
				}
			}
			s.fast.Fail(errors.New("for the test"))
			if b, err := os.ReadFile(filepath.Join(s.opts.RunDir, "ibacm.port")); err != nil || string(b) != strconv.Itoa(port)+"\n" {
				t.Errorf("port file %q, %v", b, err)
			}
		})
	}
}
