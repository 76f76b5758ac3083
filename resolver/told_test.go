// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package resolver

import (
	"testing"
	"time"

	"acmd/mad"
	"acmd/mad/transport"
)

// toldFabric is a fabric that says how it learns of changes.
type toldFabric struct {
	*fakeFabric
	source string
}

func (f *toldFabric) EventSources() []transport.EventSource {
	return []transport.EventSource{{Device: "mlx5_0", Source: f.source}}
}

// Devices that tell of their changes are looked at a tenth as often as those that do
// not. A change of which the event was lost is found even so, and one that is told at
// once (field case 22).
func TestToldPolls(t *testing.T) {
	for source, polls := range map[string]int{"uverbs": 10, transport.SourcePoll: 100} {
		var fab *toldFabric
		bubble(t, func(l *lab, cfg *Config) {
			fab = &toldFabric{l.fab, source}
			cfg.Fabric = fab
		}, func(t *testing.T, l *lab) {
			looks := func() int { l.fab.mu.Lock(); defer l.fab.mu.Unlock(); return l.fab.looks }
			before := looks()
			time.Sleep(100*DefaultPoll + DefaultPoll/2)
			if n := looks() - before; n != polls {
				t.Errorf("%s: %d looks in 100 polls, want %d", source, n, polls)
			}
			down := port(1, 5)
			down.State = mad.PortDown
			l.fab.set(device("mlx5_0", down))
			time.Sleep(toldPolls*DefaultPoll + DefaultPoll/2)
			if n := len(l.e.Endpoints()); n != 0 {
				t.Errorf("%s: %d endpoints after a change that was not told", source, n)
			}
			l.fab.set(device("mlx5_0", port(1, 5)))
			l.fab.events <- transport.Event{Type: transport.EventPortActive, Device: "mlx5_0", Port: 1}
			time.Sleep(time.Millisecond)
			if n := len(l.e.Endpoints()); n != 1 {
				t.Errorf("%s: %d endpoints after a change that was told", source, n)
			}
		})
	}
}
