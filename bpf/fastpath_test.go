// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package bpf

import (
	"errors"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
)

// needSockets skips the test unless it may make socket maps.
func needSockets(t *testing.T) {
	t.Helper()
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.SockHash, KeySize: 8, ValueSize: 8, MaxEntries: 1})
	if err == nil {
		m.Close()
		return
	}
	if os.Getenv("ACMD_CI") == "1" {
		t.Fatalf("socket maps cannot be made (CAP_BPF, CAP_NET_ADMIN): %v", err)
	}
	t.Skipf("socket maps cannot be made (CAP_BPF, CAP_NET_ADMIN): %v", err)
}

// Every plan passes the self-test, or the kernel says that it has no such thing;
// one of them works on each kernel that tests run on.
func TestFastPlans(t *testing.T) {
	needSockets(t)
	works := map[bool]int{}
	for _, plan := range fastPlans {
		for _, plan.Unread = range []string{unreadRmem, unreadPsock} {
			for _, plan.All = range []bool{false, true} {
				test, err := selfTest(FastConfig{All: plan.All}, plan)
				if err != nil {
					t.Logf("%+v: %v", plan, err)
					continue
				}
				works[plan.All]++
				if err := errors.Join(test.prove(), test.prove(), test.close()); err != nil {
					t.Errorf("%+v: once more: %v", plan, err)
				}
			}
		}
	}
	for all, n := range works {
		t.Logf("all %v: %d of %d plans work", all, n, 2*len(fastPlans))
	}
	for _, all := range []bool{false, true} {
		f, err := LoadFast(FastConfig{Port: 1, All: all})
		if err != nil {
			t.Fatalf("all %v: %v", all, err)
		}
		t.Logf("%+v", f.Plan())
		if f.On() {
			t.Error("on before anybody said so")
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestFastLayouts(t *testing.T) {
	spec, err := loadFast()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range []struct {
		name       string
		have, want uintptr
	}{
		{"FastKey", unsafe.Sizeof(FastKey{}), uintptr(spec.Maps[fastMapAcmPaths].KeySize)},
		{"FastKey of sources", unsafe.Sizeof(FastKey{}), uintptr(spec.Maps[fastMapAcmSrc].KeySize)},
		{"FastPath", unsafe.Sizeof(FastPath{}), uintptr(spec.Maps[fastMapAcmPaths].ValueSize)},
		{"fastUse", unsafe.Sizeof(fastUse{}), uintptr(spec.Maps[fastMapAcmUse].ValueSize)},
		{"FastConn", unsafe.Sizeof(FastConn{}), uintptr(spec.Maps[fastMapAcmConns].ValueSize)},
	} {
		if l.have != l.want {
			t.Errorf("%s has %d bytes, the program's %d", l.name, l.have, l.want)
		}
	}
	for name, want := range map[string]uint32{
		fastMapAcmPaths: FastPaths, fastMapAcmUse: FastPaths, fastMapAcmSrc: FastSources, fastMapAcmGen: FastGens + 1, fastMapAcmConns: fastPorts,
	} {
		if n := spec.Maps[name].MaxEntries; n != want {
			t.Errorf("%s has %d entries, want %d", name, n, want)
		}
	}
}

// patience is how long a client may be in the middle of a system call, on a busy machine.
const patience = time.Minute

// openServed loads a plan for a listener and gives it a connection that its server has
// answered once.
func openServed(t *testing.T, conns int) *fastTest {
	t.Helper()
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f, err := openFast(FastConfig{Port: portOf(ln.Addr()), Paths: 64, Conns: conns}, fastPlans[0])
	if err != nil {
		ln.Close()
		t.Fatal(err)
	}
	// A connection has to live while another fast path is loaded, which takes seconds
	// under emulation.
	ft := &fastTest{testServer: testServer{ln, f, make(chan struct{}), 5 * time.Minute}}
	served := make(chan error, 1)
	go ft.serve(served)
	t.Cleanup(func() {
		ln.Close()
		if err := errors.Join(<-served, f.Close()); err != nil {
			t.Error(err)
		}
	})
	return ft
}

// client connects and asks once; the server has its slot by then.
func (t *fastTest) client(tb *testing.T) (port uint16) {
	tb.Helper()
	c, err := net.Dial("tcp4", t.ln.Addr().String())
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { c.Close() })
	t.conn = c
	t.ask(&testShapes[0], byDaemon, "the first request")
	if t.err != nil {
		tb.Fatal(t.err)
	}
	return portOf(c.LocalAddr())
}

// A socket that does not fit the map, or that another program has, is refused and
// stays as it was; nobody's socket is said to be gone.
func TestFastInsertRefused(t *testing.T) {
	needSockets(t)
	a := openServed(t, 1)
	first := a.client(t)
	if sent, err := a.fast.insertOne(first, patience); err != nil || sent != 88 {
		t.Fatalf("%d bytes, %v", sent, err)
	}
	if sent, err := a.fast.insertOne(first, patience); err != nil || sent != 88 {
		t.Errorf("the same once more: %d bytes, %v", sent, err)
	}
	// One connection of the server at a time: the first has to end.
	a.conn.Close()
	second := a.client(t)
	if _, err := a.fast.insertOne(second, patience); err != nil {
		t.Errorf("after the first was closed: %v", err)
	}
	if _, err := a.fast.insertOne(1, patience); !errors.Is(err, ErrFastGone) {
		t.Errorf("no connection: %v", err)
	}
	a.conn.Close()

	// Another owner: a second fast path for the same listener.
	third := a.client(t)
	other, err := openFast(FastConfig{Port: portOf(a.ln.Addr()), Paths: 64, Conns: 64}, fastPlans[0])
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if _, err := other.insertOne(third, patience); err != nil {
		t.Fatal(err)
	}
	if _, err := a.fast.insertOne(third, patience); !errors.Is(err, ErrFastRefused) {
		t.Errorf("a socket of another program: %v", err)
	}
	a.ask(&testShapes[0], byDaemon, "on a socket of another program")
	if a.err != nil {
		t.Error(a.err)
	}
}

// What a client has sent is told as it was at one moment, while acknowledgements come
// in: too much would keep a reply back for ever, too little let one go that is not due.
func TestFastInsertSent(t *testing.T) {
	needSockets(t)
	a := openServed(t, 64)
	port := a.client(t)
	var begun, written atomic.Uint64
	begun.Store(88)
	written.Store(88)
	var stop atomic.Bool
	var client sync.WaitGroup
	client.Go(func() {
		for !stop.Load() && a.err == nil {
			begun.Add(88)
			a.send(testShapes[0].request(1, false))
			written.Add(88)
			a.reply(&testShapes[0], 1)
		}
	})
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); {
		low := written.Load()
		sent, err := a.fast.insertOne(port, patience)
		if high := begun.Load(); err != nil || sent < low || sent > high || sent%88 != 0 {
			t.Errorf("%d bytes sent, %v; want %d to %d", sent, err, low, high)
			break
		}
	}
	stop.Store(true)
	client.Wait()
	if a.err != nil {
		t.Error(a.err)
	}
}

// More clients than the map holds: those that do not fit are served by the daemon.
func TestFastMapFull(t *testing.T) {
	needSockets(t)
	a := openServed(t, 2)
	a.client(t)
	lookup := func(conns int) (refused int) {
		var held []net.Conn
		for range conns {
			c, err := net.Dial("tcp4", a.ln.Addr().String()) // the backlog takes it
			if err != nil {
				t.Fatal(err)
			}
			held = append(held, c)
			if _, err := a.fast.insertOne(portOf(c.LocalAddr()), patience); errors.Is(err, ErrFastRefused) {
				refused++
			} else if err != nil {
				t.Fatal(err)
			}
		}
		for _, c := range held {
			c.Close()
		}
		return refused
	}
	if n := lookup(5); n != 3 {
		t.Errorf("%d of 5 sockets refused by a map for 2", n)
	}
}
