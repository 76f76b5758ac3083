// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package service

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"acmd/bpf"
	"acmd/mad"
	"acmd/mad/fabric"
	madsa "acmd/mad/sa"
	"acmd/mad/transport"
	"acmd/resolver"
	"acmd/resolver/acmsock"
	"acmd/resolver/config"

	"golang.org/x/sys/unix"
)

// patience bounds what must happen sooner or later.
const patience = 30 * time.Second

// fastSite is a daemon with a fast path on an embedded fabric.
type fastSite struct {
	*Daemon
	t    *testing.T
	f    *fabric.Fabric
	port int
	away atomic.Int64 // nodes that nobody asked for yet come from here on
	unix *fastClient  // for what the daemon itself says
	mu   sync.Mutex
	said map[string][]byte
}

const (
	siteNodes = 4096
	firstAway = 1024 // nodes from here on are slow to be resolved
)

// startFast starts a daemon in a mode of fast_path. Without privileges, or on a
// kernel that has no fast path, the test is skipped.
func startFast(t *testing.T, mode string, opts ...string) *fastSite {
	t.Helper()
	return startFastTuned(t, mode, nil, opts...)
}

// startFastTuned lets tune change the engine's configuration, for times and sizes
// that no options file can have.
func startFastTuned(t *testing.T, mode string, tune func(*resolver.Config), opts ...string) *fastSite {
	t.Helper()
	return startFastWith(t, Options{tune: tune}, mode, opts...)
}

// startFastWith lets o say what only tests can.
func startFastWith(t *testing.T, o Options, mode string, opts ...string) *fastSite {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "opts")
	opts = append([]string{"log_file " + filepath.Join(dir, "log"), "bpf_dir none", "fast_path_port 0", "fast_path " + mode}, opts...)
	if err := os.WriteFile(file, []byte(strings.Join(opts, "\n")+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	s := &fastSite{t: t, said: map[string][]byte{}}
	o.OptionsFile, o.AddressFile, o.RunDir, o.Version = file, filepath.Join(dir, "addr"), dir, "test"
	o.Fabric, o.Getenv = fmt.Sprintf("embedded:nodes=%d", siteNodes), func(string) string { return "" }
	o.Observe = func(of transport.Fabric) { s.f = of.(*fabric.Fabric) }
	d, err := Start(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Stop(); err != nil {
			t.Errorf("stop: %v", err)
		}
	})
	s.Daemon = d
	if st := d.fastPathState(); !st.On {
		if os.Getenv("ACMD_CI") == "1" {
			t.Fatalf("no fast path here: %s", st.Reason)
		}
		t.Skipf("no fast path here: %s", st.Reason)
	}
	p, err := d.door.FastPort()
	if err != nil {
		t.Fatal(err)
	}
	s.port = int(p)
	s.away.Store(firstAway)
	slow := map[mad.GID]bool{}
	for i := firstAway; i < siteNodes; i++ {
		slow[s.f.GID(i, 1)] = true
	}
	s.f.AddRule(fabric.Rule{On: fabric.Deliveries, Class: mad.ClassSA, Attr: madsa.AttrPathRecord, Delay: 10 * time.Millisecond,
		Match: func(_ int, m *mad.Packet) bool { return slow[madsa.Path(m).DGID()] }})
	if d.settings.Load().ServerMode == config.ModeUnix {
		s.unix = s.dialUnix()
	}
	return s
}

func (s *fastSite) counts(w bpf.KernelWord) uint64 { return s.fast.State().Messages[w.String()] }
func (s *fastSite) hits() uint64                   { return s.counts(bpf.KernelHit) }

// fastClient is a socket. Sending is one send() for each message. Receiving waits
// in poll(): a receive that blocks on a socket of the map ends at any signal, and
// the Go runtime sends itself some.
type fastClient struct {
	t    *testing.T
	fd   int
	dead bool
}

func newClient(t *testing.T, family int, sa unix.Sockaddr, bind unix.Sockaddr) *fastClient {
	t.Helper()
	k, err := tryClient(t, family, sa, bind)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// tryClient fails where somebody else has the address to bind to.
func tryClient(t *testing.T, family int, sa unix.Sockaddr, bind unix.Sockaddr) (*fastClient, error) {
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	k := &fastClient{t: t, fd: fd}
	t.Cleanup(k.close)
	if bind != nil {
		err = errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1), unix.Bind(fd, bind))
		if err != nil {
			return nil, err
		}
	}
	for {
		err = unix.Connect(fd, sa)
		if err == nil {
			break
		}
		if !errors.Is(err, unix.EINTR) {
			return nil, err
		}
	}
	if family == unix.AF_INET {
		unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
	}
	return k, nil
}

