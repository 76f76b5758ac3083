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
	"acmd/resolver"
	"acmd/resolver/kernelnl"

	"golang.org/x/sys/unix"
)

// The kernel's own path requests: rdma_cm asks for a route, the kernel asks the
// daemon over netlink, and what it goes by is read back.
const (
	labService = 0x1234
	// In most tests the kernel waits for longer than any answer can take, so that
	// whatever comes earlier is the daemon's doing.
	longWait = "kernel_timeout 50000"
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
	c.ResolveRoute(labHelp)
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
			before := l.counts()
			c := l.connect(dst)
			var took time.Duration
			n := l.wireQueries(func() {
				var event uint32
				var status int32
				if event, status, took = route(c); event != kernellab.CMRouteResolved {
					t.Fatalf("%s: event %d, status %d after %v", device, event, status, took)
				}
			})
			got := c.Path()
			if round == 1 && n != 0 {
				t.Errorf("%s: %d queries on the wire for a cached path", device, n)
			}
			l.counted(device+": one request, one answer", func(s kernelnl.Stats) bool {
				return s.Resolves == before.Resolves+1 && s.Answered == before.Answered+1
			})
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
	if took >= 40*time.Second {
		t.Errorf("refused after %v, the kernel has helped itself", took)
	}
	l.counted("one refusal", func(s kernelnl.Stats) bool { return s.Failed == before.Failed+1 && s.Answered == before.Answered })
	t.Logf("refused after %v", took.Round(time.Millisecond))
}

// The SA does not answer the daemon. The kernel is told so shortly before its wait
// is over, and then gets its path from the SA, which answers by then.
func TestKernelRequestLeftToSA(t *testing.T) {
	for _, wait := range []time.Duration{2 * time.Second, 4 * time.Second} {
		t.Run(wait.String(), func(t *testing.T) {
			settle(t)
			setWait(t, wait)
			// More tries than fit into the wait, or the lookup could fail before it is over.
			l := startLab(t, fmt.Sprintf("kernel_timeout %d", wait.Milliseconds()), "retries 8")
			if s := l.counts(); s.WaitMS != wait.Milliseconds() {
				t.Fatalf("counters %+v", s)
			}
			c := l.connect(l.info("sib3").GIDs[0])
			l.flush()
			kernellab.Control(t, "drop class=3 method=0x1 attr=0x35 from="+labSource)
			start := time.Now()
			c.ResolveRoute(labHelp)
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
			l.counted("nothing else", func(s kernelnl.Stats) bool {
				return s.Resolves == 1 && s.Answered+s.Failed+s.Rejected+s.SendErrors == 0
			})
			l.same("sib3", c.Path(), l.serviceQuery("sib3"))
			t.Logf("told after %v, route after %v", told.Round(time.Millisecond), time.Since(start).Round(time.Millisecond))
		})
	}
}

// The daemon does not run: the kernel asks the SA after kernel_timeout, which the
// daemon has set, and what the daemon says afterwards does no harm.
func TestKernelRequestDaemonStopped(t *testing.T) {
	const wait = 3 * time.Second // the kernel's own would be 2 s
	settle(t)
	setWait(t, wait)
	l := startLab(t, fmt.Sprintf("kernel_timeout %d", wait.Milliseconds()))
	c := l.connect(l.info("sib2").GIDs[0])
	var path sa.PathRecord
	l.stopped(func() {
		event, status, took := route(c)
		if event != kernellab.CMRouteResolved {
			t.Fatalf("event %d, status %d", event, status)
		}
		if took < wait*95/100 { // it counts in ticks of its clock
			t.Errorf("the kernel asked the SA after %v, it was to wait %v", took, wait)
		}
		path = c.Path()
		t.Logf("route after %v", took.Round(time.Millisecond))
	})
	l.counted("the daemon speaks", func(s kernelnl.Stats) bool { return s.Resolves == 1 })
	if got := c.Path(); got != path {
		t.Errorf("a late answer has changed the path: %x, before %x", got, path)
	}
	l.answersAgain()
	l.same("sib2", path, l.serviceQuery("sib2"))
}

