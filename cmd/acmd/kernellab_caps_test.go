// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package main

import (
	"fmt"
	"net"
	"testing"

	"acmd/bpf/bpftest"
	"acmd/mad/umad/kernellab"
	"acmd/resolver"
	"acmd/resolver/acmsock"
	"acmd/resolver/control"
	"acmd/resolver/kernelnl"
	"acmd/resolver/privilege"

	"golang.org/x/sys/unix"
)

// A daemon with all its parts keeps one capability, that of answers to the kernel.
// Without the others it answers programs in the kernel, opens an adapter that was
// pulled and put back, and follows its requests.
func TestKernelDaemonCapabilities(t *testing.T) {
	l := startLab(t, longWait, "fast_path kernel", "fast_path_port 0", "fast_path_miss wait", "bpf_dir "+bpftest.Mount(t))
	want := only(privilege.Of(unix.CAP_NET_ADMIN))
	works := func(when string) {
		t.Helper()
		l.daemon.keeps(t, want)
		before, asked := l.capState(t), l.counts()
		if st := before; !st.FastPath.On || st.Counters.In != "pinned" || !st.Trace.On || st.Capabilities.Error != "" {
			t.Fatalf("%s: %+v", when, st)
		}
		c, err := net.Dial("tcp4", fmt.Sprint("127.0.0.1:", before.FastPath.Port))
		if err != nil {
			t.Fatal(err)
		}
		cl := acmsock.NewClient(c)
		defer cl.Close()
		kernellab.Eventually(t, when+": a hit in the kernel", func() bool {
			_, err := cl.ResolvePath(t.Context(), l.labQuery("sib2", false), false)
			if err != nil && statusOf(err) == resolver.StatusSuccess {
				t.Fatal(err) // no answer at all
			}
			now := l.capState(t).FastPath
			return now.Messages["hit"] > before.FastPath.Messages["hit"] && now.Inserted > before.FastPath.Inserted
		})
		cm := l.connect(l.info("sib3").GIDs[0])
		defer cm.Close()
		if event, status, _ := route(cm); status != 0 {
			t.Errorf("%s: the kernel's question: event %d, status %d", when, event, status)
		}
		if n := l.counted(when+": the kernel is answered", func(n kernelnl.Stats) bool { return n.Answered > asked.Answered }); n.SendErrors != 0 {
			t.Errorf("%s: answers to the kernel %+v, before %+v", when, n, asked)
		}
	}
	works("after the start")
	t.Cleanup(func() { kernellab.Plug(t, labSource) })
	l.port.Close()
	kernellab.Control(t, "unplug "+labSource)
	kernellab.Eventually(t, "the port is gone", func() bool { return !l.isOpen(labSource) })
	kernellab.Plug(t, labSource)
	kernellab.Eventually(t, "the daemon opens the port again", func() bool { return l.isOpen(labSource) })
	l.reopen()
	l.resolves("sib2")
	works("after the adapter came back")
}

// Without any capability root's daemon still opens root's adapters. It answers
// programs, says what it does without, and the kernel asks the SA.
func TestKernelDaemonWithoutCapabilities(t *testing.T) {
	settle(t)
	setWait(t, kernelnl.DefaultWait) // this daemon cannot
	l := boundLab(t, new(privilege.Set), nil, "fast_path kernel", "fast_path_port 0", "bpf_dir "+bpftest.Mount(t))
	l.daemon.keeps(t, only(0))
	cm := l.connect(l.info("sib3").GIDs[0])
	defer cm.Close()
	if event, status, _ := route(cm); status != 0 {
		t.Errorf("the kernel's question: event %d, status %d", event, status)
	}
	var st struct {
		capState
		Kernel struct {
			Error    string
			Rejected int
		}
	}
	// Some kernels ask whoever listens (6.12 does), and take no answer.
	kernellab.Eventually(t, "the kernel's questions are not to be had, or answers refused", func() bool {
		if err := control.NewClient(l.dir).Do(t.Context(), "GET", "state", nil, &st); err != nil {
			t.Fatal(err)
		}
		return st.Kernel.Error != "" || st.Kernel.Rejected > 0
	})
	for part, reason := range map[string]string{
		"fast path": st.FastPath.Reason, "counters": st.Counters.Reason, "trace": st.Trace.Reason,
	} {
		if reason == "" {
			t.Errorf("%s: nobody says why it is off: %+v", part, st)
		}
		t.Logf("%s: %s", part, reason)
	}
	t.Logf("the kernel's questions: %+v", st.Kernel)
}
