// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acmtool

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"strings"
	"text/tabwriter"
	"time"

	"acmd/resolver/acmsock"
	"acmd/resolver/control"
)

const defaultTimeout = 10 * time.Second

const ctlHelp = `usage: acmctl [--run-dir DIR] [-S SERVICE] [--timeout T] [--json] VERB ...

Asks the service (acmd, ibacm):
  resolve [--src A] [--gid|--lid|--name] [--nodelay] [--verify] DEST...
                 the path to each destination: an IP address, a name, gid:GID,
                 lid:LID. An address in IPv6 form is taken for IPv6, also fe80::
                 A name needs --src with a name of this node (see endpoints)
  perf [--endpoint N | --src A | --all]
                 counters: totals, of one endpoint, of all
  endpoints      local endpoints and their addresses
  ib_acme ...    as rdma-core's ib_acme; without options it lists them

Asks acmd over its control socket (RUN-DIR/acmd.ctl):
  flush --gid G | --lid L | --dest A | --port DEV/P | --all
                 drop cached paths; DEV/P as in mlx5_0/1 (state lists the ports)
  acquire [--listener DEV[/P]] [--incoming] [--source A] [--service ID]
          [--sgid G] [--slid L] [--dgid G] [--dlid L] [--pkey K]
                 the device, port and GID entry of a connection on that path:
                 its source end is ours, with --incoming its destination
  config         every setting with its value and where it comes from
  state          what the daemon knows about itself (JSON); "failures" has why a
                 destination was not found
  reload         read the configuration files again
  fast-path [on|off|status]
                 answers in the kernel: after "off" returns, none is given any more

Reads acmd's counters where it has pinned them, also after it has ended:
  top [--once] [--bpf-dir DIR]
                 endpoints, rates, who answered, latencies, slowest requests,
                 each second until interrupted; --once: after one second.
                 Of a daemon that has pinned nothing, over the control socket

Watches programs (root, or CAP_BPF and CAP_PERFMON):
  trace clients [--lib FILE] [--slow T] [--for T]
                 how long rdma_getaddrinfo takes in each process that calls it, and
                 calls of at least T (10ms) as they come, until interrupted

  -S SERVICE     path of a unix socket, or host[:port]
  --run-dir DIR  where the sockets are (/run)
  --timeout T    per request (10s)
  --json         machine-readable output

Exit codes: 0 all done, 1 something failed, 2 usage, 3 service not reachable.
`

// usageError is an error about the command line.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// exitCode ends a verb that has a code of its own.
type exitCode int

func (e exitCode) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// errFailed ends a verb whose failures are already in its output.
var errFailed = errors.New("failed")

// ctl is one run of acmctl.
type ctl struct {
	*Env
	ctx     context.Context
	service string
	timeout time.Duration
	json    bool
	flags   *flag.FlagSet
}

// acmctl runs a verb and returns the exit code.
func acmctl(ctx context.Context, env *Env, args []string) int {
	copied := *env // --run-dir changes it
	c := &ctl{Env: &copied, ctx: ctx, timeout: defaultTimeout}
	err := c.run(args)
	var usage usageError
	var code exitCode
	switch {
	case err == nil:
		return ExitOK
	case errors.Is(err, flag.ErrHelp):
		env.printf("%s", ctlHelp)
		return ExitOK
	case errors.As(err, &usage):
		env.errorf("acmctl: %v; acmctl -h tells more\n", err)
		return ExitUsage
	case errors.As(err, &code):
		return int(code)
	case errors.Is(err, errFailed):
		return ExitFailed
	}
	env.errorf("acmctl: %s\n", c.said(err))
	var down *unreachable
	switch {
	case errors.As(err, &down):
		env.errorf("Is the service running? --run-dir and -S say where it is looked for.\n")
	case errors.Is(err, control.ErrUnavailable):
		env.errorf("Is acmd running? --run-dir says where it is looked for.\n")
	default:
		return ExitFailed
	}
	return ExitUnreachable
}

func usagef(format string, a ...any) error {
	return usageError{fmt.Errorf(format, a...)}
}

// unreachable is a failed connect.
type unreachable struct {
	service string
	err     error
}

