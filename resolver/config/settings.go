// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package config

import (
	"fmt"
	"log/slog"
	"math"
	"path/filepath"
	"strings"
	"time"

	"acmd/mad"
)

// Where the files are unless a flag says otherwise.
const (
	DefaultConfDir = "/etc/rdma"
	DefaultRunDir  = "/run"
	OptionsFile    = "ibacm_opts.cfg"
	AddressFile    = "ibacm_addr.cfg"
	RouteFile      = "ibacm_route.data"
	HostsFile      = "ibacm_hosts.data"

	DefaultBPFDir = "/sys/fs/bpf/acmd"
)

// Forever is the lifetime of what is never dropped for age (-1 in the file).
const Forever time.Duration = math.MaxInt64

// LevelTrace is the level of messages about single requests (log_level 2).
const LevelTrace = slog.LevelDebug - 4

// ServerMode says how clients reach the service.
type ServerMode uint8

const (
	ModeUnix ServerMode = iota // unix socket in the run directory
	ModeLoop                   // TCP on 127.0.0.1
	ModeOpen                   // TCP on every address
)

func (m ServerMode) String() string { return wordOf(serverModes, m) }

// RouteProt says where the path to a known GID comes from.
type RouteProt uint8

const (
	RouteSA  RouteProt = iota // PathRecord query
	RouteACM                  // parameters of the multicast group
)

// RoutePreload says where paths come from before anybody asks for them.
type RoutePreload uint8

const (
	PreloadNone RoutePreload = iota
	PreloadFile              // OpenSM's full dump of path records
	PreloadSA                // one question to the SA
)

func (p RouteProt) String() string { return wordOf(routeProts, p) }

// FastPath says on which connections the kernel answers.
type FastPath uint8

const (
	FastPathOff    FastPath = iota // none
	FastPathKernel                 // those that the daemon has accepted and answered on
	FastPathAll                    // also those that just connected, host-wide
)

func (p FastPath) String() string { return wordOf(fastPaths, p) }

// DefaultFastPathPort is out of reach of ordinary users (below 1024), and of the
// ports that RPC services take (512 to 1023).
const DefaultFastPathPort = 249

// Settings is every option of ibacm_opts.cfg. Windows, depths and counts are
// plain numbers; times are durations whatever unit the file has.
type Settings struct {
	LogFile            string     // path, "stdout" or "stderr"
	LogLevel           int        // 0 errors and configuration, 1 more of both, 2 single requests
	UmadDebugLevel     int        // accepted, without effect: there is no libibumad
	LockFile           string     // path
	ServerPort         uint16     // TCP port of modes loop and open
	ServerMode         ServerMode //
	AcmePlusKernelOnly bool       // hide the service from librdmacm (no symbolic link)
	ProviderLibPath    string     // accepted, without effect: providers are built in
	SupportIPsInAddr   bool       // accept IP lines in the address file

	Timeout      time.Duration // longest gap between two tries of a flight (file: ms)
	Retries      int           // least number of tries after the first
	SAWindow     int           // sa_depth: outstanding SA requests per port; 0 automatic
	ResolveDepth int           // outstanding multicast questions per endpoint; 0 automatic
	SendDepth    int           // outstanding multicast answers per endpoint
	RecvDepth    int           // receive buffers per endpoint

	AddrProt     []string      // names of address sources, first answer wins
	AddrTimeout  time.Duration // lifetime of an address (file: minutes); Forever; 0: not kept
	RouteProt    RouteProt     //
	RouteTimeout time.Duration // lifetime of a path (file: minutes); Forever; 0: to the end of the minute
	LoopbackProt bool          // loopback_prot local: own addresses are answered without the fabric
	MinMTU       mad.MTU       // MTU code of the group that everybody can join
	MinRate      mad.Rate      // rate code of that group

	RoutePreload  RoutePreload //
	RouteDataFile string       // path
	AddrPreload   bool         // addr_preload acm_hosts
	AddrDataFile  string       // path

	Providers       []ProviderRule // in file order
	DefaultProvider string         // provider of ports that no rule matches

	// Options that ibacm does not have.
	RequestTimeout  time.Duration // a client is answered by then (file: ms)
	KernelTimeout   time.Duration // how long the kernel waits for a path before it asks the SA (file: ms)
	Refresh         time.Duration // a path in use is asked again at this age (file: minutes); 0: never
	NegativeTimeout time.Duration // how long a failure is remembered (file: ms); 0: not
	CacheSize       int           // paths kept
	ServerThreads   int           // event loops of the client socket
	MaxClients      int           // client connections
	MaxUserClients  int           // those of one user on the unix socket; 0: no bound
	PollInterval    time.Duration // how often devices and links are looked at (file: ms)
	SAMaxRate       int           // SA requests per second of the node; 0: no limit
	BPFDir          string        // directory of the pinned counters' own directories; "": nothing is pinned
	FastPath        FastPath      // what the kernel answers inside the client's send()
	FastPathPort    uint16        // TCP port on 127.0.0.1 for it with server_mode unix; 0: any
	FastPathWait    bool          // fast_path_miss wait: its clients wait for what the kernel does not know
	MetricsAddr     string        // where Prometheus scrapes: HOST:PORT or the path of a unix socket; "": off

	origins map[string]Origin // by option name; absent: default
	sources []string          // what AddrProt may name
	dir     string            // of relative paths; "": they stay relative
}

