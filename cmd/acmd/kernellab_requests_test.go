// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package main

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"acmd/mad"
	"acmd/mad/sa"
	"acmd/mad/umad/kernellab"
	"acmd/resolver/kernelnl"

	"golang.org/x/sys/unix"
)

// The kernel's own path requests: rdma_cm asks for a route, the kernel asks the
// daemon over netlink, and what it goes by is read back.
const (
	labService = 0x1234
	// In most tests the kernel waits for longer than any answer can take, so that
	// whatever comes earlier is the daemon's doing.
	longWait = "kernel_timeout 25000"
)

// counts reads the daemon's counters of the kernel's door.
func (l *kernelLab) counts() kernelnl.Stats {
	l.t.Helper()
	var s struct{ Kernel kernelnl.Stats }
	if out := l.acmctl("state"); json.Unmarshal([]byte(out), &s) != nil || s.Kernel.WaitMS == 0 {
		l.t.Fatalf("the kernel is not served:\n%s", out)
	}
	return s.Kernel
}

// connect is an rdma_cm id on the source adapter whose address is resolved.
func (l *kernelLab) connect(dst mad.GID) *kernellab.CM {
	l.t.Helper()
	c := kernellab.OpenCM(l.t)
	c.ResolveAddr(l.info(labSource).GIDs[0], dst, labService)
	return c
}

// route waits for the outcome of a route and how long it took.
func route(c *kernellab.CM) (event uint32, status int32, took time.Duration) {
	start := time.Now()
	c.ResolveRoute(2 * time.Second)
	event, status = c.Event()
	return event, status, time.Since(start)
}

// serviceQuery is what the daemon is asked for in a route to a device.
func (l *kernelLab) serviceQuery(device string) sa.PathRecord {
	l.t.Helper()
	q := l.labQuery(device, false)
	q.SetServiceID(labService)
	q.SetPKey(mad.DefaultPKey)
	return q
}

// queries counts path queries of an adapter in the fabric's trace.
func queries(t *testing.T, device string) (n int) {
	t.Helper()
	for line := range strings.Lines(kernellab.Trace(t)) {
		if strings.Contains(line, device+"/1 >") && strings.Contains(line, "class 0x3 ") && strings.Contains(line, "method 0x1 ") && strings.Contains(line, "attr 0x35") {
			n++
		}
	}
	return n
}

// A route of rdma_cm is acmd's record in every byte, the SA's and the one that a
// program gets; once it is cached no query is on the wire.
func TestKernelRequestAnswered(t *testing.T) {
	l := startLab(t, longWait)
	for _, device := range []string{"sib0", "sib2", "sib3"} {
		dst := l.info(device).GIDs[0]
		for round := range 2 {
			kernellab.ClearTrace(t)
			before := l.counts()
			c := l.connect(dst)
			event, status, took := route(c)
			if event != kernellab.CMRouteResolved {
				t.Fatalf("%s: event %d, status %d after %v", device, event, status, took)
			}
			got := c.Path()
			n := queries(t, labSource)
			if round == 1 && n != 0 {
				t.Errorf("%s: %d queries on the wire for a cached path", device, n)
			}
			if s := l.counts(); s.Resolves != before.Resolves+1 || s.Answered != before.Answered+1 {
				t.Errorf("%s: counters %+v, before %+v", device, s, before)
			}
			q := l.serviceQuery(device)
			if own, err := l.ask(q); err != nil || own != got {
				t.Errorf("%s:\nkernel %x\nacmd   %x (%v)", device, got, own, err)
			}
			l.same(device, got, q)
			t.Logf("%s: route after %v, %d queries", device, took.Round(time.Millisecond), n)
		}
	}
}

// What the SA does not know is refused at once: the kernel does not wait for it
// but asks the SA itself, which says the same.
func TestKernelRequestRefused(t *testing.T) {
	l := startLab(t, longWait)
	before := l.counts()
	nobody := mad.MakeGID(l.info(labSource).GIDs[0].Prefix(), 0x0200000000090901)
	event, status, took := route(l.connect(nobody))
	if event != kernellab.CMRouteError || status != -int32(unix.EINVAL) {
		t.Errorf("event %d, status %d", event, status)
	}
	if took >= 20*time.Second {
		t.Errorf("refused after %v, the kernel has helped itself", took)
	}
	if s := l.counts(); s.Failed != before.Failed+1 || s.Answered != before.Answered {
		t.Errorf("counters %+v, before %+v", s, before)
	}
	t.Logf("refused after %v", took.Round(time.Millisecond))
}

