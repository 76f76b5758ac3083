// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package service

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"acmd/mad/fabric"
	"acmd/mad/ibsim"
	"acmd/mad/transport"
	"acmd/mad/umad"
	"acmd/resolver"
	"acmd/resolver/config"
	"acmd/resolver/hostnet"
	"acmd/resolver/neigh"
	"acmd/resolver/preload"
)

// Options are what the command line says.
type Options struct {
	OptionsFile string // -O; "": /etc/rdma/ibacm_opts.cfg
	AddressFile string // -A; "": /etc/rdma/ibacm_addr.cfg
	RunDir      string // --run-dir; "": /run
	Fabric      string // --fabric: umad, embedded[:...] or ibsim[:...], with +verbs or not
	Systemd     bool   // --systemd
	Metrics     string // --metrics: overrides metrics_addr; "": as the file says
	Version     string

	Getenv func(string) string // os.Getenv

	// DropCapabilities has the process give up, once it is set up, what the daemon
	// does not need to go on. It is for processes that are nothing but the daemon.
	DropCapabilities bool

	// Observe, if set, is called once with the fabric that Fabric names, before
	// anything is asked on it: a harness counts there what really goes out.
	Observe func(transport.Fabric)
	// Serving, if set, is called once before the first client can connect: from then on
	// there is something to clean up.
	Serving func()
	// tune, if set, changes what the settings say about the engine; for tests.
	tune func(*resolver.Config)
	dir  string // of the start: of relative paths
	// inserter, if set, is the one way to put sockets onto the fast path's map that
	// is tried; for tests.
	inserter string
}

func (o *Options) setDefaults() {
	if o.OptionsFile == "" {
		o.OptionsFile = filepath.Join(config.DefaultConfDir, config.OptionsFile)
	}
	if o.AddressFile == "" {
		o.AddressFile = filepath.Join(config.DefaultConfDir, config.AddressFile)
	}
	if o.RunDir == "" {
		o.RunDir = config.DefaultRunDir
	}
	if o.Fabric == "" {
		o.Fabric = "umad"
	}
	o.dir, _ = os.Getwd() // if there is none any more, relative paths stay as they are
	for _, path := range []*string{&o.OptionsFile, &o.AddressFile, &o.RunDir} {
		if abs, err := filepath.Abs(*path); err == nil {
			*path = abs
		}
	}
}

// sources are the words of addr_prot.
var sources = []string{resolver.SourceACM, neigh.Name, preload.Name}

// env is what the settings' meaning depends on.
func (o *Options) env(activated bool) config.Env {
	return config.Env{
		RunDir: o.RunDir, Dir: o.dir, Sources: sources, Providers: []string{resolver.DefaultProviderName},
		Systemd: o.Systemd, Activated: activated, Background: o.Getenv != nil && inBackground(o.Getenv),
		NoKernel: !strings.HasPrefix(o.Fabric, "umad"), NoQueues: !strings.HasSuffix(o.Fabric, queuePairs),
	}
}

// load reads the options file and puts the command line's values over it.
func (o *Options) load(activated bool) (*config.Settings, []config.Problem, error) {
	s, problems, err := config.Load(o.OptionsFile, o.env(activated))
	if err == nil {
		err = o.override(s)
	}
	return s, problems, err
}

// foundFiles tells which of the two files are there.
type foundFiles struct{ options, addresses bool }

func (o *Options) find() foundFiles {
	there := func(path string) bool {
		_, err := os.Stat(path)
		return !errors.Is(err, fs.ErrNotExist)
	}
	return foundFiles{there(o.OptionsFile), there(o.AddressFile)}
}

// gone tells which files are there no more, and what follows.
func (o *Options) gone(was, now foundFiles) (list []string) {
	if was.options && !now.options {
		list = append(list, o.OptionsFile+" is gone: every option has its default")
	}
	if was.addresses && !now.addresses {
		list = append(list, o.AddressFile+" is gone: its names are dropped")
	}
	return list
}

// override puts the command line's values over those of the file.
func (o *Options) override(s *config.Settings) error {
	if o.Metrics == "" {
		return nil
	}
	if err := s.SetFlag("metrics_addr", o.Metrics); err != nil {
		return fmt.Errorf("--metrics: %w", err)
	}
	return nil
}

// fabricView is a transport together with what it says about the host.
type fabricView struct {
	transport.Fabric
	host  resolver.Host                                                 // nil: the kernel's view
	addrs []resolver.AddressEntry                                       // names of the node on a fabric that brings its own
	gids  func(device string, port uint8) ([]transport.GIDEntry, error) // nil: what Devices shows is all
}

// transportOf reads the --fabric option without its suffix. The function that it
// returns attaches.
func transportOf(spec string) (func() (*fabricView, error), error) {
	kind, rest, _ := strings.Cut(spec, ":")
	switch kind {
	case "umad":
		if rest != "" {
			return nil, fmt.Errorf("--fabric umad takes no options, got %q", rest)
		}
		return func() (*fabricView, error) {
			f, err := umad.New(umad.Config{})
			if err != nil {
				return nil, err
			}
			return &fabricView{Fabric: f, gids: f.GIDTable}, nil
		}, nil
	case "ibsim":
		cfg, err := ibsim.ParseOptions(rest)
		if err != nil {
			return nil, fmt.Errorf("--fabric ibsim: %w", err)
		}
		return func() (*fabricView, error) {
			f, err := ibsim.New(cfg)
			if err != nil {
				return nil, err
			}
			return &fabricView{Fabric: f}, nil
		}, nil
	case "embedded":
		cfg, err := fabric.ParseOptions(spec)
		if err != nil {
			return nil, fmt.Errorf("--fabric embedded: %w", err)
		}
		return func() (*fabricView, error) {
			f, err := fabric.New(cfg)
			if err != nil {
				return nil, fmt.Errorf("--fabric embedded: %w", err)
			}
			return embeddedView(f)
		}, nil
	}
	return nil, fmt.Errorf("--fabric %q: want umad, embedded[:nodes=N,...] or ibsim[:SOCKNAME,node=ID], each with +verbs behind it or not", spec)
}

// embeddedView gives node 0 of an embedded fabric the names and addresses that
// its formulas say, and chooses sources among them: the kernel's routing knows
// nothing of this fabric.
func embeddedView(f *fabric.Fabric) (*fabricView, error) {
	devices, err := f.Devices()
	if err != nil {
		return nil, err
	}
	v := &fabricView{Fabric: f}
	var static hostnet.Static
	for _, d := range devices {
		for _, p := range d.Ports {
			if p.LinkLayer != transport.LinkInfiniBand {
				continue
			}
			name := fabric.NodeName(0, p.Num)
			v.addrs = append(v.addrs, resolver.AddressEntry{Addr: resolver.NameAddr(name), Text: name, Device: d.Name, Port: p.Num, Default: true})
			for _, ip := range []resolver.HostAddr{{IP: fabric.IPv4(0, p.Num)}, {IP: fabric.IPv6(0, p.Num)}} {
				ip.Device, ip.Port, ip.Ifname = d.Name, p.Num, "embedded"
				static.Addrs = append(static.Addrs, ip)
			}
		}
	}
	v.host = &static
	return v, nil
}
