// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acmtool

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"time"

	"acmd/bpf"
)

// libraries are where distributions have librdmacm.
var libraries = []string{"/usr/lib/*/librdmacm.so.1", "/usr/lib64/librdmacm.so.1", "/usr/lib/librdmacm.so.1"}

// maxSlowKept bounds the slow calls that --json keeps for its one document.
const maxSlowKept = 10000

// tracer is one run of "trace clients".
type tracer struct {
	*ctl
	library string
	slow    []slowCall
	unkept  uint64
}

// slowCall, caller and losses are the parts of --json's document.
type slowCall struct {
	Time    time.Time `json:"time"`
	PID     uint32    `json:"pid"`
	TID     uint32    `json:"tid"`
	Command string    `json:"command"`
	Took    int64     `json:"took_ns"`
	Result  int32     `json:"result"`
}

type caller struct {
	PID     uint32   `json:"pid"`
	Command string   `json:"command"`
	Calls   uint64   `json:"calls"`
	Failed  uint64   `json:"failed"`
	Mean    int64    `json:"mean_ns"`
	P50     int64    `json:"p50_ns"`
	P99     int64    `json:"p99_ns"`
	Slowest int64    `json:"slowest_ns"`
	Buckets []bucket `json:"buckets"` // those with calls
}

// bucket has the calls that took up to a time and more than the bucket before.
// The last one there can be has all that took more than 16 s, and no bound.
type bucket struct {
	UpTo  int64  `json:"up_to_ns,omitempty"`
	Calls uint64 `json:"calls"`
}

type losses struct {
	Processes uint64 `json:"calls_of_too_many_processes"`
	Calls     uint64 `json:"calls_under_way_at_the_start"`
	Slow      uint64 `json:"slow_calls"`
}

// trace watches what programs see of the service, without touching them.
func (c *ctl) trace(args []string) error {
	t := &tracer{ctl: c}
	threshold, limit := 10*time.Millisecond, time.Duration(0)
	c.flags.StringVar(&t.library, "lib", "", "")
	c.flags.DurationVar(&threshold, "slow", threshold, "")
	c.flags.DurationVar(&limit, "for", 0, "")
	words, err := c.parse(args)
	switch {
	case err != nil:
		return err
	case len(words) != 1 || words[0] != "clients":
		return usagef("trace what? trace clients")
	case threshold < 0 || limit < 0:
		return usagef("--slow and --for take no negative times")
	}
	if t.library == "" {
		if t.library = findLibrary(); t.library == "" {
			return errors.New("no librdmacm.so.1 here; --lib says where it is")
		}
	}
	probes, err := bpf.TraceClients(t.library, threshold)
	if err != nil {
		return fmt.Errorf("trace clients: %w", err)
	}
	ctx := c.ctx
	if limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	c.errorf("watching rdma_getaddrinfo in %s by %s; interrupt to see all calls\n", t.library, probes.How())
	ended := make(chan error, 1)
	go func() { ended <- t.watch(probes) }()
	<-ctx.Done()
	err = probes.Stop()
	err = errors.Join(err, <-ended)
	callers, lost, rerr := probes.Read()
	if err = errors.Join(err, rerr, probes.Close()); err != nil {
		return fmt.Errorf("trace clients: %w", err)
	}
	lost.Slow += t.unkept
	return t.report(probes.How(), callers, lost)
}

func findLibrary() string {
	for _, pattern := range libraries {
		if found, _ := filepath.Glob(pattern); len(found) > 0 { // the patterns are well-formed
			return found[0]
		}
	}
	return ""
}

// watch takes the slow calls until the trace was stopped.
func (t *tracer) watch(probes *bpf.ClientTrace) error {
	for {
		s, err := probes.NextSlow()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		now := time.Now()
		switch {
		case !t.json:
			t.printf("%s  pid %d (%s) took %v, result %d\n", now.Format("15:04:05.000"), s.PID, s.Command, s.Took.Round(time.Microsecond), s.Result)
		case len(t.slow) < maxSlowKept:
			t.slow = append(t.slow, slowCall{now, s.PID, s.TID, s.Command, int64(s.Took), s.Result})
		default:
			t.unkept++
		}
	}
}

func (t *tracer) report(how string, callers []bpf.Caller, lost bpf.ClientLosses) error {
	slices.SortFunc(callers, func(a, b bpf.Caller) int { return int(a.PID) - int(b.PID) })
	if t.json {
		list := make([]caller, len(callers))
		for i := range callers {
			list[i] = callerOf(&callers[i])
		}
		return t.writeJSON(map[string]any{
			"library": t.library, "probe": how, "callers": list, "slow": append([]slowCall{}, t.slow...),
			"lost": losses{lost.Callers, lost.Calls, lost.Slow},
		})
	}
	if len(callers) == 0 {
		t.printf("no call was seen\n")
	} else {
		rows := [][]string{{"PID", "COMMAND", "CALLS", "FAILED", "MEAN", "P50", "P99", "SLOWEST"}}
		for i := range callers {
			j := callerOf(&callers[i])
			rows = append(rows, []string{
				number(uint64(j.PID)), j.Command, number(j.Calls), number(j.Failed),
				short(j.Mean), short(j.P50), short(j.P99), short(j.Slowest),
			})
		}
		t.table(rows)
		for i := range callers {
			t.histogram(&callers[i])
		}
	}
	if n := lost.Callers + lost.Calls + lost.Slow; n > 0 {
		t.printf("not shown: %d calls of too many processes, %d that had begun before, %d slow ones\n", lost.Callers, lost.Calls, lost.Slow)
	}
	return nil
}

// histogram draws one process's calls, a line for each power of two.
func (t *tracer) histogram(c *bpf.Caller) {
	const perLine, width = 4, 40
	t.printf("\n%d (%s)\n", c.PID, c.Command)
	var lines []uint64
	var most uint64
	first := -1
	for b, n := range c.Latency.Buckets {
		line := (b + perLine - 1) / perLine // bucket 0 ends at a power of two
		for len(lines) <= line {
			lines = append(lines, 0)
		}
		lines[line] += n
		if n > 0 && first < 0 {
			first = line
		}
		most = max(most, lines[line])
	}
	for len(lines) > 0 && lines[len(lines)-1] == 0 {
		lines = lines[:len(lines)-1]
	}
	for i := first; i < len(lines); i++ {
		bound := "longer"
		if s := bpf.BucketBound(i * perLine); i*perLine < bpf.NumBuckets-1 {
			bound = "to " + short(int64(s*1e9))
		}
		bar := make([]byte, (lines[i]*width+most-1)/most)
		for j := range bar {
			bar[j] = '#'
		}
		t.printf("  %10s  %-*s  %d\n", bound, width, bar, lines[i])
	}
}

func callerOf(c *bpf.Caller) caller {
	j := caller{
		PID: c.PID, Command: c.Command, Calls: c.Calls, Failed: c.Failed, Mean: int64(c.Latency.Sum / c.Calls),
		P50: int64(c.Latency.Quantile(0.5)), P99: int64(c.Latency.Quantile(0.99)), Slowest: int64(c.Slowest), Buckets: []bucket{},
	}
	for i, n := range c.Latency.Buckets {
		if n == 0 {
			continue
		}
		b := bucket{Calls: n}
		if i < bpf.NumBuckets-1 {
			b.UpTo = int64(bpf.BucketBound(i) * 1e9)
		}
		j.Buckets = append(j.Buckets, b)
	}
	return j
}
