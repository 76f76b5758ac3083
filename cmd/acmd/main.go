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
	"runtime/debug"
	"syscall"

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

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	o := service.Options{Version: version, Getenv: os.Getenv, DropCapabilities: true}
	fs := flag.NewFlagSet("acmd", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.Bool("D", false, "run in the background (the default)")
	foreground := fs.Bool("P", false, "stay in the foreground")
	fs.StringVar(&o.AddressFile, "A", "", "address `file` (/etc/rdma/ibacm_addr.cfg)")
	fs.StringVar(&o.OptionsFile, "O", "", "options `file` (/etc/rdma/ibacm_opts.cfg)")
	fs.BoolVar(&o.Systemd, "systemd", false, "run under systemd: unix mode, sockets passed in, readiness told")
	fs.StringVar(&o.Fabric, "fabric", "umad", "what moves MADs: umad, embedded[:nodes=N,...] or ibsim[:SOCKNAME,node=ID]; with +verbs behind it a queue pair hears and answers other nodes (acmd-verbs)")
	fs.StringVar(&o.RunDir, "run-dir", config.DefaultRunDir, "`directory` of sockets, port files and the default lock file")
	fs.StringVar(&o.Metrics, "metrics", "", "`address` that Prometheus scrapes, over metrics_addr: HOST:PORT, a unix socket's path, or off")
	check := fs.Bool("check-config", false, "print every effective setting with its origin; fail on anything doubtful")
	showVersion := fs.Bool("version", false, "print the version")
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return 0
		}
		return exitUsage
	}
	switch {
	case fs.NArg() > 0:
		fmt.Fprintf(stderr, "acmd: unexpected argument %q\n", fs.Arg(0))
		return exitUsage
	case *showVersion:
		fmt.Fprintln(stdout, "acmd", version)
		return 0
	case *check:
		if err := service.CheckConfig(o, stdout); err != nil {
			fmt.Fprintln(stderr, err)
			return exitUsage
		}
		return 0
	}
	serve := serve
	if !*foreground && !o.Systemd {
		serve = func(service.Options) error { return service.Daemonize(append([]string{"-P"}, args...)) }
	}
	if err := serve(o); err != nil {
		fmt.Fprintln(stderr, "acmd:", err)
		return exitStart
	}
	return 0
}

// serve runs the daemon until SIGTERM or SIGINT. SIGHUP reloads.
func serve(o service.Options) error {
	signals := make(chan os.Signal, 4)
	// Until it serves, the daemon owes nobody anything: SIGTERM then ends it as it
	// ends any process, even when a file that it reads or a device hangs.
	signal.Notify(signals, syscall.SIGHUP)
	signal.Ignore(syscall.SIGPIPE)
	if os.Getenv("GOGC") == "" {
		// Most of the heap is the cache's tables, which hold no pointers: letting
		// garbage grow to their size again would only double the memory.
		debug.SetGCPercent(15)
	}
	d, err := service.Start(o)
	if err != nil {
		return err
	}
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	notify := notifier(d.Log())
	notify(sdnotify.Ready, sdnotify.Statusf("%s", d.Status()))
	for s := range signals {
		if s != syscall.SIGHUP {
			break
		}
		notify(sdnotify.Reloading)
		_, _ = d.Reload() // it logs its own outcome
		notify(sdnotify.Ready, sdnotify.Statusf("%s", d.Status()))
	}
	notify(sdnotify.Stopping)
	return d.Stop()
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
