// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package metrics

import (
	"time"

	"acmd/bpf"
	"acmd/cache"
	"acmd/mad/transport"
	"acmd/mad/verbs"
	"acmd/resolver"
	"acmd/resolver/acmp"
	"acmd/resolver/hostnet"
	"acmd/resolver/neigh"
	"acmd/resolver/sa"
)

// Source is where the figures come from. Snapshot is called once for each scrape,
// by several goroutines at a time; it must not wait for the fabric. The result is
// the caller's.
type Source interface {
	Snapshot() *Snapshot
}

// Snapshot is what one scrape shows. Counters only grow; they are read one by one,
// not at one moment. Lists that are empty have no series.
type Snapshot struct {
	Version   string    // of acmd
	GoVersion string    // as runtime.Version gives it
	Started   time.Time // when the service came up

	// Counts is what is counted in maps and may be older than this daemon: totals,
	// requests and replies, durations. Its endpoints are not looked at.
	Counts    bpf.Snapshot
	Place     bpf.Place // where those are
	Endpoints []Endpoint
	Trace     bool // SA requests are followed through the kernel
	Programs  []bpf.ProgramStats

	Events   []transport.EventSource // of the devices that are watched, or could be
	FastPath FastPath
	Netlink  *Netlink       // nil: the kernel is not served
	Neigh    *neigh.Stats   // nil: the neighbour table is not looked at
	Host     *hostnet.Stats // nil: a fabric that brings its own host

	Clients Clients
	Engine  resolver.Stats
	Cache   cache.Stats
	Ports   []Port
	ACM     acmp.Stats
	Groups  []acmp.GroupStatus
}

// Endpoint is one endpoint and its seven counters.
type Endpoint struct {
	Device   string
	Port     uint8
	PKey     string // "0xffff"
	Provider string
	GUID     string // of the port, 16 hexadecimal digits behind 0x
	resolver.Counters
}

// Port has the SA client of one port.
type Port struct {
	Device string
	Port   uint8
	SA     sa.Stats
	Queues *verbs.Stats // nil: no queue pairs of our own
}

// Clients is what the client socket counts.
type Clients struct {
	Open, Pending     int64 // connections; requests in the engine
	Accepted          uint64
	BytesIn, BytesOut uint64
	Malformed         uint64  // resolve requests that the parser refused
	Refused           uint64  // requests refused because too many wait
	Superseded        uint64  // requests with id 0 that another one replaced
	Paused            uint64  // times that accepting had to pause
	Rejected          []Count // connections; label: reason
	Closed            []Count // connections; label: reason
	Faults            []Count // headers that frame nothing; label: reason
}

// FastPath is the state of answers in the kernel.
type FastPath struct {
	State  string // one of FastPathStates
	Reason string // of the state failed, in the words of the log
	Paths  int64  // answers that the kernel has

	Puts, Deletes, Full, Lost, Inserted, Refused, Refreshed uint64
}

// FastPathStates are off: not configured; on; stopped: by the kill switch; failed.
var FastPathStates = [...]string{"off", "on", "stopped", "failed"}

// Netlink is what the door for the kernel's own requests counts beside Counts.
type Netlink struct {
	Unanswered []Count // labels: reason
	Ignored    []Count // labels: reason
	Overruns   uint64  // times that the kernel dropped messages
	Pending    int64
}

// Count is a counter with the values of its labels.
type Count struct {
	Labels []string
	N      uint64
}
