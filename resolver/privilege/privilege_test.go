// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package privilege

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// beDropper makes the test binary a process that keeps the capabilities of this
// hexadecimal set and tells what its threads have then.
const beDropper = "ACMD_TEST_KEEP"

func TestMain(m *testing.M) {
	if spec := os.Getenv(beDropper); spec != "" {
		keep, err := strconv.ParseUint(spec, 16, 64)
		if err == nil {
			err = dropAndTell(Set(keep))
		}
		if err != nil {
			fmt.Println("FAILED:", err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// busyThreads starts threads that compute, that sleep in the kernel and that are
// bound to a goroutine, and makes new ones until stop is called.
func busyThreads() (stop func()) {
	signal.Notify(make(chan os.Signal, 1), unix.SIGHUP) // its thread blocks what signals it can
	over := make(chan struct{})
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			runtime.LockOSThread()
			<-over
		})
		wg.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-over:
					return
				default:
				}
			}
		})
		wg.Go(func() {
			var ts unix.Timespec
			for {
				select {
				case <-over:
					return
				default:
					ts.Nsec = 1e6
					_ = unix.Nanosleep(&ts, nil) // ends early at a signal
				}
			}
		})
	}
	wg.Go(func() {
		for {
			select {
			case <-over:
				return
			default:
				done := make(chan struct{})
				go func() { runtime.LockOSThread(); close(done) }() // its thread ends with it
				<-done
				time.Sleep(time.Millisecond)
			}
		}
	})
	return func() { close(over); wg.Wait() }
}

// dropAndTell prints a line for each thread.
func dropAndTell(keep Set) error {
	defer busyThreads()()
	time.Sleep(20 * time.Millisecond)
	before, err := Read()
	if err != nil {
		return err
	}
	tried := errors.New("tried")
	err = With(0, func() error {
		h, err := Read()
		if err != nil || h.Effective != 0 || h.Permitted != before.Permitted {
			return fmt.Errorf("inside With: %+v, %w", h, err)
		}
		return tried
	})
	if err != tried {
		return err
	}
	if threads, err := Threads(os.Getpid()); err != nil || !allAre(threads, before) {
		return fmt.Errorf("after With: %v, %w", threads, err)
	}
	for range 2 { // the second time there is nothing to do
		if err := Keep(keep); err != nil {
			return err
		}
	}
	time.Sleep(20 * time.Millisecond) // for threads that come later
	threads, err := Threads(os.Getpid())
	if err != nil {
		return err
	}
	for tid, h := range threads {
		fmt.Println(tid, h.Inheritable, h.Permitted, h.Effective, h.Bounding, h.Ambient)
	}
	// What is kept works, what is not does not.
	_, err = net.Listen("tcp4", "127.0.0.1:1")
	fmt.Println("port 1:", err == nil || errors.Is(err, unix.EADDRINUSE))
	return nil
}

func allAre(threads map[int]Held, want Held) bool {
	for h := range maps.Values(threads) {
		if h != want {
			return false
		}
	}
	return true
}

// needRoot skips the test for users that have nothing to give up.
func needRoot(t *testing.T) Held {
	t.Helper()
	h, err := Read()
	if err != nil {
		t.Fatal(err)
	}
	if want := Of(unix.CAP_SETPCAP, unix.CAP_NET_ADMIN, unix.CAP_NET_BIND_SERVICE); !h.Effective.Has(want) {
		if os.Getenv("ACMD_CI") == "1" {
			t.Fatalf("the test wants %s, and has %s", want, h.Effective)
		}
		t.Skipf("the test wants %s, and has %s", want, h.Effective)
	}
	return h
}

func setpriv(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("setpriv")
	if err != nil {
		if os.Getenv("ACMD_CI") == "1" {
			t.Fatal("setpriv is missing: apt-get install util-linux")
		}
		t.Skip("setpriv is missing: apt-get install util-linux")
	}
	return path
}

// Whatever its threads are doing, and however many come meanwhile, the process has
// what it keeps and nothing else.
func TestKeep(t *testing.T) {
	needRoot(t)
	for _, keep := range []Set{0, Of(unix.CAP_NET_ADMIN), Of(unix.CAP_NET_BIND_SERVICE, unix.CAP_NET_RAW, unix.CAP_BPF)} {
		t.Run(keep.String(), func(t *testing.T) {
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%x", beDropper, uint64(keep)))
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			lines := strings.Split(strings.TrimSpace(string(out)), "\n")
			last := len(lines) - 1
			if last < 5 {
				t.Errorf("only %d threads", last)
			}
			want := fmt.Sprintf(" none %s %s %s none", keep, keep, keep)
			for _, line := range lines[:last] {
				if _, sets, _ := strings.Cut(line, " "); " "+sets != want {
					t.Errorf("thread%s\nwant%s", line, want)
				}
			}
			if got, want := lines[last], fmt.Sprint("port 1: ", keep.Has(Of(unix.CAP_NET_BIND_SERVICE))); got != want && !unprivilegedPort(1) {
				t.Errorf("%s, want %s", got, want)
			}
		})
	}
}

