// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package fastpath

import (
	"errors"
	"log/slog"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"acmd/bpf"
	"acmd/cache"
	"acmd/mad"
	"acmd/mad/sa"
	"acmd/resolver"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeKernel is a kernel in ordinary memory.
type fakeKernel struct {
	mu      sync.Mutex
	on      bool
	plan    bpf.FastPlan
	conns   map[uint16]*bpf.FastConn
	gen     [bpf.FastGens]uint64
	version map[uint32]uint64
	chosen  uint64 // generation of sources
	use     map[uint32]uint64
	paths   map[bpf.FastKey]bpf.FastPath
	sources map[bpf.FastKey]uint16
	socks   map[uint16]bool
	closed  bool

	hold      chan struct{} // not nil: PutPaths waits for it
	held      chan struct{} // told that it does
	turning   func()        // not nil: called before the switch goes on
	arrive    func()        // not nil: called once, after a PutPaths
	putErr    error
	deleteErr error
	refuse    map[uint16]bool
	busy      map[uint16]int // how often a client is found in a system call
}

func newFakeKernel() *fakeKernel {
	return &fakeKernel{conns: map[uint16]*bpf.FastConn{}, use: map[uint32]uint64{}, version: map[uint32]uint64{}, paths: map[bpf.FastKey]bpf.FastPath{},
		sources: map[bpf.FastKey]uint16{}, socks: map[uint16]bool{}, refuse: map[uint16]bool{}, busy: map[uint16]int{}, plan: bpf.FastPlan{Insert: "tc"}}
}

func (k *fakeKernel) lock() func() { k.mu.Lock(); return k.mu.Unlock }

func (k *fakeKernel) Plan() bpf.FastPlan { return k.plan }
func (k *fakeKernel) SetOn(on bool) {
	if on && k.turning != nil {
		k.turning()
	}
	defer k.lock()()
	if k.closed {
		panic("the switch is gone")
	}
	k.on = on
}
func (k *fakeKernel) Conn(port uint16) *bpf.FastConn {
	defer k.lock()()
	if k.conns[port] == nil {
		k.conns[port] = new(bpf.FastConn)
	}
	return k.conns[port]
}
func (k *fakeKernel) Generation(slot uint32) uint64 { defer k.lock()(); return k.gen[slot] }
func (k *fakeKernel) Raise(slot uint32)             { defer k.lock()(); k.gen[slot]++ }
func (k *fakeKernel) Version(slot uint32) uint64    { defer k.lock()(); return k.version[slot] }
func (k *fakeKernel) Void(slot uint32)              { defer k.lock()(); k.version[slot]++ }
func (k *fakeKernel) SetSources(gen uint64)         { defer k.lock()(); k.chosen = gen }
func (k *fakeKernel) Used(slot uint32) uint64       { defer k.lock()(); return k.use[slot] }
func (k *fakeKernel) Forget(slot uint32)            { defer k.lock()(); delete(k.use, slot) }

func (k *fakeKernel) PutPaths(keys []bpf.FastKey, paths []bpf.FastPath) error {
	k.mu.Lock()
	hold := k.hold
	k.mu.Unlock()
	if hold != nil {
		k.held <- struct{}{}
		<-hold
	}
	defer k.lock()()
	if k.putErr != nil {
		return k.putErr
	}
	for i := range keys {
		k.paths[keys[i]] = paths[i]
	}
	if f := k.arrive; f != nil {
		k.arrive = nil
		k.mu.Unlock()
		f()
		k.mu.Lock()
	}
	return nil
}

func (k *fakeKernel) DeletePaths(keys []bpf.FastKey) error {
	defer k.lock()()
	if k.deleteErr != nil {
		return k.deleteErr
	}
	for i := range keys {
		delete(k.paths, keys[i])
	}
	return nil
}

func (k *fakeKernel) PutSource(key *bpf.FastKey, slot uint16) error {
	defer k.lock()()
	k.sources[*key] = slot
	return nil
}

func (k *fakeKernel) DeleteSources(keys []bpf.FastKey) error {
	defer k.lock()()
	for i := range keys {
		delete(k.sources, keys[i])
	}
	return nil
}

func (k *fakeKernel) Insert(ports []uint16, done func(uint16, uint64, error)) error {
	for _, p := range ports {
		k.mu.Lock()
		var err error
		switch k.socks[p] = !k.refuse[p]; {
		case k.refuse[p]:
			err = bpf.ErrFastRefused
		case k.busy[p] > 0:
			k.busy[p]--
			err = bpf.ErrFastBusy
		}
		k.mu.Unlock()
		done(p, 88, err)
	}
	return nil
}

func (k *fakeKernel) Counts() (c [bpf.NumKernelWords]uint64) { return c }
func (k *fakeKernel) Prove() error                           { return nil }
func (k *fakeKernel) EndProof() error                        { return nil }
func (k *fakeKernel) Close() error {
	defer k.lock()()
	k.closed = true
	return nil
}

func (k *fakeKernel) size() int { defer k.lock()(); return len(k.paths) }

// served is what the program would do with a key: the path that it answers with.
func (k *fakeKernel) served(key bpf.FastKey, now int64) (sa.PathRecord, bool) {
	defer k.lock()()
	p, ok := k.paths[key]
	if !ok || !k.on || uint64(now) >= p.Expires || k.gen[p.GenSlot] != p.Gen || k.version[p.UseSlot] != p.Version ||
		key.Slot == bpf.FastNoSource && key.Kind != pathRequest && k.chosen != p.Sources {
		return sa.PathRecord{}, false
	}
	k.use[p.UseSlot] = uint64(now / int64(time.Second))
	return sa.PathRecord(p.Reply[8:72]), true
}

// fakeEngine answers from a real cache: a destination's entry, whatever the source.
type fakeEngine struct {
	cache     *cache.Cache
	start     time.Time
	mu        sync.Mutex
	refreshed map[resolver.Addr]int
	sources   []resolver.SourceSlot
	gen       resolver.Generation
	chosen    int64 // life of a choice of source
}

const slotOfSource = 3

var ourAddr = ip(0)

func (e *fakeEngine) Now() int64 { return int64(time.Since(e.start)) + int64(time.Hour) }

func (e *fakeEngine) Mirrored(q *resolver.Query, now int64, m *resolver.Mirrored) bool {
	*m = resolver.Mirrored{Until: math.MaxInt64}
	if q.Kind == resolver.AskSA {
		return false
	}
	m.Mapped, m.Slot, m.Src, m.Key = true, slotOfSource, q.Src, keyFor(&q.Dst)
	if q.Src.IsZero() {
		m.Src, m.Until, m.Gen = ourAddr, now+e.chosen, e.gen.Load()
	}
	meta, ok := e.cache.Get(&m.Key, now, (*[64]byte)(&m.Path))
	if !ok || meta.Status != 0 {
		return false
	}
	m.Scope, m.Until, m.Due = meta.Scope, min(m.Until, meta.Deadline), now >= meta.Refresh
	return true
}

func (e *fakeEngine) RefreshSoon(q *resolver.Query, _ int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.refreshed[q.Dst]++
}

func (e *fakeEngine) Sources() []resolver.SourceSlot {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.sources
}

func ip(i int) (a resolver.Addr) {
	a.Kind, a.Len = cache.KindIPv4, 4
	a.Data[0], a.Data[2], a.Data[3] = 10, byte(i>>8), byte(i)
	return a
}

func keyFor(a *resolver.Addr) cache.Key { return cache.MakeKey(slotOfSource, a.Kind, a.Bytes()) }

func question(i int, named bool) *resolver.Query {
	q := &resolver.Query{Kind: resolver.ByAddress, Dst: ip(i)}
	if named {
		q.Src = ourAddr
	}
	return q
}

// lab is a started service on fakes.
type lab struct {
	t *testing.T
	s *Service
	k *fakeKernel
	e *fakeEngine
	// changes are what Config.Changed was told.
	changes chan bool
}

func newLab(t *testing.T, cfg Config) *lab {
	l := &lab{t: t, k: newFakeKernel(), changes: make(chan bool, 100)}
	cfg.Changed, cfg.Log = func(on bool) { l.changes <- on }, slog.New(slog.DiscardHandler)
	l.s = New(cfg)
	l.e = &fakeEngine{start: time.Now(), refreshed: map[resolver.Addr]int{}, chosen: int64(30 * time.Second),
		cache: cache.New(cache.Config{Capacity: 1 << 12, Watch: l.s})}
	l.e.sources = []resolver.SourceSlot{{Addr: ourAddr, Slot: slotOfSource}}
	l.e.gen.Follow(l.s.Rechoose)
	l.s.Start(l.k, l.e)
	return l
}

func (l *lab) stop() {
	if err := l.s.Stop(); err != nil {
		l.t.Error(err)
	}
	if !l.k.closed {
		l.t.Error("the kernel's side is open")
	}
}

// put publishes the path to a destination.
func (l *lab) put(i int, lid mad.LID, m cache.Meta) {
	l.t.Helper()
	var p sa.PathRecord
	p.SetDLID(lid)
	if m.Deadline == 0 {
		m.Deadline, m.Refresh = math.MaxInt64, math.MaxInt64
	}
	a := ip(i)
	k := keyFor(&a)
	if !l.e.cache.Put(&k, (*[64]byte)(&p), m, l.e.cache.Epoch()) {
		l.t.Fatal("not published")
	}
}

// offer offers a question on a connection and waits until it was looked at.
func (l *lab) offer(q *resolver.Query) {
	c := l.s.Accept(1).(*Client)
	c.Offer(q)
	synctest.Wait()
}

// lid is what the kernel answers with, 0: it does not.
func (l *lab) lid(q *resolver.Query) mad.LID {
	key, ok := keyOf(q, slotOfSource)
	if !ok {
		l.t.Fatal("no key")
	}
	p, _ := l.k.served(key, l.e.Now())
	return p.DLID()
}

func (l *lab) want(q *resolver.Query, lid mad.LID) {
	l.t.Helper()
	if got := l.lid(q); got != lid {
		l.t.Errorf("the kernel answers with LID %d, want %d", got, lid)
	}
}

var errKernel = errors.New("kernel says no")
