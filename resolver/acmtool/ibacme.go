// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acmtool

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"acmd/resolver/acmsock"
	"acmd/resolver/config"
)

// acmeTimeout bounds one request of ib_acme. ibacm itself may take that long
// for a peer that does not answer.
const acmeTimeout = 2 * time.Minute

// socketName is the socket that ib_acme asks by default.
const socketName = "ibacm-unix.sock"

const acmeHelp = `usage: ib_acme [-f i|n|l|g|u] [-s SRC] -d DST [-v] [-c] [-C N] [-S SERVICE]
       ib_acme -P [col|N|all|s] [-s SRC] [-S SERVICE]
       ib_acme -e [N] [-S SERVICE]
       ib_acme [-A [FILE]] [-O [FILE]] [-D DIR] [-V]

Asks an InfiniBand path service (acmd, ibacm):
   -f FORM     what SRC and DST are: IP address, host name, LID, GID;
               u, the default: found out from DST
   -s SRC      local end of the path; a list: see below
   -d DST      far end of the path; a list: see below
   -v          compare the path with what the SA says
   -c          cached paths only
   -C N        ask N times
   -P [WHAT]   counters. Without WHAT: totals, in a row; col: in a column;
               N: endpoint N, from 1; all: each endpoint; s: endpoint of SRC
   -e [N]      endpoints, or only endpoint N
   -S SERVICE  path of a unix socket, or host; a list: see below

Writes the service's configuration files:
   -A [FILE]   names of this node (ibacm_addr.cfg)
   -O [FILE]   options at their defaults (ibacm_opts.cfg)
   -D DIR      directory of both
   -V          say what is written

A list ends in brackets: node[1-3,05-12] stands for node1 ... node12.
`

// acme is one run of ib_acme.
type acme struct {
	*Env
	ctx context.Context

	form       byte // i, n, l, g or u
	src, dst   string
	verify     bool
	cached     bool
	repeat     int
	perf       string
	doPerf     bool
	endpoint   int // 0: all
	doEndpoint bool
	services   string
	addrFile   string // "": not asked for
	optsFile   string
	dir        string
	verbose    bool

	srcs, dsts    []string
	perfHeader    bool
	endpointsHead bool
	status        int // last failure: errno, or -1
}

// fail remembers the status of a failure; a later success does not hide it.
func (a *acme) fail(status int) { a.status = status }

// ibAcme runs ib_acme and returns its exit code.
func ibAcme(ctx context.Context, env *Env, args []string) int {
	a := &acme{Env: env, ctx: ctx, form: 'u', repeat: 1, dir: env.ConfDir,
		services: filepath.Join(env.RunDir, socketName)}
	if !a.parse(args) {
		env.printf("%s", acmeHelp)
		return 1
	}
	var err error
	if a.srcs, err = expandOptional(a.src); err == nil {
		a.dsts, err = expandOptional(a.dst)
	}
	services := []string{}
	if err == nil {
		services, err = expand(a.services)
	}
	if err != nil {
		env.errorf("ib_acme: %v\n", err)
		return 1
	}
	if a.dst != "" || a.doPerf || a.doEndpoint {
		for _, s := range services {
			a.service(s)
		}
	}
	a.generate()
	if a.verbose || a.status != 0 || a.addrFile == "" && a.optsFile == "" {
		env.printf("return status 0x%x\n", uint32(a.status))
	}
	return a.status & 0xff
}

// expandOptional expands a list; no list is one empty word, so that there is
// one round without a source.
func expandOptional(s string) ([]string, error) {
	if s == "" {
		return []string{""}, nil
	}
	return expand(s)
}

func (a *acme) parse(args []string) bool {
	opts, _, err := getopt(args, "f:s:d:vce::P::S:C:A::O::D:V")
	if err != nil {
		a.errorf("ib_acme: %v\n", err)
		return false
	}
	for _, o := range opts {
		switch o.name {
		case 'f':
			a.form = strings.ToLower(o.arg + " ")[0]
			if strings.IndexByte("inlgu", a.form) < 0 {
				return false
			}
		case 's':
			a.src = o.arg
		case 'd':
			a.dst = o.arg
		case 'v':
			a.verify = true
		case 'c':
			a.cached = true
		case 'e':
			a.doEndpoint = true
			a.endpoint = atoi(o.arg)
		case 'P':
			a.doPerf = true
			a.perf = strings.ToLower(o.arg)
		case 'S':
			a.services = o.arg
		case 'C':
			a.repeat = max(1, atoi(o.arg))
		case 'A':
			a.addrFile = orDefault(o, config.AddressFile)
		case 'O':
			a.optsFile = orDefault(o, config.OptionsFile)
		case 'D':
			a.dir = o.arg
		case 'V':
			a.verbose = true
		}
	}
	ofSource := a.doPerf && a.perf == "s"
	switch {
	case a.services == "",
		a.src != "" && a.dst == "" && !ofSource,
		a.src == "" && ofSource:
		return false
	}
	return a.dst != "" || a.doPerf || a.doEndpoint || a.addrFile != "" || a.optsFile != ""
}

func orDefault(o opt, name string) string {
	if o.arg != "" {
		return o.arg
	}
	return name
}

// atoi is C's, for the words where ib_acme takes garbage as 0.
func atoi(s string) int {
	end := 0
	for end < len(s) && end < 9 && s[end] >= '0' && s[end] <= '9' {
		end++
	}
	n, _ := strconv.Atoi(s[:end])
	return n
}

// service asks one service everything that was asked for.
func (a *acme) service(name string) {
	ctx, cancel := context.WithTimeout(a.ctx, acmeTimeout)
	d := acmsock.Dialer{RunDir: a.RunDir}
	c, err := d.Dial(ctx, name)
	cancel()
	if err != nil {
		a.printf("%s,unable to contact service: %s\n", name, strerror(err))
		a.fail(dialStatus(name, err))
		return
	}
	defer c.Close()
	if a.dst != "" {
		a.printf("Service: %s\n", name)
		for _, dst := range a.dsts {
			for _, src := range a.srcs {
				a.resolve(c, src, dst)
			}
		}
	}
	if a.doPerf {
		a.perfQuery(c, name)
	}
	if a.doEndpoint {
		a.endpoints(c, name)
	}
}

// dialStatus is the errno of a failed connect to a unix socket; over TCP it is
// -1, or getaddrinfo's EAI_NONAME for a name that cannot be looked up.
func dialStatus(service string, err error) int {
	var dns *net.DNSError
	switch n := errnoOf(err); {
	case errors.As(err, &dns):
		return -2
	case service[0] != '/' || n == 0:
		return -1
	default:
		return int(n)
	}
}

// request gives each request its own deadline.
func (a *acme) request() (context.Context, context.CancelFunc) {
	return context.WithTimeout(a.ctx, acmeTimeout)
}
