// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package bpf

import (
	"errors"
	"fmt"
	"log/slog"
	"math/bits"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"
)

// Place says where the counters are.
type Place uint8

const (
	InMemory  Place = iota // ordinary memory: no privilege to make maps
	Anonymous              // maps of this process alone
	Pinned                 // pinned maps
)

func (p Place) String() string { return [...]string{"memory", "anonymous", "pinned"}[p] }

// Options say where to count.
type Options struct {
	// Dir is the pin directory, see [PinDir]; it must be on a bpf file system.
	// Empty: nothing is pinned.
	Dir string
	// RunDir is the daemon's run directory. The pins say whose they are.
	RunDir string
	Log    *slog.Logger // nil: slog.Default
}

// Maps is the memory that one daemon counts in. All methods are safe for
// concurrent use. Who still has a [Shard] or an [Endpoint] may write to it after
// Close; nobody may read that any more.
type Maps struct {
	*arrays
	place  Place
	dir    string
	reason error
	maps   acmMaps  // none of them in ordinary memory
	lock   *os.File // of the pin directory
	own    *Shard   // of Maps itself

	owned, shared atomic.Uint32 // slots handed out

	mu   sync.Mutex
	rows map[identity]*Endpoint
	full bool // said that no row is free
	log  *slog.Logger
}

// Open finds a place for counters: the pinned maps of Options.Dir, adopted where
// they fit and replaced where they do not, else maps of this process, else
// ordinary memory. What is less than asked for is no error; [Maps.Reason] says
// why, and the log.
func Open(o Options) (*Maps, error) {
	log := o.Log
	if log == nil {
		log = slog.Default()
	}
	_ = rlimit.RemoveMemlock() // kernels before 5.11; where it is refused, making maps says so
	spec, err := loadAcm()
	if err != nil {
		return nil, fmt.Errorf("embedded maps: %w", err)
	}
	kshards := kernelShards()
	spec.Maps[acmMapAcmKstat].MaxEntries = uint32(maxEndpoints * kshards)
	m := &Maps{log: log, dir: o.Dir}
	if o.Dir == "" {
		m.reason = errors.New("no pin directory is set")
	} else if m.lock, m.reason = lockPins(o.Dir); m.reason == nil {
		if m.reason = m.openPins(spec); m.reason != nil {
			_ = os.Remove(o.Dir) // nobody sweeps it; what is not empty stays
			m.lock.Close()
			m.lock = nil
		} else {
			m.place = Pinned
			sweep(filepath.Dir(o.Dir), log)
		}
	}
	if m.place != Pinned {
		if err := m.openOwn(spec); err != nil {
			m.reason = err // whatever kept it from the pins, this is worse
			m.arrays = heap()
		} else {
			m.place = Anonymous
		}
	}
	m.begin(o.RunDir, kshards)
	m.say()
	return m, nil
}

// openOwn makes maps of this process alone.
func (m *Maps) openOwn(spec *ebpf.CollectionSpec) (err error) {
	if err = spec.LoadAndAssign(&m.maps, nil); err != nil {
		if errors.Is(err, unix.EPERM) { // the library's advice is about memory limits
			err = fmt.Errorf("making maps takes CAP_BPF: %w", unix.EPERM)
		}
		return err
	}
	if m.arrays, err = mapped(&m.maps); err != nil {
		m.maps.Close()
		m.maps = acmMaps{}
	}
	return err
}

// NewMemory makes counters in ordinary memory, for tests and for those who were
// given none. It needs no Close.
func NewMemory() *Maps {
	m := &Maps{arrays: heap(), log: slog.Default()}
	m.begin("", 1)
	return m
}

