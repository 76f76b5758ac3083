//go:build linux

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package umad

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"acmd/mad"
	"acmd/mad/madtest"
	"acmd/mad/ring"
	"acmd/mad/transport"
	"acmd/mad/umad/kernellab"

	"golang.org/x/sys/unix"
)

// The kernel gives the Report method of a port to one agent: a port that comes
// second works without, and gets it when it opens after the first has closed.
func TestKernelSoftibReportsTaken(t *testing.T) {
	l := newLab(t)
	if !l.port.Caps().Reports {
		t.Error("no Reports though nobody else has the method")
	}
	second := l.open()
	if second.Caps().Reports {
		t.Error("two ports have the Report method")
	}
	first := l.port
	l.port = second
	l.works() // answers come to it all the same
	if err := first.Close(); err != nil {
		t.Error(err)
	}
	l.works()
	l.port = l.open()
	if !l.port.Caps().Reports {
		t.Error("no Reports though the port that had them is closed")
	}
	l.works()
}

// Another agent of this host may hold the class for requests; answers are ours.
func TestKernelSoftibForeignAgent(t *testing.T) {
	kernellab.Need(t, kernellab.Softib)
	madtest.CheckLeaks(t)
	name, err := sysfs{root: "/sys"}.umadName(labDevice, 1)
	if err != nil {
		t.Fatal(err)
	}
	fd, err := openUmad("/dev/infiniband/" + name)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if _, reports, err := registerSA(fd); err != nil || !reports {
		t.Fatalf("foreign agent: reports %v, %v", reports, err)
	}
	l := newLab(t)
	if l.port.Caps().Reports {
		t.Error("Reports promised that another agent gets")
	}
	l.works()
	l.port.Close()
}

// field case 76: a device that is pulled under load ends every call with
// ErrGone, at once and for ever; the port of the device that comes back works.
func TestKernelSoftibUnplugUnderLoad(t *testing.T) {
	l := newLab(t)
	t.Cleanup(func() { kernellab.Settled(t, labDevice) })
	kernellab.Control(t, "drop class=3 method=0x1 from="+labDevice) // so that sends stay outstanding
	type result struct {
		n   int
		err error
	}
	received, sent := make(chan result, 1), make(chan error, 1)
	in := make([]*ring.Slot, 8)
	if l.port.Ring().GetN(in) != len(in) {
		t.Fatal("ring is empty")
	}
	go func() {
		for {
			n, err := l.port.Recv(in, time.Time{})
			if err != nil {
				received <- result{n, err}
				return
			}
		}
	}()
	started := make(chan struct{})
	go func() {
		for i := 0; ; i++ {
			s := l.port.Ring().Get()
			*s.Header() = mad.UserHeader{}
			s.Header().SetLID(nobodysLID)
			s.Header().SetQPN(mad.QP1)
			s.Header().SetTimeoutMS(60_000)
			s.MAD().Init(mad.ClassSA, mad.SAClassVersion, mad.MethodGet)
			s.MAD().SetTID(mad.TID(0x22000000 + i))
			_, err := l.port.Send([]*ring.Slot{s})
			s.Release()
			if err != nil {
				sent <- err
				return
			}
			if i == 100 {
				close(started)
			}
			time.Sleep(time.Millisecond)
		}
	}()
	select {
	case <-started:
	case err := <-sent:
		t.Fatalf("send before the device was pulled: %v", err)
	}
	kernellab.Control(t, "unplug "+labDevice)
	for what, c := range map[string]func() error{
		"send": func() error { return <-sent },
		"recv": func() error { r := <-received; return r.err },
	} {
		done := make(chan error, 1)
		go func() { done <- c() }()
		select {
		case err := <-done:
			if !errors.Is(err, transport.ErrGone) {
				t.Errorf("%s: %v, want ErrGone", what, err)
			}
		case <-time.After(madtest.AnswerTime):
			t.Fatalf("%s does not notice that the device is gone", what)
		}
	}
	l.stayGone(in)
	if _, err := l.fabric.Open(labDevice, 1); !errors.Is(err, transport.ErrNoPort) {
		t.Errorf("open without the device: %v, want ErrNoPort", err)
	}
	old := l.port
	kernellab.Plug(t, labDevice)
	// The new device has the old name; the old descriptor does not come back.
	l.stayGone(in)
	for _, s := range in {
		s.Release()
	}
	if err := old.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	kernellab.Control(t, "clear")
	l.info = portOf(t, l.fabric, labDevice)
	l.port = l.open()
	l.works()
	if !l.port.Caps().Reports {
		t.Error("the dead port kept the Report method")
	}
}

