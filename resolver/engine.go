// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package resolver

import (
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"acmd/cache"

	"golang.org/x/sys/unix"
)

// Engine is the resolver. It implements [Resolver]; all methods are safe for
// concurrent use.
//
// Hits touch an immutable topology snapshot and the path cache. Misses join or
// start a flight under one mutex that is never held across a call into anything
// that could block. One goroutine owns the topology, one starts refreshes.
type Engine struct {
	cfg   Config
	log   *slog.Logger
	cache *cache.Cache
	addrs *cache.Cache // answers of the address step: records with only DGID and DLID

	start time.Time
	base  int64 // monotonic clock at start

	topo      atomic.Pointer[topology]
	ports     topoState // of the topology goroutine
	counters  counters
	sources   sourceMemory
	flights   flightTable
	providers map[string]Provider // by name in lower case; fixed
	routes    routeTable
	refresh   refresher
	prefetch  prefetcher
	stats     engineStats
	failures  failureLog

	refreshAge  int64        // age at which hits look again, MaxInt64: never
	failedUntil atomic.Int64 // failures with a deadline up to this are forgotten
	stop        chan struct{}
	kick        chan struct{}
	setaddr     chan setAddresses
	done        sync.WaitGroup
	closeOnce   sync.Once
}

var _ Resolver = (*Engine)(nil)

// New makes an engine, looks at the devices once and starts its goroutines. A
// machine without an InfiniBand port is no error: queries are answered
// StatusNotConn until one comes.
func New(cfg Config) (*Engine, error) {
	if cfg.Fabric == nil || cfg.Host == nil || cfg.OpenSA == nil {
		return nil, errors.New("resolver: Fabric, Host and OpenSA are required")
	}
	cfg.setDefaults()
	e := &Engine{cfg: cfg, log: cfg.Log, cache: cfg.Cache, start: time.Now(), base: monotonic(),
		stop: make(chan struct{}), kick: make(chan struct{}, 1), setaddr: make(chan setAddresses)}
	if e.cache == nil {
		// A destination known by name or IP is kept under its GID as well.
		cc := cache.Config{Capacity: 2 * cfg.CacheSize}
		if cfg.Mirror != nil {
			cc.Watch = cfg.Mirror
		}
		e.cache = cache.New(cc)
	}
	e.addrs = cache.New(cache.Config{Capacity: cfg.CacheSize})
	if cfg.Mirror != nil {
		cfg.Host.Generation().Follow(cfg.Mirror.Rechoose)
	}
	e.refreshAge = e.computeRefreshAge()
	e.counters.init(cfg.Counters)
	e.failures.init(cfg.Log)
	e.flights.init(e)
	e.routes.init()
	e.refresh.init(cfg.RefreshRate)
	e.prefetch.init()
	if err := e.initProviders(); err != nil {
		return nil, err
	}
	e.topo.Store(emptyTopology())
	if err := e.initTopology(); err != nil {
		e.log.Warn("devices cannot be listed, trying again", "err", err)
	}
	e.done.Add(2)
	go e.topologyLoop()
	go e.refreshLoop()
	if cfg.Prefetch && cfg.AddrTimeout != 0 && cfg.RouteTimeout != 0 {
		e.done.Add(1)
		go e.prefetchLoop()
	}
	return e, nil
}

// Close answers all waiters, closes providers and SA clients and ends the
// goroutines. Queries that come later are answered StatusNotConn.
func (e *Engine) Close() {
	e.closeOnce.Do(func() {
		close(e.stop)
		e.done.Wait()
		e.topo.Store(emptyTopology())
		e.counters.setActive(emptyTopology())
		e.flights.close()
		e.closeTopology()
	})
}

// Now is the monotonic clock in nanoseconds, the one that the kernel's programs
// read too.
func (e *Engine) Now() int64 { return e.base + int64(time.Since(e.start)) }

func monotonic() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return 1 // only differences matter
	}
	return ts.Nano()
}