// answersAgain has the kernel ask until the daemon has answered in time, as it does
// unless the guest stands still.
func (l *kernelLab) answersAgain() {
	l.t.Helper()
	before := l.counts()
	kernellab.Eventually(l.t, "the kernel is answered again", func() bool {
		c := l.connect(l.info("sib2").GIDs[0])
		defer c.Close()
		if event, status, _ := route(c); event != kernellab.CMRouteResolved {
			l.t.Fatalf("afterwards: event %d, status %d", event, status)
		}
		return l.counts().Answered > before.Answered
	})
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
	if n := l.wireQueries(func() {
		for _, c := range ids {
			c.ResolveRoute(labHelp)
		}
		for i, c := range ids {
			if event, status := c.Event(); event != kernellab.CMRouteResolved {
				t.Fatalf("%s: event %d, status %d", devices[i%3], event, status)
			}
		}
	}); n != 3 {
		t.Errorf("%d queries on the wire, want 3", n)
	}
	l.counted("60 answers", func(s kernelnl.Stats) bool {
		return s.Answered == before.Answered+60 && s.Failed == before.Failed && s.Expired == before.Expired
	})
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
		kernellab.Control(t, fmt.Sprintf("path sib1/1 %s/1 %d", device, labHelp.Milliseconds()))
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
		l.counted(device+": one answer", func(s kernelnl.Stats) bool { return s.Answered == before.Answered+1 })
	}
	kernellab.Control(t, "link sib3/1 down")
	l.refused("the SA forgets the port", "sib3", l.flush, resolver.StatusNoData)
	l.flush()
	before := l.counts()
	if status, rest := query("sib3"); status == "0" {
		t.Errorf("a path to a port that is down: %s", rest)
	}
	l.counted("one refusal", func(s kernelnl.Stats) bool { return s.Failed == before.Failed+1 && s.Answered == before.Answered })
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
	after := l.counted("three messages", func(s kernelnl.Stats) bool { return s.Foreign == 3 })
	if after.Foreign = 0; after != before {
		t.Errorf("counters %+v, before %+v", after, before)
	}
}

// field case 30: systemd has opened the socket, and the kernel asks before the
// daemon runs. The request is answered, and there is no second socket.
func TestKernelRequestPassedSocket(t *testing.T) {
	settle(t)
	setWait(t, 50*time.Second) // as long as the daemon may take to start
	socket := listen(t)
	c := kernellab.OpenCM(t)
	c.ResolveAddr(kernellab.GID(t, labSource), kernellab.GID(t, "sib2"), labService)
	c.ResolveRoute(labHelp)
	l := activateLab(t, []*os.File{socket}, longWait)
	if event, status := c.Event(); event != kernellab.CMRouteResolved {
		t.Fatalf("event %d, status %d", event, status)
	}
	l.counted("one request, one answer", func(s kernelnl.Stats) bool { return s.Resolves == 1 && s.Answered == 1 })
	l.same("sib2", c.Path(), l.serviceQuery("sib2"))
	if ports := listeners(t); len(ports) != 1 {
		t.Errorf("%d sockets listen to the kernel: %v", len(ports), ports)
	}
}

// setWait sets how long the kernel waits, which a daemon does when it starts. The
// kernel has one timer for all its requests, which goes on when they were answered,
// and who comes meanwhile waits for it even if his own wait is shorter (sa_query.c,
// ib_nl_make_request). So it is made to fire first, by a wait that is cut short while
// a request is there.
func setWait(t *testing.T, d time.Duration) {
	t.Helper()
	s, err := kernelnl.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	set := func(d time.Duration) {
		t.Helper()
		if err := s.SetWait(d); err != nil {
			t.Fatal(err)
		}
	}
	set(kernelnl.MaxWait)
	c := kernellab.OpenCM(t)
	defer c.Close()
	c.ResolveAddr(kernellab.GID(t, labSource), kernellab.GID(t, "sib2"), labService)
	c.ResolveRoute(labHelp)
	set(kernelnl.MinWait)
	if event, status := c.Event(); event != kernellab.CMRouteResolved {
		t.Fatalf("event %d, status %d", event, status)
	}
	set(d)
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
	settle(t)
	setWait(t, kernelnl.DefaultWait)
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
			c.ResolveRoute(labHelp)
		}
	})
	for i, c := range ids {
		if event, status := c.Event(); event != kernellab.CMRouteResolved {
			t.Fatalf("%s: event %d, status %d", devices[i%3], event, status)
		}
		l.same(devices[i%3], c.Path(), l.serviceQuery(devices[i%3]))
	}
	s := l.counted("each request has one outcome", func(s kernelnl.Stats) bool {
		return s.Answered+s.Failed+s.Expired+s.Busy+s.Late+s.SendErrors == s.Resolves
	})
	if s.Overruns == 0 || s.Resolves >= uint64(len(ids)) || s.SendErrors+s.Rejected != 0 {
		t.Errorf("nothing was dropped, or not only that: counters %+v", s)
	}
	l.answersAgain()
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
