// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package metrics

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"acmd/mad/madtest"

	"golang.org/x/sys/unix"
)

func listen(t *testing.T, addr string) *Server {
	t.Helper()
	s, err := Listen(addr, fixed{synthetic()}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// client speaks HTTP to a door, one connection for each request.
func client(s *Server) *http.Client {
	return &http.Client{Timeout: time.Minute, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, s.Addr().Network(), s.Addr().String())
		},
	}}
}

func ask(t *testing.T, c *http.Client, method, path string) (int, string) {
	t.Helper()
	req, err := http.NewRequest(method, "http://acmd"+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

// The door has one page, and a way to it; nothing that changes or profiles.
func TestServer(t *testing.T) {
	for name, addr := range map[string]string{"tcp": "127.0.0.1:0", "unix": filepath.Join(t.TempDir(), "metrics.sock")} {
		t.Run(name, func(t *testing.T) {
			c := client(listen(t, addr))
			code, body := ask(t, c, "GET", "/metrics")
			if code != 200 {
				t.Fatal(code, body)
			}
			for _, want := range []string{"acmd_service_resolves_total 2\n", "\nacmd_process_open_fds ", "\nacmd_metrics_connections_rejected_total 0\n"} {
				if !strings.Contains(body, want) {
					t.Errorf("%q is not on the page", want)
				}
			}
			if err := checkMetrics(t, body); err != nil {
				t.Error(err)
			}
			for _, c2 := range []struct {
				method, path string
				want         int
			}{
				{"HEAD", "/metrics", 200}, {"POST", "/metrics", 405}, {"GET", "/", 200}, {"GET", "/debug/pprof/", 404},
				{"GET", "/v1/state", 404}, {"DELETE", "/", 405},
			} {
				if code, _ := ask(t, c, c2.method, c2.path); code != c2.want {
					t.Errorf("%s %s: %d, want %d", c2.method, c2.path, code, c2.want)
				}
			}
		})
	}
}

// What lies at the path of the unix socket decides.
func TestUnixPath(t *testing.T) {
	dir := t.TempDir()
	refused := func(path, why string) {
		t.Helper()
		s, err := Listen(path, fixed{}, slog.New(slog.DiscardHandler))
		if err == nil {
			s.Close()
			t.Errorf("%s was taken", path)
		} else if !strings.Contains(err.Error(), why) {
			t.Errorf("%v, want %q", err, why)
		}
	}

	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("precious"), 0o644); err != nil {
		t.Fatal(err)
	}
	refused(file, "is in the way, it is no socket")
	if b, _ := os.ReadFile(file); string(b) != "precious" {
		t.Errorf("the file has %q", b)
	}
	refused(filepath.Join(dir, "no", "socket"), "no such file or directory")

	// A socket that a killed process left.
	stale := filepath.Join(dir, "stale")
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: stale, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	ln.SetUnlinkOnClose(false)
	ln.Close()
	s := listen(t, stale)
	if st, err := os.Stat(stale); err != nil || st.Mode().Perm() != 0o666 {
		t.Errorf("mode %v, %v", st.Mode(), err)
	}
	refused(stale, "is served by another process")
	if code, _ := ask(t, client(s), "GET", "/metrics"); code != 200 {
		t.Errorf("the first one answers %d", code)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(stale); !os.IsNotExist(err) {
		t.Errorf("after Close: %v", err)
	}
}

// Whoever is too busy to take another connection has the path all the same, and so
// has a socket of another kind.
func TestUnixPathBusy(t *testing.T) {
	path := filepath.Join(t.TempDir(), "socket")
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	sa := &unix.SockaddrUnix{Name: path}
	if err := errors.Join(unix.Bind(fd, sa), unix.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	for err = nil; err == nil; { // until the backlog is full
		c, serr := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if serr != nil {
			t.Fatal(serr)
		}
		defer unix.Close(c)
		err = unix.Connect(c, sa)
	}
	if err != unix.EAGAIN {
		t.Fatal(err)
	}
	datagrams := filepath.Join(t.TempDir(), "datagrams")
	ln, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: datagrams, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	for _, path := range []string{path, datagrams} {
		if s, err := Listen(path, fixed{}, slog.New(slog.DiscardHandler)); err == nil {
			s.Close()
			t.Errorf("%s was taken", path)
		}
		if _, err := os.Lstat(path); err != nil {
			t.Errorf("its socket is gone: %v", err)
		}
	}
}

// An address that is taken is an error, and leaves nothing open.
func TestTaken(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	if _, err := Listen(ln.Addr().String(), fixed{}, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "address already in use") {
		t.Error(err)
	}
}

// One connection too many is closed, not left to wait, and counted; those that
// are open go on.
func TestConnectionBound(t *testing.T) {
	madtest.CheckLeaks(t)
	s := listen(t, "127.0.0.1:0")
	var held []net.Conn
	dial := func() net.Conn {
		t.Helper()
		c, err := net.Dial("tcp", s.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	for range maxConnections {
		c := dial()
		defer c.Close()
		// A request and its answer: the connection is open for certain.
		if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: acmd\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		held = append(held, c)
	}
	extra := dial()
	defer extra.Close()
	if n, err := extra.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Fatalf("one too many: %d, %v", n, err)
	}
	if n := s.ln.rejected.Load(); n != 1 {
		t.Errorf("%d rejected", n)
	}
	held[0].Close()
	// Its place is free as soon as the server has noticed.
	for end := time.Now().Add(30 * time.Second); len(s.ln.free) == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the place of a closed connection is not free")
		}
	}
	if code, body := ask(t, client(s), "GET", "/metrics"); code != 200 || !strings.Contains(body, "\nacmd_metrics_connections_rejected_total 1\n") {
		t.Errorf("after one left: %d", code)
	}
}
