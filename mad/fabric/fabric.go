// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package fabric

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"acmd/mad"
	"acmd/mad/transport"
)

// maxTables bounds the different P_Key tables of a fabric, maxPKeys one table.
const (
	maxTables = 1024
	maxPKeys  = 128
)

var (
	errTables = fmt.Errorf("more than %d different P_Key tables", maxTables)
	errClosed = fmt.Errorf("fabric: %w", net.ErrClosed)
)

// Fabric is one subnet, and the transport view of its node 0. All methods are
// safe for concurrent use.
type Fabric struct {
	cfg   Config
	guid0 mad.GUID
	shape shape
	home  *Host

	// Snapshots: read without a lock, replaced under mu.
	world   atomic.Pointer[world]
	groups  atomic.Pointer[groupTable]
	faults  atomic.Pointer[[]*ActiveRule]
	tracers atomic.Pointer[[]*tracer]
	open    atomic.Pointer[map[int32][]*port]

	count counters
	load  saLoad

	mu      sync.Mutex
	closed  bool
	hosts   map[int]*Host
	busy    []*port // closed, but their slots are still out
	nextQPN mad.QPN
	nextAgt uint32
	rules   uint64 // rules made so far

	informer informer
}

var _ transport.Fabric = (*Fabric)(nil)

// New builds a fabric. Equal configurations give equal fabrics.
func New(c Config) (*Fabric, error) {
	c, err := c.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("fabric: %w", err)
	}
	f := &Fabric{
		cfg: c, guid0: guidBase(c.Seed), shape: newShape(&c),
		hosts: map[int]*Host{}, nextQPN: firstQPN,
	}
	w, err := f.newWorld()
	if err != nil {
		return nil, fmt.Errorf("fabric: %w", err)
	}
	f.world.Store(w)
	f.groups.Store(f.newGroups(w))
	f.open.Store(&map[int32][]*port{})
	f.informer.init(f)
	f.load.start = time.Now()
	f.SetSARate(c.SARate)
	if c.DelayMax > 0 {
		f.AddRule(Rule{On: Deliveries, Delay: c.Delay, DelayMax: c.DelayMax})
	}
	if c.Loss > 0 {
		f.AddRule(Rule{On: Requests | Deliveries, Prob: c.Loss, Do: Drop})
	}
	f.home = f.Host(0)
	return f, nil
}

// Name implements [transport.Fabric].
func (f *Fabric) Name() string { return "embedded" }

// Devices returns the device of node 0, "fab0".
func (f *Fabric) Devices() ([]transport.Device, error) { return f.home.Devices() }

// Open opens a port of node 0.
func (f *Fabric) Open(device string, port uint8) (transport.Port, error) {
	return f.home.Open(device, port)
}

// Events tells what happens to the ports of node 0.
func (f *Fabric) Events() <-chan transport.Event { return f.home.Events() }

// Close ends the whole subnet: all views, ports and timers.
func (f *Fabric) Close() error {
	f.mu.Lock()
	hosts := f.hosts
	f.hosts, f.closed = map[int]*Host{}, true
	f.mu.Unlock()
	f.informer.stop()
	var err error
	for _, h := range hosts {
		err = errors.Join(err, h.Close())
	}
	f.reap()
	return err
}

// reap gives back the memory of closed ports whose slots have come back.
func (f *Fabric) reap() {
	f.mu.Lock()
	defer f.mu.Unlock()
	left := f.busy[:0]
	for _, p := range f.busy {
		if p.ring.Close() != nil {
			left = append(left, p)
		}
	}
	f.busy = left
}

// Config returns the configuration with all defaults filled in.
func (f *Fabric) Config() Config { return f.cfg }

// NodeGUID returns the node GUID of a node.
func (f *Fabric) NodeGUID(node int) mad.GUID { return f.nodeGUID(node) }

// PortGUID returns the GUID of a port: node GUID plus port number.
func (f *Fabric) PortGUID(node int, port uint8) mad.GUID { return f.nodeGUID(node) + mad.GUID(port) }

// GID returns GID 0 of a port.
func (f *Fabric) GID(node int, port uint8) mad.GID {
	return mad.MakeGID(f.world.Load().prefix, f.PortGUID(node, port))
}

// LID returns the base LID of a port as it is now, 0 if it does not exist or has
// none.
func (f *Fabric) LID(node int, port uint8) mad.LID {
	if !f.exists(node, port) {
		return 0
	}
	return f.world.Load().ports[f.index(node, port)].lid
}

// SMLID returns the LID of the master subnet manager.
func (f *Fabric) SMLID() mad.LID { w := f.world.Load(); return w.ports[w.sm].lid }

// SMNode returns the node of the master subnet manager.
func (f *Fabric) SMNode() int { n, _ := f.owner(f.world.Load().sm); return n }

// exists reports whether there is such a port.
func (f *Fabric) exists(node int, port uint8) bool {
	return node >= 0 && node < f.cfg.Nodes && port >= 1 && int(port) <= f.cfg.Ports
}

// change replaces the world. set works on a copy; if it fails nothing changes.
// The caller holds f.mu.
func (f *Fabric) change(set func(*world) error) error {
	w := f.world.Load().clone()
	if err := set(w); err != nil {
		return err
	}
	f.world.Store(w)
	return nil
}

func checkPKeys(keys []mad.PKey) error {
	if len(keys) > maxPKeys {
		return fmt.Errorf("%d P_Keys: at most %d", len(keys), maxPKeys)
	}
	return nil
}
