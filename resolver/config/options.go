// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package config

import (
	"errors"
	"fmt"
	"math"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"acmd/mad"
)

// option is one name of the options file: how a value is read into Settings and
// how it is written back. set leaves the settings alone when it returns an error.
type option struct {
	name string
	set  func(*Settings, string) error
	get  func(*Settings) string
}

// options is in the order in which the generated file and Effective list them.
var options = []option{
	path("log_file", func(s *Settings) *string { return &s.LogFile }),
	number("log_level", 0, 2, func(s *Settings) *int { return &s.LogLevel }),
	number("umad_debug_level", 0, math.MaxInt32, func(s *Settings) *int { return &s.UmadDebugLevel }),
	path("lock_file", func(s *Settings) *string { return &s.LockFile }),
	addrProt,
	minutes("addr_timeout", func(s *Settings) *time.Duration { return &s.AddrTimeout }, true),
	word("route_prot", routeProts, func(s *Settings) *RouteProt { return &s.RouteProt }),
	minutes("route_timeout", func(s *Settings) *time.Duration { return &s.RouteTimeout }, true),
	word("loopback_prot", loopbackProts, func(s *Settings) *bool { return &s.LoopbackProt }),
	port("server_port", 1, func(s *Settings) *uint16 { return &s.ServerPort }),
	word("server_mode", serverModes, func(s *Settings) *ServerMode { return &s.ServerMode }),
	truth("acme_plus_kernel_only", func(s *Settings) *bool { return &s.AcmePlusKernelOnly }),
	millis("timeout", 1, func(s *Settings) *time.Duration { return &s.Timeout }),
	number("retries", 0, 1000, func(s *Settings) *int { return &s.Retries }),
	window("resolve_depth", func(s *Settings) *int { return &s.ResolveDepth }),
	window("sa_depth", func(s *Settings) *int { return &s.SAWindow }),
	number("send_depth", 1, 65535, func(s *Settings) *int { return &s.SendDepth }),
	number("recv_depth", 1, 65535, func(s *Settings) *int { return &s.RecvDepth }),
	word("min_mtu", mtus, func(s *Settings) *mad.MTU { return &s.MinMTU }),
	word("min_rate", rates, func(s *Settings) *mad.Rate { return &s.MinRate }),
	word("route_preload", routePreloads, func(s *Settings) *RoutePreload { return &s.RoutePreload }),
	path("route_data_file", func(s *Settings) *string { return &s.RouteDataFile }),
	word("addr_preload", addrPreloads, func(s *Settings) *bool { return &s.AddrPreload }),
	path("addr_data_file", func(s *Settings) *string { return &s.AddrDataFile }),
	flag("support_ips_in_addr_cfg", func(s *Settings) *bool { return &s.SupportIPsInAddr }),
	path("provider_lib_path", func(s *Settings) *string { return &s.ProviderLibPath }),
	millis("request_timeout", 1, func(s *Settings) *time.Duration { return &s.RequestTimeout }),
	millisUpTo("kernel_timeout", 100, 200_000, func(s *Settings) *time.Duration { return &s.KernelTimeout }),
	minutes("refresh", func(s *Settings) *time.Duration { return &s.Refresh }, false),
	millis("negative_timeout", 0, func(s *Settings) *time.Duration { return &s.NegativeTimeout }),
	number("cache_size", 16, 1<<24, func(s *Settings) *int { return &s.CacheSize }),
	number("server_threads", 1, 64, func(s *Settings) *int { return &s.ServerThreads }),
	number("max_clients", 1, 1<<20, func(s *Settings) *int { return &s.MaxClients }),
	number("max_user_clients", 0, 1<<20, func(s *Settings) *int { return &s.MaxUserClients }),
	millis("poll_interval", 10, func(s *Settings) *time.Duration { return &s.PollInterval }),
	number("sa_max_rate", 0, 10_000_000, func(s *Settings) *int { return &s.SAMaxRate }),
	word("fast_path", fastPaths, func(s *Settings) *FastPath { return &s.FastPath }),
	port("fast_path_port", 0, func(s *Settings) *uint16 { return &s.FastPathPort }),
	word("fast_path_miss", fastPathMisses, func(s *Settings) *bool { return &s.FastPathWait }),
	address("metrics_addr", func(s *Settings) *string { return &s.MetricsAddr }),
	bpfDir,
}

var optionIndex = func() map[string]*option {
	m := make(map[string]*option, len(options))
	for i := range options {
		m[options[i].name] = &options[i]
	}
	return m
}()

// pair is a word of the file and what it stands for; the first pair with a
// value is the word that is written back.
type pair[T comparable] struct {
	word string
	v    T
}