// ProviderRule is a line "provider NAME PREFIX".
type ProviderRule struct {
	Name   string
	Prefix uint64 // subnet prefix of GID 0 of a port
	Origin Origin
}

// providerDefault is the origin's name of a line "provider NAME default".
const providerDefault = "provider default"

// Origin says where a value came from. The zero value is the built-in default.
type Origin struct {
	File string // as it was given to Load
	Line int    // 1-based
	Flag bool   // from the command line
}

func (o Origin) String() string {
	switch {
	case o.Flag:
		return "flag"
	case o.File != "":
		return fmt.Sprintf("%s:%d", o.File, o.Line)
	}
	return "default"
}

// Defaults returns the settings of an empty file. An empty directory name
// stands for DefaultConfDir or DefaultRunDir.
func Defaults(confDir, runDir string) *Settings {
	if confDir == "" {
		confDir = DefaultConfDir
	}
	if runDir == "" {
		runDir = DefaultRunDir
	}
	return &Settings{
		LogFile:         "/var/log/ibacm.log",
		LockFile:        filepath.Join(runDir, "ibacm.pid"),
		ServerPort:      6125,
		FastPathPort:    DefaultFastPathPort,
		ServerMode:      ModeUnix,
		Timeout:         2 * time.Second,
		Retries:         2,
		SendDepth:       1,
		RecvDepth:       1024,
		AddrProt:        []string{sourceACM},
		AddrTimeout:     24 * time.Hour,
		RouteTimeout:    Forever,
		LoopbackProt:    true,
		MinMTU:          4,
		MinRate:         3,
		RouteDataFile:   filepath.Join(confDir, RouteFile),
		AddrDataFile:    filepath.Join(confDir, HostsFile),
		DefaultProvider: "ibacmp",
		RequestTimeout:  2 * time.Second,
		KernelTimeout:   2 * time.Second,
		Refresh:         15 * time.Minute,
		BPFDir:          DefaultBPFDir,
		NegativeTimeout: time.Second,
		CacheSize:       65536,
		ServerThreads:   1,
		MaxClients:      16384,
		PollInterval:    time.Second,
		origins:         map[string]Origin{},
		sources:         []string{sourceACM},
	}
}

// Origin returns where the value of an option (by its name in the file) came
// from; of "provider", which stands for all its lines, the first of them.
func (s *Settings) Origin(name string) Origin {
	if name = strings.ToLower(name); name != "provider" {
		return s.origins[name]
	}
	first := s.origins[providerDefault]
	for _, r := range s.Providers {
		if first == (Origin{}) || r.Origin.Line < first.Line {
			first = r.Origin
		}
	}
	return first
}

// Keep takes the value of an option, and its origin, from other settings: what a
// reload could not put into force.
func (s *Settings) Keep(name string, from *Settings) error {
	o := optionIndex[name]
	if o == nil {
		return fmt.Errorf("unknown option %q", name)
	}
	if err := o.set(s, o.get(from)); err != nil {
		return fmt.Errorf("option %s: %w", name, err)
	}
	s.origins[name] = from.origins[name]
	return nil
}

// SlogLevel maps log_level to the level from which messages are written.
func (s *Settings) SlogLevel() slog.Level {
	switch s.LogLevel {
	case 0:
		return slog.LevelInfo
	case 1:
		return slog.LevelDebug
	}
	return LevelTrace
}
