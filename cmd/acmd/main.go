// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

// Command acmd answers which path leads to a name, IP address, GID or LID on an
// InfiniBand fabric, in place of ibacm. It takes ibacm's flags; acmd -h lists
// them.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"syscall"
	"time"

	"acmd/resolver"
	"acmd/resolver/config"
	"acmd/resolver/service"

	"github.com/mdlayher/sdnotify"
)

// version is set by the linker.
var version = "devel"

// Exit codes: 1 for a usage error, 255 where ibacm has it too (lock file, no
// fabric), 1 for a configuration that --check-config finds wrong.
const (
	exitUsage = 1
	exitStart = 255
)

const help = `usage: acmd [-D | -P] [-A FILE] [-O FILE] [--run-dir DIR] [--fabric FABRIC]
            [--metrics ADDRESS] [--systemd]
       acmd --check-config [-A FILE] [-O FILE] ...

Answers which path leads to a name, IP address, GID or LID on an InfiniBand
fabric, in place of ibacm.

  -A FILE            names of this node (/etc/rdma/ibacm_addr.cfg)
  -O FILE            options (/etc/rdma/ibacm_opts.cfg); ib_acme -O writes one
                     with every option explained
  -D                 run in the background (the default)
  -P                 stay in the foreground
  --systemd          stay in the foreground, take sockets from systemd, tell it
                     when the service is ready
  --run-dir DIR      directory of sockets, port files and lock file (/run)
  --fabric FABRIC    what is asked (umad):
                       umad                     the kernel's adapters
                       embedded[:nodes=N,...]   a fabric inside the process
                       ibsim[:SOCKNAME,node=ID] the simulator
                     with +verbs behind it, in acmd-verbs only, a queue pair
                     hears the requests of other nodes and answers them
  --metrics ADDRESS  where Prometheus scrapes, over the option metrics_addr:
                     HOST:PORT, the path of a unix socket, or off
  --check-config     print every setting with its origin and end; fail on
                     anything doubtful
  --version          print the version and end

SIGHUP reads the files again, SIGTERM ends the service. Exit codes: 0 ended as
asked, 1 usage or a doubtful configuration, 255 the service could not start or
not end cleanly.
`

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	o := service.Options{Version: version, Getenv: os.Getenv, DropCapabilities: true}
	fs := flag.NewFlagSet("acmd", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.Bool("D", false, "")
	foreground := fs.Bool("P", false, "")
	fs.StringVar(&o.AddressFile, "A", "", "")
	fs.StringVar(&o.OptionsFile, "O", "", "")
	fs.BoolVar(&o.Systemd, "systemd", false, "")
	fs.StringVar(&o.Fabric, "fabric", "umad", "")
	fs.StringVar(&o.RunDir, "run-dir", config.DefaultRunDir, "")
	fs.StringVar(&o.Metrics, "metrics", "", "")
	check := fs.Bool("check-config", false, "")
	showVersion := fs.Bool("version", false, "")
	err := fs.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(stdout, help)
		return 0
	case err == nil && fs.NArg() > 0:
		err = fmt.Errorf("unexpected argument %q", fs.Arg(0))
	}
	switch {
	case err != nil:
		fmt.Fprintf(stderr, "acmd: %v; acmd -h tells more\n", err)
		return exitUsage
	case *showVersion:
		fmt.Fprintln(stdout, "acmd", version)
		return 0
	case *check:
		if err = service.CheckConfig(o, stdout); err != nil {
			fmt.Fprintln(stderr, err) // its lines begin with file and line
			return exitUsage
		}
		return 0
	}
	serve := serve
	if !*foreground && !o.Systemd {
		serve = func(service.Options) error { return service.Daemonize(append([]string{"-P"}, args...), stderr) }
	}
	if err = serve(o); err != nil {
		fmt.Fprintln(stderr, "acmd:", err)
		return exitStart
	}
	return 0
}

// serve runs the daemon until SIGTERM or SIGINT. SIGHUP reloads.
func serve(o service.Options) error {
	// Each has a channel of its own, since a signal that finds its channel full is
	// lost. One SIGHUP that waits stands for all that came during a reload.
	hup, term := make(chan os.Signal, 1), make(chan os.Signal, 1)
	// Until it serves, the daemon owes nobody anything: SIGTERM then ends it as it
	// ends any process, even when a file that it reads or a device hangs.
	signal.Notify(hup, syscall.SIGHUP)
	signal.Ignore(syscall.SIGPIPE)
	if os.Getenv("GOGC") == "" {
		// Most of the heap is the cache's tables, which hold no pointers: letting
		// garbage grow to their size again would only double the memory.
		debug.SetGCPercent(15)
	}
	if os.Getenv("GOMAXPROCS") == "" && runtime.GOMAXPROCS(0) == 1 {
		// A node that gives its daemons one processor: the client loop keeps its
		// place there through short system calls, others need one besides.
		runtime.GOMAXPROCS(2)
	}
	o.Serving = func() {
		resolver.Warm()
		signal.Notify(term, syscall.SIGTERM, syscall.SIGINT)
	}
	d, err := service.Start(o)
	if err != nil {
		return err
	}
	notify := notifier(d.Log())
	notify(sdnotify.Ready, sdnotify.Statusf("%s", d.Status()))
	reloads(d, hup, term, notify)
	notify(sdnotify.Stopping)
	return d.Stop()
}

// reloadTime is how long the end waits for a reload that is under way.
const reloadTime = 2 * time.Second

// reloads has the files read again at each SIGHUP, until SIGTERM. A file may hang as
// long as it likes: that keeps the service from nothing, nor from its end.
func reloads(d *service.Daemon, hup, term <-chan os.Signal, notify func(...string)) {
	var busy chan struct{} // closed after the reload that is under way; nil: there is none
	next := hup
	for {
		select {
		case <-next:
			notify(sdnotify.Reloading)
			done := make(chan struct{})
			go func() {
				defer close(done)
				_, _ = d.Reload() // it logs its own outcome
			}()
			busy, next = done, nil
		case <-busy:
			notify(sdnotify.Ready, sdnotify.Statusf("%s", d.Status()))
			busy, next = nil, hup
		case <-term:
			if busy != nil {
				select {
				case <-busy:
				case <-time.After(reloadTime):
				}
			}
			return
		}
	}
}

// notifier tells the service manager, if there is one.
func notifier(log *slog.Logger) func(...string) {
	n, err := sdnotify.New()
	if err != nil {
		if !errors.Is(err, os.ErrNotExist) {
			log.Warn("service manager cannot be told", "err", err)
		}
		return func(...string) {}
	}
	return func(msgs ...string) {
		if err := n.Notify(msgs...); err != nil {
			log.Warn("service manager cannot be told", "err", err)
		}
	}
}
