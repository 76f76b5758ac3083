// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package service

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"acmd/mad/fabric"
	"acmd/mad/transport"
	"acmd/resolver/acmsock"
	"acmd/resolver/fastpath"
	"acmd/resolver/kernelnl"
	"acmd/resolver/metrics"
)

// embedded is what a daemon on an embedded fabric of 16 nodes is started with.
func embedded(t testing.TB, opts ...string) Options {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "opts")
	opts = append(opts, "bpf_dir none", "log_file "+filepath.Join(dir, "log"))
	if err := os.WriteFile(file, []byte(strings.Join(opts, "\n")+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	return Options{
		OptionsFile: file, AddressFile: filepath.Join(dir, "addr"), RunDir: dir, Fabric: "embedded:nodes=16",
		Version: "test", Getenv: func(string) string { return "" },
	}
}

// startEmbedded runs such a daemon, with its metrics on a port that the kernel
// chooses unless opts say otherwise.
func startEmbedded(t testing.TB, address string, opts ...string) (d *Daemon, f *fabric.Fabric) {
	t.Helper()
	o := embedded(t, opts...)
	o.Metrics = address
	o.Observe = func(of transport.Fabric) { f = of.(*fabric.Fabric) }
	d, err := Start(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Stop(); err != nil {
			t.Errorf("stop: %v", err)
		}
	})
	return d, f
}

// scrape returns the page.
func scrape(t testing.TB, d *Daemon) string {
	t.Helper()
	c := http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := c.Get("http://" + d.metrics.Load().address + "/metrics")
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

// value finds a series, which begins with what is given, and its value.
func value(t *testing.T, page, series string) uint64 {
	t.Helper()
	m := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(series) + ` ([0-9.e+]+)$`).FindStringSubmatch(page)
	if m == nil {
		t.Fatalf("%s is not on the page:\n%s", series, page)
	}
	v, err := strconv.ParseFloat(m[1], 64)
	if err != nil {
		t.Fatal(err)
	}
	return uint64(v)
}

var sevenNames = []string{"errors", "resolves", "nodata", "addr_queries", "addr_cache_hits", "route_queries", "route_cache_hits"}

// The seven counters on the page are those of PERF_QUERY, in total and by
// endpoint, after hits, misses and failures of all kinds.
func TestMetricsEqualPerf(t *testing.T) {
	d, _ := startEmbedded(t, "127.0.0.1:0", "request_timeout 300")
	ctx := t.Context()
	dial := acmsock.Dialer{RunDir: d.opts.RunDir}
	c, err := dial.Dial(ctx, "")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	src := fabric.IPv4(0, 1)
	for node := range 18 { // 16 and 17 do not exist
		for range 3 {
			_, _ = c.ResolveIP(ctx, src, fabric.IPv4(node, 1), node%2 == 0)
		}
	}
	// A body that the door refuses: it never reaches the engine.
	if _, err := c.RoundTrip(ctx, acmsock.AppendResolve(nil, 77)); err != nil {
		t.Fatal(err)
	}
	perf := func(index uint8) []uint64 {
		t.Helper()
		row, err := c.Perf(ctx, index)
		if err != nil || len(row) != len(sevenNames) {
			t.Fatal(row, err)
		}
		return row
	}
	// Misses go on behind their answers: compare when nothing moves.
	settled := func() (total []uint64) {
		t.Helper()
		for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
			total = perf(0)
			if st := d.engine.Stats(); st.Flights == 0 && fmt.Sprint(perf(0)) == fmt.Sprint(total) {
				return total
			}
			if time.Now().After(end) {
				t.Fatal("lookups do not end")
			}
		}
	}
	total := settled()
	page := scrape(t, d)
	endpoint := perf(1)
	for i, name := range sevenNames {
		if got := value(t, page, "acmd_service_"+name+"_total"); got != total[i] {
			t.Errorf("service %s: %d on the page, %d by PERF_QUERY", name, got, total[i])
		}
		series := fmt.Sprintf(`acmd_endpoint_%s_total{device="%s",pkey="0xffff",port="1"}`, name, d.engine.Endpoints()[0].Device)
		if got := value(t, page, series); got != endpoint[i] {
			t.Errorf("endpoint %s: %d on the page, %d by PERF_QUERY", name, got, endpoint[i])
		}
	}
	if total[0] == 0 || total[1] < 54 || total[2] == 0 || total[6] == 0 {
		t.Errorf("the test did not make all kinds of answers: %v", total)
	}
}

// A scrape sends nothing, and waits for nothing. BenchmarkScrape says what it costs.
func TestScrapeIsQuiet(t *testing.T) {
	d, f := startEmbedded(t, "127.0.0.1:0", "poll_interval 3600000")
	scrape(t, d)
	// The daemon subscribes to notices within its first second.
	quiet := func() bool {
		st := d.ports.list()[0].Client.Stats()
		return st.Subscriptions > 0 && st.Outstanding == 0 && st.Queued == 0
	}
	for end := time.Now().Add(time.Minute); !quiet(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("no subscription")
		}
	}
	before := f.Stats()
	for range 50 {
		scrape(t, d)
	}
	if after := f.Stats(); after.Sent != before.Sent {
		t.Errorf("%d MADs sent by 50 scrapes", after.Sent-before.Sent)
	}
}

