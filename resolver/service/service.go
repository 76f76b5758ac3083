// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package service

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"acmd/bpf"
	"acmd/mad"
	"acmd/mad/transport"
	"acmd/resolver"
	"acmd/resolver/acmp"
	"acmd/resolver/acmsock"
	"acmd/resolver/config"
	"acmd/resolver/control"
	"acmd/resolver/fastpath"
	"acmd/resolver/hostnet"
	"acmd/resolver/neigh"
	"acmd/resolver/preload"
	"acmd/resolver/sa"
)

// drainTime bounds how long Stop waits for answers that are owed. It is a little
// more than the longest request time-out that makes sense.
const drainTime = 5 * time.Second

// Daemon is a running service.
type Daemon struct {
	opts      Options
	activated bool
	started   time.Time

	first    *config.Settings                // of the start
	settings atomic.Pointer[config.Settings] // of the last reload
	logs     *logFile
	level    slog.LevelVar
	log      *slog.Logger

	counters *bpf.Maps

	fabric  *fabricView
	neigh   *neigh.Source // nil unless addr_prot names it
	host    *hostnet.Host // the kernel's view of addresses; nil where the fabric brings its own
	ports   *portTable
	acm     *acmp.Source
	preload *preload.Source
	engine  *resolver.Engine
	door    *acmsock.Server
	fast    *fastpath.Service           // nil: off
	metrics atomic.Pointer[metricsDoor] // nil: off; the control socket may ask for its state before it is set
	kernel  *kernelDoor                 // nil: not on this fabric
	trace   fabricTrace
	caps    capabilities

	reloading sync.Mutex
	found     foundFiles     // at the last reading; of reloading
	undo      []func() error // what Stop does, last first
}

// Start brings the service up. On an error everything that was opened is closed
// again.
func Start(o Options) (d *Daemon, err error) {
	o.setDefaults()
	d = &Daemon{opts: o, started: time.Now()}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.close())
		}
	}()
	passed, err := acmsock.Passed(o.Getenv, acmsock.FirstPassed)
	if err != nil {
		return d, err
	}
	d.activated = len(passed.Streams) > 0
	settings, problems, err := o.load(d.activated)
	if err != nil {
		return d, err
	}
	d.first, d.found = settings, o.find()
	d.settings.Store(settings)
	// The lock comes first: a second instance must not touch the log, the
	// sockets or the fabric of the first.
	lock, err := config.Lock(settings.LockFile)
	if err != nil {
		return d, err
	}
	d.onStop(lock.Close)
	if err = d.openLog(settings); err != nil {
		return d, err
	}
	if !d.activated { // before the fabric: leaving groups at the end would take the first one's memberships
		if err = acmsock.Vacant(o.RunDir); err != nil {
			return d, err
		}
	}
	d.log.Info("acmd starts", "version", o.Version, "fabric", o.Fabric, "options", o.OptionsFile)
	if _, err := os.Stat(o.OptionsFile); errors.Is(err, fs.ErrNotExist) {
		d.log.Info("no options file, every option has its default", "file", o.OptionsFile)
	}
	d.report(problems)
	if _, err := acmsock.RaiseNoFile(d.log, settings.MaxClients); err != nil {
		d.log.Warn("open files", "err", err)
	}
	if err = d.openCounters(settings); err != nil {
		return d, err
	}
	if err = d.startEngine(settings); err != nil {
		return d, err
	}
	if o.Serving != nil {
		o.Serving()
	}
	d.startKernel(settings, passed.Netlink)
	if err = d.startDoors(settings, passed.Streams); err != nil {
		return d, err
	}
	return d, nil
}

func (d *Daemon) onStop(fn func() error) { d.undo = append(d.undo, fn) }

// close undoes what was done, last first.
func (d *Daemon) close() (err error) {
	for len(d.undo) > 0 {
		last := len(d.undo) - 1
		fn := d.undo[last]
		d.undo = d.undo[:last]
		err = errors.Join(err, fn())
	}
	return err
}