// The SA does not answer the daemon. The kernel is told so shortly before its wait
// is over, and then gets its path from the SA, which answers by then.
func TestKernelRequestLeftToSA(t *testing.T) {
	for _, wait := range []time.Duration{2 * time.Second, 4 * time.Second} {
		t.Run(wait.String(), func(t *testing.T) {
			l := startLab(t, fmt.Sprintf("kernel_timeout %d", wait.Milliseconds()))
			if s := l.counts(); s.WaitMS != wait.Milliseconds() {
				t.Fatalf("counters %+v", s)
			}
			c := l.connect(l.info("sib3").GIDs[0])
			l.flush()
			kernellab.Control(t, "drop class=3 method=0x1 attr=0x35 from="+labSource)
			start := time.Now()
			c.ResolveRoute(25 * time.Second) // OpenSM in a busy guest may take its time
			// Late: in a guest that stands still the kernel helps itself.
			kernellab.Eventually(t, "the kernel is told", func() bool { s := l.counts(); return s.Expired+s.Late == 1 })
			told := time.Since(start)
			kernellab.Control(t, "clear")
			event, status := c.Event()
			if event != kernellab.CMRouteResolved {
				t.Fatalf("event %d, status %d after %v", event, status, time.Since(start))
			}
			if min := wait * 85 / 100; told < min {
				t.Errorf("the kernel was told after %v, it waits %v", told, wait)
			}
			if s := l.counts(); s.Answered != 0 || s.Failed != 0 || s.Rejected != 0 || s.SendErrors != 0 || s.Pending != 0 {
				t.Errorf("counters %+v", s)
			}
			l.same("sib3", c.Path(), l.serviceQuery("sib3"))
			t.Logf("told after %v, route after %v", told.Round(time.Millisecond), time.Since(start).Round(time.Millisecond))
		})
	}
}

// The daemon does not run: the kernel asks the SA after kernel_timeout, which the
// daemon has set, and what the daemon says afterwards does no harm.
func TestKernelRequestDaemonStopped(t *testing.T) {
	const wait = 3 * time.Second // the kernel's own would be 2 s
	l := startLab(t, fmt.Sprintf("kernel_timeout %d", wait.Milliseconds()))
	c := l.connect(l.info("sib2").GIDs[0])
	var path sa.PathRecord
	l.stopped(func() {
		event, status, took := route(c)
		if event != kernellab.CMRouteResolved {
			t.Fatalf("event %d, status %d", event, status)
		}
		if took < wait {
			t.Errorf("the kernel asked the SA after %v, it was to wait %v", took, wait)
		}
		path = c.Path()
	})
	kernellab.Eventually(t, "the daemon speaks", func() bool { s := l.counts(); return s.Resolves == 1 && s.Pending == 0 })
	if got := c.Path(); got != path {
		t.Errorf("a late answer has changed the path: %x, before %x", got, path)
	}
	before := l.counts()
	if event, status, _ := route(l.connect(l.info("sib2").GIDs[0])); event != kernellab.CMRouteResolved {
		t.Errorf("afterwards: event %d, status %d", event, status)
	}
	if s := l.counts(); s.Answered != before.Answered+1 {
		t.Errorf("afterwards: counters %+v, before %+v", s, before)
	}
	l.same("sib2", path, l.serviceQuery("sib2"))
}

// 60 ids ask for three paths at once: three queries, 60 routes.
func TestKernelRequestMany(t *testing.T) {
	l := startLab(t, longWait)
	devices := []string{"sib0", "sib2", "sib3"}
	var ids []*kernellab.CM
	for i := range 60 {
		ids = append(ids, l.connect(l.info(devices[i%3]).GIDs[0]))
	}
	l.flush()
	before := l.counts()
	kernellab.ClearTrace(t)
	for _, c := range ids {
		c.ResolveRoute(2 * time.Second)
	}
	for i, c := range ids {
		if event, status := c.Event(); event != kernellab.CMRouteResolved {
			t.Fatalf("%s: event %d, status %d", devices[i%3], event, status)
		}
	}
	if n := queries(t, labSource); n != 3 {
		t.Errorf("%d queries on the wire, want 3", n)
	}
	if s := l.counts(); s.Answered != before.Answered+60 || s.Failed != before.Failed || s.Expired != before.Expired {
		t.Errorf("counters %+v, before %+v", s, before)
	}
	for i, c := range ids {
		l.same(devices[i%3], c.Path(), l.serviceQuery(devices[i%3]))
	}
}