var (
	serverModes    = []pair[ServerMode]{{"unix", ModeUnix}, {"loop", ModeLoop}, {"open", ModeOpen}}
	routeProts     = []pair[RouteProt]{{"sa", RouteSA}, {"acm", RouteACM}}
	loopbackProts  = []pair[bool]{{"none", false}, {"local", true}}
	routePreloads  = []pair[RoutePreload]{{"none", PreloadNone}, {"no", PreloadNone}, {"opensm_full_v1", PreloadFile}, {"sa", PreloadSA}}
	addrPreloads   = []pair[bool]{{"none", false}, {"no", false}, {"acm_hosts", true}}
	fastPaths      = []pair[FastPath]{{"off", FastPathOff}, {"kernel", FastPathKernel}, {"kernel-all", FastPathAll}}
	fastPathMisses = []pair[bool]{{"fail", false}, {"wait", true}}
	mtus           = []pair[mad.MTU]{{"256", 1}, {"512", 2}, {"1024", 3}, {"2048", 4}, {"4096", 5}}

	// Gb/s to rate codes (IBTA vol. 1, PathRecord); "2" is 2.5 Gb/s. Those that
	// ibacm does not have are of newer link speeds.
	rates = []pair[mad.Rate]{
		{"2", 2}, {"5", 5}, {"10", 3}, {"14", 11}, {"20", 6}, {"25", 15}, {"28", 19}, {"30", 4}, {"40", 7},
		{"50", 20}, {"56", 12}, {"60", 8}, {"80", 9}, {"100", 16}, {"112", 13}, {"120", 10}, {"168", 14},
		{"200", 17}, {"300", 18}, {"400", 21}, {"600", 22}, {"800", 23}, {"1200", 24},
	}
)

func wordOf[T comparable](ps []pair[T], v T) string {
	for _, p := range ps {
		if p.v == v {
			return p.word
		}
	}
	return fmt.Sprint(v)
}

// path reads the name of a file, of which a relative one is in the directory of the
// start: the daemon does not stay there.
func path(name string, at func(*Settings) *string) option {
	return option{name,
		func(s *Settings, v string) error {
			if s.dir != "" && !filepath.IsAbs(v) && v != "stdout" && v != "stderr" {
				v = filepath.Join(s.dir, v)
			}
			*at(s) = v
			return nil
		},
		func(s *Settings) string { return *at(s) }}
}

func word[T comparable](name string, ps []pair[T], at func(*Settings) *T) option {
	return option{name,
		func(s *Settings, v string) error {
			i := slices.IndexFunc(ps, func(p pair[T]) bool { return strings.EqualFold(p.word, v) })
			if i < 0 {
				known := make([]string, len(ps))
				for j, p := range ps {
					known[j] = p.word
				}
				return fmt.Errorf("%q is none of %s", v, strings.Join(known, ", "))
			}
			*at(s) = ps[i].v
			return nil
		},
		func(s *Settings) string { return wordOf(ps, *at(s)) }}
}

func parseInt(v string, low, high int) (int, error) {
	n, err := strconv.ParseInt(v, 10, 64)
	switch {
	case errors.Is(err, strconv.ErrSyntax):
		return 0, fmt.Errorf("%q is not a number", v)
	case err != nil, n < int64(low), n > int64(high):
		return 0, fmt.Errorf("%s is outside %d ... %d", v, low, high)
	}
	return int(n), nil
}

func number(name string, low, high int, at func(*Settings) *int) option {
	return option{name,
		func(s *Settings, v string) error {
			n, err := parseInt(v, low, high)
			if err == nil {
				*at(s) = n
			}
			return err
		},
		func(s *Settings) string { return strconv.Itoa(*at(s)) }}
}

// window reads a depth of which 1 means "choose it yourself": it is ibacm's
// default and thus in every generated file, where it was never meant as a limit.
func window(name string, at func(*Settings) *int) option {
	return option{name,
		func(s *Settings, v string) error {
			n, err := parseInt(v, 1, 65535)
			if err == nil {
				*at(s) = n
				if n == 1 {
					*at(s) = 0
				}
			}
			return err
		},
		func(s *Settings) string { return strconv.Itoa(max(*at(s), 1)) }}
}

func port(name string, low int, at func(*Settings) *uint16) option {
	return option{name,
		func(s *Settings, v string) error {
			n, err := parseInt(v, low, 65535)
			if err == nil {
				*at(s) = uint16(n)
			}
			return err
		},
		func(s *Settings) string { return strconv.Itoa(int(*at(s))) }}
}