func (d *Daemon) startEngine(s *config.Settings) (err error) {
	if d.fabric, err = openFabric(d.opts.Fabric, s, d.log); err != nil {
		return err
	}
	d.onStop(d.fabric.Close)
	if d.opts.Observe != nil {
		d.opts.Observe(d.fabric.Fabric)
	}
	d.ports = newPortTable(d.fabric, saConfig(s), d.counters, d.log)
	d.acm = acmp.New(acmp.Config{
		Depth: s.ResolveDepth, Timeout: s.Timeout, Retries: s.Retries,
		MinMTU: s.MinMTU, MinRate: s.MinRate, RouteACM: s.RouteProt == config.RouteACM,
	}, d.log)
	d.ports.acm = d.acm
	d.prepareTrace()
	d.preload = preload.New(preloadFiles(s))
	cfg := engineConfig(s)
	cfg.Fabric, cfg.Host, cfg.Log = d.fabric, d.hostView(), d.log
	cfg.OpenSA = d.ports.open
	cfg.Counters = d.counters
	d.startNeigh(s)
	cfg.Sources = d.sources(s)
	cfg.Routes = d.preload
	cfg.GIDTable = d.fabric.gids
	cfg.OnTopology = d.topologyChanged
	cfg.Mirror = d.newFastPath(s)
	cfg.OnEvent = d.acm.Event
	cfg.OnNotice = d.acm.Notice
	cfg.Addresses = d.addresses(s)
	if d.opts.tune != nil {
		d.opts.tune(&cfg)
	}
	if d.engine, err = resolver.New(cfg); err != nil {
		return err
	}
	d.ports.setSuspect(d.engine.Kick)
	d.onStop(func() error { d.engine.Close(); return nil })
	d.watchHost()
	return nil
}

// sources puts the preload files first: what an administrator wrote down wins,
// and costs nothing to look at.
func (d *Daemon) sources(s *config.Settings) (list []resolver.AddressSource) {
	byName := map[string]resolver.AddressSource{resolver.SourceACM: d.acm, preload.Name: d.preload}
	if d.neigh != nil {
		byName[neigh.Name] = d.neigh
	}
	if !slices.Contains(s.AddrProt, preload.Name) {
		list = append(list, d.preload)
	}
	for _, name := range s.AddrProt {
		if src := byName[name]; src != nil {
			list = append(list, src)
		}
	}
	return list
}

func (d *Daemon) startDoors(s *config.Settings, passed []int) (err error) {
	cfg := acmsock.Config{
		RunDir: d.opts.RunDir, Mode: acmsock.Mode(s.ServerMode), Port: s.ServerPort,
		NoLinks: s.AcmePlusKernelOnly, Listeners: passed, Threads: s.ServerThreads, MaxClients: s.MaxClients,
		MaxPerUID: s.MaxUserClients, Fast: d.fast != nil, FastPort: s.FastPathPort, FastWait: s.FastPathWait, Counters: d.counters,
	}
	if d.door, err = acmsock.New(cfg, d.engine, d.log); err != nil {
		return err
	}
	d.onStop(d.stopFastPath) // the door has closed its connections by then
	d.onStop(func() error {
		ctx, cancel := context.WithTimeout(context.Background(), drainTime)
		defer cancel()
		return d.door.Drain(ctx)
	})
	ctl, err := control.Listen(d.opts.RunDir, d, d.log)
	if err != nil {
		return err
	}
	d.onStop(ctl.Close)
	d.serveCounters(ctl)
	d.serveFastPath(ctl)
	ctl.Handle("POST /v1/acquire", d.serveAcquire)
	kernel := d.loadFastPath()
	d.startMetrics(s)
	d.startFastPath(kernel, d.dropCapabilities(kernel)) // all that takes a privilege is open by now
	d.ports.lend(d.door)
	d.door.Start()
	if err = tellParent(d.opts.Getenv); err != nil {
		return err
	}
	for _, a := range d.door.Addrs() {
		d.log.Info("serving clients", "network", a.Network(), "address", a.String())
	}
	return nil
}

// Status is one line for the service manager.
func (d *Daemon) Status() string {
	return fmt.Sprintf("%d endpoints, %d paths", len(d.engine.Endpoints()), d.engine.CacheLen())
}

// Stop drains the doors, closes everything and gives the lock back.
func (d *Daemon) Stop() error {
	d.log.Info("acmd stops")
	return d.close()
}

// Log is the daemon's log.
func (d *Daemon) Log() *slog.Logger { return d.log }

