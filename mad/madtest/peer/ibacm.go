// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package peer

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"acmd/mad"
)

// Ibacm is a running stock daemon.
type Ibacm struct {
	Node string
	Dir  string // its run directory: sockets, port file, logs, configuration
	Sock string // its unix socket
	Proc *Process
}

type ibacmConfig struct {
	options, addresses []string
	pkeys              []string // what the preload library shows of acmd's port
}

// IbacmOption changes how a stock ibacm is started.
type IbacmOption func(*ibacmConfig)

// Option adds a line "option value" to ibacm_opts.cfg. A later line wins.
func Option(line string) IbacmOption {
	return func(c *ibacmConfig) { c.options = append(c.options, line) }
}

// Address adds an address (IP or name) of the node to ibacm_addr.cfg, in the
// default partition unless a P_Key follows it.
func Address(addr string) IbacmOption {
	return func(c *ibacmConfig) { c.addresses = append(c.addresses, addr) }
}

// PKeys is the P_Key table of acmd's port, such as "0xffff", "0x0001": the preload
// library does not see the simulator's. The stock daemon's does.
func PKeys(keys ...string) IbacmOption { return func(c *ibacmConfig) { c.pkeys = keys } }

// Preload loads a route dump in "OpenSM full v1" form and an acm_hosts file;
// either may be "".
func Preload(routes, hosts string) IbacmOption {
	return func(c *ibacmConfig) {
		if routes != "" {
			c.options = append(c.options, "route_preload opensm_full_v1", "route_data_file "+routes)
		}
		if hosts != "" {
			c.options = append(c.options, "addr_preload acm_hosts", "addr_data_file "+hosts)
		}
	}
}

// NodeIP is the address that StartIbacm gives to a node of peerlab's netlists:
// node-a has 10.77.0.1 and so on, h1 has 10.78.0.2. "" for other names.
func NodeIP(node string) string {
	if rest, ok := strings.CutPrefix(node, "node-"); ok && len(rest) == 1 && rest[0] >= 'a' && rest[0] <= 'z' {
		return fmt.Sprintf("10.77.0.%d", rest[0]-'a'+1)
	}
	if rest, ok := strings.CutPrefix(node, "h"); ok {
		if n, err := strconv.ParseUint(rest, 10, 16); err == nil && n <= 250*255 {
			return fmt.Sprintf("10.78.%d.%d", n/250, n%250+1)
		}
	}
	return ""
}

