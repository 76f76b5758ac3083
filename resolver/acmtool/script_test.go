// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acmtool

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"acmd/resolver/control"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// lookup knows two hosts and asks nobody.
func lookup(_ context.Context, host string) ([]netip.Addr, error) {
	switch host {
	case "host-b":
		return []netip.Addr{netip.MustParseAddr("2001:db8::2"), netip.MustParseAddr("10.77.0.2")}, nil
	case "host-a":
		return []netip.Addr{netip.MustParseAddr("10.77.0.1")}, nil
	}
	return nil, errors.New("no such host")
}

// ctlBackend answers the control socket.
type ctlBackend struct{}

func (ctlBackend) Flush(_ context.Context, r control.FlushRequest) (int, error) {
	switch {
	case r.All:
		return 42, nil
	case r.LID == 5, r.GID == "fe80::10:3", r.Dest == "node-b", r.Port == "mlx5_0/1":
		return 1, nil
	}
	return 0, errors.New("no such port")
}

func (ctlBackend) Config() []control.Setting {
	return []control.Setting{{Name: "timeout", Value: "2000", Origin: "default"}, {Name: "route_timeout", Value: "-1", Origin: "/etc/rdma/ibacm_opts.cfg:7"}}
}
func (ctlBackend) State() any {
	return map[string]any{"entries": 3, "ports": []string{"mlx5_0/1"}, "failures": []map[string]any{
		{"dst": "lid:11", "reason": "route step: SA: status 0x0300 (no records)"}, {"dst": "lid:11", "reason": "an older one"},
	}}
}

func (ctlBackend) Reload() ([]string, error) { return []string{"o.cfg:3: something"}, nil }

// Scripts are in the language of testscript, of which script knows what they
// use: exec (of the two commands), stdout, stderr, cmp, cmpenv, exists, mkdir,
// symlink, each with "!" in front for the opposite. Commands run in this
// process, so that the race detector and the leak check see them.
type script struct {
	t              *testing.T
	dir            string
	env            *Env
	stdout, stderr string
}

// Field cases 40, 41, 44 and 45 and the faults of the original are in the
// scripts; the outputs there are what stock ib_acme printed for these answers.
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/script/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatal("no scripts", err)
	}
	for _, f := range files {
		t.Run(strings.TrimSuffix(filepath.Base(f), ".txtar"), func(t *testing.T) {
			b, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			s := newScript(t)
			body := s.extract(string(b))
			for i, line := range strings.Split(body, "\n") {
				if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
					s.run(fmt.Sprintf("%s:%d", f, i+1), s.words(line))
				}
			}
		})
	}
}

func newScript(t *testing.T) *script {
	s := &script{t: t, dir: t.TempDir()}
	s.env = &Env{
		RunDir: s.path("run"), ConfDir: s.path("etc"), Sysfs: s.path("sys"), Lookup: lookup,
		Hostname: func() (string, error) { return "node7.cluster", nil },
	}
	if err := os.Mkdir(s.env.RunDir, 0o755); err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("unix", s.path("run/"+socketName))
	if err != nil {
		t.Fatal(err)
	}
	(&standIn{}).serve(t, ln)
	srv, err := control.Listen(s.env.RunDir, ctlBackend{}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { srv.Close() })
	srv.Handle("POST /v1/acquire", acquire)
	on := true
	state := func(w http.ResponseWriter) {
		st := map[string]any{"setting": "kernel", "on": on, "port": 249, "paths": 3, "messages": map[string]int{"miss": 2, "hit": 17}}
		if !on {
			st["reason"] = "as the test wants"
		}
		control.WriteJSON(w, st)
	}
	srv.Handle("GET /v1/fast-path", func(w http.ResponseWriter, _ *http.Request) { state(w) })
	srv.Handle("POST /v1/fast-path", func(w http.ResponseWriter, r *http.Request) {
		var req control.FastPathRequest
		if err := control.ReadJSON(w, r, &req); err != nil {
			control.WriteError(w, http.StatusBadRequest, err)
			return
		}
		on = req.On
		state(w)
	})
	return s
}

// acquire knows one connection and shows what it was asked for.
func acquire(w http.ResponseWriter, r *http.Request) {
	var req control.AcquireRequest
	if err := control.ReadJSON(w, r, &req); err != nil {
		control.WriteError(w, http.StatusBadRequest, err)
		return
	}
	if want := (control.AcquireRequest{Listener: "mlx5_0/1", SGID: "fe80::10:1", SLID: 3, PKey: 0xffff, Source: "10.77.0.1", Service: 0x1234}); req != want {
		control.WriteError(w, http.StatusConflict, fmt.Errorf("no port: %+v", req))
		return
	}
	control.WriteJSON(w, control.AcquireReply{Device: "mlx5_0", Port: 1, Index: 2, GID: req.SGID, Type: "IB", Interface: "ib0"})
}

func (s *script) path(name string) string {
	if filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(s.dir, name)
}

