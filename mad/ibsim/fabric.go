// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package ibsim

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"acmd/mad"
	"acmd/mad/ring"
	"acmd/mad/transport"
)

const (
	deviceName       = "ibsim0"
	portNumber uint8 = 1

	eventQueue = 32
)

// Fabric is a simulator, seen from one of its nodes. One goroutine owns the
// control socket; the methods ask it. All methods are safe for concurrent use.
type Fabric struct {
	cfg    Config
	calls  chan func()
	events chan transport.Event
	stats  counters

	closing sync.Once
	stop    chan struct{} // closed by Close
	ended   chan struct{} // closed when the goroutine has ended

	// Owned by the goroutine.
	link *link // nil between two clients, and while the simulator is away
	half *link // its CONNECT is not answered yet
	port *Port // the open one
	info transport.PortInfo
	away bool
}

type counters struct {
	sent, received, undelivered, dropped, eventsLost atomic.Uint64
}

// Stats counts since the fabric was made, in MADs but for EventsLost.
type Stats struct {
	Sent        uint64 // taken by the simulator
	Received    uint64 // handed to the receiver, Undelivered included
	Undelivered uint64 // requests that came back with status 110
	Dropped     uint64 // malformed packets, and responses that came back
	EventsLost  uint64 // events that found the queue full
}

// New attaches to the simulator that cfg names. It fails when the simulator is
// not running, has no free slot, has no such node, or has an SM's client there.
func New(cfg Config) (*Fabric, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	f := &Fabric{
		cfg:    cfg,
		calls:  make(chan func()),
		events: make(chan transport.Event, eventQueue),
		stop:   make(chan struct{}),
		ended:  make(chan struct{}),
	}
	if err := f.probe(); err != nil {
		f.dropHalf()
		return nil, err
	}
	go f.run()
	return f, nil
}

// probe attaches the way Open will, so that New shows what is wrong with it, and
// leaves a plain client, to which nothing is sent.
func (f *Fabric) probe() error {
	l, err := f.attach(f.role())
	if err != nil {
		return err
	}
	if f.info, err = l.portInfo(); err != nil {
		l.detach()
		return fmt.Errorf("ibsim: %s: %w", f.cfg.where(), err)
	}
	f.link = l
	if f.role() != (role{}) {
		f.dropLink()
		return f.ensure()
	}
	return nil
}

func (f *Fabric) role() role { return role{qp: f.cfg.QP, issm: f.cfg.ISSM} }

// Name is "ibsim".
func (f *Fabric) Name() string { return "ibsim" }

// Events reports changes of the port's state, LID, SM LID, GID and P_Keys, and
// the simulator's going and coming as those of the device.
func (f *Fabric) Events() <-chan transport.Event { return f.events }

// Stats returns the counters.
func (f *Fabric) Stats() Stats {
	c := &f.stats
	return Stats{Sent: c.sent.Load(), Received: c.received.Load(), Undelivered: c.undelivered.Load(),
		Dropped: c.dropped.Load(), EventsLost: c.eventsLost.Load()}
}

// Devices asks the simulator for the port's attributes. While the simulator is
// away there is no device.
func (f *Fabric) Devices() (list []transport.Device, err error) {
	if closed := f.call(func() { list, err = f.devices() }); closed != nil {
		return nil, closed
	}
	return list, err
}

// Open opens ibsim0, port 1. One port is open at a time.
func (f *Fabric) Open(device string, port uint8) (p transport.Port, err error) {
	if device != deviceName || port != portNumber {
		return nil, fmt.Errorf("ibsim: %q port %d: %w", device, port, transport.ErrNoPort)
	}
	closed := f.call(func() {
		var opened *Port
		if opened, err = f.open(); err == nil {
			p = opened // a nil *Port must not become an interface
		}
	})
	if closed != nil {
		return nil, closed
	}
	return p, err
}

// Close detaches from the simulator, which takes a few seconds if it is stuck.
func (f *Fabric) Close() error {
	f.closing.Do(func() { close(f.stop) })
	<-f.ended
	return nil
}

// call runs fn on the fabric's goroutine and waits for its end.
func (f *Fabric) call(fn func()) error {
	done := make(chan struct{})
	select {
	case f.calls <- func() { defer close(done); fn() }:
		<-done // what was taken is run
		return nil
	case <-f.ended:
		return fmt.Errorf("ibsim: %w", net.ErrClosed)
	}
}

func (f *Fabric) run() {
	defer close(f.ended)
	defer close(f.events)
	tick := time.NewTicker(f.cfg.Poll)
	defer tick.Stop()
	for {
		select {
		case fn := <-f.calls:
			fn()
		case <-tick.C:
			f.refresh()
		case <-f.stop:
			if f.port != nil {
				f.port.shut(net.ErrClosed)
				f.port = nil
			}
			f.dropLink()
			f.dropHalf()
			return
		}
	}
}

