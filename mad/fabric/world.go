// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package fabric

import (
	"encoding/binary"
	"maps"
	"slices"

	"acmd/mad"
)

// world is what the subnet manager and every query know: an immutable snapshot,
// replaced as a whole by [Fabric.change].
type world struct {
	prefix uint64
	sm     int32        // port index of the master subnet manager
	ports  []portState  // by port index
	byLID  []int32      // unicast LID to port index, -1 where nobody is
	pkeys  [][]mad.PKey // the different P_Key tables
	routes map[uint64]int32
	// ended has the nodes whose adapter was pulled out.
	ended map[int]bool
}

// portState is what can change about a port.
type portState struct {
	lid   mad.LID // base LID; 0 on Ethernet
	table uint16  // index into world.pkeys
	state mad.State
	mtu   mad.MTU
	rate  mad.Rate
	// silent: no ACM service answers, because the node was made silent or has a
	// view and with it a service of its own.
	silent   bool
	ethernet bool
}

// up tells whether the port takes part in the subnet.
func (p *portState) up() bool { return p.state == mad.PortActive && !p.ethernet }

// newWorld builds the state in which a fabric begins.
func (f *Fabric) newWorld() (*world, error) {
	c := &f.cfg
	w := &world{
		prefix: c.Prefix,
		sm:     f.index(c.SMNode, 1),
		ports:  make([]portState, c.Nodes*c.Ports),
		byLID:  make([]int32, maxUnicast),
	}
	for i := range w.byLID {
		w.byLID[i] = -1
	}
	tables := map[string]uint16{}
	for node := range c.Nodes {
		var keys []mad.PKey
		if c.PKeys != nil {
			keys = slices.Clone(c.PKeys(node))
		}
		if len(keys) == 0 {
			keys = []mad.PKey{mad.DefaultPKey}
		}
		text := keyText(keys)
		table, known := tables[text]
		if !known {
			var err error
			if table, err = w.table(keys); err != nil {
				return nil, err
			}
			tables[text] = table
		}
		for num := uint8(1); int(num) <= c.Ports; num++ {
			i := f.index(node, num)
			p := &w.ports[i]
			*p = portState{state: mad.PortActive, table: table, mtu: c.MTU, rate: c.Rate}
			if c.SlowEvery > 0 && node%c.SlowEvery == c.SlowEvery-1 {
				p.mtu, p.rate = min(c.MTU, 4), slower(c.Rate, 7)
			}
			if num == 2 && c.Mixed {
				p.ethernet = true
				continue
			}
			p.lid = mad.LID(int(i+1) << c.LMC)
			w.setLID(i, p.lid, c.LMC)
		}
	}
	f.silence(w)
	return w, nil
}

// silence makes cfg.Silent nodes silent: a permutation step of the seed walks
// through all nodes, the first ones are chosen. Node 0 comes last, since it has
// a view anyway.
func (f *Fabric) silence(w *world) {
	n := f.cfg.Nodes - 1
	step := int(mix(f.cfg.Seed^1)%uint64(n)) + 1
	for gcd(step, n) != 1 {
		step++
	}
	for i := range f.cfg.Silent {
		node := 0
		if i < n {
			node = 1 + i*step%n
		}
		for num := range f.cfg.Ports {
			w.ports[f.index(node, uint8(num+1))].silent = true
		}
	}
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// table returns the index of a P_Key table, sharing equal ones.
func (w *world) table(keys []mad.PKey) (uint16, error) {
	for i := range w.pkeys {
		if slices.Equal(w.pkeys[i], keys) {
			return uint16(i), nil
		}
	}
	if err := checkPKeys(keys); err != nil {
		return 0, err
	}
	if len(w.pkeys) == maxTables {
		return 0, errTables
	}
	w.pkeys = append(slices.Clip(w.pkeys), keys)
	return uint16(len(w.pkeys) - 1), nil
}

// keyText makes a table usable as the key of a map.
func keyText(keys []mad.PKey) string {
	b := make([]byte, 0, 2*maxPKeys)
	for _, k := range keys {
		b = binary.BigEndian.AppendUint16(b, uint16(k))
	}
	return string(b)
}

// setLID enters all LIDs of a port.
func (w *world) setLID(p int32, lid mad.LID, lmc uint8) {
	for i := range 1 << lmc {
		w.byLID[int(lid)+i] = p
	}
}

// clone copies what setters write to.
func (w *world) clone() *world {
	c := *w
	c.ports = slices.Clone(w.ports)
	c.byLID = slices.Clone(w.byLID)
	c.routes = maps.Clone(w.routes)
	c.ended = maps.Clone(w.ended)
	return &c
}

// at returns the port with a unicast LID, or -1.
func (w *world) at(lid mad.LID) int32 {
	if !lid.IsUnicast() {
		return -1
	}
	return w.byLID[lid]
}

// key returns the P_Key at an index of a port's table, 0 if there is none.
func (w *world) key(p int32, index uint16) mad.PKey {
	keys := w.pkeys[w.ports[p].table]
	if int(index) >= len(keys) || !keys[index].IsValid() {
		return 0
	}
	return keys[index]
}

// holds returns the entry of a port's table that matches k, 0 if there is none.
// A full entry is preferred to a limited one.
func (w *world) holds(p int32, k mad.PKey) mad.PKey { return held(w.pkeys[w.ports[p].table], k) }

func held(keys []mad.PKey, k mad.PKey) (found mad.PKey) {
	if !k.IsValid() {
		return 0
	}
	for _, e := range keys {
		if e.Matches(k) {
			found |= e
		}
	}
	return found
}

// common returns the partition in which two tables can talk: the first of a that
// b has too, one of them as full member. want restricts it to one partition. The
// result is 0 if there is none.
func (w *world) common(a, b uint16, want mad.PKey) mad.PKey {
	for _, k := range w.pkeys[a] {
		if !k.IsValid() || want != 0 && !k.Matches(want) {
			continue
		}
		if o := held(w.pkeys[b], k); o != 0 && (held(w.pkeys[a], k).IsFull() || o.IsFull()) {
			if want != 0 {
				return want
			}
			return k.Full()
		}
	}
	return 0
}

// gid returns GID 0 of a port.
func (f *Fabric) gid(w *world, p int32) mad.GID {
	node, port := f.owner(p)
	return mad.MakeGID(w.prefix, f.nodeGUID(node)+mad.GUID(port))
}

// byGID returns the port with a GID of this subnet, or -1. The link-local prefix
// is good on every subnet.
func (f *Fabric) byGID(w *world, g mad.GID) int32 {
	if g.Prefix() != w.prefix && g.Prefix() != DefaultPrefix {
		return -1
	}
	p := f.byGUID(g.GUID())
	if p < 0 || w.ports[p].ethernet {
		return -1
	}
	return p
}
