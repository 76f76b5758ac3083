// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package fastpath

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"acmd/bpf"
	"acmd/cache"
	"acmd/resolver"
)

// Engine is what is asked for the truth; [resolver.Engine] has it.
type Engine interface {
	Now() int64
	Mirrored(q *resolver.Query, now int64, m *resolver.Mirrored) bool
	RefreshSoon(q *resolver.Query, now int64)
	Sources() []resolver.SourceSlot
}

// Kernel is the program's side; [bpf.Fast] has it.
type Kernel interface {
	Plan() bpf.FastPlan
	SetOn(on bool)
	Conn(port uint16) *bpf.FastConn
	Generation(slot uint32) uint64
	Raise(slot uint32)
	Version(slot uint32) uint64
	Void(slot uint32)
	SetSources(gen uint64)
	Used(slot uint32) uint64
	Forget(slot uint32)
	PutPaths(keys []bpf.FastKey, paths []bpf.FastPath) error
	DeletePaths(keys []bpf.FastKey) error
	PutSource(key *bpf.FastKey, slot uint16) error
	DeleteSources(keys []bpf.FastKey) error
	Insert(ports []uint16, done func(port uint16, sent uint64, err error)) error
	Counts() [bpf.NumKernelWords]uint64
	Prove() error
	EndProof() error
	Close() error
}

// Config of a [Service]. The zero value is usable.
type Config struct {
	All      bool         // sockets are on the map as soon as they connect (fast_path kernel-all)
	Capacity int          // most mirrored answers; 0: bpf.FastPaths
	Clients  int          // most sockets on the map; 0: 16384
	Maps     *bpf.Maps    // counters; nil: ones of the program's own
	Insert   string       // how sockets get onto the map, see bpf.FastConfig; "": the best way that works
	Log      *slog.Logger // nil: slog.Default
	// Sweep is how often stamps are looked at; 0: half a second. Paths have to
	// live for some of these after they are due.
	Sweep time.Duration
	// Changed is told when the fast path goes on or off, whoever caused it. It
	// must not call the service. nil: nobody.
	Changed func(on bool)
}

// Service is the fast path of one daemon. It implements [resolver.Mirror]. Until
// Start it does nothing. All methods are safe for concurrent use.
type Service struct {
	cfg Config
	log *slog.Logger
	now func() time.Time

	k   Kernel // nil: not started. Set once, before anything else runs
	e   Engine
	tab table

	mu      sync.Mutex // of what follows; never held across a system call
	stopped bool
	reason  string // why it is off for good
	offers  []resolver.Query
	dropped map[uint32]bool // generations that were raised
	all     bool            // everything has to be looked at
	sources bool            // the local addresses have changed
	chosen  uint64          // generation under which chosen sources are true
	queued  uint64          // things to do so far
	done    uint64          // of them done
	settled sync.Cond       // done has grown, or the service has stopped
	waiting []insertion     // clients to be put onto the map, once what was offered is there

	on      atomic.Bool // clients may be put onto the map
	count   counts
	inserts inserter

	wake chan struct{}
	stop chan struct{}
	over sync.WaitGroup
	own  owner
}

// counts are what the service counts by itself.
type counts struct {
	puts, deletes, full, lost, inserted, refused, refreshed atomic.Uint64
}

// maxOffers bounds the questions that wait to be looked at.
const maxOffers = 4096

// New makes a service that is not started, so that the engine can be given it.
func New(cfg Config) *Service {
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	if cfg.Capacity <= 0 {
		cfg.Capacity = bpf.FastPaths
	}
	if cfg.Sweep <= 0 {
		cfg.Sweep = 500 * time.Millisecond
	}
	s := &Service{cfg: cfg, log: cfg.Log, dropped: map[uint32]bool{}, wake: make(chan struct{}, 1), stop: make(chan struct{})}
	s.settled.L = &s.mu
	s.tab.init(cfg.Capacity)
	s.inserts.init()
	return s
}

// Load tries the kernel and loads the programs for a listener on 127.0.0.1:port;
// the error says why there is no fast path. [Service.Start] takes the result.
func (s *Service) Load(port uint16) (Kernel, error) {
	f, err := bpf.LoadFast(bpf.FastConfig{
		Port: port, All: s.cfg.All, Paths: s.cfg.Capacity, Conns: s.cfg.Clients, Maps: s.cfg.Maps, Insert: s.cfg.Insert})
	if err != nil {
		return nil, err
	}
	return f, nil
}

// Start begins to mirror and switches the fast path on. It may be called once;
// Stop ends it and closes k.
func (s *Service) Start(k Kernel, e Engine) {
	s.mu.Lock()
	s.k, s.e = k, e
	k.SetSources(s.chosen)
	s.sources = true
	s.queued++
	s.mu.Unlock()
	s.own.init(s)
	s.over.Add(2)
	go s.own.main()
	go s.inserts.main(s)
	s.settle()
	s.Switch(true)
}

