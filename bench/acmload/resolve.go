// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// resolveFlags is the command line of "resolve".
type resolveFlags struct {
	cfg          loadConfig
	conns        string
	reps         int
	src, dst     string
	file, io     string
	also         string
	json, warmUp bool
}

func parseResolve(args []string) *resolveFlags {
	r := &resolveFlags{}
	c := &r.cfg
	fs := flag.NewFlagSet("resolve", flag.ExitOnError)
	fs.StringVar(&c.addr, "s", "/run/ibacm.sock", "service: a socket path or host:port")
	fs.StringVar(&r.conns, "c", "1", "connections, comma separated for several runs")
	fs.IntVar(&c.pipeline, "pipeline", 1, "requests in flight per connection")
	fs.DurationVar(&c.dur, "t", 5*time.Second, "length of a run")
	fs.IntVar(&r.reps, "reps", 1, "repeat every run")
	fs.StringVar(&r.src, "src", "", "source, kind:value")
	fs.StringVar(&r.dst, "dst", "", "one destination: kind:value,dgid,dlid")
	fs.StringVar(&r.file, "dests", "", "file of destinations: kind:value dgid dlid")
	fs.BoolVar(&c.once, "once", false, "resolve every destination exactly once")
	fs.BoolVar(&c.each, "each", false, "let every connection resolve every destination exactly once")
	fs.BoolVar(&c.greet, "greet", false, "ask on every connection for the counters before the measurement begins")
	fs.IntVar(&c.batch, "batch", 0, "write so many requests at once, then read their answers; latencies are of batches")
	fs.StringVar(&r.also, "also", "", "more processes to account, comma separated")
	fs.BoolVar(&c.nodelay, "nodelay", false, "ask for cached data only")
	fs.IntVar(&c.pad, "pad", 0, "pad requests to this many bytes")
	fs.StringVar(&r.io, "io", "raw", "raw (blocking system calls, a thread for each connection), epoll (one thread for all) or net (Go poller)")
	fs.DurationVar(&c.timeout, "timeout", 30*time.Second, "give up on a response (raw and epoll only)")
	fs.IntVar(&c.pid, "pid", 0, "server process to account")
	fs.StringVar(&c.label, "label", "", "label in the output")
	fs.BoolVar(&c.times, "times", false, "print the time of every answer, with -json: those of several runs can be taken together")
	fs.BoolVar(&r.json, "json", false, "one JSON object per run")
	fs.BoolVar(&c.keepGoing, "keep-going", false, "carry on after a wrong response")
	fs.BoolVar(&r.warmUp, "warm", false, "resolve every destination once before measuring")
	fs.Parse(args)
	return r
}

func (r *resolveFlags) check() (err error) {
	switch r.io {
	case "raw", "net", "epoll":
		r.cfg.raw, r.cfg.epoll = r.io == "raw", r.io == "epoll"
	default:
		return fmt.Errorf("-io %q: want raw, epoll or net", r.io)
	}
	if r.cfg.epoll && (r.cfg.pipeline > 1 || r.cfg.batch > 0 || r.cfg.each) {
		return errors.New("-io epoll has one request in flight per connection, and no -each")
	}
	if r.cfg.pipeline < 1 || r.reps < 1 || r.cfg.pad > maxMsg {
		return fmt.Errorf("want -pipeline and -reps of 1 at least, -pad of %d at most", maxMsg)
	}
	if r.cfg.batch < 0 || r.cfg.batch > maxBatch || r.cfg.batch > 0 && (r.cfg.pipeline > 1 || r.cfg.pad > 0) {
		return fmt.Errorf("want -batch of %d at most, without -pipeline and -pad", maxBatch)
	}
	if r.cfg.once && r.cfg.each {
		return errors.New("-once and -each exclude one another")
	}
	for f := range strings.FieldsFuncSeq(r.also, func(c rune) bool { return c == ',' }) {
		pid, err := strconv.Atoi(f)
		if err != nil {
			return fmt.Errorf("-also %q: want process numbers", r.also)
		}
		r.cfg.also = append(r.cfg.also, pid)
	}
	switch {
	case r.dst != "":
		f := strings.Split(r.dst, ",")
		if len(f) != 3 {
			return errors.New("-dst wants kind:value,dgid,dlid")
		}
		t, err := newTarget(f[0], f[1], f[2], r.src)
		if err != nil {
			return err
		}
		r.cfg.targets = []target{t}
	case r.file != "":
		f, err := os.Open(r.file)
		if err != nil {
			return err
		}
		defer f.Close()
		if r.cfg.targets, err = readTargets(f, r.src); err != nil {
			return err
		}
	}
	if len(r.cfg.targets) == 0 {
		return errors.New("no destinations: use -dst or -dests")
	}
	return nil
}

func cmdResolve(args []string) error {
	r := parseResolve(args)
	if err := r.check(); err != nil {
		return err
	}
	if r.warmUp {
		w := r.cfg
		w.once, w.each, w.conns, w.pipeline, w.batch = true, false, 1, 1, 0
		if got := load(&w); got.Failed > 0 {
			return fmt.Errorf("warm-up: %d failed, first: %s", got.Failed, got.FirstError)
		}
	}
	if !r.json {
		printHeader()
	}
	bad := false
	for _, s := range strings.Split(r.conns, ",") {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 {
			return fmt.Errorf("bad connection count %q", s)
		}
		var runs []result
		for range r.reps {
			c := r.cfg
			c.conns = n
			got := load(&c)
			got.print(r.json)
			bad = bad || got.Failed > 0
			runs = append(runs, got)
		}
		if len(runs) > 1 {
			m := median(runs)
			m.print(r.json)
		}
	}
	if bad {
		return errors.New("some resolves failed")
	}
	return nil
}
