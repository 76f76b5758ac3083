// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"acmd/mad"
	"acmd/mad/madtest"
	"acmd/mad/ring"
	"acmd/mad/sa"
	"acmd/mad/transport"
	"acmd/mad/umad"
	"acmd/mad/umad/kernellab"
	"acmd/resolver"
	"acmd/resolver/acmsock"
	"acmd/resolver/privilege"
)

// The whole daemon under a real kernel: the binaries that are shipped, on
// InfiniBand ports, with a real OpenSM. bench/lab/kernel/test.sh runs these tests
// in its guest; what the daemon says is compared with a query that the test sends
// by itself and with saquery.
const (
	labAcmd, labAcmctl = "/lab/acmd", "/lab/acmctl"
	labSource          = "sib1"             // paths start here
	labRequest         = 20 * time.Second   // request_timeout: OpenSM in a busy guest may take its time
	labAnswer          = labRequest * 3 / 2 // more than any request may take
	labHelp            = 20 * time.Second   // the kernel's own question to the SA may take that long
)

// kernelLab is the running daemon, and a port of the test's own.
type kernelLab struct {
	*daemon
	t      *testing.T
	client *acmsock.Client
	fabric *umad.Fabric
	port   transport.Port
	ports  map[string]transport.PortInfo // port 1 of each device, as of the last look
	tid    uint32
}

// startLab starts the daemon on a settled fabric, with a poll interval of 400 ms and
// these lines of options, which may say otherwise, and waits until it resolves and is
// done with what a start makes it ask.
func startLab(t *testing.T, options ...string) *kernelLab {
	t.Helper()
	return activateLab(t, nil, options...)
}

// activateLab passes the daemon sockets as systemd does.
func activateLab(t *testing.T, sockets []*os.File, options ...string) *kernelLab {
	t.Helper()
	return boundLab(t, nil, sockets, options...)
}

// boundLab gives the daemon no more capabilities than these; nil: all.
func boundLab(t *testing.T, bounding *privilege.Set, sockets []*os.File, options ...string) *kernelLab {
	t.Helper()
	settle(t)
	d := launchBound(t, bounding, sockets, options...)
	l := &kernelLab{daemon: d, t: t, tid: 0x33000000}
	t.Cleanup(l.finish)
	d.serves(t)
	ctx, cancel := context.WithTimeout(t.Context(), labAnswer)
	defer cancel()
	var err error
	if l.client, err = acmsock.Dial(ctx, d.sock()); err != nil {
		t.Fatal(err)
	}
	// Only now, so that the daemon has the port's Report method.
	if l.fabric, err = umad.New(umad.Config{}); err != nil {
		t.Fatal(err)
	}
	l.reopen()
	kernellab.Eventually(t, "acmd is done with its start", l.isQuiet)
	l.resolves("sib2")
	return l
}

// serves waits until the daemon serves clients.
func (d *daemon) serves(t *testing.T) {
	t.Helper()
	kernellab.Eventually(t, "acmd serves", func() bool {
		select {
		case <-d.done:
			t.Fatalf("acmd ended (%v):\n%s", d.err, d.out)
		default:
		}
		return strings.Contains(d.out.String(), "serving clients")
	})
}

// launchLab runs the daemon; the caller ends it.
func launchLab(t *testing.T, sockets []*os.File, options ...string) *daemon {
	t.Helper()
	return launchBound(t, nil, sockets, options...)
}

