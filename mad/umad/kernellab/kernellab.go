// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

// Package kernellab is what tests need that run as root under a real kernel, in
// the guest of bench/lab/kernel (test.sh there builds them and boots it). Those of
// mad/umad and those of the whole daemon share it; nothing of acmd imports it.
//
// A guest is of one of three kinds: [Softib] has InfiniBand adapters sib0, sib1, ...
// on a simulated switch, OpenSM on sib0, and faults on demand by [Control]; [IPoIB]
// has network interfaces ib0, ib1, ... on these as well; [RXE] has two soft-RoCE
// devices. The environment variable ACMD_KERNEL_LAB names the
// kind. Outside of a guest, and in one of the other kind, [Need] skips; test.sh
// takes a skipped test inside a guest for a failure.
package kernellab

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"acmd/mad"
	"acmd/mad/sa"
)

// Kinds of guests.
const (
	Softib = "softib"
	IPoIB  = "ipoib"
	RXE    = "rxe"
)

const (
	variable = "ACMD_KERNEL_LAB"
	debugfs  = "/sys/kernel/debug/softib"
)

// Patience is how long a slow guest on a busy machine may need for anything.
const Patience = time.Minute

// Need skips the test unless it runs in a guest of one of these kinds.
func Need(t testing.TB, kinds ...string) {
	t.Helper()
	if have := os.Getenv(variable); !slices.Contains(kinds, have) {
		t.Skipf("runs in the %s guest that bench/lab/kernel/test.sh starts (%s=%q)", kinds[0], variable, have)
	}
}

// Control gives the simulated fabric a command, see bench/lab/softib/README.md.
func Control(t testing.TB, command string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(debugfs, "control"), []byte(command+"\n"), 0); err != nil {
		t.Fatalf("softib %q: %v", command, err)
	}
}

// State returns what the simulated fabric says of its ports and rules.
func State(t testing.TB) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(debugfs, "state"))
	if err != nil {
		t.Fatalf("softib: %v", err)
	}
	return string(b)
}

// Trace returns the packets and events that the simulated fabric remembers, and
// ClearTrace forgets them.
func Trace(t testing.TB) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(debugfs, "trace"))
	if err != nil {
		t.Fatalf("softib: %v", err)
	}
	return string(b)
}

func ClearTrace(t testing.TB) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(debugfs, "trace"), []byte("x"), 0); err != nil {
		t.Fatalf("softib: %v", err)
	}
}

// Run runs a program of the guest, such as saquery, and returns its output.
func Run(t testing.TB, name string, arg ...string) string {
	t.Helper()
	out, err := exec.Command(name, arg...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(arg, " "), err, out)
	}
	return string(out)
}

// Eventually tries until ok, for as long as a slow guest may need.
func Eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(Patience); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within %v", what, Patience)
		}
	}
}

// WaitActive waits until the SM has brought up port 1 of a device.
func WaitActive(t testing.TB, device string) {
	t.Helper()
	Eventually(t, device+" is active", func() bool {
		return strings.HasPrefix(attribute(device, "state"), "4:")
	})
}

// Settled waits until nothing that happened before is under way on the fabric: OpenSM
// on sib0 has swept from beginning to end, with all repairs and notices, and port 1 of
// these devices is plugged and active under that SM, with the default subnet prefix. It
// empties the trace.
func Settled(t testing.TB, devices ...string) {
	t.Helper()
	for _, d := range devices {
		Plug(t, d)
	}
	for range 2 { // the first to end may be one that had begun before
		before := sweeps(t)
		Run(t, "sm", "sweep")
		Eventually(t, "OpenSM has swept", func() bool { return sweeps(t) > before })
	}
	sm := attribute("sib0", "lid")
	for _, d := range devices {
		WaitActive(t, d)
		Eventually(t, d+" belongs to the SM on sib0", func() bool {
			return sm != "" && attribute(d, "sm_lid") == sm && GID(t, d).Prefix() == mad.DefaultPrefix
		})
	}
	ClearTrace(t)
}

// sweeps counts what OpenSM on sib0 says at the end of each heavy sweep that had no
// error, after its notices.
func sweeps(t testing.TB) int {
	t.Helper()
	b, err := os.ReadFile("/tmp/opensm-sib0.log")
	if err != nil {
		t.Fatalf("OpenSM: %v", err)
	}
	return strings.Count(string(b), "SUBNET UP")
}

// attribute reads a file of port 1 of a device, "" if it cannot be read.
func attribute(device, name string) string {
	b, _ := os.ReadFile("/sys/class/infiniband/" + device + "/ports/1/" + name)
	return strings.TrimSpace(string(b))
}

// GID reads GID 0 of port 1 of a device.
func GID(t testing.TB, device string) mad.GID {
	t.Helper()
	b, err := os.ReadFile("/sys/class/infiniband/" + device + "/ports/1/gids/0")
	if err != nil {
		t.Fatal(err)
	}
	g, err := mad.ParseGID(strings.TrimSpace(string(b)))
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// Plug puts a device back that was unplugged, and waits until it is up.
func Plug(t testing.TB, device string) {
	t.Helper()
	if _, err := os.Stat("/sys/class/infiniband/" + device); err != nil {
		Control(t, "plug "+device)
	}
	WaitActive(t, device)
}

// Field returns the value behind "name....value" in what the programs of
// infiniband-diags print.
func Field(t testing.TB, dump, name string) string {
	t.Helper()
	m := regexp.MustCompile(`(?m)^\s*` + regexp.QuoteMeta(name) + `:?\.+(\S.*)$`).FindStringSubmatch(dump)
	if m == nil {
		t.Fatalf("no %s in:\n%s", name, dump)
	}
	return strings.TrimSpace(m[1])
}

// ComparePath compares every field of a record with saquery's print of one.
func ComparePath(t testing.TB, r *sa.PathRecord, dump string) {
	t.Helper()
	number := func(v uint64) string { return fmt.Sprintf("0x%x", v) }
	for name, want := range map[string]string{
		"dgid": r.DGID().String(), "sgid": r.SGID().String(), "dlid": r.DLID().String(), "slid": r.SLID().String(),
		"service_id": number(r.ServiceID()), "hop_flow_raw": number(uint64(r.FlowLabel())<<8 | uint64(r.HopLimit())),
		"tclass": number(uint64(r.TClass())), "num_path_revers": number(uint64(r[49])), "pkey": number(uint64(r.PKey())),
		"qos_class": number(uint64(r.QoSClass())), "sl": number(uint64(r.SL())), "mtu": number(uint64(r[54])),
		"rate": number(uint64(r[55])), "pkt_life": number(uint64(r[56])), "preference": number(uint64(r.Preference())),
	} {
		got := Field(t, dump, name)
		if hex, ok := strings.CutPrefix(got, "0x"); ok { // with leading zeros, in either case
			v, err := strconv.ParseUint(hex, 16, 64)
			if err != nil {
				t.Errorf("saquery's %s is %q: %v", name, got, err)
			}
			got = number(v)
		}
		if got != want {
			t.Errorf("%s is %s, saquery says %s", name, want, got)
		}
	}
}
