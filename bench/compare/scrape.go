// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"acmd/mad/fabric"
)

const (
	scrapeNodes = 2000
	scrapePaths = 1000
	scrapes     = 200 // in each round
)

// scrapeRun is what the scrapes of one round were like.
type scrapeRun struct {
	p50, p99, most time.Duration
	bytes          int
	mads           int64 // sent by anybody meanwhile
}

// scrape measures what Prometheus waits for, and that nothing is asked for it.
func (b *bench) scrape() {
	b.heading("Metrics", fmt.Sprintf("%d scrapes, one after the other, of a daemon with %d destinations on an embedded fabric of %d nodes, whose MADs are counted on the fabric; %d rounds, a fresh daemon each.",
		scrapes, scrapePaths, scrapeNodes, b.rounds))
	var runs []scrapeRun
	b.eachRound(func() { b.scope(func() { runs = append(runs, b.scrapeOnce()) }) })
	ms := func(get func(*scrapeRun) time.Duration) func(*scrapeRun) float64 {
		return func(r *scrapeRun) float64 { return float64(get(r)) / 1e6 }
	}
	p99 := med(runs, ms(func(r *scrapeRun) time.Duration { return r.p99 }))
	most := med(runs, ms(func(r *scrapeRun) time.Duration { return r.most }))
	mads := slices.MaxFunc(runs, func(x, y scrapeRun) int { return int(x.mads - y.mads) }).mads
	t := newTable("bytes", "p50 ms", "p99 ms", "max ms", "MADs meanwhile, most")
	t.row(runs[0].bytes, med(runs, ms(func(r *scrapeRun) time.Duration { return r.p50 })), p99, most, mads)
	b.atMost("p99 of a scrape", p99, 10, " ms")
	b.exactly("MADs sent during scrapes", mads, 0)
}

func (b *bench) scrapeOnce() (r scrapeRun) {
	var mads atomic.Int64
	door := filepath.Join(b.TempDir(), "metrics")
	e := b.startEmbedded(scrapeNodes, "metrics_addr "+door+"\n", func(f *fabric.Fabric) {
		f.Trace(func(ev fabric.Event) {
			if ev.Kind == fabric.Sent {
				mads.Add(1)
			}
		})
	})
	load := b.resolve("scrape", "-s", e.sock, "-pid", strconv.Itoa(os.Getpid()), "-c", "4", "-once", "-src", e.src(), "-dests", b.dests(e.fab, scrapePaths))
	if load.OK != scrapePaths || mads.Load() < scrapePaths {
		b.warn("scrape: %d of %d paths, %d MADs", load.OK, scrapePaths, mads.Load())
	}
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", door)
	}}}
	defer client.CloseIdleConnections()
	e.waitSubscribed(b)
	before := mads.Load()
	took := make([]time.Duration, scrapes)
	for i := range took {
		begin := time.Now()
		text := b.get(client, "http://acmd/metrics")
		took[i] = time.Since(begin)
		if r.bytes = len(text); !bytes.Contains(text, []byte("acmd_sa_requests_sent_total")) {
			b.Fatalf("scrape: not the daemon's metrics: %.200q", text)
		}
	}
	slices.Sort(took)
	r.p50, r.p99, r.most, r.mads = took[scrapes/2], took[scrapes*99/100], took[scrapes-1], mads.Load()-before
	return r
}

// waitSubscribed waits until the SM has taken the subscription to its notices, which a
// daemon asks for within its first second. After that it sends nothing of itself for
// minutes.
func (e *embedded) waitSubscribed(b *bench) {
	e.await(b, "subscription at the SM", func() bool {
		var st struct {
			Ports []struct{ SA struct{ Subscribed int } }
		}
		e.state(b, &st)
		return len(st.Ports) == 1 && st.Ports[0].SA.Subscribed > 0
	})
}

func (b *bench) get(client *http.Client, url string) []byte {
	resp, err := client.Get(url)
	if err != nil {
		b.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		b.Fatalf("%s: %s, %v", url, resp.Status, err)
	}
	return text
}