// begin marks the start of a daemon in the header.
func (m *Maps) begin(runDir string, kshards int) {
	h := m.head
	if h.Magic == 0 { // new
		h.Kshards, h.Endpoints = uint32(kshards), 1
		h.Schema = schema
		h.Magic = magic
	}
	putString(h.RunDir[:], runDir)
	h.StartNs = uint64(time.Now().UnixNano())
	h.Boots++
	atomic.StoreUint32(&h.FastOn, 0)
	atomic.StoreUint32(&h.Pid, uint32(os.Getpid()))
	m.rows = make(map[identity]*Endpoint)
	for i := range int(min(h.Endpoints, maxEndpoints)) {
		m.rows[identityOf(&m.eps[i])] = m.endpoint(i)
	}
	m.SetActive(nil)
	m.own = m.Shard()
}

func (m *Maps) say() {
	switch m.place {
	case Pinned:
		m.log.Info("counters are pinned", "dir", m.dir, "daemon", m.head.Boots)
	default:
		m.log.Info("counters end with this process", "in", m.place, "reason", m.reason)
	}
}

// kernelShards is the number of slots that each endpoint has for counts of the
// kernel's programs: one for each CPU, up to 64.
func kernelShards() int {
	n, err := ebpf.PossibleCPU()
	if err != nil || n < 1 {
		n = 1
	}
	return min(1<<bits.Len(uint(n-1)), maxCPUSlots)
}

// Place says where the counters are, Dir the pin directory if they are pinned,
// and Reason why they are not.
func (m *Maps) Place() Place  { return m.place }
func (m *Maps) Dir() string   { return m.dir }
func (m *Maps) Reason() error { return m.reason }

// Share prepares the specification of an object whose programs count: its maps of
// this package become those of Maps, and acm_kshards the right number. It fails
// with [ErrNoMaps] in ordinary memory. The maps still belong to Maps, which must
// be closed after the programs.
func (m *Maps) Share(spec *ebpf.CollectionSpec) (opts ebpf.CollectionOptions, err error) {
	if m.place == InMemory {
		return opts, ErrNoMaps
	}
	opts.MapReplacements = map[string]*ebpf.Map{}
	for _, p := range m.maps.pins() {
		if s := spec.Maps[p.name]; s != nil {
			s.MaxEntries = (*p.m).MaxEntries()
			opts.MapReplacements[p.name] = *p.m
		}
	}
	if v := spec.Variables["acm_kshards"]; v != nil {
		err = v.Set(m.head.Kshards)
	}
	return opts, err
}

// ErrNoMaps tells that counters are in ordinary memory, where no program can
// reach them.
var ErrNoMaps = errors.New("counters are in ordinary memory")

// Shard hands out a slot for writers of any kind, which may have to share it;
// that costs cache lines in common and no count.
func (m *Maps) Shard() *Shard {
	n := m.shared.Add(1) - 1
	return m.shard(ownShards+n%(statShards-ownShards), ownLatShards+n%(latShards-ownLatShards))
}

// OwnShard hands out a slot for one goroutine and no other, which then counts
// without locking the bus. The first 64 in the life of Maps are of this kind, the
// first 8 for times; whoever comes later gets a shared one, which works alike.
func (m *Maps) OwnShard() *Shard {
	n := m.owned.Add(1) - 1
	if n >= ownShards {
		return m.Shard()
	}
	s := m.shard(n, n)
	s.own = true
	if s.ownLat = n < ownLatShards; !s.ownLat {
		s.lat = m.Shard().lat
	}
	return s
}

func (m *Maps) shard(n, lat uint32) *Shard {
	return &Shard{word: &m.stats[n].Word, lat: m.lat[lat%latShards*latClasses:][:latClasses], mem: m.arrays}
}

// The first half of the slots belong to one writer each.
const (
	ownShards    = statShards / 2
	ownLatShards = latShards / 2
)

// Close ends counting: the header says that no daemon is there, pins stay. Maps
// must not be used by programs any more.
func (m *Maps) Close() error {
	atomic.StoreUint32(&m.head.FastOn, 0)
	atomic.StoreUint32(&m.head.Pid, 0)
	var err error
	if m.place != InMemory {
		err = m.maps.Close()
	}
	if m.lock != nil {
		err = errors.Join(err, m.lock.Close())
	}
	return err
}
