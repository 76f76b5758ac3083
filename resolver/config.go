// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package resolver

import (
	"log/slog"
	"math"
	"time"

	"acmd/bpf"
	"acmd/cache"
	"acmd/mad"
	"acmd/mad/sa"
	"acmd/mad/transport"
)

// Forever is the lifetime of what is never dropped for age. A negative lifetime
// means the same.
const Forever time.Duration = math.MaxInt64

// Defaults of Config for fields that are zero.
const (
	DefaultRequestTimeout  = 2 * time.Second
	DefaultNegativeTimeout = time.Second
	DefaultAddressDeadline = 12 * time.Second
	DefaultRefresh         = 15 * time.Minute
	DefaultRefreshRate     = 100
	DefaultPoll            = time.Second
	DefaultMaxFlights      = 1 << 16
	DefaultMaxWaiters      = 1 << 18
	DefaultProviderName    = "ibacmp"
)

// SAResult is the outcome of one path query.
type SAResult struct {
	Path   sa.PathRecord // first 64 bytes of the answer when there was one
	Valid  bool          // Path is from an answer, whatever its status
	Status mad.Status    // of the answer
	// Err is set when there was no answer; it wraps ErrTimeout, ErrOverload or
	// ErrDown. On an answer it may be nil whatever the status.
	Err   error
	Tries int
}

// RouteSource has routes of its own, such as those of a file. It is asked before
// the SA for the path to a GID or a LID that nothing else constrains.
type RouteSource interface {
	// Route does not block. It is safe for concurrent use.
	Route(ep *Endpoint, dst Addr) (sa.PathRecord, bool)
}

// SA is the subnet administration as seen from one port. All methods are safe
// for concurrent use and do not block. One that also has
//
//	Done() <-chan struct{}
//
// is opened anew when that channel is closed: its device went, though it may be
// back by the time that anybody looks. One that is an [Informer] also passes on
// what the SM tells by itself, one that is a [Tabler] can be asked for many paths at once.
type SA interface {
	// Path asks for one path. done is called exactly once, from any goroutine,
	// possibly before Path returns. rec is copied.
	Path(mask sa.ComponentMask, rec *sa.PathRecord, done func(SAResult))
	// Update tells about new attributes of the port: LID, SM LID, SL, state.
	Update(info transport.PortInfo)
	// Close fails what is outstanding and ends the client.
	Close()
}

// AddressEntry is a line of the address file: an address that belongs to an
// endpoint by configuration.
type AddressEntry struct {
	Addr    Addr
	Text    string // as configured
	Device  string // compared without case
	Port    uint8
	PKey    mad.PKey // compared without the membership bit
	Default bool     // the first valid P_Key of the port instead of PKey
}

// ProviderRule is a line "provider NAME PREFIX": the provider of ports whose GID
// 0 has that subnet prefix.
type ProviderRule struct {
	Name   string // compared without case
	Prefix uint64
}

// Config has what an engine is made of. Fabric, Host and OpenSA are required.
type Config struct {
	Fabric transport.Fabric
	Host   Host
	// OpenSA opens the SA client of an InfiniBand port. It is called on the
	// topology goroutine, again at each poll while it fails, and never for a
	// port of another link layer.
	OpenSA  func(device string, info transport.PortInfo) (SA, error)
	Sources []AddressSource // the address step, in order
	Routes  RouteSource     // routes that are known without the SA; nil: none
	Log     *slog.Logger    // nil: slog.Default

	// Cache has the paths; nil: one of CacheSize entries, which Mirror watches.
	Cache     *cache.Cache
	CacheSize int
	// Mirror serves some of them without the engine; nil: nobody does.
	Mirror Mirror

	Addresses       []AddressEntry // of the address file
	Providers       []Provider     // besides the built-in "ibacmp"
	ProviderRules   []ProviderRule // in order
	DefaultProvider string         // ""; DefaultProviderName

	// GIDTable reads the GID table of a port, whatever its link layer; nil: the
	// tables that Fabric shows are all there is. It may block.
	GIDTable func(device string, port uint8) ([]transport.GIDEntry, error)

	// Loopback answers for local addresses without the fabric.
	Loopback bool

	// RequestTimeout is when a waiter is told StatusTimedOut; its flight goes on.
	RequestTimeout time.Duration
	// AddressDeadline bounds each source of the address step.
	AddressDeadline time.Duration
	// NegativeTimeout is how long a failure is remembered. Negative: not at all.
	NegativeTimeout time.Duration
	// AddrTimeout and RouteTimeout are lifetimes: Forever or negative never end,
	// 0 is what the option says: no caching at all for an address, until the end
	// of the current minute for a route. An entry lives as long as both.
	AddrTimeout  time.Duration
	RouteTimeout time.Duration
	// Refresh is the age at which a hit starts a new lookup behind the answer,
	// at most RefreshRate of them a second. Negative: never.
	Refresh     time.Duration
	RefreshRate int

	// Prefetch asks for the paths to all ports at once where the SA is a [Tabler].
	// Where AddrTimeout or RouteTimeout is 0, nothing is kept that long.
	Prefetch bool

	// Poll is how often devices and addresses are looked at beside events.
	Poll time.Duration

	MaxFlights int // lookups under way, of all endpoints
	MaxWaiters int // queries that wait for them

	// Counters is where everything is counted; nil: ordinary memory. The service's
	// totals are those of all who count there.
	Counters *bpf.Maps

	// OnTopology is told the endpoints on active ports after each change of
	// them, OnEvent each event of an InfiniBand port that exists, after a look at
	// the devices. Of events that follow each other closely that is the look at the
	// first one; OnTopology tells what they changed when they have ended. Both run
	// on the topology goroutine, OnTopology for the first time inside New; they must
	// not call SetAddresses.
	OnTopology func([]*Endpoint)
	OnEvent    func(transport.Event)
	// OnNotice is told each notice of the SM, after the engine acted on it. It runs
	// on a goroutine of the SA client and must not block; the notice is valid during
	// the call.
	OnNotice func(device string, port uint8, n *sa.Notice)
}

func (c *Config) setDefaults() {
	if c.Log == nil {
		c.Log = slog.Default()
	}
	if c.CacheSize <= 0 {
		c.CacheSize = 1 << 16
	}
	if c.Counters == nil {
		c.Counters = bpf.NewMemory()
	}
	if c.DefaultProvider == "" {
		c.DefaultProvider = DefaultProviderName
	}
	setDefault(&c.RequestTimeout, DefaultRequestTimeout)
	setDefault(&c.AddressDeadline, DefaultAddressDeadline)
	setDefault(&c.Refresh, DefaultRefresh)
	setDefault(&c.Poll, DefaultPoll)
	if c.NegativeTimeout == 0 {
		c.NegativeTimeout = DefaultNegativeTimeout
	}
	if c.RefreshRate <= 0 {
		c.RefreshRate = DefaultRefreshRate
	}
	if c.MaxFlights <= 0 {
		c.MaxFlights = DefaultMaxFlights
	}
	if c.MaxWaiters <= 0 {
		c.MaxWaiters = DefaultMaxWaiters
	}
	if c.AddrTimeout < 0 {
		c.AddrTimeout = Forever
	}
	if c.RouteTimeout < 0 {
		c.RouteTimeout = Forever
	}
	if c.Refresh < 0 || c.Refresh > Forever/4 { // sums of times must not wrap
		c.Refresh = Forever
	}
}

func setDefault(d *time.Duration, v time.Duration) {
	if *d == 0 {
		*d = v
	}
}