// UDDir is the directory that carries the multicast and unicast datagrams of the
// stock daemons of this fabric (FAKEVERBS_DIR).
func (f *Fabric) UDDir(t testing.TB) string {
	t.Helper()
	dir := filepath.Join(f.Dir, "ud")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// StartIbacm runs the stock daemon attached to node and waits for its socket, which
// is there before its ports are up, see [Ibacm.WaitJoined]. It takes one of the
// simulator's slots.
func StartIbacm(t testing.TB, f *Fabric, node string, opts ...IbacmOption) *Ibacm {
	t.Helper()
	Need(t, "ibacm", "umad2sim")
	fake := built(t, "libfakeverbs.so")
	c := ibacmConfig{addresses: []string{node}}
	if ip := NodeIP(node); ip != "" {
		c.addresses = append(c.addresses, ip)
	}
	for _, o := range opts {
		o(&c)
	}
	d := &Ibacm{Node: node, Dir: filepath.Join(f.Dir, node)}
	d.Sock = filepath.Join(d.Dir, "ibacm-unix.sock")
	if err := os.MkdirAll(d.Dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, stale := range []string{d.Sock, filepath.Join(d.Dir, "ibacm-tcp.port")} {
		os.Remove(stale) // an earlier one's; they say that this one is up
	}
	c.write(t, d.Dir, "log_file ibacm-own.log", "log_level 0", "lock_file ibacm.pid", "support_ips_in_addr_cfg 1",
		"route_prot acm", "timeout 500")
	f.UDDir(t)

	env := append(f.env(node), "LD_PRELOAD="+fake+":"+find("umad2sim"),
		"FAKEVERBS_DIR=../ud", "FAKEVERBS_RUN=.", "FAKEVERBS_TERM_EXIT=1")
	// umad2sim takes descriptors from the limit on open files up; systemd, under which
	// ibacm runs elsewhere, ignores SIGPIPE.
	script := `ulimit -n 1024; trap '' PIPE; exec "$@"`
	own := filepath.Join(d.Dir, "ibacm-own.log")
	// env(1) sets the environment last: the shell must not load the libraries. It
	// would take FAKEVERBS_TERM_EXIT for itself, and a stopped ibacm would keep its
	// slot in the simulator.
	args := append([]string{"-c", script, "ibacm", "env"}, env...)
	args = append(args, find("ibacm"), "-P", "-A", "ibacm_addr.cfg", "-O", "ibacm_opts.cfg")
	d.Proc = start(t, d.Dir, nil, []string{own}, "/bin/sh", args...)
	d.Proc.Name = "ibacm" // sh has become it
	waitFor(t, d.Proc, "ibacm on "+node, func() bool {
		if _, err := os.Stat(d.Sock); err == nil {
			return true
		}
		st, err := os.Stat(filepath.Join(d.Dir, "ibacm-tcp.port"))
		return err == nil && st.Size() > 0
	})
	return d
}

// WaitJoined waits until the daemon is in its group: out of it a stock daemon does
// not even find itself. name is one of its own.
func (d *Ibacm) WaitJoined(t testing.TB, name string) {
	t.Helper()
	waitFor(t, d.Proc, "ibacm on "+d.Node+" joins", func() bool {
		_, status := IbAcme(t, Client{RunDir: d.Dir}, "-f", "n", "-s", name, "-d", name)
		return status == 0
	})
}

// write writes the daemon's files to dir; the lines of defaults come first.
func (c *ibacmConfig) write(t testing.TB, dir string, defaults ...string) {
	t.Helper()
	var addr strings.Builder
	for _, a := range c.addresses {
		a, pkey, ok := strings.Cut(a, " ")
		if !ok {
			pkey = "default"
		}
		fmt.Fprintf(&addr, "%s ibsim0 1 %s\n", a, pkey)
	}
	for name, text := range map[string]string{
		"ibacm_addr.cfg": addr.String(),
		"ibacm_opts.cfg": strings.Join(append(defaults, c.options...), "\n") + "\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// Client is a place to run stock clients: they are pointed at the daemon whose
// sockets are in RunDir, ibacm's or acmd's.
type Client struct {
	RunDir string   // has ibacm.sock, or ibacm.port for TCP
	GUID   mad.GUID // node GUID of the port that rdma_getaddrinfo sees
}

func (c Client) env(t testing.TB) []string {
	t.Helper()
	dir, err := filepath.Abs(c.RunDir)
	if err != nil {
		t.Fatal(err)
	}
	return []string{"LD_PRELOAD=" + built(t, "libfakeverbs.so"), "FAKEVERBS_RUN=" + dir,
		fmt.Sprintf("FAKEVERBS_GUID=%#x", uint64(c.GUID))}
}

// IbAcme runs the stock ib_acme and returns its output and exit status. Without
// -S in args it finds the service in the client's run directory.
func IbAcme(t testing.TB, c Client, args ...string) (out string, status int) {
	t.Helper()
	Need(t, "ib_acme")
	return runTool(t, t.TempDir(), c.env(t), find("ib_acme"), args...)
}

// Raitest resolves dst from src (IPv4 addresses) count times with the stock
// rdma_getaddrinfo, which asks the service in the client's run directory. It
// returns raitest's output and exit status, 0 when every call gave a route.
func Raitest(t testing.TB, c Client, src, dst string, count int) (out string, status int) {
	t.Helper()
	return runTool(t, t.TempDir(), c.env(t), built(t, "raitest"), src, dst, strconv.Itoa(count))
}

// Raistorm calls the stock rdma_getaddrinfo count times on the embedded fabric
// whose node 0 has this GUID, under a storm of signals: one every micros, whose
// handler is installed with SA_RESTART if restart is set. Every tenth call is for
// a node that nobody asked for yet. A process makes each calls. The exit status is
// 0 if no path was wrong.
func Raistorm(t testing.TB, c Client, count, each, micros int, restart bool) (out string, status int) {
	t.Helper()
	how := "plain"
	if restart {
		how = "restart"
	}
	return runTool(t, t.TempDir(), c.env(t), built(t, "raistorm"), fmt.Sprintf("%#x", uint64(c.GUID)), "50",
		strconv.Itoa(count), strconv.Itoa(each), strconv.Itoa(micros), how)
}
