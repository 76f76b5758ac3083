// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package fabric

import (
	"errors"
	"fmt"
	"time"

	"acmd/mad"
)

// Topology is the shape of the subnet.
type Topology uint8

const (
	Star    Topology = iota // one switch
	FatTree                 // two or three levels, as many as the nodes need
	Torus                   // two or three dimensions, routed in order of dimensions
)

var topologyNames = [...]string{Star: "star", FatTree: "fattree", Torus: "torus"}

func (t Topology) String() string {
	if int(t) < len(topologyNames) {
		return topologyNames[t]
	}
	return fmt.Sprintf("topology %d", uint8(t))
}

// Limits of a Config.
const (
	MaxNodes = 40000
	maxPorts = 2
	maxLMC   = 7
	// maxUnicast is the first LID that is not unicast (IBTA vol. 1, 4.1.3).
	maxUnicast = 0xc000
)

// DefaultPrefix is the subnet prefix that a fabric has unless told otherwise.
const DefaultPrefix = mad.DefaultPrefix

// Config describes a fabric. The zero value of every field but Nodes stands for
// the default that its comment gives.
type Config struct {
	Nodes    int      // 2 to MaxNodes
	Topology Topology // Star
	Seed     uint64   // of the GUIDs and of all chances; equal seeds give equal fabrics
	Prefix   uint64   // DefaultPrefix
	SMNode   int      // where the subnet manager is: 0 means the last node

	Ports int   // per adapter, 1 or 2: 1
	Mixed bool  // port 2 of every adapter is Ethernet; needs Ports 2
	LMC   uint8 // each port has 2^LMC LIDs: 0

	MTU       mad.MTU  // of every port: 5 (4096)
	Rate      mad.Rate // of every port: 16 (100 Gb/s)
	SlowEvery int      // each n-th node has MTU 2048 and 40 Gb/s: 0, none
	Dims      int      // of a torus, 2 or 3: what fits the nodes
	Hosts     int      // nodes per leaf or torus switch: what fits the nodes

	// PKeys returns the P_Key table of a node, at most 128 entries, holes
	// allowed; it is called once per node by New. nil: {0xFFFF} everywhere.
	PKeys func(node int) []mad.PKey

	// Silent nodes have no ACM service: that many, chosen by seed.
	Silent int

	Delay, DelayMax time.Duration // of everything that is received: 0; uniform between both
	Loss            float64       // probability that a MAD gets lost on its way to where it goes: 0

	// KernelTimers makes ports behave as umad's: a send with a time-out comes
	// back with status 110, its TID cannot be sent again before that, late and
	// unasked answers are dropped, and requests are given the upper half of
	// their TID.
	KernelTimers bool
	// NoListen makes ports without their own queue pair: they receive no
	// multicast, and unicast ACM at QP1.
	NoListen bool
	// NoMulticast takes the UD multicast bit out of the SA's ClassPortInfo;
	// joins are answered all the same, as OpenSM does.
	NoMulticast bool

	Slots  int  // of a port's ring: 1024
	Poison bool // rings poison released slots
	Queue  int  // messages that may wait for Recv on a port, with the late ones: 65536

	SARate   int           // answers of the SA per second: 0, as fast as it goes
	SAMaxAge time.Duration // requests that would wait longer get no answer: 1 s

	ReportInterval time.Duration // between tries of a Report: 200 ms
	ReportTries    int           // 3
}

// withDefaults returns a copy with defaults filled in, or says which field is
// wrong.
func (c Config) withDefaults() (Config, error) {
	setDefault(&c.Prefix, DefaultPrefix)
	setDefault(&c.SMNode, c.Nodes-1)
	setDefault(&c.Ports, 1)
	setDefault(&c.MTU, 5)
	setDefault(&c.Rate, 16)
	setDefault(&c.Slots, 1024)
	setDefault(&c.Queue, 1<<16)
	setDefault(&c.ReportInterval, 200*time.Millisecond)
	setDefault(&c.ReportTries, 3)
	setDefault(&c.SAMaxAge, time.Second)
	if c.DelayMax < c.Delay {
		c.DelayMax = c.Delay
	}
	return c, c.check()
}

func setDefault[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

func (c *Config) check() error {
	switch {
	case c.Nodes < 2 || c.Nodes > MaxNodes:
		return fmt.Errorf("%d nodes: need 2 to %d", c.Nodes, MaxNodes)
	case int(c.Topology) >= len(topologyNames):
		return fmt.Errorf("unknown %v", c.Topology)
	case c.SMNode < 0 || c.SMNode >= c.Nodes:
		return fmt.Errorf("subnet manager on node %d of %d", c.SMNode, c.Nodes)
	case c.Ports < 1 || c.Ports > maxPorts:
		return fmt.Errorf("%d ports: need 1 to %d", c.Ports, maxPorts)
	case c.Mixed && c.Ports != 2:
		return errors.New("a mixed adapter needs two ports")
	case c.LMC > maxLMC:
		return fmt.Errorf("LMC %d: at most %d", c.LMC, maxLMC)
	case (c.Nodes*c.Ports+1)<<c.LMC > maxUnicast:
		return fmt.Errorf("%d nodes with %d ports and LMC %d need more LIDs than there are", c.Nodes, c.Ports, c.LMC)
	case c.Dims != 0 && c.Dims != 2 && c.Dims != 3:
		return fmt.Errorf("torus of %d dimensions: need 2 or 3", c.Dims)
	case c.Hosts < 0 || c.Hosts > c.Nodes:
		return fmt.Errorf("%d nodes per switch", c.Hosts)
	case c.SlowEvery < 0 || c.Silent < 0 || c.Silent > c.Nodes:
		return fmt.Errorf("%d silent nodes, each %d-th slow, of %d", c.Silent, c.SlowEvery, c.Nodes)
	case c.MTU > 5 || c.Rate.Speed() == 0:
		return fmt.Errorf("MTU code %d, rate code %d: unknown", c.MTU, c.Rate)
	case !(c.Loss >= 0 && c.Loss <= 1):
		return fmt.Errorf("loss %v is no probability", c.Loss)
	case c.Delay < 0 || c.ReportInterval < 0 || c.SAMaxAge < 0 || c.SARate < 0:
		return errors.New("negative delay or rate")
	case c.Slots < 1 || c.Slots > 1<<16 || c.Queue < 1 || c.ReportTries < 1:
		return fmt.Errorf("%d slots, queue of %d, %d report tries", c.Slots, c.Queue, c.ReportTries)
	}
	return nil
}
