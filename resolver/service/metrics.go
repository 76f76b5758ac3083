// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package service

import (
	"acmd/resolver/config"
	"acmd/resolver/metrics"
)

// metricsDoor is the door for Prometheus as `acmctl state` shows it.
type metricsDoor struct {
	address string // "": not to be had
	err     error  // why it is not to be had
}

// startMetrics opens the door that the settings say. Paths are what the node needs
// the daemon for: an address that is not to be had is an error in the log and in
// the state, and the daemon goes on.
func (d *Daemon) startMetrics(s *config.Settings) {
	if s.MetricsAddr == "" {
		return
	}
	server, err := metrics.Listen(s.MetricsAddr, metricsSource{d}, d.log)
	if err != nil {
		d.metrics.Store(&metricsDoor{err: err})
		d.log.Error("no metrics", "err", err)
		return
	}
	d.onStop(server.Close)
	at := server.Addr()
	d.metrics.Store(&metricsDoor{address: at.String()})
	d.log.Info("serving metrics", "network", at.Network(), "address", at.String())
}

func (m *metricsDoor) state() map[string]string {
	switch {
	case m == nil:
		return map[string]string{"address": "off"}
	case m.err != nil:
		return map[string]string{"address": "off", "error": m.err.Error()}
	}
	return map[string]string{"address": m.address}
}