func (e *unreachable) Error() string {
	err := e.err
	if op := (*net.OpError)(nil); errors.As(err, &op) {
		err = op.Err // the rest of it repeats the address
	}
	return fmt.Sprintf("no service at %s: %v", e.service, err)
}
func (e *unreachable) Unwrap() error { return e.err }

// newFlags makes a flag set with the flags that every verb takes.
func (c *ctl) newFlags(name string) *flag.FlagSet {
	f := flag.NewFlagSet(name, flag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.StringVar(&c.service, "S", c.service, "")
	f.StringVar(&c.RunDir, "run-dir", c.RunDir, "")
	f.DurationVar(&c.timeout, "timeout", c.timeout, "")
	f.BoolVar(&c.json, "json", c.json, "")
	return f
}

func (c *ctl) run(args []string) error {
	f := c.newFlags("acmctl")
	if err := f.Parse(args); err != nil {
		return parseError(err)
	}
	if f.NArg() == 0 {
		return usagef("a verb is needed")
	}
	name := f.Arg(0)
	if name == "ib_acme" {
		return c.ibAcme(f.Args()[1:])
	}
	verbs := map[string]func([]string) error{
		"resolve": c.resolve, "perf": c.perf, "endpoints": c.endpoints, "flush": c.flush, "acquire": c.acquire,
		"config": c.config, "state": c.state, "reload": c.reload, "fast-path": c.fastPath,
		"top": c.top, "trace": c.trace,
		"help": func([]string) error { return flag.ErrHelp },
	}
	verb := verbs[name]
	if verb == nil {
		return usagef("unknown verb %q", name)
	}
	c.flags = c.newFlags(name)
	return verb(f.Args()[1:])
}

// ibAcme runs ib_acme on the service that the flags before it say.
func (c *ctl) ibAcme(args []string) error {
	if c.json || c.timeout != defaultTimeout {
		return usagef("--json and --timeout are not for ib_acme")
	}
	if c.service != "" {
		args = append([]string{"-S", c.service}, args...)
	}
	if code := ibAcme(c.ctx, c.Env, args); code != 0 {
		return exitCode(code)
	}
	return nil
}

func parseError(err error) error {
	if errors.Is(err, flag.ErrHelp) {
		return err
	}
	return usagef("%w", err)
}

// parse reads the flags of a verb, which may stand before and behind its words.
func (c *ctl) parse(args []string) (words []string, err error) {
	for len(args) > 0 {
		if err := c.flags.Parse(args); err != nil {
			return nil, parseError(err)
		}
		rest := c.flags.Args()
		if n := len(args) - len(rest); n > 0 && args[n-1] == "--" {
			words = append(words, rest...)
			break
		}
		if len(rest) == 0 {
			break
		}
		words, args = append(words, rest[0]), rest[1:]
	}
	if c.timeout <= 0 {
		return nil, usagef("--timeout must be more than 0")
	}
	return words, nil
}

// noWords is parse for a verb without words.
func (c *ctl) noWords(args []string) error {
	words, err := c.parse(args)
	if err == nil && len(words) > 0 {
		err = usagef("%s takes no word: %q", c.flags.Name(), words[0])
	}
	return err
}

// said is err for the user: a time-out names the wait, and the flag to change it.
func (c *ctl) said(err error) string {
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Sprintf("no answer within %v (--timeout)", c.timeout)
	}
	return err.Error()
}

func (c *ctl) request() (context.Context, context.CancelFunc) {
	return context.WithTimeout(c.ctx, c.timeout)
}

// dial connects to the service and returns the name that it goes by.
func (c *ctl) dial() (*acmsock.Client, string, error) {
	name := c.service
	if name == "" {
		name = c.RunDir + "/" + socketName
	}
	ctx, cancel := c.request()
	defer cancel()
	d := acmsock.Dialer{RunDir: c.RunDir}
	cl, err := d.Dial(ctx, name)
	if err != nil {
		return nil, name, &unreachable{name, err}
	}
	return cl, name, nil
}

// writeJSON prints a value, indented.
func (c *ctl) writeJSON(v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(c.Stdout, "%s\n", b)
	return err
}

// table prints rows in aligned columns.
func (c *ctl) table(rows [][]string) {
	w := tabwriter.NewWriter(c.Stdout, 0, 8, 2, ' ', 0)
	for _, r := range rows {
		fmt.Fprintln(w, strings.Join(r, "\t"))
	}
	w.Flush()
}
