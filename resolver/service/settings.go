// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package service

import (
	"time"

	"acmd/resolver"
	"acmd/resolver/config"
)

// noRecordTries is how often a "no records" of the SA is asked again: right
// after a node's reboot or in the middle of a sweep it is not the last word.
const noRecordTries = 1

// engineConfig translates the words of the options file into the engine's. The
// file's 0 means "not at all" where the engine's zero value means "default".
func engineConfig(s *config.Settings) resolver.Config {
	cfg := resolver.Config{
		CacheSize:       s.CacheSize,
		DefaultProvider: s.DefaultProvider,
		Loopback:        s.LoopbackProt,
		RequestTimeout:  s.RequestTimeout,
		NegativeTimeout: offIfZero(s.NegativeTimeout),
		AddrTimeout:     s.AddrTimeout,
		RouteTimeout:    s.RouteTimeout,
		Refresh:         offIfZero(s.Refresh),
		Poll:            s.PollInterval,
		Prefetch:        s.RoutePreload == config.PreloadSA && s.RouteProt == config.RouteSA,
	}
	for _, r := range s.Providers {
		cfg.ProviderRules = append(cfg.ProviderRules, resolver.ProviderRule{Name: r.Name, Prefix: r.Prefix})
	}
	return cfg
}

func offIfZero(d time.Duration) time.Duration {
	if d == 0 {
		return -1
	}
	return d
}