// A part of the kernel asks for a path, as storage over RDMA and IPoIB do, without
// a service ID: it gets the daemon's, and the SA's "no" where there is none.
func TestKernelRequestInKernel(t *testing.T) {
	l := startLab(t, longWait)
	t.Cleanup(func() { kernellab.Control(t, "link sib3/1 up"); kernellab.WaitActive(t, "sib3") })
	result := regexp.MustCompile(`path query: status (-?\d+)(.*)`)
	query := func(device string) (status, rest string) {
		t.Helper()
		kernellab.ClearTrace(t)
		kernellab.Control(t, "path sib1/1 "+device+"/1 10000")
		var m []string
		kernellab.Eventually(t, "the query ends", func() bool { m = result.FindStringSubmatch(kernellab.Trace(t)); return m != nil })
		return m[1], strings.TrimSpace(m[2])
	}
	for _, device := range []string{"sib2", "sib3"} {
		before := l.counts()
		status, got := query(device)
		q := l.labQuery(device, false)
		q.SetPKey(mad.DefaultPKey)
		p, err := l.ask(q)
		if err != nil {
			t.Fatal(err)
		}
		_, mtu := p.MTU()
		_, rate := p.Rate()
		want := fmt.Sprintf("paths 1 slid %#x dlid %#x sl %d mtu %d rate %d pkey %#x hop_limit %d",
			uint16(p.SLID()), uint16(p.DLID()), p.SL(), mtu, rate, uint16(p.PKey()), p.HopLimit())
		if status != "0" || got != want {
			t.Errorf("%s: status %s, %s, want %s", device, status, got, want)
		}
		if s := l.counts(); s.Answered != before.Answered+1 {
			t.Errorf("%s: counters %+v, before %+v", device, s, before)
		}
	}
	kernellab.Control(t, "link sib3/1 down")
	kernellab.Eventually(t, "the SA forgets the port", func() bool {
		l.flush()
		_, err := l.ask(l.labQuery("sib3", false))
		return err != nil
	})
	l.flush()
	before := l.counts()
	if status, rest := query("sib3"); status == "0" {
		t.Errorf("a path to a port that is down: %s", rest)
	}
	if s := l.counts(); s.Failed != before.Failed+1 || s.Answered != before.Answered {
		t.Errorf("counters %+v, before %+v", s, before)
	}
}

// Another process sends to the daemon's socket what looks like a request: it is
// counted and nothing else.
func TestKernelRequestForeign(t *testing.T) {
	l := startLab(t)
	before := l.counts()
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_RDMA)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	b := make([]byte, 104)
	binary.NativeEndian.PutUint32(b, uint32(len(b)))
	binary.NativeEndian.PutUint16(b[4:], 0x1000)
	binary.NativeEndian.PutUint16(b[84:], 20)
	binary.NativeEndian.PutUint16(b[86:], 0x2004)
	dst := l.info("sib2").GIDs[0]
	copy(b[88:], dst[:])
	ports := listeners(t)
	if len(ports) != 1 {
		t.Fatalf("%d sockets listen to the kernel", len(ports))
	}
	to := &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Pid: ports[0]}
	for range 3 {
		if err := unix.Sendto(fd, b, 0, to); err != nil {
			t.Fatal(err)
		}
	}
	kernellab.Eventually(t, "the messages are counted", func() bool { return l.counts().Foreign == 3 })
	after := l.counts()
	if after.Foreign = 0; after != before {
		t.Errorf("counters %+v, before %+v", after, before)
	}
}

