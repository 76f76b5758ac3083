// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package main

import (
	"errors"
	"flag"
	"fmt"
	"sync"
	"time"
)

// cmdFail asks on several connections for a destination that nobody answers for.
// Each connection asks again after the answer, at the next full period; all ask at
// the same moments. Every answer must have the given status.
func cmdFail(args []string) error {
	fs := flag.NewFlagSet("fail", flag.ExitOnError)
	var (
		addr   = fs.String("s", "/run/ibacm.sock", "service: a socket path or host:port")
		n      = fs.Int("c", 1, "connections")
		src    = fs.String("src", "", "source, kind:value")
		dst    = fs.String("dst", "", "destination, kind:value")
		every  = fs.Duration("every", time.Second, "period")
		dur    = fs.Duration("t", 5*time.Second, "length of the run: no request is sent after it")
		status = fs.Int("status", 6, "status of every answer (6: timed out)")
		limit  = fs.Duration("within", 3*time.Second, "time for an answer")
	)
	fs.Parse(args)
	t, err := newTarget(*dst, "::", "0", *src)
	if err != nil {
		return err
	}
	if *n < 1 || *every <= 0 {
		return errors.New("want -c of 1 at least, and -every above 0")
	}
	f := failing{t: &t, status: byte(*status), limit: *limit, begin: time.Now(), every: *every, dur: *dur}
	var (
		wg   sync.WaitGroup
		errs = make([]error, *n)
		told = make([]int, *n)
	)
	for i := range *n {
		wg.Go(func() { told[i], errs[i] = f.run(*addr, uint64(i+1)) })
	}
	wg.Wait()
	total := 0
	for _, k := range told {
		total += k
	}
	fmt.Printf("{\"told\":%d}\n", total)
	return errors.Join(errs...)
}

type failing struct {
	t          *target
	status     byte
	limit      time.Duration
	begin      time.Time
	every, dur time.Duration
}

// run asks on one connection and returns how often it was told.
func (f *failing) run(addr string, seed uint64) (told int, err error) {
	c, err := dial(addr)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	var (
		out [maxMsg]byte
		in  reader
	)
	for tid := seed << 32; ; tid++ {
		elapsed := time.Since(f.begin)
		if elapsed > f.dur {
			return told, nil
		}
		asked := time.Now()
		if err := c.SetDeadline(asked.Add(f.limit)); err != nil {
			return told, err
		}
		if _, err := c.Write(out[:f.t.request(out[:], tid, false, 0)]); err != nil {
			return told, err
		}
		msg, err := in.message(c)
		if err != nil {
			return told, fmt.Errorf("after %v: %w", time.Since(asked), err)
		}
		if native.Uint64(msg[8:]) != tid || msg[2] != f.status {
			return told, fmt.Errorf("answer with tid %#x and status %d, want %#x and %d", native.Uint64(msg[8:]), msg[2], tid, f.status)
		}
		in.done(msg)
		told++
		next := (time.Since(f.begin)/f.every + 1) * f.every
		time.Sleep(time.Until(f.begin.Add(next)))
	}
}
