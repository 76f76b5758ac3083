// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package main

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

type loadConfig struct {
	addr      string
	conns     int
	pipeline  int
	dur       time.Duration
	once      bool
	each      bool
	greet     bool
	epoll     bool
	batch     int
	also      []int
	nodelay   bool
	pad       int
	raw       bool
	timeout   time.Duration
	targets   []target
	pid       int
	label     string
	keepGoing bool
	times     bool
}

type worker struct {
	cfg    *loadConfig
	lat    []uint32 // nanoseconds
	ok     int64
	failed int64
	first  error
}

func (w *worker) fail(err error) {
	w.failed++
	if w.first == nil {
		w.first = err
	}
}

func (w *worker) open() (stream, error) {
	if w.cfg.raw {
		c, err := dialRaw(w.cfg.addr, w.cfg.timeout)
		return c, err
	}
	c, err := dial(w.cfg.addr)
	return c, err
}

// flight is a request that waits for its response.
type flight struct {
	t   *target
	tid uint64
	at  time.Time
}

// run resolves until stop (or until next gives no more targets), keeping up to
// pipeline requests in flight on one connection.
func (w *worker) run(c stream, seed uint64, next func(*rand.Rand) *target, stop *atomic.Bool) {
	var (
		rng   = rand.New(rand.NewPCG(seed, 1))
		queue = make([]flight, 0, w.cfg.pipeline)
		out   [maxMsg]byte
		in    reader
		tid   = seed << 32
	)
	for {
		for len(queue) < w.cfg.pipeline && !stop.Load() {
			t := next(rng)
			if t == nil {
				break
			}
			tid++
			n := t.request(out[:], tid, w.cfg.nodelay, w.cfg.pad)
			at := time.Now()
			if _, err := c.Write(out[:n]); err != nil {
				w.fail(fmt.Errorf("write: %w", err))
				return
			}
			queue = append(queue, flight{t, tid, at})
		}
		if len(queue) == 0 {
			return
		}
		msg, err := in.message(c)
		if err != nil {
			w.failed += int64(len(queue)) - 1
			w.fail(err)
			return
		}
		now := time.Now()
		// answers to different destinations may overtake one another
		tidIn, i := native.Uint64(msg[8:]), 0
		for i < len(queue)-1 && queue[i].tid != tidIn {
			i++
		}
		f := queue[i]
		queue = slices.Delete(queue, i, i+1)
		if err := f.t.check(msg, f.tid); err != nil {
			w.fail(fmt.Errorf("%s: %w", f.t.text, err))
			if !w.cfg.keepGoing {
				return
			}
		} else {
			w.ok++
			w.lat = append(w.lat, uint32(min(now.Sub(f.at), 4*time.Second)))
		}
		in.done(msg)
	}
}

// reader cuts a stream into messages by their length field.
type reader struct {
	buf  [4 * maxMsg]byte
	have int
}

// message returns the next message, valid until done.
func (r *reader) message(c stream) ([]byte, error) {
	for {
		if r.have >= hdrLen {
			n := int(native.Uint16(r.buf[6:]))
			if n < hdrLen || n > maxMsg {
				return nil, fmt.Errorf("response length %d", n)
			}
			if r.have >= n {
				return r.buf[:n], nil
			}
		}
		n, err := c.Read(r.buf[r.have:])
		if err != nil {
			return nil, fmt.Errorf("read: %w", err)
		}
		r.have += n
	}
}

func (r *reader) done(msg []byte) { r.have = copy(r.buf[:], r.buf[len(msg):r.have]) }

// chooser gives the targets of all connections: each once and then nil, or by
// chance for ever.
func chooser(cfg *loadConfig) func(*rand.Rand) *target {
	if cfg.once {
		index := new(atomic.Int64)
		return func(*rand.Rand) *target {
			i := int(index.Add(1)) - 1
			if i >= len(cfg.targets) {
				return nil
			}
			return &cfg.targets[i]
		}
	}
	if len(cfg.targets) == 1 {
		return func(*rand.Rand) *target { return &cfg.targets[0] }
	}
	return func(r *rand.Rand) *target { return &cfg.targets[r.IntN(len(cfg.targets))] }
}