func (s *fastSite) dialUnix() *fastClient {
	return newClient(s.t, unix.AF_UNIX, &unix.SockaddrUnix{Name: filepath.Join(s.opts.RunDir, "ibacm-unix.sock")}, nil)
}

func (s *fastSite) dial(t *testing.T) *fastClient {
	return newClient(t, unix.AF_INET, &unix.SockaddrInet4{Port: s.port, Addr: [4]byte{127, 0, 0, 1}}, nil)
}

func (k *fastClient) close() {
	if !k.dead {
		unix.Close(k.fd)
		k.dead = true
	}
}

func (k *fastClient) trySend(b []byte) error {
	for {
		n, err := unix.SendmsgN(k.fd, b, nil, nil, unix.MSG_NOSIGNAL)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err == nil && n != len(b) {
			err = fmt.Errorf("%d of %d bytes", n, len(b))
		}
		return err
	}
}

func (k *fastClient) send(b ...[]byte) {
	k.t.Helper()
	if err := k.trySend(bytes.Join(b, nil)); err != nil {
		k.t.Fatalf("send: %v", err)
	}
}

// wait polls until something can be read.
func (k *fastClient) wait() {
	k.t.Helper()
	fds := []unix.PollFd{{Fd: int32(k.fd), Events: unix.POLLIN}}
	for end := time.Now().Add(patience); ; {
		n, err := unix.Poll(fds, int(time.Until(end)/time.Millisecond))
		if n > 0 {
			return
		}
		if err != nil && !errors.Is(err, unix.EINTR) || time.Now().After(end) {
			k.t.Fatalf("nothing to receive: %v", err)
		}
	}
}

// recv receives what one recv() gives.
func (k *fastClient) recv(n, flags int) []byte {
	k.t.Helper()
	b := make([]byte, n)
	for {
		k.wait()
		got, _, err := unix.Recvfrom(k.fd, b, flags|unix.MSG_DONTWAIT)
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			k.t.Fatalf("receive: %v", err)
		}
		return b[:got]
	}
}

// message receives one whole message.
func (k *fastClient) message() []byte {
	k.t.Helper()
	read := func(b []byte, n int) []byte {
		for len(b) < n {
			more := k.recv(n-len(b), 0)
			if len(more) == 0 {
				k.t.Fatalf("end of file after %d bytes", len(b))
			}
			b = append(b, more...)
		}
		return b
	}
	b := read(nil, acmsock.HeaderSize)
	n := int(binary.NativeEndian.Uint16(b[6:]))
	if b[1]&0xf != 1 {
		n = int(binary.BigEndian.Uint16(b[6:]))
	}
	return read(b, n)
}

// shape is a kind of request.
type shape struct {
	name string
	src  *resolver.Addr
	dst  func(s *fastSite, node int) acmsock.Record
}

func addrDst(make func(node int) resolver.Addr) func(*fastSite, int) acmsock.Record {
	return func(_ *fastSite, node int) acmsock.Record { return acmsock.DestRecord(make(node), false) }
}

func ip4(node int) resolver.Addr  { return resolver.IPAddr(fabric.IPv4(node, 1)) }
func ip6(node int) resolver.Addr  { return resolver.IPAddr(fabric.IPv6(node, 1)) }
func name(node int) resolver.Addr { return spelled(fabric.NodeName(node, 1)) }

// spelled is a name as a client may write it: capital letters stay.
func spelled(s string) (a resolver.Addr) {
	a = resolver.NameAddr(s)
	for i := range a.Len {
		if i%2 == 0 && 'a' <= a.Data[i] && a.Data[i] <= 'z' {
			a.Data[i] -= 'a' - 'A'
		}
	}
	return a
}

func ptr[T any](v T) *T { return &v }

var shapes = []shape{
	{"path by GID", nil, func(s *fastSite, node int) acmsock.Record {
		var p madsa.PathRecord
		p.SetDGID(s.f.GID(node, 1))
		p.SetReversibleNumPath(true, 1)
		return acmsock.PathQuery(p, 0)
	}},
	{"IPv4", nil, addrDst(ip4)},
	{"source and IPv4", ptr(ip4(0)), addrDst(ip4)},
	{"IPv6", nil, addrDst(ip6)},
	{"source and IPv6", ptr(ip6(0)), addrDst(ip6)},
	{"source and name", ptr(name(0)), addrDst(name)},
}

// request of a shape for a node.
func (s *fastSite) request(h shape, tid uint64, node int) []byte {
	if h.src == nil {
		return acmsock.AppendResolve(nil, tid, h.dst(s, node))
	}
	return acmsock.AppendResolve(nil, tid, acmsock.SourceRecord(*h.src), h.dst(s, node))
}