// What a scrape costs, from the request to the whole page.
func BenchmarkScrape(b *testing.B) {
	d, _ := startEmbedded(b, "127.0.0.1:0")
	for b.Loop() {
		if page := scrape(b, d); !strings.Contains(page, "\nacmd_service_resolves_total 0\n") {
			b.Fatal("the page is not whole")
		}
	}
}

// Off by default; the flag wins over the file; an address that is taken costs the
// metrics and nothing else.
func TestMetricsAddress(t *testing.T) {
	d, _ := startEmbedded(t, "")
	if st := d.metrics.Load().state(); st["address"] != "off" || len(st) != 1 {
		t.Error(st)
	}
	d, _ = startEmbedded(t, "off", "metrics_addr 127.0.0.1:0")
	if st := d.metrics.Load().state(); st["address"] != "off" {
		t.Error(st)
	}
	if w, err := d.Reload(); err != nil || len(w) != 0 {
		t.Errorf("the flag holds over a reload: %v, %v", w, err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	d, _ = startEmbedded(t, "", "metrics_addr "+ln.Addr().String())
	if st := d.metrics.Load().state(); !strings.Contains(st["error"], "address already in use") {
		t.Error(st)
	}
	dial := acmsock.Dialer{RunDir: d.opts.RunDir}
	c, err := dial.Dial(context.Background(), "")
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	if _, err := Start(Options{RunDir: t.TempDir(), Metrics: "nowhere", Getenv: func(string) string { return "" }}); err == nil || !strings.Contains(err.Error(), `"nowhere" is none of off, HOST:PORT, an absolute path`) {
		t.Error(err)
	}
}

// The state of the fast path in one word.
func TestFastPathMetrics(t *testing.T) {
	for want, st := range map[string]fastPathState{
		"off":     {Setting: "off"},
		"on":      {Setting: "kernel", State: fastpath.State{On: true}},
		"stopped": {Setting: "kernel-all"},
		"failed":  {Setting: "kernel", State: fastpath.State{Reason: "no privilege: " + strings.Repeat("é", 100) + "\nverifier:"}},
	} {
		if f := fastPathMetrics(st); f.State != want || f.Reason != brief(st.Reason) || len(f.Reason) > 200 || strings.HasSuffix(f.Reason, "verifier:") || !utf8.ValidString(f.Reason) || !slices.Contains(metrics.FastPathStates[:], want) {
			t.Errorf("%+v: %+v, want %s", st, f, want)
		}
	}
}

// What the kernel was not told, and what is no request, is on the page by reason.
func TestNetlinkMetrics(t *testing.T) {
	n := netlinkMetrics(&kernelnl.Stats{
		Late: 1, SendErrors: 2, Rejected: 4, Foreign: 8, Control: 16, Unreadable: 32, Overruns: 3, Pending: 5,
	})
	sum := func(list []metrics.Count) (s uint64) {
		for _, c := range list {
			s += c.N
		}
		return s
	}
	if sum(n.Unanswered) != 1+2+4 || sum(n.Ignored) != 8+16+32 || n.Overruns != 3 || n.Pending != 5 {
		t.Errorf("%+v", n)
	}
}

// Hits in the kernel are on the page: with the seven counters as PERF_QUERY gives
// them, under their own transport, and timed, one in 64.
func TestMetricsKernelHits(t *testing.T) {
	s := startFast(t, "kernel", "metrics_addr 127.0.0.1:0")
	req := s.get(shapes[0], 1)
	k := s.dial(t)
	s.warm(k, req)
	before := scrape(t, s.Daemon)
	const hits = 1000
	for range hits {
		s.mustHit(k, req)
	}
	dial := acmsock.Dialer{RunDir: s.opts.RunDir}
	c, err := dial.Dial(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	perf, err := c.Perf(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	page := scrape(t, s.Daemon)
	for i, name := range sevenNames {
		if got := value(t, page, "acmd_service_"+name+"_total"); got != perf[i] {
			t.Errorf("service %s: %d on the page, %d by PERF_QUERY", name, got, perf[i])
		}
	}
	grown := func(series string) uint64 { return value(t, page, series) - value(t, before, series) }
	for _, series := range []string{
		"acmd_service_resolves_total", "acmd_service_route_cache_hits_total",
		`acmd_requests_total{op="resolve",transport="kernel"}`, `acmd_responses_total{status="success",transport="kernel"}`,
		`acmd_kernel_messages_total{result="hit"}`,
	} {
		if n := grown(series); n != hits {
			t.Errorf("%s has grown by %d, want %d", series, n, hits)
		}
	}
	timed := grown(`acmd_request_duration_seconds_count{source="kernel"}`)
	if timed == 0 || timed > hits/4 {
		t.Errorf("%d of %d hits timed, want about one in 64", timed, hits)
	}
	if value(t, page, `acmd_fast_path_state{state="on"}`) != 1 || value(t, page, "acmd_fast_path_paths") == 0 {
		t.Error("the fast path is not on, on the page")
	}
	if !strings.Contains(page, `acmd_bpf_program_runs_total{program="msg_verdict"}`) {
		t.Error("the program is not on the page")
	}
}