// Fail says why there is no fast path. It takes part in the state.
func (s *Service) Fail(err error) {
	s.mu.Lock()
	if s.reason == "" {
		s.reason = err.Error()
	}
	was := s.on.Swap(false)
	if s.k != nil && !s.stopped {
		s.k.SetOn(false)
	}
	s.mu.Unlock()
	if was && s.cfg.Changed != nil {
		s.cfg.Changed(false)
	}
	s.log.Warn("the kernel answers nothing", "reason", err)
}

// ErrOff tells that there is nothing to switch on; the reason follows.
var ErrOff = errors.New("no fast path")

// Switch switches on or off. Once Switch(false) returned, no request whose send()
// begins later is answered by the kernel, on old connections neither.
func (s *Service) Switch(on bool) error {
	was, err := s.set(on)
	if err == nil && was != on {
		s.log.Info("the kernel answers cached resolves", "on", on)
		if s.cfg.Changed != nil {
			s.cfg.Changed(on)
		}
	}
	return err
}

// set turns the switch. It is one store, so that the mutex keeps Fail and Stop away:
// after the one it must not go on again, after the other there is none.
func (s *Service) set(on bool) (was bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.stopped || s.k == nil && s.reason == "":
		return false, fmt.Errorf("%w: not started", ErrOff)
	case on && s.reason != "":
		return false, fmt.Errorf("%w: %s", ErrOff, s.reason)
	case s.k == nil:
		return on, nil // off for good
	}
	s.k.SetOn(on)
	return s.on.Swap(on), nil
}

// leave is how long clients may take to read what the kernel has answered before the
// programs go, which hold it.
const leave = 50 * time.Millisecond

// Stop switches off and closes the programs. The connections of the door must be
// closed before.
func (s *Service) Stop() error {
	s.mu.Lock()
	if s.stopped || s.k == nil {
		s.stopped = true
		s.mu.Unlock()
		return nil
	}
	s.stopped = true
	s.on.Store(false)
	s.k.SetOn(false)
	s.settled.Broadcast()
	s.mu.Unlock()
	close(s.stop)
	s.over.Wait()
	if s.cfg.All || s.count.inserted.Load() > 0 {
		time.Sleep(leave)
	}
	return s.k.Close()
}

// Changed implements [cache.Watcher]. What was mirrored of the entry is void when it
// returns, if it is to be.
func (s *Service) Changed(k *cache.Key, void bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return
	}
	marked := false
	for it := s.tab.byCache[*k]; it != nil; it = it.next {
		if void {
			s.k.Void(it.slot)
		}
		marked = s.mark(it) || marked
	}
	if marked {
		s.poke()
	}
}

// Dropped implements [cache.Watcher]. What was mirrored of the scope is void when
// it returns.
func (s *Service) Dropped(scope cache.Scope) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.k == nil || s.stopped {
		return
	}
	g := genOf(scope)
	s.k.Raise(g)
	s.dropped[g] = true
	s.queued++
	s.poke()
}

// Rechoose implements [resolver.Mirror]. Answers with a chosen source are made anew
// as they are asked for, or at the next sweep: a host's routes can change all the time.
func (s *Service) Rechoose(gen uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.chosen = gen
	if s.k != nil && !s.stopped {
		s.k.SetSources(gen)
	}
}

// genOf is the generation of a scope. Scopes beyond the last generation share
// one: a drop of either is then one of both, and what is still true is mirrored
// again.
func genOf(scope cache.Scope) uint32 { return uint32(scope) % bpf.FastGens }

// usedFor is how long after a hit in the kernel a path counts as in use, in
// seconds. Stamps are whole seconds.
const usedFor = 2

// Used implements [cache.Watcher].
func (s *Service) Used(k *cache.Key) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.k == nil || s.stopped {
		return false
	}
	for it := s.tab.byCache[*k]; it != nil; it = it.next {
		if stamp := s.k.Used(it.slot); stamp != it.asked || stamp != 0 && int64(stamp)+usedFor >= s.e.Now()/int64(time.Second) {
			it.asked = stamp
			return true
		}
	}
	return false
}

// settle waits until what has changed so far was written.
func (s *Service) settle() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.k == nil {
		return
	}
	for target := s.queued; s.done < target && !s.stopped; {
		s.poke()
		s.settled.Wait()
	}
}

// TopologyChanged tells that the endpoints or their addresses are others; what
// follows from them is in force when it returns.
func (s *Service) TopologyChanged() {
	s.mu.Lock()
	s.all, s.sources = true, true
	s.queued++
	s.mu.Unlock()
	s.settle()
}

// mark puts a mirrored answer on the list of those to look at. Called with mu.
func (s *Service) mark(it *item) bool {
	if it.dirty {
		return false
	}
	it.dirty = true
	s.tab.dirty = append(s.tab.dirty, it)
	s.queued++
	return true
}

func (s *Service) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}
