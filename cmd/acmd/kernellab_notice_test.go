// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package main

import (
	"os/exec"
	"testing"

	"acmd/mad/umad/kernellab"
	"acmd/resolver"
)

// field case 8: the cable of a destination is pulled. The SM reports it through
// umad, and the cached path goes without anybody flushing it.
func TestKernelDaemonNotices(t *testing.T) {
	l := startLab(t)
	t.Cleanup(func() { kernellab.Control(t, "link sib2/1 up"); kernellab.WaitActive(t, "sib2") })
	l.subscribed(1)
	kernellab.Eventually(t, "each device tells of its events by uverbs", func() bool {
		n := 0
		for _, e := range l.state().Events {
			if e.Source == "uverbs" {
				n++
			}
		}
		return n == len(labDevices)
	})
	drops := l.state().Engine.NoticeDrops
	for range 2 {
		l.resolves("sib2")
		l.resolves("sib3")
		kernellab.Control(t, "link sib2/1 down")
		// Asked all the time: the notice that the port is back, which may come only
		// now, takes the path out as well, and the next answer puts it in again.
		l.refused("the path is gone", "sib2", nil, resolver.StatusNoData)
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
	made := l.source().Subscriptions
	kernellab.Run(t, "sm", "stop")
	served("no SM")
	l.restartSM("-p", "5")
	l.subscribed(made + 1)
	served("SM restarted")
	settle(t) // its first notices make us ask once more, while it is there
	l.resolves("sib2")
	l.resolves("sib3")

	made = l.source().Subscriptions
	if out, err := exec.Command("sm", "start", "sib3", "-s", "2", "-p", "15").CombinedOutput(); err != nil {
		t.Fatalf("sm start: %v\n%s", err, out)
	}
	t.Cleanup(func() {
		_ = exec.Command("sm", "stop", "sib3").Run()
		_ = exec.Command("sm", "stop").Run()
		l.restartSM()
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
