// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package config

import (
	"slices"
	"time"
)

// The most, or the least, of a value that makes a difference: the rooms that take it
// go no further. The file may say more, as it may be another daemon's too.
const (
	MaxRetries      = 32
	MaxSAWindow     = 4096
	MaxResolveDepth = 1024
	MaxSARate       = 1 << 20
	MaxSendDepth    = 256
	MaxRecvDepth    = 8192
	MinRecvDepth    = 16
	MinSATimeout    = 500 * time.Millisecond // of timeout, for questions to the SA
)

// Words of addr_prot.
const (
	sourceACM     = "acm"
	sourceNeigh   = "neigh" // the kernel's neighbour table
	sourcePreload = "preload"
)

// inert warns of values that will do nothing, or not what they say, once all lines are
// known.
func (l *loader) inert() {
	s := l.s
	l.inertDoors()
	l.inertFast()
	l.nothing("umad_debug_level", "libibumad is not used")
	l.nothing("provider_lib_path", "providers are built in")
	if l.env.Background && (s.LogFile == "stdout" || s.LogFile == "stderr") {
		l.nothing("log_file", "in the background that leads nowhere once clients are served; -P stays in the foreground")
	}
	if l.env.NoKernel {
		l.nothing("kernel_timeout", "the fabric is not the kernel's")
	}
	if l.env.NoQueues {
		l.nothing("send_depth", "without +verbs there are no queue pairs of our own")
		l.nothing("recv_depth", "without +verbs there are no queue pairs of our own")
	}
	if !slices.Contains(s.AddrProt, sourceACM) {
		l.nothing("resolve_depth", "addr_prot does not name acm")
	}
	if s.RoutePreload != PreloadFile {
		l.nothing("route_data_file", "route_preload is "+wordOf(routePreloads, s.RoutePreload))
	}
	if s.RoutePreload == PreloadSA {
		switch {
		case s.RouteProt != RouteSA:
			l.nothing("route_preload", "with route_prot "+wordOf(routeProts, s.RouteProt)+" paths come from the groups")
		case s.AddrTimeout == 0:
			l.nothing("route_preload", "with addr_timeout 0 nothing is kept")
		case s.RouteTimeout == 0:
			l.nothing("route_preload", "with route_timeout 0 nothing is kept for longer than a minute")
		}
	}
	if !s.AddrPreload {
		l.nothing("addr_data_file", "addr_preload is none")
	}
	if slices.Contains(s.AddrProt, sourcePreload) && !s.AddrPreload && s.RoutePreload != PreloadFile {
		at := s.origins["addr_prot"]
		l.log.Warn(at.Line, "option addr_prot: %s has no effect: neither addr_preload nor route_preload names a file", sourcePreload)
	}
	l.most("retries", &s.Retries, MaxRetries)
	l.most("sa_depth", &s.SAWindow, MaxSAWindow)
	l.most("resolve_depth", &s.ResolveDepth, MaxResolveDepth)
	l.most("sa_max_rate", &s.SAMaxRate, MaxSARate)
	l.most("send_depth", &s.SendDepth, MaxSendDepth)
	l.most("recv_depth", &s.RecvDepth, MaxRecvDepth)
	l.least("recv_depth", &s.RecvDepth, MinRecvDepth)
	if at, ok := s.origins["timeout"]; ok && s.Timeout < MinSATimeout {
		l.log.Warn(at.Line, "option timeout %d counts as %d for the SA, which is not asked again any sooner", s.Timeout.Milliseconds(), MinSATimeout.Milliseconds())
	}
}

// inertDoors is for what depends on how clients come in.
func (l *loader) inertDoors() {
	s := l.s
	if l.env.Systemd && s.ServerMode != ModeUnix {
		l.nothing("server_mode", "under systemd the service is reached through its unix socket")
		s.ServerMode = ModeUnix
	}
	if s.ServerMode == ModeUnix {
		l.nothing("server_port", "server_mode is unix")
	} else if !l.env.Activated {
		l.nothing("max_user_clients", "only the unix socket tells whose a connection is, and server_mode is "+s.ServerMode.String())
	}
	if l.env.Activated {
		l.nothing("acme_plus_kernel_only", "the socket unit makes the symbolic link that librdmacm uses; remove its Symlinks line")
	}
}

// inertFast is for the options of the fast path.
func (l *loader) inertFast() {
	switch s := l.s; {
	case s.FastPath == FastPathOff:
		l.nothing("fast_path_port", "fast_path is off")
		l.nothing("fast_path_miss", "fast_path is off")
	case s.ServerMode != ModeUnix:
		l.nothing("fast_path_port", "with server_mode "+s.ServerMode.String()+" it is server_port")
	}
}

// nothing warns of an option that does nothing, if the file sets it to anything but its
// default.
func (l *loader) nothing(name, why string) {
	o := optionIndex[name]
	if at, ok := l.s.origins[name]; ok && o.get(l.s) != o.get(Defaults(l.env.ConfDir, l.env.RunDir)) {
		l.log.Warn(at.Line, "option %s %s has no effect: %s", name, o.get(l.s), why)
	}
}

// least takes a value up to the smallest that makes a difference, and says so.
func (l *loader) least(name string, v *int, least int) {
	if *v < least {
		l.log.Warn(l.s.origins[name].Line, "option %s %d counts as %d, the least there is", name, *v, least)
		*v = least
	}
}

// most takes a value down to the largest that makes a difference, and says so.
func (l *loader) most(name string, v *int, most int) {
	if *v > most {
		l.log.Warn(l.s.origins[name].Line, "option %s %d counts as %d, the most there is", name, *v, most)
		*v = most
	}
}
