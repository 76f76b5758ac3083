// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acmtool

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"

	"acmd/resolver/acmsock"
	"acmd/resolver/config"
)

// Exit codes of acmctl.
const (
	ExitOK          = 0
	ExitFailed      = 1 // something that was asked for failed
	ExitUsage       = 2
	ExitUnreachable = 3 // no service
)

// Env is what a command sees of the machine.
type Env struct {
	Stdout, Stderr io.Writer
	RunDir         string // of the service's sockets
	ConfDir        string // where -A and -O write by default
	Sysfs          string // root of sysfs
	Hostname       func() (string, error)
	// Lookup returns the addresses of a host name, best first.
	Lookup func(ctx context.Context, host string) ([]netip.Addr, error)
}

// System is the environment of a real command.
func System() *Env {
	return &Env{
		Stdout:   os.Stdout,
		Stderr:   os.Stderr,
		RunDir:   acmsock.DefaultRunDir,
		ConfDir:  config.DefaultConfDir,
		Sysfs:    "/sys",
		Hostname: os.Hostname,
		Lookup: func(ctx context.Context, host string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		},
	}
}

// Main runs a command line, the name of the command included, and returns its
// exit code. Called as ib_acme, or with ib_acme as the verb, it is ib_acme.
// Cancelling ctx ends it early.
func Main(ctx context.Context, env *Env, args []string) int {
	if len(args) == 0 {
		args = []string{"acmctl"}
	}
	if filepath.Base(args[0]) == "ib_acme" {
		return ibAcme(ctx, env, args[1:])
	}
	return acmctl(ctx, env, args[1:])
}

func (e *Env) printf(format string, a ...any) { fmt.Fprintf(e.Stdout, format, a...) }

func (e *Env) errorf(format string, a ...any) { fmt.Fprintf(e.Stderr, format, a...) }
