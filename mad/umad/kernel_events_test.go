//go:build linux

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package umad

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"acmd/mad"
	"acmd/mad/madtest"
	"acmd/mad/transport"
	"acmd/mad/umad/kernellab"
)

// eventLab is a fabric whose events are collected.
type eventLab struct {
	t      *testing.T
	f      *Fabric
	events <-chan transport.Event
}

func newEventLab(t *testing.T) *eventLab {
	t.Helper()
	kernellab.Need(t, kernellab.Softib)
	madtest.CheckLeaks(t)
	t.Cleanup(func() { kernellab.Settled(t) }) // what the test did to the fabric is repaired behind it
	kernellab.Control(t, "clear")
	kernellab.Plug(t, labDevice)
	f, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	l := &eventLab{t, f, f.Events()}
	l.watched()
	return l
}

// watched waits until the lab's device has an event descriptor.
func (l *eventLab) watched() {
	l.t.Helper()
	kernellab.Eventually(l.t, "event descriptor of "+labDevice, func() bool {
		for _, s := range l.f.EventSources() {
			if s.Device == labDevice {
				return s.Source == "uverbs"
			}
		}
		return false
	})
}

// clear forgets what came so far.
func (l *eventLab) clear() {
	for {
		select {
		case <-l.events:
		case <-time.After(300 * time.Millisecond):
			return
		}
	}
}

// wants waits for events of the lab's device, in this order; others may come between.
func (l *eventLab) wants(what string, types ...transport.EventType) {
	l.t.Helper()
	begin := time.Now()
	end := time.After(kernellab.Patience)
	var seen []transport.Event
	for _, want := range types {
		for found := false; !found; {
			select {
			case ev := <-l.events:
				seen = append(seen, ev)
				port := uint8(1)
				if want == transport.EventDeviceFatal || want >= transport.EventDeviceAdd {
					port = 0
				}
				found = ev == transport.Event{Type: want, Device: labDevice, Port: port}
			case <-end:
				l.t.Fatalf("%s: no event %d; came %v", what, want, seen)
			}
		}
	}
	l.t.Logf("%s: %v after %v", what, seen, time.Since(begin).Round(time.Millisecond))
}

// silent expects that nothing is told of the lab's device for a while.
func (l *eventLab) silent(what string) {
	l.t.Helper()
	for end := time.After(time.Second); ; {
		select {
		case ev := <-l.events:
			if ev.Device == labDevice {
				l.t.Errorf("%s: %+v", what, ev)
			}
		case <-end:
			return
		}
	}
}

func startSM(t *testing.T, device string, args ...string) {
	t.Helper()
	if out, err := exec.Command("sm", append([]string{"start", device}, args...)...).CombinedOutput(); err != nil {
		t.Fatalf("sm start %s: %v\n%s", device, err, out)
	}
}

// Everything that happens to a port is told, in the kernel's order: a link that comes
// up reregisters before it is active.
func TestKernelSoftibPortEvents(t *testing.T) {
	l := newEventLab(t)
	t.Cleanup(func() {
		kernellab.Control(t, "link "+labDevice+"/1 up")
		kernellab.Run(t, "sm", "sweep")
		kernellab.WaitActive(t, labDevice)
	})
	l.clear()
	kernellab.Control(t, "link "+labDevice+"/1 down")
	l.wants("link down", transport.EventPortError)
	// A bounce that OpenSM does not notice makes it ask for nothing.
	port := kernellab.GID(t, labDevice).GUID().String()
	kernellab.Eventually(t, "OpenSM notices", func() bool {
		out, err := exec.Command("saquery", "-C", "sib0", "NR").Output()
		return err == nil && !strings.Contains(string(out), port)
	})
	kernellab.Control(t, "link "+labDevice+"/1 up")
	l.wants("link up", transport.EventReregister, transport.EventPortActive)
	l.clear()
	kernellab.Control(t, "lid "+labDevice+"/1 200")
	l.wants("another LID", transport.EventLIDChange)
	kernellab.Run(t, "sm", "sweep")
	l.clear()
	kernellab.Control(t, "smlid "+labDevice+"/1 77")
	l.wants("another LID of the SM", transport.EventSMChange)
	kernellab.Run(t, "sm", "sweep")
	l.clear()
	kernellab.Control(t, "rereg "+labDevice+"/1")
	l.wants("reregister", transport.EventReregister)
}

