// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package main

import (
	"encoding/json"
	"os/exec"
	"testing"
	"time"

	"acmd/mad/umad/kernellab"
	"acmd/resolver"
)

// labState is what of acmctl state these tests look at.
type labState struct {
	Ports []struct {
		Device string
		SA     struct {
			Subscribed             int
			Subscriptions, Reports uint64
		}
	}
	Events []struct{ Device, Source string }
	Engine resolver.Stats
}

func (l *kernelLab) state() (s labState) {
	l.t.Helper()
	if err := json.Unmarshal([]byte(l.acmctl("--json", "state")), &s); err != nil {
		l.t.Fatal(err)
	}
	return s
}

// subscribed waits until the source port has subscribed to notices n times.
func (l *kernelLab) subscribed(n uint64) {
	l.t.Helper()
	kernellab.Eventually(l.t, "subscription to notices", func() bool {
		for _, p := range l.state().Ports {
			if p.Device == labSource {
				return p.SA.Subscribed == len(resolver.Traps) && p.SA.Subscriptions >= n
			}
		}
		return false
	})
}

// subscriptions is how often the source port has subscribed.
func (l *kernelLab) subscriptions() uint64 {
	for _, p := range l.state().Ports {
		if p.Device == labSource {
			return p.SA.Subscriptions
		}
	}
	return 0
}

// field case 8: the cable of a destination is pulled. The SM reports it through
// umad, and the cached path goes without anybody flushing it.
func TestKernelDaemonNotices(t *testing.T) {
	l := startLab(t)
	t.Cleanup(func() { kernellab.Control(t, "link sib2/1 up"); kernellab.WaitActive(t, "sib2") })
	l.subscribed(1)
	for _, e := range l.state().Events {
		if e.Source != "uverbs" {
			t.Errorf("events of %s come by %q", e.Device, e.Source)
		}
	}
	drops := l.state().Engine.NoticeDrops
	for range 2 {
		l.resolves("sib2")
		l.resolves("sib3")
		q := l.labQuery("sib2", false)
		kernellab.Control(t, "link sib2/1 down")
		// Asked all the time: the notice that the port is back, which may come only
		// now, takes the path out as well, and the next answer puts it in again.
		kernellab.Eventually(t, "the path is gone", func() bool { _, err := l.ask(q); return err != nil })
		begin := time.Now()
		if got, err := l.ask(q); err == nil {
			t.Errorf("a path to a port out of service: %x", got)
		}
		t.Logf("refused after %v", time.Since(begin))
		l.fails("sib2", resolver.StatusNoData)
		if _, err := l.ask(l.labQuery("sib3", false)); err != nil {
			t.Errorf("another destination: %v", err)
		}
		kernellab.Control(t, "link sib2/1 up")
		kernellab.WaitActive(t, "sib2")
		l.resolves("sib2")
	}
	if n := l.state().Engine.NoticeDrops - drops; n < 2 {
		t.Errorf("notices dropped %d paths, want one in each round", n)
	}
}

// field cases 9 and 10: OpenSM ends and comes back, then another one takes over on
// another port. Cached paths are served throughout, and notices arrive again.
func TestKernelDaemonHandOver(t *testing.T) {
	l := startLab(t)
	l.subscribed(1)
	l.resolves("sib2")
	q := l.labQuery("sib2", false)
	served := func(when string) { // in the time of a request, whoever could be asked
		t.Helper()
		if _, err := l.ask(q); err != nil {
			t.Errorf("%s: %v", when, err)
		}
	}
	made := l.subscriptions()
	kernellab.Run(t, "sm", "stop")
	served("no SM")
	l.restartSM("-p", "5")
	l.subscribed(made + 1)
	served("SM restarted")
	l.resolves("sib3")

	made = l.subscriptions()
	if out, err := exec.Command("sm", "start", "sib3", "-s", "2", "-p", "15").CombinedOutput(); err != nil {
		t.Fatalf("sm start: %v\n%s", err, out)
	}
	t.Cleanup(func() {
		_ = exec.Command("sm", "stop", "sib3").Run()
		_ = exec.Command("sm", "stop").Run()
		kernellab.Run(t, "sm", "start", "sib0", "-s", "2")
		kernellab.WaitActive(t, labSource)
	})
	kernellab.Eventually(t, "hand-over", func() bool {
		served("hand-over")
		l.look()
		return l.info(labSource).SMLID == l.info("sib3").LID
	})
	l.subscribed(made + 1)
	served("new SM")
	l.flush()
	l.resolves("sib2")
}
