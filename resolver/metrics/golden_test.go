// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package metrics

import (
	"flag"
	"io"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

var update = flag.Bool("update", false, "write the golden page anew")

const golden = "testdata/metrics.golden"

// page is what a scraper of the text form gets of a snapshot.
func page(t *testing.T, s *Snapshot) string {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	if err := reg.Register(NewCollector(fixed{s})); err != nil {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	promhttp.HandlerFor(reg, promhttp.HandlerOpts{}).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	if w.Code != 200 {
		t.Fatalf("status %d: %s", w.Code, w.Body)
	}
	return w.Body.String()
}

// The whole page of a host on which every figure is another one.
func TestGolden(t *testing.T) {
	got := page(t, synthetic())
	if *update {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), got); d != "" {
		t.Fatalf("page differs (-update writes it anew):\n%s", d)
	}
}

// Every name that is described is on the page of the synthetic host, and every
// name there is ours.
func TestNames(t *testing.T) {
	descs := make(chan *prometheus.Desc, 1000)
	NewCollector(fixed{}).Describe(descs)
	close(descs)
	got := page(t, synthetic())
	n := 0
	for d := range descs {
		n++
		_, name, _ := strings.Cut(d.String(), `fqName: "`)
		name, _, _ = strings.Cut(name, `"`)
		if !strings.HasPrefix(name, "acmd_") {
			t.Errorf("%s is not ours", name)
		}
		if !strings.Contains(got, "# HELP "+name+" ") {
			t.Errorf("%s is not on the page", name)
		}
	}
	if helps := strings.Count(got, "# HELP "); helps != n {
		t.Errorf("%d names on the page, %d described", helps, n)
	}
}

// A host without ports has a page too.
func TestEmpty(t *testing.T) {
	got := page(t, &Snapshot{})
	if !strings.Contains(got, "acmd_service_resolves_total 0\n") || strings.Contains(got, "device=") {
		t.Fatal(got)
	}
}

// A label that Prometheus cannot take spoils its series and nothing else.
func TestBadLabel(t *testing.T) {
	s := synthetic()
	s.Endpoints[0].Device = "mlx5_\xff"
	w := httptest.NewRecorder()
	h := (&Server{ln: limit(nil)}).handler(fixed{s}, nil)
	h.ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	body, _ := io.ReadAll(w.Body)
	for _, want := range []string{`acmd_endpoint_resolves_total{device="mlx5_1",pkey="0xffff",port="2"} 32`, "acmd_flights 26710"} {
		if !strings.Contains(string(body), want) {
			t.Errorf("%s is not there", want)
		}
	}
	if strings.Contains(string(body), "\xff") {
		t.Error("the bad label is there")
	}
}

// field case 68: what is listed twice is on the page once, and spoils nothing.
func TestListedTwice(t *testing.T) {
	s := synthetic()
	s.Endpoints = append(s.Endpoints, s.Endpoints[0])
	s.Ports = append(s.Ports, s.Ports[0])
	s.Groups = append(s.Groups, s.Groups[0])
	s.Events = append(s.Events, s.Events[0])
	s.Programs = append(s.Programs, s.Programs[0])
	w := httptest.NewRecorder()
	h := (&Server{ln: limit(nil)}).handler(fixed{s}, nil)
	h.ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	if w.Code != 200 {
		t.Fatalf("status %d: %s", w.Code, w.Body)
	}
	got := w.Body.String()
	for _, want := range []string{
		`acmd_endpoint_resolves_total{device="mlx5_0",pkey="0xffff",port="1"} 12`,
		`acmd_endpoint_resolves_total{device="mlx5_1",pkey="0xffff",port="2"} 32`,
		"acmd_flights 26710",
	} {
		if strings.Count(got, want+"\n") != 1 {
			t.Errorf("%s is there %d times", want, strings.Count(got, want+"\n"))
		}
	}
	seen := map[string]bool{}
	for line := range strings.Lines(got) {
		series, _, _ := strings.Cut(line, "} ")
		if !strings.HasPrefix(line, "#") && seen[series] {
			t.Errorf("twice: %s", line)
		}
		seen[series] = true
	}
}
