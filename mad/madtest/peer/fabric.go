// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package peer

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"acmd/mad"
)

// Fabric is a running simulator with a running OpenSM whose first sweep is over.
type Fabric struct {
	SockName string // IBSIM_SOCKNAME; "" in remote mode
	Remote   string // host:port in remote mode
	Dir      string // private; short, for unix sockets live in it
	Ibsim    *Process
	OpenSM   *Process // nil before StartSM

	console *os.File // writing end of the simulator's standard input, nil without one
	smHost  string
	smArgs  []string
	joined  int // OpenSMs started by JoinSM
	lids    map[mad.GUID]mad.LID
}

type fabricConfig struct {
	remote     bool
	console    bool
	noSM       bool
	sockName   string
	smHost     string
	openSMArgs []string
}

// FabricOption changes how a fabric is started.
type FabricOption func(*fabricConfig)

// Remote runs the simulator on UDP sockets instead of abstract unix sockets.
func Remote() FabricOption { return func(c *fabricConfig) { c.remote = true } }

// Console lets the test change the fabric with [Fabric.Command]. Without it the
// simulator reads nothing.
func Console() FabricOption { return func(c *fabricConfig) { c.console = true } }

// SockName gives the simulator's sockets a name, to start one in another's place.
func SockName(name string) FabricOption { return func(c *fabricConfig) { c.sockName = name } }

// WithoutSM leaves out OpenSM: the ports stay unconfigured until [Fabric.StartSM].
func WithoutSM() FabricOption { return func(c *fabricConfig) { c.noSM = true } }

// SMHost names the node that OpenSM runs on, "sm-host" by default.
func SMHost(node string) FabricOption { return func(c *fabricConfig) { c.smHost = node } }

// OpenSMArgs adds arguments to OpenSM's command line.
func OpenSMArgs(args ...string) FabricOption {
	return func(c *fabricConfig) { c.openSMArgs = append(c.openSMArgs, args...) }
}

// StartFabric runs ibsim on a netlist (see [Netlist]) and OpenSM on it, and waits
// for the first sweep. Both end with the test.
func StartFabric(t testing.TB, netlist string, opts ...FabricOption) *Fabric {
	t.Helper()
	Need(t, "ibsim", "umad2sim", "opensm")
	c := fabricConfig{smHost: "sm-host", sockName: fmt.Sprintf("acmd-%d-%08x", os.Getpid(), rand.Uint32())}
	for _, o := range opts {
		o(&c)
	}
	f := &Fabric{Dir: shortDir(t), smHost: c.smHost, smArgs: c.openSMArgs}
	net, err := os.ReadFile(Netlist(t, netlist))
	if err != nil {
		t.Fatalf("netlist: %v", err)
	}
	// ibsim takes the name as it is into its output; a copy beside it is short.
	if err := os.WriteFile(filepath.Join(f.Dir, "netlist"), net, 0o644); err != nil {
		t.Fatal(err)
	}
	f.startIbsim(t, &c)
	if !c.noSM {
		f.StartSM(t)
	}
	return f
}

// shortDir is a directory for the test whose name leaves room for a socket's:
// t.TempDir has the name of the test in it.
func shortDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "acmd")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func (f *Fabric) startIbsim(t testing.TB, c *fabricConfig) {
	t.Helper()
	args := []string{"-s", "-n", "netlist"}
	var stdin *os.File
	if c.console {
		args = []string{"-s", "netlist"}
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		stdin, f.console = r, w
		defer r.Close()
		t.Cleanup(func() { w.Close() })
	}
	if !c.remote {
		f.SockName = c.sockName
		f.Ibsim = startReading(t, stdin, f.Dir, []string{"IBSIM_SOCKNAME=" + f.SockName}, nil, find("ibsim"), args...)
		waitFor(t, f.Ibsim, "ibsim", func() bool { return contains(f.Ibsim.Log, "simulator ready") })
		return
	}
	port := freePorts(t)
	f.Remote = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	f.Ibsim = startReading(t, stdin, f.Dir, nil, nil, find("ibsim"), append([]string{"-r", "-l", strconv.Itoa(port)}, args...)...)
	waitFor(t, f.Ibsim, "ibsim", func() bool { return contains(f.Ibsim.Log, "simulator ready") })
}

// freePorts finds eleven UDP ports in a row.
func freePorts(t testing.TB) int {
	t.Helper()
	const n = 11
	for range 100 {
		base := 20000 + rand.IntN(12000) // below the range for outgoing sockets
		free := 0
		for ; free < n; free++ {
			c, err := net.ListenUDP("udp4", &net.UDPAddr{Port: base + free})
			if err != nil {
				break
			}
			c.Close()
		}
		if free == n {
			return base
		}
	}
	t.Fatal("no eleven free UDP ports in a row")
	return 0
}

// env is the environment of a preloaded program that attaches to node.
func (f *Fabric) env(node string) []string { return f.envAt(node, f.SockName) }