// get is a request that can be answered in the kernel, once somebody asked.
func (s *fastSite) get(h shape, tid int) []byte { return s.request(h, uint64(tid), 1+tid%100) }

// miss is a request that nobody asked yet. The daemon needs some time for it.
func (s *fastSite) miss(h shape, tid int) []byte {
	n := int(s.away.Add(1))
	if n >= siteNodes {
		s.t.Fatal("no node is left that nobody asked for")
	}
	return s.request(h, uint64(tid), n)
}

// want is the daemon's own reply to a request.
func (s *fastSite) want(req []byte) []byte {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	key := string(req[:8]) + string(req[16:])
	rep := s.said[key]
	if rep == nil {
		s.unix.send(req)
		rep = s.unix.message()
		if rep[2] == 0 {
			s.said[key] = rep
		}
	}
	rep = bytes.Clone(rep)
	copy(rep[8:16], req[8:16])
	return rep
}

// replies receives the replies to requests, in their order, and compares each
// byte with what the daemon says.
func (s *fastSite) replies(k *fastClient, reqs ...[]byte) {
	k.t.Helper()
	for i, req := range reqs {
		got := k.message()
		if want := s.want(req); !bytes.Equal(got, want) {
			k.t.Fatalf("reply %d of %d:\n got %x\nwant %x", i+1, len(reqs), got, want)
		}
	}
}

// ask asks once, as librdmacm does: one send, one receive. It reports whether the
// kernel answered; only one client may be at work.
func (s *fastSite) ask(k *fastClient, req []byte) bool {
	k.t.Helper()
	hit, known := s.tryAsk(k, req)
	if !known {
		k.t.Fatalf("%x: no data", req)
	}
	return hit
}

// tryAsk is ask for a path that may be unknown at the moment.
func (s *fastSite) tryAsk(k *fastClient, req []byte) (hit, known bool) {
	k.t.Helper()
	want := s.want(req)
	before := s.hits()
	k.send(req)
	got := k.recv(1024, 0)
	if len(got) == acmsock.HeaderSize && got[2] == byte(resolver.StatusNoData) && want[2] == 0 {
		return false, false
	}
	if got[2] == 0 && want[2] == byte(resolver.StatusTimedOut) {
		return false, false // it was unknown when the daemon was asked first
	}
	if !bytes.Equal(got, want) {
		k.t.Fatalf("reply\n got %x\nwant %x", got, want)
	}
	return s.hits() > before, true
}

// warm asks until the kernel answers: paths and sockets get there behind the
// daemon's answers.
func (s *fastSite) warm(k *fastClient, req []byte) {
	k.t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		if hit, _ := s.tryAsk(k, req); hit {
			return
		}
		if time.Now().After(end) {
			k.t.Fatalf("the kernel never answers %x: %+v", req, s.fast.State())
		}
	}
}

func (s *fastSite) mustHit(k *fastClient, req []byte) {
	k.t.Helper()
	if !s.ask(k, req) {
		k.t.Fatalf("answered by the daemon: %+v", s.fast.State().Messages)
	}
}

func (s *fastSite) mustPass(k *fastClient, req []byte) {
	k.t.Helper()
	if s.ask(k, req) {
		k.t.Fatal("answered by the kernel")
	}
}

// warmAll makes the paths of a shape known.
func (s *fastSite) warmAll(h shape) {
	k := s.dial(s.t)
	defer k.close()
	for tid := range 100 {
		s.warm(k, s.get(h, tid))
	}
}

// The port file and librdmacm's link are there while the fast path is on.
func TestFastPathPortFile(t *testing.T) {
	s := startFast(t, "kernel")
	file := func() string {
		b, err := os.ReadFile(filepath.Join(s.opts.RunDir, "ibacm.port"))
		if err != nil {
			return ""
		}
		return string(b)
	}
	want := fmt.Sprintf("%d\n", s.port)
	if file() != want {
		t.Errorf("port file %q, want %q", file(), want)
	}
	if err := s.fast.Switch(false); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"ibacm.port", "ibacm-tcp.port"} {
		if _, err := os.Lstat(filepath.Join(s.opts.RunDir, name)); !os.IsNotExist(err) {
			t.Errorf("%s is there while the fast path is off: %v", name, err)
		}
	}
	if err := s.fast.Switch(true); err != nil {
		t.Fatal(err)
	}
	if file() != want {
		t.Errorf("port file %q, want %q", file(), want)
	}
	s.fast.Fail(errors.New("for the test"))
	if file() != "" {
		t.Error("port file after a failure")
	}
	if err := s.fast.Switch(true); err == nil {
		t.Error("on after a failure")
	}
}
