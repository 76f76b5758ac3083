// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package main

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"acmd/mad/madtest"
	"acmd/mad/umad/kernellab"
)

// series reads the daemon's page: values by name and labels.
func (l *kernelLab) series() map[string]float64 {
	l.t.Helper()
	m := regexp.MustCompile(`msg="serving metrics" .*address=(\S+)`).FindStringSubmatch(l.out.String())
	if m == nil {
		l.t.Fatal("no metrics are served")
	}
	c := http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := c.Get("http://" + m[1] + "/metrics")
	if err != nil {
		l.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		l.t.Fatal(err)
	}
	page := map[string]float64{}
	for line := range strings.Lines(string(b)) {
		if i := strings.LastIndexByte(line, ' '); i > 0 && line[0] != '#' {
			if v, err := strconv.ParseFloat(strings.TrimSpace(line[i+1:]), 64); err == nil {
				page[line[:i]] = v
			}
		}
	}
	return page
}

// atRest is a reading while nothing is on its way, which would be counted half in it
// and half in the next: a page is not read at one moment, so two have to agree.
func (l *kernelLab) atRest() (page map[string]float64) {
	l.t.Helper()
	kernellab.Eventually(l.t, "no SA request is on its way", func() bool {
		last := page
		page = l.series()
		for k, v := range page {
			switch {
			case strings.HasPrefix(k, "acmd_sa_inflight{") || strings.HasPrefix(k, "acmd_sa_queued{"):
				if v != 0 {
					return false
				}
			case strings.HasPrefix(k, "acmd_fabric_") || strings.HasPrefix(k, "acmd_sa_requests_sent_total{"):
				if last[k] != v {
					return false
				}
			}
		}
		return true
	})
	return page
}

// since subtracts an earlier reading.
func (l *kernelLab) since(before map[string]float64) map[string]float64 {
	l.t.Helper()
	d := map[string]float64{}
	for k, v := range l.atRest() {
		d[k] = v - before[k]
	}
	return d
}

// sent is how many SA requests the daemon has sent by its own account.
func sent(d map[string]float64) (n float64) {
	for k, v := range d {
		if strings.HasPrefix(k, "acmd_sa_requests_sent_total{") {
			n += v
		}
	}
	return n
}

func event(name string) string { return `acmd_fabric_requests_total{event="` + name + `"}` }

func part(figure, name string) string {
	return "acmd_fabric_duration_seconds_" + figure + `{part="` + name + `"}`
}

