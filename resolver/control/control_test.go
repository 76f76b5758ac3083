// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package control

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type backend struct {
	flushed []FlushRequest
	reload  error
}

func (b *backend) Flush(_ context.Context, r FlushRequest) (int, error) {
	if r.Dest == "nosuch" {
		return 0, errors.New("nosuch: no entry")
	}
	b.flushed = append(b.flushed, r)
	return 7, nil
}
func (b *backend) Config() []Setting {
	return []Setting{{"timeout", "2000", "opts.cfg:3"}}
}
func (b *backend) State() any                { return map[string]int{"entries": 3} }
func (b *backend) Reload() ([]string, error) { return nil, b.reload }

func start(t *testing.T, b Backend) (string, *Client) {
	t.Helper()
	dir := t.TempDir()
	s, err := Listen(dir, b, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		if _, err := os.Lstat(filepath.Join(dir, SocketName)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("socket is still there: %v", err)
		}
	})
	return dir, NewClient(dir)
}

// Where the path of the clients' socket just fits, this one is served too.
func TestLongRunDir(t *testing.T) {
	const most = 107 - len("/ibacm-unix.sock") // unix(7)
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if len(dir)+2 > most {
		t.Skipf("the directory for temporary files has a long name: %s", dir)
	}
	dir += "/" + strings.Repeat("x", most-len(dir)-1)
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for range 20 { // its temporary name is another one each time
		s, err := Listen(dir, &backend{}, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		err = NewClient(dir).Do(t.Context(), "GET", "state", nil, nil)
		if err := errors.Join(err, s.Close()); err != nil {
			t.Fatal(err)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// The socket is the owner's alone whatever the umask (field case 36).
func TestSocketMode(t *testing.T) {
	old := syscall.Umask(0)
	defer syscall.Umask(old)
	dir, _ := start(t, &backend{})
	st, err := os.Stat(filepath.Join(dir, SocketName))
	if err != nil {
		t.Fatal(err)
	}
	if st.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, want 0600", st.Mode().Perm())
	}
}

func TestVerbs(t *testing.T) {
	b := &backend{}
	_, c := start(t, b)
	ctx := t.Context()
	var f FlushReply
	if err := c.Do(ctx, "POST", "flush", FlushRequest{GID: "fe80::1"}, &f); err != nil || f.Dropped != 7 {
		t.Errorf("flush: %+v, %v", f, err)
	}
	if len(b.flushed) != 1 || b.flushed[0].GID != "fe80::1" {
		t.Errorf("backend saw %+v", b.flushed)
	}
	var cfg ConfigReply
	if err := c.Do(ctx, "GET", "config", nil, &cfg); err != nil || len(cfg.Settings) != 1 || cfg.Settings[0].Origin != "opts.cfg:3" {
		t.Errorf("config: %+v, %v", cfg, err)
	}
	var st map[string]int
	if err := c.Do(ctx, "GET", "state", nil, &st); err != nil || st["entries"] != 3 {
		t.Errorf("state: %v, %v", st, err)
	}
	var r ReloadReply
	if err := c.Do(ctx, "POST", "reload", nil, &r); err != nil || r.Warnings == nil {
		t.Errorf("reload: %+v, %v", r, err)
	}
	b.reload = errors.New("opts.cfg:9: no")
	if err := c.Do(ctx, "POST", "reload", nil, nil); err == nil || err.Error() != "opts.cfg:9: no" {
		t.Errorf("reload error: %v", err)
	}
}

func TestBadRequests(t *testing.T) {
	_, c := start(t, &backend{})
	for _, tc := range []struct {
		method, verb string
		in           any
		want         string
	}{
		{"POST", "flush", FlushRequest{}, "exactly one"},
		{"POST", "flush", FlushRequest{All: true, LID: 3}, "exactly one"},
		{"POST", "flush", map[string]any{"everything": true}, "unknown field"},
		{"POST", "flush", map[string]any{"lid": -1}, "cannot unmarshal"},
		{"POST", "flush", map[string]any{"dest": strings.Repeat("x", maxBody)}, "too large"},
		{"POST", "flush", FlushRequest{Dest: "nosuch"}, "no entry"},
		{"GET", "flush", nil, "405"},
		{"GET", "nosuch", nil, "404"},
	} {
		err := c.Do(t.Context(), tc.method, tc.verb, tc.in, nil)
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s %s %v: %v, want %q", tc.method, tc.verb, tc.in, err, tc.want)
		}
	}
}

func TestReplacesStaleSocketOnly(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, SocketName)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	s, err := Listen(dir, &backend{}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatalf("stale socket: %v", err)
	}
	s.Close()
	if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(dir, &backend{}, slog.New(slog.DiscardHandler)); err == nil {
		t.Error("a regular file was replaced")
	}
}

func TestNoDaemon(t *testing.T) {
	err := NewClient(t.TempDir()).Do(t.Context(), "GET", "state", nil, nil)
	if !errors.Is(err, ErrUnavailable) {
		t.Errorf("%v, want ErrUnavailable", err)
	}
}

// Who may not connect is told that, in words without Go's names.
func TestNotAllowed(t *testing.T) {
	c := NewClient(t.TempDir())
	c.http.Transport.(*http.Transport).DialContext = func(context.Context, string, string) (net.Conn, error) {
		return nil, &net.OpError{Op: "dial", Net: "unix", Err: os.NewSyscallError("connect", syscall.EACCES)}
	}
	err := c.Do(t.Context(), "GET", "state", nil, nil)
	if !errors.Is(err, fs.ErrPermission) || strings.Contains(err.Error(), "http") {
		t.Errorf("%v", err)
	}
}
