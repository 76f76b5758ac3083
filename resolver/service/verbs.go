// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package service

import (
	"fmt"
	"log/slog"
	"strings"

	"acmd/mad/verbs"
	"acmd/resolver/config"
)

// queuePairs is what --fabric ends with for queue pairs of our own.
const queuePairs = "+verbs"

// openFabric reads the --fabric option and attaches.
func openFabric(spec string, s *config.Settings, log *slog.Logger) (*fabricView, error) {
	base, wrap := strings.CutSuffix(spec, queuePairs)
	open, err := transportOf(base)
	if err != nil {
		return nil, err
	}
	v, err := open()
	if err != nil || !wrap {
		return v, err
	}
	f, err := verbs.Wrap(v.Fabric, verbs.Config{RecvDepth: s.RecvDepth, SendDepth: s.SendDepth, Log: log})
	if err != nil {
		v.Close()
		return nil, fmt.Errorf("--fabric %s: %w", spec, err)
	}
	v.Fabric = f
	return v, nil
}

// queuePairs is what the state says of a port's queue pairs, nil without any.
func (s *saPort) queuePairs() any {
	if s.queues == nil {
		return nil
	}
	return s.queues.Stats()
}
