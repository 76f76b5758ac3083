// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package fabric

import (
	"math/bits"

	"acmd/mad"
)

// shape answers where a node is and what lies between two nodes. It is immutable
// and made of formulas and one table of switch coordinates; nothing is searched.
type shape struct {
	kind  Topology
	hosts int // nodes per leaf or torus switch
	pod   int // leaf switches per pod of a fat tree; 0: two levels
	size  [3]int
	place [][3]uint8 // coordinates of each torus switch
}

// Fat trees of 36-port switches reach 11,664 nodes in three levels; larger ones
// take 64-port switches.
const (
	smallRadix = 36
	largeRadix = 64
)

func newShape(c *Config) shape {
	s := shape{kind: c.Topology, hosts: c.Hosts}
	switch c.Topology {
	case Star:
		s.hosts = c.Nodes
	case FatTree:
		half := smallRadix / 2
		if c.Nodes > half*half*smallRadix {
			half = largeRadix / 2
		}
		if s.hosts == 0 {
			s.hosts = half
		}
		// A two-level tree has as many leaves as a spine has ports.
		if leaves := (c.Nodes + s.hosts - 1) / s.hosts; leaves > 2*half {
			s.pod = half
		}
	case Torus:
		s.torus(c)
	}
	return s
}

// torus lays the switches out as near to a square or cube as they go, the last
// line or plane possibly with switches that have no nodes.
func (s *shape) torus(c *Config) {
	if s.hosts == 0 {
		s.hosts = max(1, min(16, c.Nodes/64))
	}
	n := (c.Nodes + s.hosts - 1) / s.hosts
	dims := c.Dims
	if dims == 0 {
		dims = 2
		if n >= 27 {
			dims = 3
		}
	}
	s.size = [3]int{1, 1, 1}
	rest := n
	for d := range dims {
		side := 1
		for pow(side, dims-d) < rest {
			side++
		}
		s.size[d] = side
		rest = (rest + side - 1) / side
	}
	s.place = make([][3]uint8, n)
	for i := range s.place {
		x, y := i%s.size[0], i/s.size[0]
		s.place[i] = [3]uint8{uint8(x), uint8(y % s.size[1]), uint8(y / s.size[1])}
	}
}

func pow(b, e int) int {
	p := 1
	for range e {
		p *= b
	}
	return p
}

// route returns the number of switches between two nodes and the service level
// of the path. It is symmetric: all paths are reversible.
func (s *shape) route(a, b int) (hops int, sl uint8) {
	if a == b || s.kind == Star {
		return 1, 0
	}
	la, lb := a/s.hosts, b/s.hosts
	switch {
	case la == lb:
		return 1, 0
	case s.kind == Torus:
		return s.ring(la, lb)
	case s.pod == 0 || la/s.pod == lb/s.pod:
		return 3, 0
	}
	return 5, 0
}

// ring walks the torus dimension by dimension. A path that crosses the dateline
// of a dimension, the link between its last and its first switch, sets that
// dimension's bit of the SL, so that the two directions of waiting can not close
// a cycle. Of two ways of equal length it takes the one without dateline.
func (s *shape) ring(la, lb int) (hops int, sl uint8) {
	pa, pb := &s.place[la], &s.place[lb]
	hops = 1
	for d := range pa {
		dist := int(pa[d]) - int(pb[d])
		if dist < 0 {
			dist = -dist
		}
		if around := s.size[d] - dist; around < dist {
			dist = around
			sl |= 1 << d
		}
		hops += dist
	}
	return hops, sl
}

// lifetime is the packet lifetime code of a path over that many switches: 67 ms
// for one, doubled with each doubling (4.096 us x 2^n).
func lifetime(hops int) uint8 { return uint8(13 + bits.Len(uint(hops))) }

// rateBelow returns the fastest code that is slower than r, 0 if there is none.
func rateBelow(r mad.Rate) (best mad.Rate) {
	for c := range mad.Rate(64) { // codes have six bits
		if s := c.Speed(); s < r.Speed() && s > best.Speed() {
			best = c
		}
	}
	return best
}

// slower returns the slower of two known rates.
func slower(a, b mad.Rate) mad.Rate {
	if a.Speed() <= b.Speed() {
		return a
	}
	return b
}
