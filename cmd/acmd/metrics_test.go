// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package main

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"acmd/mad/madtest/peer"
)

// page reads /metrics on a unix socket.
func page(t *testing.T, socket string) string {
	t.Helper()
	c := http.Client{Timeout: time.Minute, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
	}}
	resp, err := c.Get("http://acmd/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != 200 {
		t.Fatal(resp.Status, err)
	}
	return string(b)
}

// The page of a real process: --metrics goes over the file, the socket of a killed
// one is taken over, that of one that ended is gone.
func TestMetricsPage(t *testing.T) {
	s := setup{dir: t.TempDir(), opts: []string{"bpf_dir none", "metrics_addr 127.0.0.1:0"}}
	socket := filepath.Join(s.dir, "metrics")
	s.args = []string{"--metrics", socket}
	d := start(t, s)
	if err := resolve(t, d.sock()); err != nil {
		t.Fatal(err)
	}
	got := page(t, socket)
	for _, want := range []string{
		"\nacmd_service_resolves_total 1\n",
		"\nacmd_requests_total{op=\"address\",transport=\"unix\"} 1\n",
		"\nacmd_responses_total{status=\"success\",transport=\"unix\"} 1\n",
		"\nacmd_request_duration_seconds_count{source=\"lookup\"} 1\n",
		"\nacmd_fast_path_state{state=\"off\"} 1\n",
		"\nacmd_counters_place{place=",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not on the page", want)
		}
	}
	promtool := exec.Command(peer.Tool(t, "promtool"), "check", "metrics")
	promtool.Stdin = strings.NewReader(got)
	if out, err := promtool.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("promtool: %v\n%s", err, out)
	}
	if err := d.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-d.done
	d = start(t, s)
	if got := page(t, socket); !strings.Contains(got, "\nacmd_service_resolves_total 0\n") {
		t.Error("the second one does not begin at 0, and nothing is pinned")
	}
	if err := d.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := d.end(t); code != 0 {
		t.Errorf("exit status %d", code)
	}
	if _, err := os.Lstat(socket); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket is left behind (%v)", err)
	}
}

// An address that is none is said before anything starts.
func TestMetricsFlag(t *testing.T) {
	d := launch(t, setup{args: []string{"--metrics", "16125"}})
	if code := d.end(t); code != exitStart || !strings.Contains(d.out.String(), `option metrics_addr: "16125" is none of off, HOST:PORT, an absolute path`) {
		t.Errorf("exit status %d: %s", code, d.out)
	}
}
