// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package peer

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"acmd/mad"
)

// Acmd is acmd with queue pairs, running as a process of its own.
type Acmd struct {
	Node string
	Dir  string // its run directory: sockets, log, configuration
	Sock string // its unix socket
	GUID mad.GUID
	LID  mad.LID
	Proc *Process
}

// NodeGUID is the GUID that ibsim gives to a node of this fabric's netlist, whose
// adapters have one port each; the port's is the next number.
func (f *Fabric) NodeGUID(t testing.TB, node string) mad.GUID {
	t.Helper()
	net, err := os.Open(filepath.Join(f.Dir, "netlist"))
	if err != nil {
		t.Fatal(err)
	}
	defer net.Close()
	guid := mad.GUID(0x100000)
	for sc := bufio.NewScanner(net); sc.Scan(); {
		if w := strings.Fields(sc.Text()); len(w) == 3 && strings.EqualFold(w[0], "hca") {
			if w[2] == strconv.Quote(node) {
				return guid
			}
			guid += 2
		}
	}
	t.Fatalf("no node %q", node)
	return 0
}

// StartAcmd runs acmd attached to node, with a queue pair of the preload library,
// and waits until it serves. It takes one of the simulator's slots. The options
// are those of [StartIbacm], and so are addresses and defaults.
func StartAcmd(t testing.TB, f *Fabric, node string, opts ...IbacmOption) *Acmd {
	t.Helper()
	fake, bin := built(t, "libfakeverbs.so"), AcmdVerbs(t)
	c := ibacmConfig{addresses: []string{node}}
	if ip := NodeIP(node); ip != "" {
		c.addresses = append(c.addresses, ip)
	}
	for _, o := range opts {
		o(&c)
	}
	guid := f.NodeGUID(t, node)
	d := &Acmd{Node: node, GUID: guid, Dir: filepath.Join(f.Dir, node), LID: f.LID(t, guid+1)}
	d.Sock = filepath.Join(d.Dir, "ibacm-unix.sock")
	if err := os.MkdirAll(d.Dir, 0o755); err != nil {
		t.Fatal(err)
	}
	c.write(t, d.Dir, "log_file stderr", "log_level 1", "support_ips_in_addr_cfg 1", "route_prot acm", "bpf_dir none")
	f.UDDir(t)

	keys := "0xffff"
	if len(c.pkeys) > 0 {
		keys = strings.Join(c.pkeys, ",")
	}
	env := []string{"LD_PRELOAD=" + fake, "FAKEVERBS_DIR=../ud", "FAKEVERBS_DEV=ibsim0",
		fmt.Sprintf("FAKEVERBS_GUID=%#x", uint64(guid)), fmt.Sprintf("FAKEVERBS_LID=%d", d.LID), "FAKEVERBS_PKEYS=" + keys}
	d.Proc = start(t, d.Dir, env, nil, bin, "-P", "--fabric", "ibsim:"+f.SockName+",node="+node+"+verbs",
		"--run-dir", ".", "-A", "ibacm_addr.cfg", "-O", "ibacm_opts.cfg")
	waitFor(t, d.Proc, "acmd on "+node, func() bool { return contains(d.Proc.Log, "serving clients") })
	return d
}

var acmdOnce struct {
	sync.Once
	err error
}

// AcmdVerbs builds acmd with queue pairs, once per test binary, and returns its
// path. What others run meanwhile is replaced whole.
func AcmdVerbs(t testing.TB) string {
	t.Helper()
	Need(t, "gcc", "verbs.h")
	dir := filepath.Join(lab(t), "build")
	bin := filepath.Join(dir, "acmd-verbs")
	acmdOnce.Do(func() {
		tmp := fmt.Sprintf("%s.%d", bin, os.Getpid())
		cmd := exec.Command("go", "build", "-trimpath", "-tags", "verbs,netgo,osusergo", "-o", tmp, "./cmd/acmd")
		cmd.Dir, cmd.Env = filepath.Join(lab(t), "../../.."), append(os.Environ(), "CGO_ENABLED=1")
		out, err := cmd.CombinedOutput()
		if err == nil {
			err = os.Rename(tmp, bin)
		}
		if err != nil {
			acmdOnce.err = fmt.Errorf("build acmd-verbs: %w\n%s", err, out)
		}
	})
	if acmdOnce.err != nil {
		t.Fatal(acmdOnce.err)
	}
	return bin
}