// envAt is env with another name of the simulator's sockets.
func (f *Fabric) envAt(node, sockName string) []string {
	e := []string{"SIM_HOST=" + node, "LD_PRELOAD=" + find("umad2sim")}
	if f.Remote == "" {
		return append(e, "IBSIM_SOCKNAME="+sockName)
	}
	host, port, _ := net.SplitHostPort(f.Remote)
	return append(e, "IBSIM_SERVER_NAME="+host, "IBSIM_SERVER_PORT="+port)
}

// Command gives the simulator a command of its console, such as `Unlink "node-b"`.
// It is carried out soon after.
func (f *Fabric) Command(t testing.TB, line string) {
	t.Helper()
	if _, err := fmt.Fprintln(f.console, line); err != nil {
		t.Fatalf("ibsim console: %v", err)
	}
}

// runSM starts OpenSM on a node, with files of its own, at a simulator's sockets.
func (f *Fabric) runSM(t testing.TB, node, sockName string, extra ...string) (p *Process, dir, log string) {
	t.Helper()
	dir, err := os.MkdirTemp(f.Dir, "sm")
	if err != nil {
		t.Fatal(err)
	}
	log = filepath.Join(dir, "opensm-own.log")
	// -d 2 writes each line of the log at once: it says when the sweep is over.
	args := append([]string{"-f", log, "-d", "2", "--dump_files_dir", dir, "-e"}, extra...)
	env := append(f.envAt(node, sockName), "OSM_CACHE_DIR="+dir, "OSM_TMP_DIR="+dir)
	return start(t, dir, env, []string{log}, find("opensm"), args...), dir, log
}

// StartSM runs OpenSM and waits for its first sweep; StartFabric has done it
// unless told otherwise. It may be called again when the first has ended.
func (f *Fabric) StartSM(t testing.TB) { t.Helper(); f.StartSMOn(t, f.smHost) }

// StartSMOn is StartSM on another node. Two at a time take [Fabric.JoinSM].
func (f *Fabric) StartSMOn(t testing.TB, node string) {
	t.Helper()
	p, dir, log := f.runSM(t, node, f.SockName, append([]string{"-s", "0"}, f.smArgs...)...)
	f.OpenSM = p
	waitFor(t, f.OpenSM, "first sweep", func() bool { return contains(log, "SUBNET UP") })
	waitFor(t, f.OpenSM, "guid2lid", func() bool {
		lids, err := readGUID2LID(filepath.Join(dir, "guid2lid"))
		f.lids = lids
		return err == nil && len(lids) > 0
	})
}

// readGUID2LID reads OpenSM's file of lines "GUID first-LID last-LID".
func readGUID2LID(file string) (map[mad.GUID]mad.LID, error) {
	r, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	m := map[mad.GUID]mad.LID{}
	sc := bufio.NewScanner(r)
	for sc.Scan() {
		w := strings.Fields(sc.Text())
		if len(w) == 0 {
			continue
		}
		if len(w) != 3 {
			return nil, fmt.Errorf("guid2lid: line %q", sc.Text())
		}
		guid, err := strconv.ParseUint(w[0], 0, 64)
		if err != nil {
			return nil, fmt.Errorf("guid2lid: %w", err)
		}
		lid, err := strconv.ParseUint(w[1], 0, 16)
		if err != nil {
			return nil, fmt.Errorf("guid2lid: %w", err)
		}
		m[mad.GUID(guid)] = mad.LID(lid)
	}
	return m, sc.Err()
}

// LID returns the LID that OpenSM gave to a port.
func (f *Fabric) LID(t testing.TB, port mad.GUID) mad.LID {
	t.Helper()
	lid, ok := f.lids[port]
	if !ok {
		t.Fatalf("OpenSM gave port %v no LID", port)
	}
	return lid
}

// LIDs returns the LIDs of all ports by port GUID. The map must not be changed.
func (f *Fabric) LIDs() map[mad.GUID]mad.LID { return f.lids }

// FreeLID returns a LID that no port has.
func (f *Fabric) FreeLID() mad.LID {
	high := mad.LID(0)
	for _, l := range f.lids {
		high = max(high, l)
	}
	return high + 100
}

// Tool runs a umad program of infiniband-diags as a node, to its end, and returns
// its output. It takes one of the simulator's slots meanwhile. An exit status
// other than 0 fails the test.
func (f *Fabric) Tool(t testing.TB, node, tool string, args ...string) string {
	t.Helper()
	Need(t, tool, "umad2sim")
	dir, err := os.MkdirTemp(f.Dir, "tool")
	if err != nil {
		t.Fatal(err)
	}
	out, status := runTool(t, dir, f.env(node), find(tool), args...)
	if status != 0 {
		t.Fatalf("%s %q on %s: exit status %d\n%s", tool, args, node, status, out)
	}
	return out
}

// Saquery runs saquery as a node and returns what it prints.
func Saquery(t testing.TB, f *Fabric, node string, args ...string) string {
	t.Helper()
	return f.Tool(t, node, "saquery", args...)
}

// Field returns the value of a line "name....value" or "name: value" that a tool
// printed, "" without such a line.
func Field(out, name string) string {
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		if rest, ok := strings.CutPrefix(line, name); ok && rest != "" && (rest[0] == '.' || rest[0] == ':') {
			return strings.TrimSpace(strings.TrimLeft(rest, ".:"))
		}
	}
	return ""
}