// extract writes the archive's files and returns what stands before them.
func (s *script) extract(ar string) (body string) {
	parts := regexp.MustCompile(`(?m)^-- (.+) --\n`).FindAllStringSubmatchIndex(ar, -1)
	body = ar
	for i, p := range parts {
		if i == 0 {
			body = ar[:p[0]]
		}
		end := len(ar)
		if i+1 < len(parts) {
			end = parts[i+1][0]
		}
		name := s.path(ar[p[2]:p[3]])
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			s.t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(ar[p[1]:end]), 0o644); err != nil {
			s.t.Fatal(err)
		}
	}
	return body
}

// words splits a line: quotes are single and doubled inside themselves, $WORK
// is expanded outside of them.
func (s *script) words(line string) (out []string) {
	var w strings.Builder
	quoted, some := false, false
	for i := 0; i < len(line); i++ {
		switch c := line[i]; {
		case c == '\'' && quoted && i+1 < len(line) && line[i+1] == '\'':
			w.WriteByte(c)
			i++
		case c == '\'':
			quoted, some = !quoted, true
		case c == ' ' && !quoted:
			if some || w.Len() > 0 {
				out = append(out, w.String())
			}
			w.Reset()
			some = false
		case c == '$' && !quoted && strings.HasPrefix(line[i:], "$WORK"):
			w.WriteString(s.dir)
			i += len("$WORK") - 1
		default:
			w.WriteByte(c)
		}
	}
	if some || w.Len() > 0 {
		out = append(out, w.String())
	}
	return out
}

func (s *script) run(at string, w []string) {
	s.t.Helper()
	want := true
	if w[0] == "!" {
		want, w = false, w[1:]
	}
	switch w[0] {
	case "exec":
		var out, errs bytes.Buffer
		env := *s.env
		env.Stdout, env.Stderr = &out, &errs
		code := Main(context.Background(), &env, w[1:])
		s.stdout, s.stderr = out.String(), errs.String()
		if (code == 0) != want {
			s.t.Fatalf("%s: exit code %d\n%s%s", at, code, s.stdout, s.stderr)
		}
	case "stdout":
		s.match(at, s.stdout, w[1:], want)
	case "stderr":
		s.match(at, s.stderr, w[1:], want)
	case "cmp", "cmpenv":
		b, err := os.ReadFile(s.path(w[2]))
		if err != nil {
			s.t.Fatal(err)
		}
		text := string(b)
		if w[0] == "cmpenv" {
			text = strings.ReplaceAll(text, "$WORK", s.dir)
		}
		if d := cmp.Diff(strings.TrimRight(text, "\n"), strings.TrimRight(s.stdout, "\n")); d != "" {
			s.t.Errorf("%s: %s", at, d)
		}
	case "exists":
		if _, err := os.Stat(s.path(w[1])); (err == nil) != want {
			s.t.Errorf("%s: %v", at, err)
		}
	case "symlink":
		if err := os.Symlink(w[3], s.path(w[1])); err != nil {
			s.t.Fatal(err)
		}
	default:
		s.t.Fatalf("%s: unknown command %q", at, w[0])
	}
}

func (s *script) match(at, text string, w []string, want bool) {
	s.t.Helper()
	count := -1
	if n, ok := strings.CutPrefix(w[0], "-count="); ok {
		count, _ = strconv.Atoi(n)
		w = w[1:]
	}
	found := regexp.MustCompile("(?m)"+w[0]).FindAllString(text, -1)
	if (len(found) > 0) != want || count >= 0 && len(found) != count {
		s.t.Errorf("%s: %q matches %d times in\n%s", at, w[0], len(found), text)
	}
}

// A service that takes a connection and says nothing.
func TestSilentService(t *testing.T) {
	sock := filepath.Join(t.TempDir(), "sock")
	l, err := net.Listen("unix", sock)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, verb := range [][]string{{"resolve", "lid:5"}, {"perf"}, {"endpoints"}} {
		var out bytes.Buffer
		code := Main(t.Context(), &Env{Stdout: &out, Stderr: &out}, append([]string{"acmctl", "-S", sock, "--timeout", "50ms"}, verb...))
		if code != ExitFailed || !strings.Contains(out.String(), "no answer within 50ms") {
			t.Errorf("%q: exit code %d, %s", verb, code, out.String())
		}
	}
}

// A service that goes away between two destinations: what the first came to is told.
func TestServiceGoesAway(t *testing.T) {
	for _, flags := range [][]string{nil, {"--json"}} {
		sock := filepath.Join(t.TempDir(), "sock")
		l, err := net.Listen("unix", sock)
		if err != nil {
			t.Fatal(err)
		}
		served := make(chan error, 1)
		go func() {
			c, err := l.Accept()
			if err == nil {
				_, err = io.ReadFull(c, make([]byte, 16))
			}
			served <- errors.Join(err, l.Close(), c.Close())
		}()
		var out, errs bytes.Buffer
		args := slices.Concat([]string{"acmctl", "-S", sock}, flags, []string{"resolve", "lid:5", "lid:6"})
		code := Main(t.Context(), &Env{Stdout: &out, Stderr: &errs}, args)
		if err := <-served; err != nil {
			t.Fatal(err)
		}
		if code != ExitUnreachable || !strings.Contains(out.String(), "lid:5") || !strings.Contains(errs.String(), "no service at ") {
			t.Errorf("%q: exit code %d, %s%s", flags, code, out.String(), errs.String())
		}
	}
}