func unprivilegedPort(port int) bool {
	b, err := os.ReadFile("/proc/sys/net/ipv4/ip_unprivileged_port_start")
	n, aerr := strconv.Atoi(strings.TrimSpace(string(b)))
	return err == nil && aerr == nil && n <= port
}

// A user without any capability has nothing to drop, and is told of no failure.
func TestKeepNothing(t *testing.T) {
	needRoot(t)
	cmd := exec.Command(setpriv(t), "--bounding-set=-all", "--inh-caps=-all", os.Args[0])
	cmd.Env = append(os.Environ(), beDropper+"=ff")
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), " none none none none none\n") {
		t.Fatalf("%v\n%s", err, out)
	}
}

// Without CAP_SETPCAP the bounding set cannot be changed; the others can.
func TestKeepWithoutSetpcap(t *testing.T) {
	needRoot(t)
	cmd := exec.Command(setpriv(t), "--bounding-set=-all,+net_admin,+net_raw", "--inh-caps=-all", os.Args[0])
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%x", beDropper, uint64(Of(unix.CAP_NET_RAW))))
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), " none cap_net_raw cap_net_raw cap_net_admin,cap_net_raw none\n") {
		t.Fatalf("%v\n%s", err, out)
	}
}

func TestNames(t *testing.T) {
	for want, s := range map[string]Set{
		"none":                                  0,
		"cap_chown":                             Of(unix.CAP_CHOWN),
		"cap_net_admin,cap_perfmon,cap_bpf":     Of(unix.CAP_BPF, unix.CAP_NET_ADMIN, unix.CAP_PERFMON),
		"cap_ipc_lock,cap_checkpoint_restore":   Of(unix.CAP_CHECKPOINT_RESTORE, unix.CAP_IPC_LOCK),
		"cap_setpcap,cap_net_bind_service":      Of(unix.CAP_SETPCAP, unix.CAP_NET_BIND_SERVICE),
		"cap_dac_override,cap_dac_read_search":  Of(unix.CAP_DAC_OVERRIDE, unix.CAP_DAC_READ_SEARCH),
		"cap_sys_admin,cap_sys_resource,cap_63": Of(unix.CAP_SYS_RESOURCE, unix.CAP_SYS_ADMIN, 63),
	} {
		if s.String() != want {
			t.Errorf("%#x: %s, want %s", uint64(s), s, want)
		}
	}
	if len(names) != unix.CAP_LAST_CAP+1 {
		t.Errorf("%d names", len(names))
	}
	if s := Set(0).Names(); s == nil || len(s) != 0 {
		t.Errorf("no capabilities: %#v", s)
	}
}

const goldenStatus = "Name:\tacmd\nCapInh:\t0000000000000001\nCapPrm:\t000001ffffffffff\nCapEff:\t0000000000001000\n" +
	"CapBnd:\t000001fffeffffff\nCapAmb:\t0000000000000002\nNoNewPrivs:\t0\n"

func TestParseStatus(t *testing.T) {
	h, err := parseStatus(goldenStatus)
	want := Held{Inheritable: 1, Permitted: 1<<41 - 1, Effective: Of(unix.CAP_NET_ADMIN), Bounding: 0x1fffeffffff, Ambient: 2}
	if err != nil || h != want {
		t.Errorf("%+v, %v", h, err)
	}
	for _, text := range []string{"", "CapInh:\t0\n", strings.Replace(goldenStatus, "CapBnd:\t0", "CapBnd:\tx", 1),
		strings.Replace(goldenStatus, "CapEff:\t0", "CapEff:\t11", 1)} {
		if h, err := parseStatus(text); err == nil {
			t.Errorf("%q: %+v", text, h)
		}
	}
}

func FuzzParseStatus(f *testing.F) {
	f.Add(goldenStatus)
	f.Add("CapInh:\t0\nCapInh:\t1\nCapPrm:\nCapEff")
	f.Fuzz(func(t *testing.T, text string) {
		h, err := parseStatus(text)
		if err != nil {
			return
		}
		again := fmt.Sprintf("CapInh: %x\nCapPrm: %x\nCapEff: %x\nCapBnd: %x\nCapAmb: %x\n", uint64(h.Inheritable),
			uint64(h.Permitted), uint64(h.Effective), uint64(h.Bounding), uint64(h.Ambient))
		if g, err := parseStatus(again); err != nil || g != h {
			t.Errorf("%+v read again: %+v, %v", h, g, err)
		}
	})
}