// stayGone checks that a gone port says so again and again, without waiting and
// without a system call that could matter.
func (l *lab) stayGone(slots []*ring.Slot) {
	l.t.Helper()
	begin := time.Now()
	for range 3 {
		if n, err := l.port.Recv(slots, time.Now().Add(time.Hour)); n != 0 || !errors.Is(err, transport.ErrGone) {
			l.t.Errorf("recv: %d, %v, want ErrGone", n, err)
		}
		if n, err := l.port.Send(slots[:1]); n != 0 || !errors.Is(err, transport.ErrGone) {
			l.t.Errorf("send: %d, %v, want ErrGone", n, err)
		}
		l.port.Wake()
	}
	if d := time.Since(begin); d > madtest.AnswerTime {
		l.t.Errorf("six calls on a gone port took %v", d)
	}
}

// A port that idles when its device is pulled learns it in the next call, also in
// one whose deadline is over.
func TestKernelSoftibUnplugIdle(t *testing.T) {
	kernellab.Need(t, kernellab.Softib)
	t.Cleanup(func() { kernellab.Settled(t, labDevice) })
	for _, deadline := range []time.Duration{-time.Second, time.Hour} {
		l := newLab(t)
		l.works()
		kernellab.Control(t, "unplug "+labDevice)
		s := l.port.Ring().Get()
		if n, err := l.port.Recv([]*ring.Slot{s}, time.Now().Add(deadline)); n != 0 || !errors.Is(err, transport.ErrGone) {
			t.Errorf("recv: %d, %v, want ErrGone", n, err)
		}
		l.stayGone([]*ring.Slot{s})
		s.Release()
		l.port.Close()
		kernellab.Plug(t, labDevice)
	}
}

// field cases 20 and 21: Ethernet ports are listed as such and never opened.
func TestKernelRXEDevices(t *testing.T) {
	kernellab.Need(t, kernellab.RXE)
	madtest.CheckLeaks(t)
	f := newFabric(t)
	var list []transport.Device
	n := opens(t, func() {
		var err error
		if list, err = f.Devices(); err != nil {
			t.Error(err)
		}
		for _, d := range list {
			for _, p := range d.Ports {
				if port, err := f.Open(d.Name, p.Num); !errors.Is(err, transport.ErrNoPort) || !strings.Contains(err.Error(), "not an InfiniBand port") {
					t.Errorf("open %s port %d: %v, %v; want ErrNoPort that says why", d.Name, p.Num, port, err)
				}
			}
		}
	})
	if n != 0 {
		t.Errorf("%d devices below /dev/infiniband were opened", n)
	}
	if len(list) != 2 || list[0].Name != "rxe0" || list[1].Name != "rxe1" {
		t.Fatalf("devices %+v, want rxe0 and rxe1", list)
	}
	for _, d := range list {
		if len(d.Ports) != 1 || d.Ports[0].LinkLayer != transport.LinkEthernet || d.Ports[0].State != mad.PortActive || d.Ports[0].Num != 1 {
			t.Errorf("%s: %+v, want one active Ethernet port", d.Name, d.Ports)
		}
		if d.NodeGUID == 0 {
			t.Errorf("%s: no node GUID", d.Name)
		}
	}
	// The counting of opens counts.
	if n := opens(t, func() {
		fd, err := unix.Open("/dev/infiniband/umad0", unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		unix.Close(fd)
	}); n != 1 {
		t.Errorf("one open was counted as %d", n)
	}
}

// The kernel's answer to what it does not have: QP0 on a port without one.
func TestKernelRXENoQP0(t *testing.T) {
	kernellab.Need(t, kernellab.RXE)
	fd, err := openUmad("/dev/infiniband/umad0")
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if _, err := register(fd, newRegisterRequest(0, mad.ClassSubnDir, 1, 0)); !errors.Is(err, unix.EPROTONOSUPPORT) {
		t.Errorf("agent on QP0 of a RoCE port: %v", err)
	}
	// Registering is bounded per descriptor, and the class's method is one agent's.
	if _, reports, err := registerSA(fd); err != nil || !reports {
		t.Errorf("SA agent: %v, %v", reports, err)
	}
	if _, reports, err := registerSA(fd); err != nil || reports {
		t.Errorf("second SA agent: reports %v, %v", reports, err)
	}
}

// The GID table of a RoCE port: the link-local address and the IPv4 one, both RoCE
// v2, on the interface that the device lies on.
func TestKernelRXEGIDTable(t *testing.T) {
	kernellab.Need(t, kernellab.RXE)
	f, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	got, err := f.GIDTable("rxe0", 1)
	if err != nil || len(got) < 2 {
		t.Fatalf("%+v, %v", got, err)
	}
	for i, text := range []string{"fe80::ff:fe00:1", "::ffff:10.77.0.1"} {
		g, _ := netip.ParseAddr(text)
		if want := (transport.GIDEntry{Index: uint16(i), GID: g.As16(), Type: transport.GIDTypeRoCEv2, Interface: "k0"}); got[i] != want {
			t.Errorf("entry %d: %+v, want %+v", i, got[i], want)
		}
	}
	if _, err := f.GIDTable("rxe0", 2); !errors.Is(err, transport.ErrNoPort) {
		t.Errorf("port 2: %v", err)
	}
}
