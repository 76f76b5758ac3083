// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package umad

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"sort"
	"sync"
	"time"

	"acmd/mad/transport"

	"golang.org/x/sys/unix"
)

const (
	eventQueue = 256
	// rescanEvery is how often devices without an event descriptor are tried again
	// when nothing tells that they changed.
	rescanEvery = 30 * time.Second
	// settleTime is the pause after a uevent: those of one device come together.
	settleTime = 50 * time.Millisecond
)

// watcher tells of port events and of devices that come and go. One goroutine keeps
// the event descriptors of the devices in step with sysfs, one reads uevents, one
// per device reads its events. What it finds goes into a channel that drops what
// does not fit: an event only says "look again".
type watcher struct {
	f       *Fabric
	out     chan transport.Event
	scan    chan struct{} // look at the devices soon
	stop    chan struct{}
	uevents *os.File // nil: not available
	done    sync.WaitGroup

	mu      sync.Mutex
	devices map[string]*watched
	closed  bool
}

// watched is what is known of one device.
type watched struct {
	async  *async // nil: its ports are polled
	err    error  // why
	events uint64
	lost   uint64 // of them, that found the channel full
}

func newWatcher(f *Fabric) *watcher {
	w := &watcher{f: f, out: make(chan transport.Event, eventQueue), scan: make(chan struct{}, 1),
		stop: make(chan struct{}), devices: map[string]*watched{}}
	var err error
	if w.uevents, err = openUevents(); err == nil {
		w.done.Add(1)
		go w.readUevents()
	}
	w.done.Add(1)
	go w.keep()
	return w
}

// close ends the goroutines and then the channel.
func (w *watcher) close() {
	close(w.stop)
	if w.uevents != nil {
		w.uevents.Close()
	}
	w.mu.Lock()
	w.closed = true
	devices := w.devices
	w.devices = nil // ours: whoever is in drop or ended finds nothing to close
	w.mu.Unlock()
	for _, d := range devices {
		if d.async != nil {
			d.async.close()
		}
	}
	w.done.Wait()
	close(w.out)
}

func (w *watcher) emit(ev transport.Event) {
	select {
	case w.out <- ev:
	default:
		w.mu.Lock()
		if d := w.devices[ev.Device]; d != nil {
			d.lost++
		}
		w.mu.Unlock()
	}
}

func (w *watcher) rescan() {
	select {
	case w.scan <- struct{}{}:
	default:
	}
}

// keep opens event descriptors where there are none.
func (w *watcher) keep() {
	defer w.done.Done()
	tick := time.NewTicker(rescanEvery)
	defer tick.Stop()
	for {
		w.sync()
		select {
		case <-w.stop:
			return
		case <-tick.C:
		case <-w.scan:
			select {
			case <-w.stop:
				return
			case <-time.After(settleTime):
			}
		}
	}
}

// sync brings the descriptors in step with sysfs: one for each device with an
// InfiniBand port, none for a device that is gone.
func (w *watcher) sync() {
	list, err := w.f.sys.devices()
	if err != nil {
		return // told by Devices
	}
	there := map[string]bool{}
	for i := range list {
		if hasInfiniBand(&list[i]) {
			there[list[i].Name] = true
		}
	}
	w.mu.Lock()
	var open []string
	for name := range there {
		if d := w.devices[name]; d == nil || d.async == nil {
			open = append(open, name)
		}
	}
	var gone []string
	for name := range w.devices {
		if !there[name] {
			gone = append(gone, name)
		}
	}
	w.mu.Unlock()
	for _, name := range gone {
		w.drop(name)
	}
	for _, name := range open {
		a, err := openAsync(w.f.sys, w.f.cfg.DevRoot, name)
		w.add(name, a, err)
	}
}

func hasInfiniBand(d *transport.Device) bool {
	for i := range d.Ports {
		if d.Ports[i].LinkLayer == transport.LinkInfiniBand {
			return true
		}
	}
	return false
}

// add takes in what became of opening a device's event descriptor.
func (w *watcher) add(name string, a *async, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		if a != nil {
			a.close()
		}
		return
	}
	d := w.devices[name]
	if d == nil {
		d = &watched{}
		w.devices[name] = d
	}
	d.async, d.err = a, err
	if a != nil {
		w.done.Add(1)
		go w.readAsync(d, a)
	}
}

// drop closes a device's descriptors: while they are open some drivers cannot
// remove it, and none says any more once it is gone.
func (w *watcher) drop(name string) {
	w.mu.Lock()
	d := w.devices[name]
	delete(w.devices, name)
	w.mu.Unlock()
	if d != nil && d.async != nil {
		d.async.close()
	}
}

