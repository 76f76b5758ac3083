// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package peer

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// SM is one of several OpenSMs on a fabric, see [Fabric.JoinSM].
type SM struct {
	*Process
	Node string

	log string
}

// smPolling makes a standby look after its master twice a second and take over
// after three polls without an answer. OpenSM's own figures are 10 s and 4.
const smPolling = "sminfo_polling_timeout 500\npolling_retry_number 2\n"

// JoinSM runs OpenSM on a node of a simulator in local mode, beside others. Among
// those that run, the one with the highest priority (0 to 15) becomes the master. It
// may be ended at any moment; no simulator's slot is left behind.
func (f *Fabric) JoinSM(t testing.TB, node string, priority int) *SM {
	t.Helper()
	if f.Remote != "" {
		t.Fatal("several SMs need the simulator's local mode")
	}
	conf := filepath.Join(f.Dir, "polling.conf")
	if err := os.WriteFile(conf, []byte(smPolling), 0o644); err != nil {
		t.Fatal(err)
	}
	f.joined++
	base := fmt.Sprintf("%s-%d", f.SockName, f.joined)
	r := startRelay(t, f.SockName, base)
	p, _, log := f.runSM(t, node, base, "-F", conf, "-s", "0", "-p", fmt.Sprint(priority))
	r.done.Go(func() {
		<-p.done
		r.leave()
	})
	return &SM{Process: p, Node: node, log: log}
}

var smState = regexp.MustCompile(`Entering ([A-Z]+) state|SUBNET UP`)

// state is what it is now, "MASTER" only after the sweep that follows.
func (s *SM) state() (now string) {
	b, err := os.ReadFile(s.log)
	if err != nil {
		return ""
	}
	for _, m := range smState.FindAllStringSubmatch(string(b), -1) {
		switch {
		case m[1] == "MASTER":
			now = "sweeping"
		case m[1] != "":
			now = m[1]
		case now == "sweeping":
			now = "MASTER"
		}
	}
	return now
}

// WaitMaster waits until it is the master and has set up the fabric, WaitStandby
// until it leaves that to another one.
func (s *SM) WaitMaster(t testing.TB)  { t.Helper(); s.wait(t, "MASTER") }
func (s *SM) WaitStandby(t testing.TB) { t.Helper(); s.wait(t, "STANDBY") }

func (s *SM) wait(t testing.TB, state string) {
	t.Helper()
	begin := time.Now()
	waitFor(t, s.Process, s.Node+" is "+strings.ToLower(state), func() bool { return s.state() == state })
	t.Logf("OpenSM on %s is %s after %v", s.Node, strings.ToLower(state), time.Since(begin).Round(time.Millisecond))
}
