// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package metrics

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"acmd/bpf"
	"acmd/mad/madtest/peer"
)

// prom is a running Prometheus that scrapes two doors: job "fixed", whose
// figures never change, and job "moving".
type prom struct {
	base string
	*peer.Process
}

func startPrometheus(t *testing.T, args ...string) *prom {
	t.Helper()
	dir := t.TempDir()
	fixedDoor := listen(t, "127.0.0.1:0")
	movingDoor, err := Listen("127.0.0.1:0", new(moving), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { movingDoor.Close() })
	rules, err := filepath.Abs("rules/acmd.yml")
	if err != nil {
		t.Fatal(err)
	}
	config := fmt.Sprintf(`
global: {scrape_interval: 500ms, scrape_timeout: 500ms, evaluation_interval: 500ms}
rule_files: [%q]
scrape_configs:
  - {job_name: fixed, static_configs: [{targets: [%q]}]}
  - {job_name: moving, static_configs: [{targets: [%q]}]}
`, rules, fixedDoor.Addr(), movingDoor.Addr())
	file := filepath.Join(dir, "prometheus.yml")
	if err := os.WriteFile(file, []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
	p := &prom{Process: peer.Start(t, dir, "prometheus", append(args, "--config.file="+file,
		"--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address=127.0.0.1:0")...)}
	listening := regexp.MustCompile(`msg="Listening on" address=(\S+)`)
	p.Wait(t, "prometheus", func() bool {
		log, _ := os.ReadFile(p.Log)
		if m := listening.FindSubmatch(log); m != nil {
			p.base = "http://" + string(m[1])
		}
		return p.base != ""
	})
	return p
}

// get asks Prometheus' API.
func (p *prom) get(path string, args url.Values, data any) error {
	c := http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := c.Get(p.base + path + "?" + args.Encode())
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	answer := struct {
		Status, Error string
		Data          any
	}{Data: data}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return err
	}
	if answer.Status != "success" {
		return fmt.Errorf("%s: %s", answer.Status, answer.Error)
	}
	return nil
}

// query returns how many series an expression has now, and the value of the first.
func (p *prom) query(expr string) (series int, value float64, err error) {
	var data struct {
		Result []struct{ Value []any }
	}
	if err := p.get("/api/v1/query", url.Values{"query": {expr}}, &data); err != nil {
		return 0, 0, fmt.Errorf("%s: %w", expr, err)
	}
	if len(data.Result) > 0 && len(data.Result[0].Value) == 2 {
		value, err = strconv.ParseFloat(fmt.Sprint(data.Result[0].Value[1]), 64)
	}
	return len(data.Result), value, err
}

// expect waits until an expression has one series with the value wanted.
func (p *prom) expect(t *testing.T, expr string, want float64) {
	t.Helper()
	var n int
	var got float64
	var err error
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if n, got, err = p.query(expr); err == nil && n == 1 && got == want {
			return
		}
	}
	t.Errorf("%s: %d series, %v, %v; want %v", expr, n, got, err, want)
}

// dashboardQueries lists what the panels ask, with Grafana's variables replaced.
func dashboardQueries(t *testing.T) []string {
	t.Helper()
	b, err := os.ReadFile("dashboards/acmd.json")
	if err != nil {
		t.Fatal(err)
	}
	var d struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
		Annotations struct{ List []struct{ Expr string } }
	}
	if err := json.Unmarshal(b, &d); err != nil {
		t.Fatal(err)
	}
	var list []string
	add := func(expr string) {
		r := strings.NewReplacer("$instance", ".*", "$__rate_interval", "1m")
		expr = r.Replace(expr)
		if strings.Contains(expr, "$") {
			t.Errorf("unknown variable in %s", expr)
		}
		list = append(list, expr)
	}
	for _, p := range d.Panels {
		for _, q := range p.Targets {
			add(q.Expr)
		}
	}
	if len(list) < 30 || len(d.Annotations.List) != 1 {
		t.Fatalf("%d queries, %d annotations", len(list), len(d.Annotations.List))
	}
	return list
}

