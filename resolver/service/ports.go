// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package service

import (
	"context"
	"log/slog"
	"sort"
	"sync"
	"time"

	"acmd/bpf"
	"acmd/mad/transport"
	"acmd/mad/verbs"
	"acmd/resolver"
	"acmd/resolver/acmp"
	"acmd/resolver/acmsock"
	saclient "acmd/resolver/sa"
)

// portTable has the SA client of each open port.
type portTable struct {
	fabric   transport.Fabric
	cfg      saclient.Config
	counters *bpf.Maps
	log      *slog.Logger
	acm      *acmp.Source
	suspect  func() // asks the engine to read the ports again; set once it runs

	mu    sync.Mutex
	ports map[portID]*saPort
	told  map[portID]openings
	door  *acmsock.Server // whose loop may run the clients' turns
}

type portID struct {
	device string
	port   uint8
}

// A port that opens again and again is told openLines times in openLinesEvery
// (field case 76); the rest is for whoever looks closer.
const (
	openLines      = 3
	openLinesEvery = 10 * time.Minute
)

type openings struct {
	since time.Time
	n     int
}

func newPortTable(f transport.Fabric, cfg saclient.Config, counters *bpf.Maps, log *slog.Logger) *portTable {
	t := &portTable{fabric: f, cfg: cfg, counters: counters, log: log, ports: map[portID]*saPort{}, told: map[portID]openings{}}
	t.cfg.Suspect = t.doubt
	return t
}

// open is the engine's OpenSA.
func (t *portTable) open(device string, info transport.PortInfo) (resolver.SA, error) {
	p, err := t.fabric.Open(device, info.Num)
	if err != nil {
		return nil, err
	}
	log := t.log.With("device", device, "port", info.Num)
	cfg := t.cfg
	cfg.Counters = t.counters.Shard()
	client := saclient.Open(p, info, cfg, log)
	s := &saPort{EngineSA: acmp.EngineSA{Client: client}, table: t, id: portID{device, info.Num}}
	s.queues, _ = p.(verbs.Counted)
	if err := t.acm.Attach(device, info.Num, client); err != nil {
		s.Close()
		return nil, err
	}
	t.mu.Lock()
	t.ports[s.id] = s
	if t.door != nil && client.Pollable() {
		t.door.Drive(client)
	}
	t.mu.Unlock()
	caps := p.Caps()
	log.Log(context.Background(), t.openLevel(s.id), "port is open", "multicast", caps.Multicast, "listens", caps.Listens, "qpn", caps.QPN,
		"reports", caps.Reports, "timers", caps.Timers)
	return s, nil
}

// openLevel is the level of the log at which an opening is told.
func (t *portTable) openLevel(id portID) slog.Level {
	t.mu.Lock()
	defer t.mu.Unlock()
	o := t.told[id]
	if now := time.Now(); now.Sub(o.since) >= openLinesEvery {
		o = openings{since: now}
	}
	o.n++
	t.told[id] = o
	if o.n > openLines {
		return slog.LevelDebug
	}
	return slog.LevelInfo
}

// doubt is what SA clients call when their traffic goes nowhere.
func (t *portTable) doubt() {
	t.mu.Lock()
	fn := t.suspect
	t.mu.Unlock()
	if fn != nil {
		fn()
	}
}

// lend lets the clients' door run turns of the SA clients.
func (t *portTable) lend(door *acmsock.Server) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.door = door
	for _, s := range t.ports {
		if s.Client.Pollable() {
			door.Drive(s.Client)
		}
	}
}

func (t *portTable) setSuspect(fn func()) {
	t.mu.Lock()
	t.suspect = fn
	t.mu.Unlock()
}

// list returns the open ports in order of device and number.
func (t *portTable) list() []*saPort {
	t.mu.Lock()
	defer t.mu.Unlock()
	list := make([]*saPort, 0, len(t.ports))
	for _, s := range t.ports {
		list = append(list, s)
	}
	sort.Slice(list, func(i, j int) bool {
		a, b := list[i].id, list[j].id
		return a.device < b.device || a.device == b.device && a.port < b.port
	})
	return list
}

// saPort is an SA client in the engine's shape that leaves the table when it
// closes. The client owns its port and closes it.
type saPort struct {
	acmp.EngineSA
	table  *portTable
	id     portID
	queues verbs.Counted // nil without queue pairs
}

// Done is closed when the port has ended by itself, as its device was removed:
// the engine then opens it again, even if the device came back between two polls.
func (s *saPort) Done() <-chan struct{} { return s.Client.Done() }

// Close implements [resolver.SA].
func (s *saPort) Close() {
	s.table.mu.Lock()
	if s.table.ports[s.id] == s {
		delete(s.table.ports, s.id)
	}
	if door := s.table.door; door != nil {
		door.Undrive(s.Client)
	}
	s.table.mu.Unlock()
	s.EngineSA.Close()
}