// Where the time of SA requests goes: all requests are seen, of the daemon and of
// no other program; a slow SA shows as fabric and not as our own lag; a lost answer
// as a second copy, whose answer is not timed.
func TestKernelDaemonTrace(t *testing.T) {
	l := startLab(t, "metrics_addr 127.0.0.1:0")
	if st := l.capState(t).Trace; !st.On {
		t.Fatalf("SA requests are not followed through the kernel: %+v", st)
	}
	defer func() {
		if !t.Failed() {
			return
		}
		for k, v := range l.series() {
			if strings.HasPrefix(k, "acmd_fabric_") && v != 0 && !strings.Contains(k, "bucket") {
				t.Logf("%s %v", k, v)
			}
		}
	}()
	// ask has the daemon ask the SA n times, and asks it as often by itself.
	ask := func(n int, rule string) map[string]float64 {
		t.Helper()
		before := l.atRest()
		if rule != "" {
			kernellab.Control(t, rule)
		}
		for range n {
			l.flush()
			if _, err := l.ask(l.labQuery("sib2", false)); err != nil {
				t.Fatal(err)
			}
			l.raw(l.labQuery("sib3", false))
		}
		kernellab.Control(t, "clear")
		return l.since(before)
	}
	average := func(d map[string]float64, name string) float64 { return d[part("sum", name)] / d[part("count", name)] }

	// inTime asks until the SA has answered all in time: else requests are repeated, of
	// which the kernel refuses some, and it drops an answer when it has given up.
	inTime := func(n int, rule string) (d map[string]float64) {
		t.Helper()
		for range 20 {
			d = ask(n, rule)
			if d[event("again")]+d[event("timeout")] == 0 && d[event("answered")] == d[part("count", "lag")] {
				return d
			}
		}
		t.Fatalf("the SA never answers %d questions in time, or not each answer is read", n)
		return nil
	}

	d := inTime(10, "")
	copies, answers := d[event("sent")]+d[event("again")], d[event("answered")]
	if copies != sent(d) {
		t.Errorf("the daemon sent %v requests, the kernel saw %v", sent(d), copies)
	}
	if d[event("sent")] < 10 || answers < 10 || d[event("send_error")] != 0 {
		t.Errorf("ten requests: %v sent, %v answers, %v errors", d[event("sent")], answers, d[event("send_error")])
	}
	for name, want := range map[string]float64{"queue": copies, "send": copies, "fabric": answers - d[event("ambiguous")], "lag": answers} {
		if n := d[part("count", name)]; n != want || d[part("sum", name)] <= 0 {
			t.Errorf("%s: %v times, want %v, %v s in all", name, n, want, d[part("sum", name)])
		}
		t.Logf("%s: %.0f us on average", name, 1e6*average(d, name))
	}

	d = inTime(5, "delay class=3 method=0x81 attr=0x35 ms=200 count=100")
	// The simulated fabric counts in ticks, of which the first may be a short one.
	if fabric, lag := average(d, "fabric"), average(d, "lag"); !(fabric >= 0.19) || !(lag < fabric) {
		t.Errorf("a slow SA: %v s of fabric, %v s of our own lag", fabric, lag)
	}

	d = ask(1, "drop class=3 method=0x81 attr=0x35 count=1")
	if d[event("again")] < 1 || d[event("ambiguous")] < 1 || d[event("timeout")] < 1 {
		t.Errorf("a lost answer: %v again, %v ambiguous, %v time-outs", d[event("again")], d[event("ambiguous")], d[event("timeout")])
	}
}

// acmctl trace clients sees the stock librdmacm, on kernels with uprobe.multi (6.6)
// and on older ones.
func TestKernelTraceClients(t *testing.T) {
	kernellab.Need(t, kernellab.Softib)
	const library, calls = "/lib/x86_64-linux-gnu/librdmacm.so.1", 20
	var doc struct {
		Probe   string
		Callers []struct {
			Command       string
			Calls, Failed uint64
			Buckets       []struct{ Calls uint64 }
		}
		Slow []struct{ Command string }
		Lost map[string]uint64
	}
	var said, told madtest.Output
	watch := exec.Command(labAcmctl, "trace", "clients", "--json", "--slow", "1ns", "--lib", library)
	watch.Stdout, watch.Stderr = &said, &told
	if err := watch.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- watch.Wait() }()
	t.Cleanup(func() { _ = watch.Process.Kill() }) // of a test that failed on the way
	kernellab.Eventually(t, "acmctl watches", func() bool {
		select {
		case err := <-ended:
			t.Fatalf("acmctl: %v\n%s", err, &told)
		default:
		}
		return strings.Contains(told.String(), "watching rdma_getaddrinfo")
	})
	// There is no service here, so that the calls have no route.
	client := exec.Command("/lab/raitest", "10.77.0.1", "10.77.0.2", strconv.Itoa(calls))
	client.Env = []string{"LD_PRELOAD=/lab/libfakeverbs.so", "FAKEVERBS_RUN=" + t.TempDir(), "FAKEVERBS_GUID=1"}
	if out, err := client.CombinedOutput(); !strings.Contains(string(out), "route length 0") {
		t.Errorf("raitest: %v\n%s", err, out)
	}
	if err := watch.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Fatalf("acmctl: %v\n%s", err, &told)
	}
	if err := json.Unmarshal([]byte(said.String()), &doc); err != nil {
		t.Fatalf("%v\n%s", err, &said)
	}
	if len(doc.Callers) != 1 || len(doc.Slow) != calls {
		t.Fatalf("%s", &said)
	}
	if c := doc.Callers[0]; c.Command != "raitest" || c.Calls != calls || c.Failed != 0 || len(c.Buckets) == 0 {
		t.Errorf("%s", &said)
	}
	for what, n := range doc.Lost {
		if n != 0 {
			t.Errorf("%s: %d", what, n)
		}
	}
	t.Logf("by %s", doc.Probe)
}