// attach connects a client, after an earlier attempt has come to its end: a
// simulator that does not answer is sent one CONNECT, not one each second.
func (f *Fabric) attach(r role) (*link, error) {
	if f.half != nil {
		if !f.half.settle(&f.cfg) {
			return nil, fmt.Errorf("ibsim: %s: %w: %w", f.cfg.where(), errUnanswered, os.ErrDeadlineExceeded)
		}
		f.half = nil
	}
	l, err := attach(&f.cfg, r)
	if errors.Is(err, errUnanswered) {
		f.half, l = l, nil
	}
	return l, err
}

func (f *Fabric) dropHalf() {
	if f.half != nil && !f.half.settle(&f.cfg) {
		f.half.closeSockets() // it had its time
	}
	f.half = nil
}

// ensure attaches when no client is attached: as a plain one.
func (f *Fabric) ensure() (err error) {
	if f.link == nil {
		f.link, err = f.attach(role{})
	}
	return err
}

func (f *Fabric) dropLink() {
	if f.link != nil {
		f.link.detach()
		f.link = nil
	}
}

// refresh reads the attributes again and tells what changed.
func (f *Fabric) refresh() error {
	err := f.ensure()
	if err == nil {
		info, e := f.link.portInfo()
		if e == nil {
			if f.away {
				f.away = false
				f.emit(transport.EventDeviceAdd, 0)
			}
			f.compare(&info)
			f.info = info
			return nil
		}
		err = fmt.Errorf("ibsim: %s: %w", f.cfg.where(), e)
	}
	if isDown(err) {
		f.lose()
	}
	return err
}

// lose is for when the simulator went away, and the client slot with it.
func (f *Fabric) lose() {
	if f.port != nil {
		f.port.shut(transport.ErrGone)
		f.port = nil
	}
	if f.link != nil {
		f.link.closeSockets()
		f.link = nil
	}
	if !f.away {
		f.away = true
		f.emit(transport.EventDeviceRemove, 0)
	}
}

func (f *Fabric) compare(now *transport.PortInfo) {
	was := &f.info
	if was.State != now.State {
		if now.State == mad.PortActive {
			f.emit(transport.EventPortActive, portNumber)
		} else if was.State == mad.PortActive {
			f.emit(transport.EventPortError, portNumber)
		}
	}
	if was.LID != now.LID || was.LMC != now.LMC {
		f.emit(transport.EventLIDChange, portNumber)
	}
	if was.SMLID != now.SMLID || was.SMSL != now.SMSL {
		f.emit(transport.EventSMChange, portNumber)
	}
	if !slices.Equal(was.GIDs, now.GIDs) {
		f.emit(transport.EventGIDChange, portNumber)
	}
	if !slices.Equal(was.PKeys, now.PKeys) {
		f.emit(transport.EventPKeyChange, portNumber)
	}
}

func (f *Fabric) emit(t transport.EventType, port uint8) {
	select {
	case f.events <- transport.Event{Type: t, Device: deviceName, Port: port}:
	default: // whoever reads what is queued looks again anyway
		f.stats.eventsLost.Add(1)
	}
}

func (f *Fabric) devices() ([]transport.Device, error) {
	if err := f.refresh(); err != nil {
		if isDown(err) {
			return nil, nil
		}
		return nil, err
	}
	info := f.info
	info.GIDs, info.PKeys = slices.Clone(info.GIDs), slices.Clone(info.PKeys)
	return []transport.Device{{Name: deviceName, NodeGUID: f.link.node.nodeGUID, Ports: []transport.PortInfo{info}}}, nil
}

func (f *Fabric) open() (*Port, error) {
	if f.port != nil {
		return nil, fmt.Errorf("ibsim: port is open: %w", transport.ErrInUse)
	}
	err := f.ensure()
	if err == nil && f.role() != (role{}) {
		f.dropLink()
		f.link, err = f.attach(f.role())
	}
	if err != nil {
		if isDown(err) {
			err = errors.Join(transport.ErrNoPort, err)
		}
		return nil, err
	}
	p, err := f.makePort()
	if err != nil {
		f.dropLink() // nobody would read what is sent to it
		return nil, fmt.Errorf("ibsim: %w", err)
	}
	f.port = p
	return p, nil
}

// makePort makes the port of the link.
func (f *Fabric) makePort() (*Port, error) {
	r, err := ring.New(f.cfg.Slots, f.cfg.Poison)
	if err != nil {
		return nil, err
	}
	p, err := newPort(f, f.link, r)
	if err != nil {
		r.Retire()
		return nil, err
	}
	return p, nil
}

// portClosed detaches the client of a port that is shut.
func (f *Fabric) portClosed(p *Port) {
	f.call(func() {
		if f.port == p {
			f.port = nil
			f.dropLink()
		}
	})
}