func millis(name string, low int, at func(*Settings) *time.Duration) option {
	return millisUpTo(name, low, 3_600_000, at)
}

func millisUpTo(name string, low, high int, at func(*Settings) *time.Duration) option {
	return option{name,
		func(s *Settings, v string) error {
			n, err := parseInt(v, low, high)
			if err == nil {
				*at(s) = time.Duration(n) * time.Millisecond
			}
			return err
		},
		func(s *Settings) string { return strconv.FormatInt(at(s).Milliseconds(), 10) }}
}

// minutes reads a lifetime; with forever, -1 stands for [Forever].
func minutes(name string, at func(*Settings) *time.Duration, forever bool) option {
	low := 0
	if forever {
		low = -1
	}
	return option{name,
		func(s *Settings, v string) error {
			n, err := parseInt(v, low, 100*365*24*60)
			if err != nil {
				return err
			}
			if *at(s) = time.Duration(n) * time.Minute; n < 0 {
				*at(s) = Forever
			}
			return nil
		},
		func(s *Settings) string {
			if *at(s) == Forever {
				return "-1"
			}
			return strconv.FormatInt(int64(*at(s)/time.Minute), 10)
		}}
}

// address reads where to listen: off, HOST:PORT or an absolute path. HOST may be
// empty for every address of the machine; PORT is a number.
func address(name string, at func(*Settings) *string) option {
	return option{name,
		func(s *Settings, v string) error {
			switch host, port, err := net.SplitHostPort(v); {
			case strings.EqualFold(v, "off"):
				v = ""
			case filepath.IsAbs(v):
				if len(v) > maxSocketPath {
					return fmt.Errorf("%q is longer than a socket's path can be (%d bytes)", v, maxSocketPath)
				}
			case err != nil:
				return fmt.Errorf("%q is none of off, HOST:PORT, an absolute path", v)
			default:
				if _, err := parseInt(port, 0, 65535); err != nil {
					return fmt.Errorf("port of %q: %w", v, err)
				}
				if strings.ContainsAny(host, "/") {
					return fmt.Errorf("%q is no host", host)
				}
			}
			*at(s) = v
			return nil
		},
		func(s *Settings) string {
			if *at(s) == "" {
				return "off"
			}
			return *at(s)
		}}
}

// bpfDir is a directory on a bpf file system, or none.
var bpfDir = option{"bpf_dir",
	func(s *Settings, v string) error {
		switch {
		case strings.EqualFold(v, "none"):
			v = ""
		case !filepath.IsAbs(v):
			return fmt.Errorf("%q is neither none nor an absolute path", v)
		}
		s.BPFDir = v
		return nil
	},
	func(s *Settings) string {
		if s.BPFDir == "" {
			return "none"
		}
		return s.BPFDir
	}}

// maxSocketPath is what fits into sun_path with its NUL (unix(7)).
const maxSocketPath = 107

// truth reads true, yes or a number, and their opposites.
func truth(name string, at func(*Settings) *bool) option {
	o := option{name: name}
	o.set = func(s *Settings, v string) error {
		switch strings.ToLower(v) {
		case "true", "yes":
			*at(s) = true
			return nil
		case "false", "no":
			*at(s) = false
			return nil
		}
		n, err := strconv.ParseInt(v, 10, 64)
		if err != nil {
			return fmt.Errorf("%q is none of yes, true, no, false, a number", v)
		}
		*at(s) = n != 0
		return nil
	}
	o.get = func(s *Settings) string {
		if *at(s) {
			return "yes"
		}
		return "no"
	}
	return o
}

// flag is a truth that is written back as 1 or 0.
func flag(name string, at func(*Settings) *bool) option {
	o := truth(name, at)
	o.get = func(s *Settings) string {
		if *at(s) {
			return "1"
		}
		return "0"
	}
	return o
}

// addrProt takes only known sources; a file's line goes through
// [loader.addrProt], which can keep a part of the list.
var addrProt = option{"addr_prot",
	func(s *Settings, v string) error {
		list := strings.Split(strings.ToLower(v), ",")
		for i, w := range list {
			if !slices.Contains(s.sources, w) || slices.Contains(list[:i], w) {
				return fmt.Errorf("unknown or repeated source %q (known: %s)", w, strings.Join(s.sources, ", "))
			}
		}
		s.AddrProt = list
		return nil
	},
	func(s *Settings) string { return strings.Join(s.AddrProt, ",") }}

// RateGbps names a rate code by its Gb/s, as min_rate does: "2" is 2.5. It is
// "" for a code that is not known.
func RateGbps(r mad.Rate) string {
	for _, p := range rates {
		if p.v == r {
			return p.word
		}
	}
	return ""
}
