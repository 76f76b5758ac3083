// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package main

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"time"

	"acmd/mad/fabric"
)

const (
	deadNodes  = 512
	deadLive   = 200 // destinations of the others
	flushEvery = 100 * time.Millisecond
	deadLimit  = 100 * time.Millisecond
)

// dead measures what an address that nobody answers for costs those who ask for
// others: 8 clients on cached destinations, all of which are dropped ten times a
// second so that some are always cold.
func (b *bench) dead() {
	slice := max(b.slice, 3*time.Second)
	if b.quick {
		slice = time.Second
	}
	spec := fmt.Sprintf("embedded:nodes=%d", deadNodes)
	d := b.startAcmd(acmdConfig{fabric: spec})
	dests := b.liveDests(spec)
	b.heading("A dead destination", fmt.Sprintf("8 clients resolve %d live destinations over multicast and SA; the cache is emptied every %v. Beside them nobody, one client, or 16 at the same moments ask once a second for an address that nobody has; each must be told status 6 (timed out).", deadLive, flushEvery),
		fmt.Sprintf("%d rounds of %v, in turn; medians.", b.rounds, slice))
	askers := []int{0, 1, 16}
	runs := make([][]result, len(askers))
	turns := make([]func(), len(askers))
	for i, n := range askers {
		turns[i] = func() { runs[i] = append(runs[i], b.besideDead(d, dests, n, slice)) }
	}
	b.eachRound(turns...)
	t := newTable("asking for the dead one", "others: resolves/s", "p50 us", "p99 us", "of none", "p99.9 us", "worst us of all rounds", "server CPU s/1M")
	for i, r := range runs {
		worst := 0.0
		for j := range r {
			worst = max(worst, r[j].MaxUs)
		}
		share := ratio(med(r, p99), med(runs[0], p99))
		t.row(askers[i], med(r, perSec), med(r, p50), med(r, p99), share, med(r, p999), worst, med(r, cpu1M))
		if askers[i] > 0 {
			b.atMost(fmt.Sprintf("others' p99 with %d asking for the dead one, of without", askers[i]), share, 1.2, "x")
			b.atMost("latest answer to the others", worst/1000, float64(deadLimit.Milliseconds()), " ms")
		}
	}
}

// liveDests writes the list of live destinations; a fabric of the same
// configuration has the same nodes.
func (b *bench) liveDests(spec string) string {
	cfg, err := fabric.ParseOptions(spec)
	if err != nil {
		b.Fatal(err)
	}
	f, err := fabric.New(cfg)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	return b.dests(f, deadLive)
}

// besideDead measures the others while so many ask for the dead one.
func (b *bench) besideDead(d *daemon, dests string, askers int, slice time.Duration) result {
	ctx, cancel := context.WithCancel(context.Background())
	flushed := make(chan error, 1)
	go func() { flushed <- flushUntil(ctx, d) }()
	src := fmt.Sprintf("ip:%v", fabric.IPv4(0, 1))
	waitDead := func() {}
	if askers > 0 {
		waitDead = b.askDead(d, src, askers, slice)
	}
	r := b.resolve("others", "-s", d.sock, "-pid", d.pid(), "-c", "8", "-t", slice.String(), "-src", src, "-dests", dests)
	cancel()
	if err := <-flushed; err != nil {
		b.Fatalf("flush: %w", err)
	}
	waitDead()
	return r
}

func flushUntil(ctx context.Context, d *daemon) error {
	tick := time.NewTicker(flushEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			if err := d.flush(context.Background()); err != nil {
				return err
			}
		}
	}
}

// askDead starts those who ask for the dead one and returns how to wait for them.
func (b *bench) askDead(d *daemon, src string, askers int, slice time.Duration) func() {
	nobody := fabric.IPv4(deadNodes+7, 1)
	cmd := b.loadCommand("fail", "-s", d.sock, "-c", strconv.Itoa(askers), "-t", slice.String(), "-src", src, "-dst", fmt.Sprintf("ip:%v", nobody))
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	return func() {
		if err := cmd.Wait(); err != nil {
			b.warn("dead destination, %d askers: %v: %s", askers, err, bytes.TrimSpace(out.Bytes()))
		}
	}
}