func load(cfg *loadConfig) result {
	if cfg.epoll {
		return loadCrew(cfg)
	}
	var (
		wg    sync.WaitGroup
		ready sync.WaitGroup
		stop  atomic.Bool
		ws    = make([]worker, cfg.conns)
		gate  = make(chan struct{})
	)
	next := chooser(cfg)
	if cfg.raw {
		runtime.GOMAXPROCS(cfg.conns + 2)
	}
	runtime.GC()
	old := debug.SetGCPercent(-1)
	defer debug.SetGCPercent(old)

	for i := range ws {
		w := &ws[i]
		w.cfg = cfg
		w.lat = make([]uint32, 0, 1<<16)
		c, err := w.open()
		if err != nil {
			w.fail(err)
			continue
		}
		wg.Add(1)
		ready.Add(1)
		go func() {
			defer wg.Done()
			defer c.Close()
			if cfg.raw {
				runtime.LockOSThread()
			}
			err := w.greeting(c)
			ready.Done()
			<-gate
			if err != nil {
				w.fail(fmt.Errorf("greeting: %w", err))
				return
			}
			next := next
			if cfg.each {
				next = inOrder(cfg.targets)
			}
			if cfg.batch > 0 {
				w.runBatches(c, uint64(i+1), next, &stop)
				return
			}
			w.run(c, uint64(i+1), next, &stop)
		}()
	}
	ready.Wait()
	use := startUsage(cfg.pid, cfg.also)
	close(gate)
	if !cfg.once && !cfg.each {
		time.AfterFunc(cfg.dur, func() { stop.Store(true) })
	}
	wg.Wait()
	r := use.stop()
	r.summarize(cfg, ws)
	return r
}

// greeting asks for the counters, if so configured: it has the server take the
// connection, and this thread run, before the measurement begins.
func (w *worker) greeting(c stream) error {
	if !w.cfg.greet {
		return nil
	}
	var b [hdrLen]byte
	b[0], b[1] = acmVer, opPerf
	binary.BigEndian.PutUint16(b[6:], hdrLen)
	if _, err := c.Write(b[:]); err != nil {
		return err
	}
	var answer [maxMsg]byte
	for have, want := 0, hdrLen; have < want; {
		n, err := c.Read(answer[have:])
		if err != nil {
			return err
		}
		if have += n; have < hdrLen {
			continue
		}
		want = int(binary.BigEndian.Uint16(answer[6:]))
		if answer[1] != opPerf|opAck || answer[2] != 0 || want < hdrLen || want > maxMsg || have > want {
			return fmt.Errorf("answer %x", answer[:hdrLen])
		}
	}
	return nil
}

// inOrder hands out every target once, for one connection.
func inOrder(list []target) func(*rand.Rand) *target {
	i := 0
	return func(*rand.Rand) *target {
		if i == len(list) {
			return nil
		}
		i++
		return &list[i-1]
	}
}

// summarize joins what the workers saw with what was spent.
func (r *result) summarize(cfg *loadConfig, ws []worker) {
	r.Label, r.Server, r.Conns, r.Pipeline, r.Targets = cfg.label, cfg.addr, cfg.conns, cfg.pipeline, len(cfg.targets)
	var all []uint32
	for i := range ws {
		w := &ws[i]
		r.OK += w.ok
		r.Failed += w.failed
		if w.first != nil && r.FirstError == "" {
			r.FirstError = w.first.Error()
		}
		all = append(all, w.lat...)
	}
	slices.Sort(all)
	q := func(p float64) float64 {
		if len(all) == 0 {
			return 0
		}
		return float64(all[min(int(p*float64(len(all))), len(all)-1)]) / 1000
	}
	if cfg.times {
		r.Times = all
	}
	r.P50us, r.P99us, r.P999us, r.MaxUs = q(.5), q(.99), q(.999), q(1)
	r.PerSec = float64(r.OK) / r.Seconds
	r.CPUPer1M, r.Switches = ratio(1e6*r.CPUPer1M, r.OK), ratio(r.Switches, r.OK)
}

// ratio is 0 where there is nothing to divide by.
func ratio(a float64, n int64) float64 {
	if n == 0 {
		return 0
	}
	return a / float64(n)
}