// A real Prometheus takes the page, with and without native histograms; every
// query of the dashboard gives series there, and every alert rule is evaluated.
func TestPrometheus(t *testing.T) {
	peer.Need(t, "prometheus")
	for name, args := range map[string][]string{"classic": nil, "native": {"--enable-feature=native-histograms"}} {
		t.Run(name, func(t *testing.T) {
			p := startPrometheus(t, args...)
			p.expect(t, `sum(up) by (x)`, 2)
			p.expect(t, `acmd_service_resolves_total{job="fixed"}`, 2)
			p.expect(t, `acmd_endpoint_resolves_total{job="fixed",device="mlx5_1",port="2",pkey="0xffff"}`, 32)

			s := synthetic()
			h := histogramOf(&s.Counts.Latency[bpf.LatSA])
			var quarter float64 // at most 0.25 s
			for i, n := range h.buckets {
				if h.first+i <= -2*4 {
					quarter += float64(n)
				}
			}
			if name == "native" {
				p.expect(t, `histogram_count(acmd_sa_duration_seconds{job="fixed"})`, float64(h.count()))
				p.expect(t, `histogram_sum(acmd_sa_duration_seconds{job="fixed"})`, h.sum)
				// 0.25 s is the bound of a bucket, so nothing is estimated.
				p.expect(t, `histogram_fraction(0, 0.25, acmd_sa_duration_seconds{job="fixed"}) * histogram_count(acmd_sa_duration_seconds{job="fixed"})`, quarter)
			} else {
				p.expect(t, `acmd_sa_duration_seconds_count{job="fixed"}`, float64(h.count()))
				p.expect(t, `acmd_sa_duration_seconds_sum{job="fixed"}`, h.sum)
				p.expect(t, `acmd_sa_duration_seconds_bucket{job="fixed",le="0.25"}`, quarter)
			}

			for _, expr := range dashboardQueries(t) {
				n, err := 0, error(nil)
				for end := time.Now().Add(time.Minute); n == 0 && err == nil && time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
					n, _, err = p.query(expr)
				}
				if n == 0 || err != nil {
					t.Errorf("%s: %d series, %v", expr, n, err)
				}
			}
			p.checkRules(t)
		})
	}
}

// checkRules waits until each alert rule was evaluated without an error.
func (p *prom) checkRules(t *testing.T) {
	t.Helper()
	var bad string
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		var data struct {
			Groups []struct {
				Rules []struct{ Name, Health, LastError string }
			}
		}
		if err := p.get("/api/v1/rules", nil, &data); err != nil {
			t.Fatal(err)
		}
		bad = ""
		n := 0
		for _, g := range data.Groups {
			for _, r := range g.Rules {
				if n++; r.Health != "ok" {
					bad += fmt.Sprintf("%s: %s %s\n", r.Name, r.Health, r.LastError)
				}
			}
		}
		if n < 11 {
			bad = fmt.Sprintf("%d rules", n)
		}
		if bad == "" {
			return
		}
	}
	t.Error(bad)
}

// promtool takes the rules, and each alert fires on the series that are meant for
// it and on no others.
func TestRules(t *testing.T) {
	for _, args := range [][]string{{"check", "rules", "acmd.yml"}, {"test", "rules", "acmd_test.yml"}} {
		cmd := exec.Command(peer.Tool(t, "promtool"), args...)
		cmd.Dir = "rules"
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %v: %v\n%s", args, err, out)
		}
	}
	rules, err := os.ReadFile("rules/acmd.yml")
	if err != nil {
		t.Fatal(err)
	}
	tests, err := os.ReadFile("rules/acmd_test.yml")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`alert: (\w+)`).FindAllSubmatch(rules, -1) {
		if !strings.Contains(string(tests), fmt.Sprintf("alertname=%q", m[1])) {
			t.Errorf("%s has no test", m[1])
		}
	}
}