// A partition that is added and removed is told each time.
func TestKernelSoftibPartitionEvents(t *testing.T) {
	l := newEventLab(t)
	const conf = "/etc/opensm/partitions.conf"
	if err := os.MkdirAll(filepath.Dir(conf), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(conf); kernellab.Run(t, "sm", "sweep") })
	l.clear()
	if err := os.WriteFile(conf, []byte("Default=0x7fff, ipoib: ALL=full;\nTest=0x0001: ALL=full;\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	kernellab.Run(t, "sm", "sweep")
	l.wants("partition added", transport.EventPKeyChange)
	l.clear()
	if err := os.WriteFile(conf, []byte("Default=0x7fff, ipoib: ALL=full;\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	kernellab.Run(t, "sm", "sweep")
	l.wants("partition removed", transport.EventPKeyChange)
}

// The end of OpenSM is not told; its return is, as a reregistration, and one on
// another port or with a higher priority as another SM as well.
func TestKernelSoftibSMEvents(t *testing.T) {
	l := newEventLab(t)
	l.clear()
	kernellab.Run(t, "sm", "stop")
	l.silent("OpenSM ended")
	startSM(t, "sib0", "-s", "2", "-p", "5")
	l.wants("OpenSM started again", transport.EventReregister)
	l.clear()
	startSM(t, "sib3", "-s", "2", "-p", "15")
	t.Cleanup(func() {
		// The first one takes over again, or is started anew.
		kernellab.Run(t, "sm", "stop", "sib3")
		_ = exec.Command("sm", "stop").Run()
		startSM(t, "sib0", "-s", "2")
		kernellab.Eventually(t, "the first SM is back", func() bool {
			p, err := l.f.sys.port(labDevice, 1)
			sm, err2 := l.f.sys.port("sib0", 1)
			return err == nil && err2 == nil && p.SMLID == sm.LID && sm.LID != 0
		})
	})
	l.wants("hand-over", transport.EventSMChange, transport.EventReregister)
}

// Another subnet prefix changes the first GID of a port. The kernel keeps the
// adapter's GID_CHANGE to itself on an InfiniBand port (drivers/infiniband/core/cache.c,
// ib_cache_event_task); that the SM asks for registrations anew is told, and then the
// GID can be read.
func TestKernelSoftibGIDEvents(t *testing.T) {
	l := newEventLab(t)
	restart := func(arg ...string) {
		t.Helper()
		kernellab.Run(t, "sm", "stop")
		startSM(t, "sib0", append([]string{"-s", "2"}, arg...)...)
	}
	t.Cleanup(func() {
		restart()
		kernellab.Eventually(t, "the first prefix", func() bool { return kernellab.GID(t, "sib3").Prefix() == mad.DefaultPrefix })
	})
	l.clear()
	kernellab.ClearTrace(t)
	restart("--subnet_prefix", "0xfec0000000000012")
	l.wants("another subnet prefix", transport.EventReregister)
	kernellab.Eventually(t, "the adapter raises GID_CHANGE", func() bool {
		return strings.Contains(kernellab.Trace(t), "event 18 GID changed on "+labDevice+"/1")
	})
	kernellab.Eventually(t, "GID with the new prefix", func() bool {
		p, err := l.f.sys.port(labDevice, 1)
		return err == nil && len(p.GIDs) > 0 && p.GIDs[0].Prefix() == 0xfec0000000000012
	})
}

// A device that is pulled says so, and nothing holds it up; one that comes back is
// watched again.
func TestKernelSoftibDeviceEvents(t *testing.T) {
	l := newEventLab(t)
	t.Cleanup(func() { kernellab.Plug(t, labDevice) })
	for range 3 {
		l.clear()
		begin := time.Now()
		kernellab.Control(t, "unplug "+labDevice)
		if d := time.Since(begin); d > rescanEvery/2 { // a descriptor that nobody closed is noticed by then
			t.Errorf("removal took %v", d)
		}
		l.wants("pulled", transport.EventDeviceRemove) // the fatal one may come before it, or find nobody
		kernellab.Plug(t, labDevice)
		l.wants("back", transport.EventDeviceAdd)
		l.watched()
		l.clear()
		kernellab.Control(t, "rereg "+labDevice+"/1")
		l.wants("events again", transport.EventReregister)
	}
}