// addresses is [Daemon.readAddresses] for the start: what is wrong goes to the log.
func (d *Daemon) addresses(s *config.Settings) []resolver.AddressEntry {
	list, problems, err := d.readAddresses(s)
	if err != nil {
		d.log.Error("address file cannot be read", "err", err)
	}
	d.report(problems)
	return list
}

// readAddresses collects the names of endpoints: the fabric's own, then the address
// file, or, without one, the names that ib_acme -A would have generated. With an
// error the list has none of the file.
func (d *Daemon) readAddresses(s *config.Settings) ([]resolver.AddressEntry, []config.Problem, error) {
	list := slices.Clone(d.fabric.addrs)
	lines, problems, err := config.LoadAddrs(d.opts.AddressFile, s.SupportIPsInAddr)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		err = nil
		if len(list) > 0 {
			return list, nil, nil // the fabric named its node
		}
		lines = d.generatedAddrs()
		d.log.Info("no address file, endpoints are named after the host", "file", d.opts.AddressFile)
	case err != nil:
		return list, nil, err
	}
	for i := range lines {
		l := &lines[i]
		addr, err := preload.ParseAddr(l.Addr)
		if err != nil {
			continue // LoadAddrs has refused it already
		}
		list = append(list, resolver.AddressEntry{
			Addr: addr, Text: l.Addr, Device: l.Device, Port: l.Port, PKey: l.PKey, Default: l.IsDefault(),
		})
	}
	return list, problems, nil
}

func (d *Daemon) generatedAddrs() []config.AddrLine {
	devices, err := d.fabric.Devices()
	if err != nil {
		d.log.Warn("devices cannot be listed", "err", err)
	}
	return config.GenerateAddrs(hostname(), generatePorts(devices))
}

// generatePorts lists the InfiniBand ports in the form that config's generators
// take.
func generatePorts(devices []transport.Device) (list []config.Port) {
	for _, dev := range devices {
		for _, p := range dev.Ports {
			if p.LinkLayer == transport.LinkInfiniBand {
				list = append(list, config.Port{Device: dev.Name, Port: p.Num, Active: p.State == mad.PortActive})
			}
		}
	}
	return list
}

func hostname() string {
	name, err := os.Hostname()
	if err != nil || name == "" {
		return "localhost"
	}
	return name
}

// topologyChanged runs on the engine's topology goroutine.
func (d *Daemon) topologyChanged(eps []*resolver.Endpoint) {
	d.acm.SetEndpoints(eps)
	d.fastPathTopology()
	d.traceFabric()
	if d.preload.Stale(eps) { // for the first time before the engine's New returns
		d.loadPreload(eps)
	}
}

// preloadFiles are the files that the settings have preloaded, "" for none.
func preloadFiles(s *config.Settings) (hosts, dump string) {
	if s.AddrPreload {
		hosts = s.AddrDataFile
	}
	if s.RoutePreload == config.PreloadFile {
		dump = s.RouteDataFile
	}
	return hosts, dump
}

// loadPreload is [Daemon.readPreload] where nobody asked for it: what is wrong goes
// to the log.
func (d *Daemon) loadPreload(eps []*resolver.Endpoint) {
	problems, err := d.readPreload(eps)
	if err != nil {
		d.log.Error("preload", "err", err)
	}
	d.report(problems)
}

func (d *Daemon) readPreload(eps []*resolver.Endpoint) ([]config.Problem, error) {
	problems, err := d.preload.Load(eps)
	if hosts, ports, paths := d.preload.Counts(); hosts+ports+paths > 0 {
		// Reading leaves several times the tables behind as garbage; on a node that
		// is there for others it goes back at once.
		debug.FreeOSMemory()
		d.log.Info("preloaded", "hosts", hosts, "ports", ports, "paths", paths)
	}
	return problems, err
}

// report logs what is wrong with a file, at most a screen of it.
func (d *Daemon) report(problems []config.Problem) {
	const most = 50
	for i, p := range problems {
		if i == most {
			d.log.Warn("more problems in this file", "count", len(problems)-most)
			return
		}
		d.log.Warn(p.Error())
	}
}

func saConfig(s *config.Settings) sa.Config {
	return sa.Config{Timeout: s.Timeout, Retries: s.Retries, Depth: s.SAWindow, MaxRate: s.SAMaxRate, RetryNoRecords: noRecordTries}
}