// readAsync passes the events of a device on until its descriptor is closed. After
// one that says that the device is lost nothing more comes.
func (w *watcher) readAsync(d *watched, a *async) {
	defer w.done.Done()
	buf := make([]byte, 16*asyncEventSize)
	for {
		b, err := a.read(buf)
		for ; len(b) >= asyncEventSize; b = b[asyncEventSize:] {
			ev, ok := parseAsyncEvent(a.device, b)
			if !ok {
				continue
			}
			w.mu.Lock()
			d.events++
			w.mu.Unlock()
			w.emit(ev)
			if ev.Type == transport.EventDeviceFatal {
				err = errDeviceFatal
			}
		}
		if err != nil {
			w.ended(d, a, err)
			return
		}
	}
}

var errDeviceFatal = errors.New("the device reported a fatal error")

// ended notes that a device's events are over. Whoever took it out of the table
// closes it.
func (w *watcher) ended(d *watched, a *async, err error) {
	w.mu.Lock()
	ours := !w.closed && w.devices[a.device] == d && d.async == a
	if ours {
		d.async, d.err = nil, err
	}
	w.mu.Unlock()
	if ours {
		a.close() // opened again by a uevent, or after rescanEvery
	}
}

// readUevents turns uevents of the RDMA subsystems into events and rescans. On an
// overrun of the socket's buffer something was missed: look at everything.
func (w *watcher) readUevents() {
	defer w.done.Done()
	buf := make([]byte, 1<<14)
	for {
		n, kernel, err := readUevent(w.uevents, buf)
		switch {
		case errors.Is(err, fs.ErrClosed) || errors.Is(err, net.ErrClosed):
			return
		case errors.Is(err, unix.ENOBUFS):
			w.emit(transport.Event{Type: transport.EventDeviceAdd})
			w.rescan()
			continue
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return // what is polled shows it
		}
		if u, ok := parseUevent(buf[:n]); ok && kernel {
			w.uevent(&u)
		}
	}
}

func (w *watcher) uevent(u *uevent) {
	if u.subsystem == "infiniband" {
		switch u.action {
		case "add", "move": // a renamed device moves
			w.emit(transport.Event{Type: transport.EventDeviceAdd, Device: u.name})
		case "remove":
			w.drop(u.name)
			w.emit(transport.Event{Type: transport.EventDeviceRemove, Device: u.name})
		}
	}
	if u.subsystem == "infiniband_verbs" && u.action == "remove" {
		w.dropVerbs(u.name)
	}
	if u.subsystem == "infiniband_mad" && u.action == "add" {
		// The port can be opened from now on.
		w.emit(transport.Event{Type: transport.EventDeviceAdd, Device: u.name})
	}
	w.rescan()
}

// dropVerbs closes the descriptors of the device that a uverbs device belongs to;
// this notice comes before that of the device itself.
func (w *watcher) dropVerbs(uverbs string) {
	w.mu.Lock()
	var name string
	for dev, d := range w.devices {
		if d.async != nil && d.async.file.Name() == asyncName(uverbs) {
			name = dev
		}
	}
	w.mu.Unlock()
	if name != "" {
		w.drop(name)
	}
}

// sources says how each device's events are known.
func (w *watcher) sources() (list []transport.EventSource) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for name, d := range w.devices {
		s := transport.EventSource{Device: name, Source: transport.SourcePoll, Events: d.events, Lost: d.lost}
		if d.async != nil {
			s.Source = "uverbs"
		} else if d.err != nil {
			s.Reason = d.err.Error()
		}
		list = append(list, s)
	}
	sort.Slice(list, func(i, j int) bool { return naturalLess(list[i].Device, list[j].Device) })
	return list
}

// Events implements [transport.Fabric]: port events where a device has an event
// descriptor, devices that come and go where there are uevents. Watching begins
// with the first call.
func (f *Fabric) Events() <-chan transport.Event {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.watch == nil {
		if f.closed {
			ended := make(chan transport.Event)
			close(ended)
			return ended
		}
		f.watch = newWatcher(f)
	}
	return f.watch.out
}

// EventSources implements [transport.Watcher].
func (f *Fabric) EventSources() []transport.EventSource {
	f.mu.Lock()
	w := f.watch
	f.mu.Unlock()
	if w == nil {
		return nil
	}
	return w.sources()
}

var _ transport.Watcher = (*Fabric)(nil)

// asyncName names the event descriptor of a uverbs device.
func asyncName(uverbs string) string { return fmt.Sprintf("%s events", uverbs) }
