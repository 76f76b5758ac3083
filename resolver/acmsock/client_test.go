// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acmsock

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"acmd/resolver"
)

func dialClient(t *testing.T, service string) (*Client, context.Context) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	c, err := Dial(ctx, service)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c, ctx
}

func TestClient(t *testing.T) {
	f := goldenEndpoints()
	s := serve(t, f, nil)
	c, ctx := dialClient(t, s.Addrs()[0].String())

	r, err := c.ResolveIP(ctx, netip.Addr{}, netip.MustParseAddr("10.0.1.2"), false)
	if err != nil || r.Paths[0].Record.DLID() != 0x102 || r.Paths[0].Flags != PathUsual || r.Source.IP() != netip.MustParseAddr("10.0.0.1") {
		t.Errorf("%+v, %v", r, err)
	}
	r, err = c.ResolveIP(ctx, netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.1.3"), false)
	if err != nil || r.Paths[0].Record.DLID() != 0x103 || !r.Source.IsZero() {
		t.Errorf("%+v, %v", r, err)
	}
	if _, err = c.ResolveName(ctx, "nodeC", "Other", false); err != nil {
		t.Error(err)
	}
	p := examplePath()
	if r, err = c.ResolvePath(ctx, p, false); err != nil || r.Paths[0].Record.DLID() != p.DLID() {
		t.Errorf("%+v, %v", r, err)
	}
	if q, err := c.VerifySA(ctx, p); err != nil || q.SLID() != 0x77 {
		t.Errorf("%x, %v", q, err)
	}
	if n, err := c.Perf(ctx, 0); err != nil || !slices.Equal(n, f.totals[:]) {
		t.Errorf("%v, %v", n, err)
	}
	if n, err := c.Perf(ctx, 1); err != nil || !slices.Equal(n, f.perEP[:]) {
		t.Errorf("%v, %v", n, err)
	}
	if n, err := c.PerfSource(ctx, resolver.NameAddr("nodec-ALT")); err != nil || !slices.Equal(n, f.perEP[:]) {
		t.Errorf("%v, %v", n, err)
	}
	if e, err := c.Endpoint(ctx, 1, 1); err != nil || e.Provider != "ibacmp" || len(e.Addrs) != 2 {
		t.Errorf("%+v, %v", e, err)
	}

	// field case 40: a failure is an error with its status, and the connection
	// goes on.
	for _, fail := range []struct {
		do   func() error
		want resolver.Status
		core bool
	}{
		{func() error { _, err := c.ResolveName(ctx, "", "x", false); return err }, resolver.StatusDestType, true},
		{func() error {
			_, err := c.ResolveIP(ctx, netip.MustParseAddr("203.0.113.1"), netip.MustParseAddr("10.0.0.2"), false)
			return err
		}, resolver.StatusSrcAddr, true},
		{func() error {
			_, err := c.ResolveIP(ctx, netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.4.0.2"), false)
			return err
		}, resolver.StatusNoData, false},
		{func() error {
			_, err := c.ResolveIP(ctx, netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.1.0.2"), true)
			return err
		}, resolver.StatusNoData, false},
		{func() error { _, err := c.Perf(ctx, 9); return err }, resolver.StatusSrcAddr, true},
		{func() error { _, err := c.Endpoint(ctx, 9, 0); return err }, resolver.StatusInvalid, true},
	} {
		var se *StatusError
		if err := fail.do(); !errors.As(err, &se) || se.Status != fail.want || se.Core != fail.core {
			t.Errorf("got %v, want status %d", err, fail.want)
		}
	}
	if _, err := c.Resolve(ctx, make([]Record, 9)...); err == nil {
		t.Error("nine records were accepted")
	}
	if _, err := c.RoundTrip(ctx, []byte{1}); err == nil {
		t.Error("one byte was sent")
	}
	if b, err := c.RoundTrip(ctx, ask(77, 0, 5)); err != nil {
		t.Error(err)
	} else {
		wantAnswer(t, b, 77, 5)
	}
}

// A call that ran into its deadline ends the connection: the late reply must
// not be taken for the next one.
func TestClientDeadline(t *testing.T) {
	f := newFake()
	s := serve(t, f, nil)
	for _, cancelled := range []bool{false, true} {
		c, _ := dialClient(t, s.Addrs()[0].String())
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		want := context.DeadlineExceeded
		if cancelled {
			ctx, cancel = context.WithCancel(t.Context())
			want = context.Canceled
			time.AfterFunc(5*time.Millisecond, cancel)
		}
		_, err := c.ResolveIP(ctx, netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.1.0.1"), false)
		if !errors.Is(err, want) {
			t.Errorf("got %v, want %v", err, want)
		}
		cancel()
		if _, err := c.Perf(t.Context(), 0); !errors.Is(err, net.ErrClosed) || !errors.Is(err, want) {
			t.Errorf("afterwards: %v", err)
		}
	}
	c, _ := dialClient(t, s.Addrs()[0].String())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Perf(ctx, 0); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if _, err := c.Perf(t.Context(), 0); err != nil {
		t.Errorf("nothing was sent, yet the connection is lost: %v", err)
	}
	f.releaseAll()
}

// Replies that break the protocol.
func TestClientProtocolErrors(t *testing.T) {
	for _, c := range []struct {
		name  string
		reply func(req []byte) []byte
	}{
		{"another tid", func(req []byte) []byte {
			b := AppendAnswer(nil, req, &resolver.Answer{Path: examplePath()})
			b[8]++
			return b
		}},
		{"version", func(req []byte) []byte {
			b := AppendAnswer(nil, req, &resolver.Answer{})
			b[0] = 2
			return b
		}},
		{"length below 16", func(req []byte) []byte {
			b := appendError(nil, req, 2)
			putLength(b, 15)
			return b
		}},
		{"another operation", func(req []byte) []byte { return appendPerf(nil, req, newFake()) }},
		{"no path", func(req []byte) []byte { return appendHeader(nil, 1, 0, HeaderSize, req) }},
		{"half a record", func(req []byte) []byte {
			return append(appendHeader(nil, 1, 0, HeaderSize+36, req), make([]byte, 36)...)
		}},
	} {
		near, far := net.Pipe()
		go func() {
			b := make([]byte, MaxRequest)
			n, _ := far.Read(b)
			far.Write(c.reply(b[:n]))
			far.Close()
		}()
		client := NewClient(near)
		_, err := client.Resolve(t.Context(), DestRecord(ip4(10, 0, 0, 1), false))
		if !errors.Is(err, ErrProtocol) {
			t.Errorf("%s: %v", c.name, err)
		}
		client.Close()
	}
}

// field case 43: every address of a name is tried, the port comes from the port
// file, and a bad name gives a clear error.
func TestDial(t *testing.T) {
	s := serve(t, newFake(), func(c *Config) { c.Mode = ModeLoop })
	port := s.Addrs()[0].(*net.TCPAddr).Port
	d := Dialer{RunDir: s.cfg.RunDir}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for _, service := range []string{"localhost", "127.0.0.1", "127.0.0.1:" + strconv.Itoa(port), "localhost:" + strconv.Itoa(port)} {
		c, err := d.Dial(ctx, service)
		if err != nil {
			t.Fatalf("%s: %v", service, err)
		}
		if _, err := c.Perf(ctx, 0); err != nil {
			t.Errorf("%s: %v", service, err)
		}
		if got := c.RemoteAddr().(*net.TCPAddr).Port; got != port {
			t.Errorf("%s: port %d", service, got)
		}
		c.Close()
	}
	for service, want := range map[string]string{
		"127.0.0.1:0": "bad port", "127.0.0.1:x": "bad port", "a:b:c": "too many colons",
		filepath.Join(s.cfg.RunDir, "none"): "no such file", "127.0.0.1:1": "refused",
	} {
		if c, err := d.Dial(ctx, service); err == nil {
			c.Close()
			t.Errorf("%s: connected", service)
		} else if !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", service, err)
		}
	}
	addrs := []netip.Addr{netip.IPv6Loopback(), netip.MustParseAddr("127.0.0.9"), netip.MustParseAddr("127.0.0.1")}
	conn, err := dialEach(ctx, addrs, uint16(port))
	if err != nil {
		t.Fatalf("the last address listens: %v", err)
	}
	conn.Close()
	if _, err := dialEach(ctx, addrs[:2], uint16(port)); err == nil || !strings.Contains(err.Error(), "127.0.0.9") {
		t.Errorf("nobody listens there: %v", err)
	}
	u := serve(t, newFake(), nil)
	d.RunDir = u.cfg.RunDir
	t.Chdir(u.cfg.RunDir)
	for _, service := range []string{"", "./" + unixSocketName} {
		c, err := d.Dial(ctx, service)
		if err != nil {
			t.Fatalf("%q: %v", service, err)
		}
		c.Close()
	}
}

func TestDialSplit(t *testing.T) {
	dir := t.TempDir()
	d := Dialer{RunDir: dir}
	for _, c := range []struct {
		file, service, host string
		port                uint16
	}{
		{"", "host", "host", DefaultPort}, {"7000\n", "host", "host", 7000}, {"7000", "::1", "::1", 7000},
		{"0\n", "host", "host", DefaultPort}, {"junk", "host", "host", DefaultPort}, {"70000\n", "host", "host", DefaultPort},
		{"7000\n", "[::1]:80", "::1", 80}, {"7000\n", "[fe80::1]", "fe80::1", 7000}, {"7000\n", "host:80", "host", 80},
	} {
		path := filepath.Join(dir, portFileName)
		os.Remove(path)
		if c.file != "" {
			if err := os.WriteFile(path, []byte(c.file), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		host, port, err := d.split(c.service)
		if err != nil || host != c.host || port != c.port {
			t.Errorf("%q with file %q: %s %d %v", c.service, c.file, host, port, err)
		}
	}
}

// A listener with backlog 0, as ibacm's, refuses a burst of non-blocking
// connects; the client tries again until its context ends.
func TestDialRetriesFullBacklog(t *testing.T) {
	path := filepath.Join(shortDir(t), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	raw, err := l.(*net.UnixListener).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	raw.Control(func(fd uintptr) { err = setBacklog(int(fd), 0) })
	if err != nil {
		t.Fatal(err)
	}
	var waiting []*Client
	defer func() {
		for _, c := range waiting {
			c.Close()
		}
	}()
	for {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		c, err := Dial(ctx, path)
		cancel()
		if err != nil {
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Fatal(err)
			}
			break
		}
		if waiting = append(waiting, c); len(waiting) > 10 {
			t.Fatal("the backlog takes everybody")
		}
	}
	time.AfterFunc(10*time.Millisecond, func() {
		if c, err := l.Accept(); err == nil {
			c.Close()
		}
	})
	c, _ := dialClient(t, path)
	c.Close()
}