// field case 30: systemd has opened the socket, and the kernel asks before the
// daemon runs. The request is answered, and there is no second socket.
func TestKernelRequestPassedSocket(t *testing.T) {
	kernellab.Need(t, kernellab.Softib)
	patient, err := kernelnl.Open()
	if err != nil {
		t.Fatal(err)
	}
	if err := patient.SetWait(25 * time.Second); err != nil { // as long as the daemon may take to start
		t.Fatal(err)
	}
	patient.Close()
	socket := listen(t)
	c := kernellab.OpenCM(t)
	c.ResolveAddr(kernellab.GID(t, labSource), kernellab.GID(t, "sib2"), labService)
	c.ResolveRoute(2 * time.Second)
	l := activateLab(t, []*os.File{socket}, longWait)
	if event, status := c.Event(); event != kernellab.CMRouteResolved {
		t.Fatalf("event %d, status %d", event, status)
	}
	if s := l.counts(); s.Resolves != 1 || s.Answered != 1 {
		t.Errorf("counters %+v", s)
	}
	l.same("sib2", c.Path(), l.serviceQuery("sib2"))
	if ports := listeners(t); len(ports) != 1 {
		t.Errorf("%d sockets listen to the kernel: %v", len(ports), ports)
	}
}

// listen opens a socket as systemd would.
func listen(t *testing.T) *os.File {
	t.Helper()
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_RDMA)
	if err != nil {
		t.Fatal(err)
	}
	socket := os.NewFile(uintptr(fd), "rdma netlink")
	t.Cleanup(func() { socket.Close() })
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: listenerGroups}); err != nil {
		t.Fatal(err)
	}
	return socket
}

// field case 18: the kernel drops requests as the socket is full (ENOBUFS). Those are
// left to the SA when the kernel's wait is over, the others and all later ones are
// answered, and none has two outcomes.
func TestKernelRequestOverrun(t *testing.T) {
	kernellab.Need(t, kernellab.Softib)
	socket := listen(t)
	l := activateLab(t, []*os.File{socket})
	// The daemon has made it large; it is the same socket.
	if err := unix.SetsockoptInt(int(socket.Fd()), unix.SOL_SOCKET, unix.SO_RCVBUF, 1); err != nil {
		t.Fatal(err)
	}
	devices := []string{"sib0", "sib2", "sib3"}
	var ids []*kernellab.CM
	for i := range 12 {
		ids = append(ids, l.connect(l.info(devices[i%3]).GIDs[0]))
	}
	l.stopped(func() {
		for _, c := range ids {
			c.ResolveRoute(10 * time.Second)
		}
	})
	for i, c := range ids {
		if event, status := c.Event(); event != kernellab.CMRouteResolved {
			t.Fatalf("%s: event %d, status %d", devices[i%3], event, status)
		}
		l.same(devices[i%3], c.Path(), l.serviceQuery(devices[i%3]))
	}
	s := l.counts()
	if s.Overruns == 0 || s.Resolves >= uint64(len(ids)) {
		t.Errorf("nothing was dropped: counters %+v", s)
	}
	if s.Pending != 0 || s.Answered+s.Failed+s.Expired+s.Busy+s.Late+s.SendErrors != s.Resolves || s.SendErrors+s.Rejected != 0 {
		t.Errorf("not each request has one outcome: counters %+v", s)
	}
	if event, status, _ := route(l.connect(l.info("sib2").GIDs[0])); event != kernellab.CMRouteResolved {
		t.Errorf("afterwards: event %d, status %d", event, status)
	}
	if after := l.counts(); after.Answered != s.Answered+1 {
		t.Errorf("afterwards: counters %+v, before %+v", after, s)
	}
}

// stopped runs f while the daemon stands still.
func (l *kernelLab) stopped(f func()) {
	l.t.Helper()
	if err := l.Process.Signal(syscall.SIGSTOP); err != nil {
		l.t.Fatal(err)
	}
	defer func() { _ = l.Process.Signal(syscall.SIGCONT) }()
	kernellab.Eventually(l.t, "the daemon stops", func() bool {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", l.Process.Pid))
		return err == nil && strings.Contains(string(b), ") T ")
	})
	f()
}

// listenerGroups is the group of the kernel's path requests as a mask.
const listenerGroups = 4

// listeners finds the netlink ports that listen to the kernel's path requests.
func listeners(t *testing.T) (ports []uint32) {
	t.Helper()
	b, err := os.ReadFile("/proc/net/netlink") // sk Eth Pid Groups ...
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) < 4 || f[1] != strconv.Itoa(unix.NETLINK_RDMA) {
			continue
		}
		groups, err := strconv.ParseUint(f[3], 16, 32)
		if err != nil || groups&listenerGroups == 0 {
			continue
		}
		port, err := strconv.ParseUint(f[2], 10, 32)
		if err != nil {
			t.Fatal(err)
		}
		ports = append(ports, uint32(port))
	}
	return ports
}