func launchBound(t *testing.T, bounding *privilege.Set, sockets []*os.File, options ...string) *daemon {
	t.Helper()
	dir := t.TempDir()
	opts, addr := filepath.Join(dir, "opts.cfg"), filepath.Join(dir, "addr.cfg")
	text := "log_file stderr\n" + strings.Join(options, "\n") + "\n"
	for name, d := range map[string]time.Duration{"poll_interval": 400 * time.Millisecond, "request_timeout": labRequest} {
		if !strings.Contains(text, "\n"+name+" ") {
			text += fmt.Sprintf("%s %d\n", name, d.Milliseconds())
		}
	}
	if err := os.WriteFile(opts, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(addr, []byte("node0 sib0 1 default\nnode1 sib1 1 default\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	d := &daemon{dir: dir, out: &madtest.Output{}, done: make(chan struct{})}
	// The shell's process is the daemon's, which LISTEN_PID has to name.
	d.Cmd = exec.Command("sh", "-c", `LISTEN_PID=$$ exec "$@"`, "sh",
		labAcmd, "-P", "--fabric", "umad", "--run-dir", dir, "-O", opts, "-A", addr)
	if bounding != nil {
		d.Cmd = exec.Command(os.Args[0], append([]string{"/bin/sh"}, d.Args[1:]...)...)
		d.Env = append(os.Environ(), boundBy(*bounding))
	}
	if len(sockets) > 0 {
		d.Env, d.ExtraFiles = append(d.Environ(), fmt.Sprintf("LISTEN_FDS=%d", len(sockets))), sockets
	}
	d.Stdout, d.Stderr = d.out, d.out
	if err := d.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { d.err = d.Wait(); close(d.done) }()
	return d
}

// finish ends the daemon, which has to go in order however it was treated.
func (l *kernelLab) finish() {
	kernellab.Control(l.t, "clear")
	if l.client != nil {
		l.client.Close()
	}
	if l.fabric != nil {
		l.fabric.Close()
	}
	select {
	case <-l.done:
		l.t.Errorf("acmd ended by itself: %v", l.err)
	default:
		_ = l.Process.Signal(syscall.SIGTERM)
		if code := l.end(l.t); code != 0 {
			l.t.Errorf("exit status %d after SIGTERM", code)
		}
	}
	if l.t.Failed() {
		l.t.Logf("acmd said:\n%s", l.out)
	}
}

// reopen opens the test's own port again.
func (l *kernelLab) reopen() {
	l.t.Helper()
	if l.port != nil {
		l.port.Close()
	}
	l.look()
	var err error
	if l.port, err = l.fabric.Open(labSource, 1); err != nil {
		l.t.Fatal(err)
	}
}

// look reads the ports as the kernel shows them now.
func (l *kernelLab) look() {
	l.t.Helper()
	list, err := l.fabric.Devices()
	if err != nil {
		l.t.Fatal(err)
	}
	l.ports = map[string]transport.PortInfo{}
	for _, d := range list {
		if len(d.Ports) > 0 {
			l.ports[d.Name] = d.Ports[0]
		}
	}
}

// info is what the last look saw of a device.
func (l *kernelLab) info(device string) transport.PortInfo {
	l.t.Helper()
	p, ok := l.ports[device]
	if !ok {
		l.t.Fatalf("no device %s", device)
	}
	return p
}

// labQuery is a path from the source adapter to another one, by GID or by LID.
func (l *kernelLab) labQuery(device string, byLID bool) (p sa.PathRecord) {
	l.t.Helper()
	from, to := l.info(labSource), l.info(device)
	p.SetSGID(from.GIDs[0])
	if byLID {
		p.SetDLID(to.LID)
	} else {
		p.SetDGID(to.GIDs[0])
	}
	return p
}

// ask asks the daemon.
func (l *kernelLab) ask(q sa.PathRecord) (sa.PathRecord, error) {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(l.t.Context(), labAnswer)
	defer cancel()
	r, err := l.client.ResolvePath(ctx, q, false)
	if err != nil {
		var se *acmsock.StatusError
		if !errors.As(err, &se) {
			l.t.Fatalf("the daemon gave no answer: %v", err)
		}
		return sa.PathRecord{}, err
	}
	return r.Paths[0].Record, nil
}

// raw asks the SA itself, with the components that the daemon constrains: those of
// q and the source's LID, its P_Key, reversible, one path.
func (l *kernelLab) raw(q sa.PathRecord) sa.PathRecord {
	l.t.Helper()
	q.SetSLID(l.info(labSource).LID)
	q.SetPKey(mad.DefaultPKey)
	q.SetReversibleNumPath(true, 1)
	for end := time.Now().Add(patience); time.Now().Before(end); {
		m := l.exchange(func(m *mad.Packet) {
			sa.Init(m, mad.MethodGet, sa.AttrPathRecord, sa.PathMask(&q))
			*sa.Path(m) = q
		})
		if m.Status() == 0 {
			return *sa.Path(&m)
		}
	}
	l.t.Fatal("own query: no path")
	return sa.PathRecord{}
}

// exchange sends a request to the SA from the test's own port until it is answered,
// whatever the status, and returns the answer.
func (l *kernelLab) exchange(request func(*mad.Packet)) mad.Packet {
	l.t.Helper()
	info := l.info(labSource)
	slots := make([]*ring.Slot, 1)
	if l.port.Ring().GetN(slots) != 1 {
		l.t.Fatal("no slot")
	}
	s := slots[0]
	defer s.Release()
	for end := time.Now().Add(patience); time.Now().Before(end); {
		l.tid++
		*s.Header() = mad.UserHeader{}
		s.Header().SetLID(info.SMLID)
		s.Header().SetQPN(mad.QP1)
		s.Header().SetPKeyIndex(info.SAPKeyIndex())
		s.Header().SetTimeoutMS(5000)
		request(s.MAD())
		s.MAD().SetTID(mad.TID(l.tid))
		if _, err := l.port.Send(slots); err != nil {
			l.t.Fatalf("own query: %v", err)
		}
		for {
			n, err := l.port.Recv(slots, end)
			if err != nil {
				l.t.Fatalf("own query: %v", err)
			}
			if n == 0 || s.MAD().TID().Low() == l.tid {
				break
			}
		}
		if s.Header().Status() == 0 && s.MAD().IsResponse() {
			return *s.MAD()
		}
	}
	l.t.Fatal("own query: no answer")
	return mad.Packet{}
}

// restartSM starts OpenSM on its port with more arguments; it must have ended.
func (l *kernelLab) restartSM(arg ...string) {
	l.t.Helper()
	if out, err := exec.Command("sm", append([]string{"start", "sib0", "-s", "2"}, arg...)...).CombinedOutput(); err != nil {
		l.t.Fatalf("sm start: %v\n%s", err, out)
	}
}

// resolves waits until the daemon has a path to a device, which then has to be the
// SA's in every byte, with the LIDs that both ports have now.
func (l *kernelLab) resolves(device string) sa.PathRecord {
	l.t.Helper()
	var got sa.PathRecord
	kernellab.Eventually(l.t, "path to "+device, func() (ok bool) {
		var err error
		l.look()
		got, err = l.ask(l.labQuery(device, false))
		return err == nil
	})
	l.look()
	l.same(device, got, l.labQuery(device, false))
	return got
}

func (l *kernelLab) same(device string, got, q sa.PathRecord) {
	l.t.Helper()
	if want := l.raw(q); got != want {
		l.t.Errorf("path to %s:\nacmd %x\nSA   %x", device, got, want)
	}
	if from, to := l.info(labSource), l.info(device); got.SLID() != from.LID || got.DLID() != to.LID {
		l.t.Errorf("path to %s has LIDs %v and %v, the ports have %v and %v", device, got.SLID(), got.DLID(), from.LID, to.LID)
	}
}

// fails checks that a path cannot be had, and that this is told in time and with
// one of these statuses.
func (l *kernelLab) fails(device string, statuses ...resolver.Status) {
	l.t.Helper()
	begin := time.Now()
	got, err := l.ask(l.labQuery(device, false))
	if d := time.Since(begin); d > labAnswer {
		l.t.Errorf("answer after %v", d)
	}
	if !slices.Contains(statuses, statusOf(err)) {
		l.t.Errorf("path to %s: %x, %v, want one of %v", device, got, err, statuses)
	}
}

// acmctl runs the tool and returns its output.
func (l *kernelLab) acmctl(arg ...string) string {
	l.t.Helper()
	return kernellab.Run(l.t, labAcmctl, append([]string{"--run-dir", l.dir}, arg...)...)
}

// flush forgets all paths.
func (l *kernelLab) flush() { l.t.Helper(); l.acmctl("flush", "--all") }

// Paths to every other adapter by GID and by LID are the SA's 64 bytes, what
// saquery prints and what acmctl prints.
func TestKernelDaemonPaths(t *testing.T) {
	l := startLab(t)
	for _, device := range []string{"sib0", "sib2", "sib3"} {
		for _, byLID := range []bool{false, true} {
			q := l.labQuery(device, byLID)
			l.flush()
			got, err := l.ask(q)
			if err != nil {
				t.Fatalf("%s: %v", device, err)
			}
			l.same(device, got, q)
			if again, err := l.ask(q); err != nil || again != got {
				t.Errorf("%s from the cache: %x, %v", device, again, err)
			}
			kernellab.ComparePath(t, &got, kernellab.Run(t, "saquery", "-C", labSource, "PR",
				"--slid", got.SLID().String(), "--dlid", got.DLID().String()))
			dst := "gid:" + got.DGID().String()
			if byLID {
				dst = "lid:" + got.DLID().String()
			}
			l.compareTool(&got, l.acmctl("--json", "resolve", "--src", "gid:"+got.SGID().String(), "--verify", dst))
		}
	}
	if out := l.acmctl("endpoints"); !strings.Contains(out, "sib1") && !strings.Contains(out, "node1") {
		t.Errorf("endpoints:\n%s", out)
	}
}

// compareTool compares a record with what acmctl prints of it.
func (l *kernelLab) compareTool(r *sa.PathRecord, out string) {
	l.t.Helper()
	var results []struct {
		Verified bool
		Paths    []struct {
			DGID, SGID string
			DLID, SLID uint16
			PKey       string
			MTU, Rate  struct{ Code uint8 }
			SL         uint8
			Reversible bool
		}
	}
	if err := json.Unmarshal([]byte(out), &results); err != nil || len(results) != 1 || len(results[0].Paths) != 1 {
		l.t.Fatalf("acmctl printed %v:\n%s", err, out)
	}
	p := results[0].Paths[0]
	_, mtu := r.MTU()
	_, rate := r.Rate()
	got := fmt.Sprintln(p.DGID, p.SGID, p.DLID, p.SLID, p.PKey, p.MTU.Code, p.Rate.Code, p.SL, p.Reversible, results[0].Verified)
	want := fmt.Sprintln(r.DGID(), r.SGID(), r.DLID(), r.SLID(), r.PKey(), uint8(mtu), uint8(rate), r.SL(), r.Reversible(), true)
	if got != want {
		l.t.Errorf("acmctl says %s, the path is %s", got, want)
	}
}

// The first answer is lost, late or doubled: the path comes all the same, within
// the time of one request, and it is the right one.
func TestKernelDaemonFirstAnswer(t *testing.T) {
	l := startLab(t)
	for _, rule := range []string{
		"drop class=3 method=0x81 attr=0x35 count=1", "drop class=3 method=0x1 attr=0x35 from=sib1 count=1",
		"delay class=3 method=0x81 attr=0x35 ms=300 count=1", "dup class=3 method=0x81 attr=0x35 count=1",
		"dup class=3 method=0x81 attr=0x35 ms=300 count=1",
	} {
		for _, byLID := range []bool{false, true} {
			device := "sib2"
			l.flush()
			kernellab.Control(t, "clear\n"+rule)
			q := l.labQuery(device, byLID)
			begin := time.Now()
			got, err := l.ask(q)
			took := time.Since(begin)
			kernellab.Control(t, "clear")
			if err != nil {
				t.Errorf("%s, path to %s: %v after %v", rule, device, err, took)
				continue
			}
			l.same(device, got, q)
			t.Logf("%s: %s after %v", rule, device, took.Round(time.Millisecond))
		}
	}
}

// field case 22: the cable of the source is pulled. Meanwhile a path is refused
// with a reason, afterwards there is one again.
func TestKernelDaemonSourceLinkDown(t *testing.T) {
	l := startLab(t)
	kernellab.Control(t, "link sib1/1 down")
	t.Cleanup(func() { kernellab.Control(t, "link sib1/1 up"); kernellab.WaitActive(t, labSource) })
	l.refused("the daemon notices", "sib2", nil, resolver.StatusNotConn, resolver.StatusSrcAddr)
	l.fails("sib2", resolver.StatusNotConn, resolver.StatusSrcAddr)
	l.fails("sib3", resolver.StatusNotConn, resolver.StatusSrcAddr)
	kernellab.Control(t, "link sib1/1 up")
	kernellab.WaitActive(t, labSource)
	l.resolves("sib2")
	l.resolves("sib3")
}

// The cable of a destination is pulled: once the path is forgotten it is refused as
// one that does not exist, and the destination's return brings it back.
func TestKernelDaemonDestinationLinkDown(t *testing.T) {
	l := startLab(t)
	kernellab.Control(t, "link sib2/1 down")
	t.Cleanup(func() { kernellab.Control(t, "link sib2/1 up"); kernellab.WaitActive(t, "sib2") })
	q := l.labQuery("sib2", false)
	l.refused("the path ends", "sib2", func() { l.acmctl("flush", "--gid", q.DGID().String()) }, resolver.StatusNoData)
	l.fails("sib2", resolver.StatusNoData)
	l.resolves("sib3")
	kernellab.Control(t, "link sib2/1 up")
	kernellab.WaitActive(t, "sib2")
	l.resolves("sib2")
}

// The source comes back with another LID: no answer has the old one.
func TestKernelDaemonNewLID(t *testing.T) {
	l := startLab(t)
	old := l.info(labSource).LID
	kernellab.Control(t, "link sib1/1 down")
	l.refused("the daemon notices", "sib2", nil, resolver.StatusNotConn, resolver.StatusSrcAddr)
	// A new SM without memory leaves a port the LID that it finds there.
	kernellab.Run(t, "sm", "stop")
	for _, f := range []string{"/tmp/opensm-sib0/guid2lid", "/var/cache/opensm/guid2lid"} {
		_ = os.Remove(f) // the one that is not used is not there
	}
	moved := old + 0x40
	kernellab.Control(t, fmt.Sprintf("lid sib1/1 %d", moved))
	kernellab.Control(t, "link sib1/1 up")
	l.restartSM()
	kernellab.WaitActive(t, labSource)
	l.look()
	if lid := l.info(labSource).LID; lid != moved {
		t.Fatalf("the new SM gave LID %v, want %v", lid, moved)
	}
	kernellab.Eventually(t, "path", func() bool {
		p, err := l.ask(l.labQuery("sib2", false))
		if err == nil && p.SLID() == old {
			t.Errorf("path with the old LID %v: %x", old, p)
		}
		return err == nil
	})
	l.resolves("sib2")
	l.resolves("sib3")
}

// field case 76: the source adapter is pulled while requests come in, and
// put back. The daemon says so, stays quiet and idle, and uses it again.
func TestKernelDaemonUnplug(t *testing.T) {
	l := startLab(t)
	t.Cleanup(func() { kernellab.Plug(t, labSource) })
	q := l.labQuery("sib2", false)
	kernellab.Control(t, "drop class=3 method=0x1 attr=0x35 from=sib1") // so that queries are outstanding
	l.flush()
	asked := make(chan error, 1)
	go func() {
		c, err := acmsock.Dial(t.Context(), l.sock())
		if err == nil {
			_, err = c.ResolvePath(t.Context(), q, false)
			c.Close()
		}
		asked <- err
	}()
	time.Sleep(200 * time.Millisecond) // until it is on its way; a miss only makes this easier
	l.port.Close()
	kernellab.Control(t, "unplug "+labSource)
	select {
	case err := <-asked:
		if err == nil {
			t.Error("a path from an adapter that was pulled")
		}
	case <-time.After(labAnswer):
		t.Fatal("a request outstanding on the adapter is not answered")
	}
	kernellab.Control(t, "clear")
	if _, err := l.ask(q); err == nil {
		t.Error("a path from an adapter that is gone")
	}
	kernellab.Eventually(t, "the port is gone", func() bool { return !l.isOpen(labSource) })
	// What a busy host takes from the guest counts as used there: the calmest half
	// second tells.
	said, calmest := len(l.out.String()), time.Hour
	for i := 0; i < 4 || i < 30 && calmest > 250*time.Millisecond; i++ {
		used := l.cpu()
		time.Sleep(500 * time.Millisecond)
		calmest = min(calmest, l.cpu()-used)
	}
	if calmest > 250*time.Millisecond {
		t.Errorf("never used less than %v of CPU in half a second without its adapter", calmest)
	}
	if more := strings.Count(l.out.String()[said:], "\n"); more > 5 {
		t.Errorf("logged %d lines without its adapter", more)
	}
	kernellab.Plug(t, labSource)
	kernellab.Eventually(t, "the daemon opens the port again", func() bool { return l.isOpen(labSource) })
	l.reopen()
	l.resolves("sib2")
	l.resolves("sib3")
}

// cpu is the processor time that the daemon has used.
func (l *kernelLab) cpu() time.Duration {
	l.t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", l.Process.Pid))
	if err != nil {
		l.t.Fatal(err)
	}
	f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	var ticks int
	for _, s := range f[11:13] { // utime and stime, proc(5)
		n, err := strconv.Atoi(s)
		if err != nil {
			l.t.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * time.Second / 100
}
