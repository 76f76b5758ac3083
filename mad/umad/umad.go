// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package umad

import (
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"sync"

	"acmd/mad"
	"acmd/mad/transport"

	"golang.org/x/sys/unix"
)

// ErrNoModule is returned when the kernel has no umad interface (module ib_umad
// is not loaded). It may be loaded later.
var ErrNoModule = errors.New("no umad interface (is the module ib_umad loaded?)")

// Config says where things are and how much memory a port may use.
type Config struct {
	SysRoot string // "/sys"
	DevRoot string // "/dev"
	Slots   int    // ring slots per port, 512
	Poison  bool   // overwrite released slots; for tests
}

// Fabric is the host's adapters as umad shows them.
type Fabric struct {
	cfg Config
	sys sysfs

	mu     sync.Mutex
	closed bool
	ports  map[*Port]struct{}
	smp    map[portKey]smpInfo
	watch  *watcher // nil until Events
}

type portKey struct {
	device string
	port   uint8
}

// New makes the fabric. Nothing is opened, and a host without adapters or
// without the module is no error: they may come later.
func New(cfg Config) (*Fabric, error) {
	if cfg.SysRoot == "" {
		cfg.SysRoot = "/sys"
	}
	if cfg.DevRoot == "" {
		cfg.DevRoot = "/dev"
	}
	if cfg.Slots == 0 {
		cfg.Slots = 512
	}
	return &Fabric{cfg: cfg, sys: sysfs{root: cfg.SysRoot}, ports: map[*Port]struct{}{}, smp: map[portKey]smpInfo{}}, nil
}

// Name implements [transport.Fabric].
func (f *Fabric) Name() string { return "umad" }

// Devices implements [transport.Fabric]. What sysfs lacks is asked of the SMAs of
// all ports at a time, and not again while nothing changes; only InfiniBand ports
// are ever opened for it.
func (f *Fabric) Devices() ([]transport.Device, error) {
	list, err := f.sys.devices()
	if err != nil {
		return nil, fmt.Errorf("list adapters: %w", err)
	}
	f.completeAll(list)
	return list, nil
}

// Open implements [transport.Fabric]. A port of another link layer is none of
// ours: it has no SA.
func (f *Fabric) Open(device string, port uint8) (transport.Port, error) {
	if err := f.sys.checkABI(); err != nil {
		return nil, err
	}
	name, err := f.sys.umadName(device, port)
	if err != nil {
		return nil, err
	}
	if layer, err := f.sys.linkLayer(device, port); err != nil || layer != transport.LinkInfiniBand {
		return nil, fmt.Errorf("%s port %d: not an InfiniBand port: %w", device, port, errors.Join(transport.ErrNoPort, err))
	}
	fd, err := openUmad(filepath.Join(f.cfg.DevRoot, "infiniband", name))
	if err != nil {
		return nil, err
	}
	p, err := f.attach(name, fd)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return p, nil
}

// attach registers the agents and makes a port of fd, which it takes over.
func (f *Fabric) attach(name string, fd int) (*Port, error) {
	sa, reports, err := registerSA(fd)
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	acm, err := register(fd, newRegisterRequest(1, mad.ClassACM, mad.ACMClassVersion, 0))
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	p, err := newPort(f, name, fd, kernel{})
	if err != nil {
		return nil, err
	}
	p.saAgent, p.acmAgent, p.caps.Reports = sa, acm, reports
	f.mu.Lock()
	closed := f.closed
	if !closed {
		f.ports[p] = struct{}{}
	}
	f.mu.Unlock()
	if closed {
		p.Close()
		return nil, net.ErrClosed
	}
	return p, nil
}

// forget takes a closed port off the list.
func (f *Fabric) forget(p *Port) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.ports, p)
}

// openUmad opens the device in the 64-byte header mode, which must be chosen
// before anything else is done with the descriptor.
func openUmad(path string) (int, error) {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENXIO) {
			return -1, fmt.Errorf("%s: %w", path, transport.ErrNoPort)
		}
		return -1, fmt.Errorf("open %s: %w", path, err)
	}
	if err := ioctl(fd, ioctlEnablePKey, nil); err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("%s: kernel without P_Key index in the umad header: %w", path, err)
	}
	return fd, nil
}

// Close implements [transport.Fabric].
func (f *Fabric) Close() error {
	f.mu.Lock()
	again := f.closed
	f.closed = true
	w := f.watch
	var open []*Port
	for p := range f.ports {
		open = append(open, p)
	}
	f.mu.Unlock()
	if w != nil && !again {
		w.close()
	}
	var err error
	for _, p := range open {
		err = errors.Join(err, p.Close())
	}
	return err
}
