// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//go:build verbs && cgo

package verbs

import (
	"errors"
	"fmt"
	"net"
	"sync"

	"acmd/mad"
	"acmd/mad/transport"
)

const eventQueue = 64

// Fabric is another transport whose ports have queue pairs where the adapter and
// our privileges allow it.
type Fabric struct {
	inner transport.Fabric
	cfg   Config

	events chan transport.Event
	emit   sync.WaitGroup // those who write to events

	mu     sync.Mutex
	closed bool
	ports  map[*Port]struct{}
	told   map[string]string // device: the last reason it has no queue pair for
	lost   map[string]uint64 // device: events that found the queue full
}

var (
	_ transport.Fabric  = (*Fabric)(nil)
	_ transport.Watcher = (*Fabric)(nil)
)

// Wrap gives the ports of inner queue pairs. Devices are found by name. The result
// owns inner and closes it.
func Wrap(inner transport.Fabric, cfg Config) (transport.Fabric, error) {
	cfg.normalize()
	f := &Fabric{
		inner: inner, cfg: cfg, events: make(chan transport.Event, eventQueue),
		ports: map[*Port]struct{}{}, told: map[string]string{}, lost: map[string]uint64{},
	}
	if in := inner.Events(); in != nil {
		f.emit.Go(func() {
			for e := range in {
				f.tell(e)
			}
		})
	}
	return f, nil
}

// Name implements [transport.Fabric].
func (f *Fabric) Name() string { return f.inner.Name() + "+verbs" }

// Devices implements [transport.Fabric].
func (f *Fabric) Devices() ([]transport.Device, error) { return f.inner.Devices() }

// Events implements [transport.Fabric]: what the wrapped transport notices, and
// the asynchronous events of the devices whose ports are open.
func (f *Fabric) Events() <-chan transport.Event { return f.events }

func (f *Fabric) tell(e transport.Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return // the channel may be closed, and a port that was closed by itself may not be gone yet
	}
	select {
	case f.events <- e:
	default: // whoever reads what is queued looks again anyway
		f.lost[e.Device]++
	}
}

// EventSources implements [transport.Watcher] with what the wrapped transport says;
// what found our own queue full is lost as well.
func (f *Fabric) EventSources() []transport.EventSource {
	w, ok := f.inner.(transport.Watcher)
	if !ok {
		return nil
	}
	list := w.EventSources()
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range list {
		list[i].Lost += f.lost[list[i].Device]
	}
	return list
}

// Open implements [transport.Fabric]. A port that cannot have a queue pair is the
// wrapped one, and the reason is logged.
func (f *Fabric) Open(device string, port uint8) (transport.Port, error) {
	inner, err := f.inner.Open(device, port)
	if err != nil {
		return nil, err
	}
	p, err := f.open(inner, device, port)
	if err != nil {
		f.without(device, err)
		return inner, nil
	}
	f.mu.Lock()
	closed := f.closed
	f.ports[p] = struct{}{}
	delete(f.told, device)
	f.mu.Unlock()
	if closed {
		p.Close()
		return nil, fmt.Errorf("verbs: %w", net.ErrClosed)
	}
	if p.kick >= 0 {
		return pollable{p}, nil
	}
	return p, nil
}

func (f *Fabric) open(inner transport.Port, device string, port uint8) (*Port, error) {
	devices, err := f.inner.Devices()
	if err != nil {
		return nil, err
	}
	for _, d := range devices {
		for i := range d.Ports {
			if d.Name == device && d.Ports[i].Num == port {
				return newPort(f, inner, device, &d.Ports[i])
			}
		}
	}
	return nil, transport.ErrNoPort
}

// without logs why a device has no queue pair, once per reason.
func (f *Fabric) without(device string, err error) {
	f.mu.Lock()
	known := f.told[device] == err.Error()
	f.told[device] = err.Error()
	f.mu.Unlock()
	if !known {
		f.cfg.Log.Warn("no queue pair: requests of other nodes are not heard", "device", device, "err", err)
	}
}

// forget takes a port off the list; false: it was not there.
func (f *Fabric) forget(p *Port) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, ok := f.ports[p]
	delete(f.ports, p)
	return ok
}

// Close implements [transport.Fabric].
func (f *Fabric) Close() error {
	f.mu.Lock()
	was := f.closed
	f.closed = true
	var open []*Port
	for p := range f.ports {
		open = append(open, p)
	}
	f.mu.Unlock()
	if was {
		return nil
	}
	var err error
	for _, p := range open {
		err = errors.Join(err, p.Close())
	}
	err = errors.Join(err, f.inner.Close())
	f.emit.Wait()
	close(f.events)
	return err
}

// partitions counts what a port's table has.
func partitions(keys []mad.PKey) (n int) {
	for _, k := range keys {
		if k.IsValid() {
			n++
		}
	}
	return n
}
