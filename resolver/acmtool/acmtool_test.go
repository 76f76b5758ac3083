// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acmtool

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"acmd/mad"
	"acmd/mad/sa"
	"acmd/resolver"
	"acmd/resolver/acmsock"
	"acmd/resolver/config"
)

// command runs a command line against a directory of its own.
func command(t *testing.T, env *Env, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	e := *env
	e.Stdout, e.Stderr = &out, &errs
	code = Main(t.Context(), &e, args)
	return code, out.String(), errs.String()
}

func TestExitCodes(t *testing.T) {
	s := newScript(t)
	empty := *s.env
	empty.RunDir = t.TempDir()
	stale := *s.env
	stale.RunDir = t.TempDir()
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(stale.RunDir, socketName)})
	if err != nil {
		t.Fatal(err)
	}
	ln.SetUnlinkOnClose(false)
	ln.Close()
	for _, c := range []struct {
		env  *Env
		line string
		want int
	}{
		{s.env, "acmctl resolve lid:5", ExitOK},
		{s.env, "acmctl resolve lid:5 lid:11", ExitFailed},
		{s.env, "acmctl resolve lid:11 lid:5", ExitFailed},
		{s.env, "acmctl flush --port x/1", ExitFailed},
		{s.env, "acmctl", ExitUsage},
		{s.env, "acmctl resolve", ExitUsage},
		{&empty, "acmctl resolve lid:5", ExitUnreachable},
		{&empty, "acmctl endpoints", ExitUnreachable},
		{&empty, "acmctl perf", ExitUnreachable},
		{&empty, "acmctl config", ExitUnreachable},
		{&stale, "acmctl endpoints", ExitUnreachable},
		{s.env, "acmctl --run-dir " + empty.RunDir + " state", ExitUnreachable},
		{&empty, "acmctl endpoints -S " + filepath.Join(s.env.RunDir, socketName), ExitOK},
		{s.env, "/usr/bin/ib_acme -P", 0},
		{s.env, "ib_acme", 1},
		{&empty, "ib_acme -P", int(syscall.ENOENT)},
		{&stale, "ib_acme -P", int(syscall.ECONNREFUSED)},
		{s.env, "ib_acme -f l -d 11", 255},
		{s.env, "ib_acme -f l -d 11 -e", 255},
	} {
		if code, out, errs := command(t, c.env, strings.Fields(c.line)...); code != c.want {
			t.Errorf("%s: %d, want %d\n%s%s", c.line, code, c.want, out, errs)
		}
	}
}

func TestGetopt(t *testing.T) {
	const spec = "f:vce::P::V"
	for _, c := range []struct {
		line string
		want string
		rest string
		err  string
	}{
		{"-v -c", "v c", "", ""},
		{"-vc", "v c", "", ""},
		{"-fl -v", "f=l v", "", ""},
		{"-f l", "f=l", "", ""},
		{"-f -v", "f=-v", "", ""},
		{"-vfl", "v f=l", "", ""},
		{"-vf l", "v f=l", "", ""},
		{"-e", "e", "", ""},
		{"-e3", "e=3", "", ""},
		{"-e 3", "e=3", "", ""},
		{"-e -v", "e v", "", ""},
		{"-ve 3 x", "v e=3", "x", ""},
		{"-P -e1 2", "P e=1", "2", ""},
		{"a -v b", "v", "a b", ""},
		{"-v -- -c x", "v", "-c x", ""},
		{"- -v", "v", "-", ""},
		{"-e --", "e", "", ""},
		{"-x", "", "", "invalid option -- 'x'"},
		{"-v:", "", "", "invalid option -- ':'"},
		{"--help", "", "", "invalid option -- '-'"},
		{"-f", "", "", "option requires an argument -- 'f'"},
		{"-vf", "", "", "option requires an argument -- 'f'"},
	} {
		opts, rest, err := getopt(strings.Fields(c.line), spec)
		var got []string
		for _, o := range opts {
			s := string(o.name)
			if o.has {
				s += "=" + o.arg
			}
			got = append(got, s)
		}
		text := ""
		if err != nil {
			text = err.Error()
		}
		if strings.Join(got, " ") != c.want || strings.Join(rest, " ") != c.rest || text != c.err {
			t.Errorf("%s: %q, rest %q, error %q", c.line, got, rest, text)
		}
	}
}

func TestLists(t *testing.T) {
	for _, c := range []struct{ in, want, err string }{
		{"node", "node", ""},
		{"", "", ""},
		{"node[1-3,5,7-8]", "node1 node2 node3 node5 node7 node8", ""},
		{"[1-3]", "1 2 3", ""},
		{"n[08-11]x", "n08 n09 n10 n11", ""},
		{"n[9-11]", "n9 n10 n11", ""},
		{"n[001,2]", "n001 n2", ""},
		{"n[]", "", `"n[]": "" in the list is not a number`},
		{"n[1,]", "", `"n[1,]": "" in the list is not a number`},
		{"n[-1]", "", `"n[-1]": "" in the list is not a number`},
		{"n[+1]", "", `"n[+1]": "+1" in the list is not a number`},
		{"n[3-1]", "", `"n[3-1]": range 3-1 runs backwards`},
		{"n[1-2", "", `"n[1-2": no closing bracket`},
		{"n[0-1048576]", "", `"n[0-1048576]": more than 1048576 words`},
		{"n[0-9223372036854775807]", "", `"n[0-9223372036854775807]": more than 1048576 words`},
		{"n[0-1,0-1048574]", "", `"n[0-1,0-1048574]": more than 1048576 words`},
	} {
		got, err := expand(c.in)
		text := ""
		if err != nil {
			text = err.Error()
		}
		if text != c.err || err == nil && strings.Join(got, " ") != c.want {
			t.Errorf("%s: %q, %q", c.in, got, text)
		}
	}
	if got, err := expand("n[1-1048576]"); err != nil || len(got) != maxList {
		t.Error(len(got), err)
	}
}

func TestListsOfRanges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		width := rapid.IntRange(1, 6).Draw(t, "width")
		a := rapid.IntRange(0, 9999).Draw(t, "a")
		n := rapid.IntRange(0, 300).Draw(t, "n")
		got, err := expand(fmt.Sprintf("n[%0*d-%d]", width, a, a+n))
		if err != nil || len(got) != n+1 {
			t.Fatal(got, err)
		}
		for i, w := range got {
			if w != fmt.Sprintf("n%0*d", max(width, len(fmt.Sprint(a))), a+i) {
				t.Fatalf("%d: %s", i, w)
			}
		}
	})
}

func FuzzCommandLine(f *testing.F) {
	for _, s := range []string{"-f l -d [1-3]", "-e1 -P all -A", "-s x -d", "-fu -C99 -d [", "--\x00-v", "-Sx[1,2]"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, line string) {
		args := strings.Split(line, " ")
		opts, rest, err := getopt(args, "f:s:d:vce::P::S:C:A::O::D:V")
		if err == nil && len(opts) == 0 && len(rest) == 0 && len(args) > 0 && !slices.Contains(args, "--") {
			t.Fatalf("%q vanished", args)
		}
		for _, a := range args {
			words, err := expand(a)
			if err == nil && len(words) == 0 || len(words) > maxList {
				t.Fatalf("%q: %d words", a, len(words))
			}
		}
	})
}

func TestStrerror(t *testing.T) {
	status := func(s resolver.Status) error { return fmt.Errorf("x: %w", &acmsock.StatusError{Status: s}) }
	for _, c := range []struct {
		err  error
		want string
	}{
		{status(1), "Cannot allocate memory"},
		{status(2), "Invalid argument"},
		{status(3), "No data available"},
		{status(4), "Invalid argument"},
		{status(5), "Transport endpoint is not connected"},
		{status(6), "Connection timed out"},
		{status(7), "Cannot assign requested address"},
		{status(8), "Invalid argument"},
		{status(9), "Cannot assign requested address"},
		{status(10), "Invalid argument"},
		{status(101), "Invalid argument"},
		{&fs.PathError{Op: "open", Path: "/x", Err: syscall.EACCES}, "Permission denied"},
		{context.DeadlineExceeded, "Connection timed out"},
		{fmt.Errorf("x: %w", net.ErrClosed), "Connection reset by peer"},
		{&net.DNSError{Err: "no such host", Name: "x"}, "Name or service not known"},
		{acmsock.ErrProtocol, "Protocol error"},
		{errors.New("something else"), "Something else"},
	} {
		if got := strerror(c.err); got != c.want {
			t.Errorf("%v: %q, want %q", c.err, got, c.want)
		}
	}
}

// The C library writes twelve zero bytes with an IPv4 address behind them.
func TestGIDText(t *testing.T) {
	for _, s := range []string{"fe80::10:3", "::", "::1", "::ffff:10.0.0.1", "::10.0.0.1", "::0.16.0.1", "2001:db8:0:1:1:1:1:1", "1:0:0:2::3"} {
		g, err := mad.ParseGID(s)
		if err != nil {
			t.Fatal(err)
		}
		if got := gidText(g); got != s {
			t.Errorf("%s: %s", s, got)
		}
	}
}

// The verification notices each field, whichever side has the zero, and lets
// pass what does not make a path wrong.
func TestCompare(t *testing.T) {
	base := labPath(5, 18)
	base.SetServiceID(1)
	for name, change := range map[string]func(*sa.PathRecord){
		"dgid":            func(p *sa.PathRecord) { p.SetDGID(mad.GID{1}) },
		"sgid":            func(p *sa.PathRecord) { p.SetSGID(mad.GID{}) },
		"dlid":            func(p *sa.PathRecord) { p.SetDLID(0xc123) },
		"slid":            func(p *sa.PathRecord) { p.SetSLID(9) },
		"flow label":      func(p *sa.PathRecord) { p.SetFlowHop(7, 0) },
		"hop limit":       func(p *sa.PathRecord) { p.SetFlowHop(0, 64) },
		"tclass":          func(p *sa.PathRecord) { p.SetTClass(1) },
		"reversible":      func(p *sa.PathRecord) { p.SetReversibleNumPath(false, 1) },
		"pkey":            func(p *sa.PathRecord) { p.SetPKey(0x8001) },
		"qos class":       func(p *sa.PathRecord) { p.SetQoSClassSL(5, 0) },
		"sl":              func(p *sa.PathRecord) { p.SetQoSClassSL(0, 3) },
		"mtu":             func(p *sa.PathRecord) { p.SetMTU(sa.Exactly, 5) },
		"rate":            func(p *sa.PathRecord) { p.SetRate(sa.Exactly, 40) },
		"packet lifetime": func(p *sa.PathRecord) { p.SetLifetime(sa.Exactly, 20) },
	} {
		other := base
		change(&other)
		for _, d := range [][]difference{compare(&base, &other), compare(&other, &base)} {
			if len(d) != 1 || d[0].Field != name {
				t.Errorf("%s: %v", name, d)
			}
		}
	}
	other := base
	other.SetReversibleNumPath(true, 9)
	other.SetMTU(sa.GreaterThan, 4)
	other.SetPKey(0x7fff) // field case 5: membership aside
	other[57] = 3
	noLife := base
	noLife.SetLifetime(sa.GreaterThan, 0)
	if d := compare(&base, &other); len(d) != 0 {
		t.Error(d)
	}
	if d := compare(&noLife, &base); len(d) != 0 {
		t.Error(d)
	}
	// Field case 44: LIDs above 32767 are not negative.
	other = base
	other.SetDLID(0xc123)
	if d := compare(&base, &other); len(d) != 1 || d[0].SA != "49443" {
		t.Error(d)
	}
}

func TestTargets(t *testing.T) {
	for _, c := range []struct{ in, flag, kind, err string }{
		{"10.0.0.1", "", "ipv4", ""},
		{"::ffff:10.0.0.1", "", "ipv4", ""},
		{"fe80::10:3", "", "ipv6", ""},
		{"fe80::10:3", "gid", "gid", ""},
		{"gid:fe80::10:3", "", "gid", ""},
		{"lid:5", "", "lid", ""},
		{"0x10", "lid", "lid", ""},
		{"name:5", "", "name", ""},
		{"node5", "", "name", ""},
		{"5", "name", "name", ""},
		{"gid:x", "", "", `"x" is not a GID`},
		{"gid:10.0.0.1", "", "", `"10.0.0.1" is not a GID`},
		{"lid:0", "", "", `"0" is not a unicast LID`},
		{"0xc000", "lid", "", `"0xc000" is not a unicast LID`},
		{"5", "", "", `"5" is ambiguous: say lid:5 or name:5`},
		{"fe80::1%ib0", "", "", `"fe80::1%ib0": an address cannot have a zone`},
		{"10.0.0.300", "", "", `"10.0.0.300" is not an IPv4 address`},
		{strings.Repeat("n", 65), "", "", "name of 65 bytes, at most 64 fit"},
	} {
		got, err := parseTarget(c.in, c.flag)
		if c.err != "" {
			if err == nil || err.Error() != c.err {
				t.Errorf("%s: %v", c.in, err)
			}
			continue
		}
		if err != nil || got.kind != c.kind || got.addr.IsZero() {
			t.Errorf("%s: %+v %v", c.in, got, err)
		}
	}
}

func TestCodes(t *testing.T) {
	p := labPath(5, 0)
	p.SetRate(sa.LessThan, 63) // field case 56: an unknown code is a number
	p.SetMTU(sa.GreaterThan, 5)
	p.SetLifetime(sa.Largest, 63)
	f := fieldsOf(&p, 0x102)
	if f.Rate.String() != "63 (less than)" || f.MTU.String() != "5 (greater than 4096 bytes)" || f.LifetimeCode.String() != "63 (best)" {
		t.Error(f.Rate, f.MTU, f.LifetimeCode)
	}
	if d := cmp.Diff([]string{"primary", "0x100"}, f.Flags); d != "" {
		t.Error(d)
	}
	if rateText(2) != "2.5 Gb/s" || config.RateGbps(24) != "1200" || lifeText(0) != "4.096µs" || lifeText(14) != "67.109ms" {
		t.Error(rateText(2), lifeText(0))
	}
}

// Field case 43: over TCP, by a name that is ::1 first; 10,000 repetitions
// neither leak descriptors nor memory.
func TestTCPAndRepeats(t *testing.T) {
	s := newScript(t)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	svc := &standIn{}
	svc.serve(t, ln)
	port := ln.Addr().(*net.TCPAddr).Port
	if err := os.WriteFile(filepath.Join(s.env.RunDir, "ibacm-tcp.port"), fmt.Appendf(nil, "%d\n", port), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, host := range []string{"127.0.0.1", "localhost"} {
		if code, out, _ := command(t, s.env, "ib_acme", "-S", host, "-f", "l", "-d", "5"); code != 0 || !strings.Contains(out, "Service: "+host+"\n") || !strings.Contains(out, "dlid: 5") {
			t.Errorf("%s: %d\n%s", host, code, out)
		}
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	fds := openFiles(t)
	count := svc.requests.Load()
	if code, out, _ := command(t, s.env, "ib_acme", "-S", "127.0.0.1", "-f", "l", "-d", "5", "-C", "10000"); code != 0 || strings.Count(out, "dlid") != 1 {
		t.Errorf("%d\n%s", code, out)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if n := svc.requests.Load() - count; n != 10_000 {
		t.Errorf("%d requests", n)
	}
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 4<<20 {
		t.Errorf("heap grew by %d bytes", grown)
	}
	if n := openFiles(t); n > fds+1 { // the service may not have closed its end yet
		t.Errorf("%d descriptors before, %d after", fds, n)
	}
	ln.Close()
	if code, out, _ := command(t, s.env, "ib_acme", "-S", "127.0.0.1", "-P"); code != 255 || out != "127.0.0.1,unable to contact service: Connection refused\nreturn status 0xffffffff\n" {
		t.Errorf("%d\n%s", code, out)
	}
	// A name that cannot be looked up has getaddrinfo's EAI_NONAME.
	if n := dialStatus("badhost", fmt.Errorf("x: %w", &net.DNSError{Err: "no such host", Name: "badhost"})); n != -2 {
		t.Error(n)
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	d, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(d)
}

// Field case 41: counters that are refused for one endpoint do not end the list.
func TestPerfAllGoesOn(t *testing.T) {
	s := newScript(t)
	path := filepath.Join(t.TempDir(), "s")
	ln, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	(&standIn{noPerf: 1}).serve(t, ln)
	code, out, _ := command(t, s.env, "ib_acme", "-S", path, "-Pall")
	want := path + ": Failed to query perf data: Cannot assign requested address\n" +
		"svc,Error Count,Resolve Count,No Data,Addr Query Count,Addr Cache Count,Route Query Count,Route Cache Count\n" +
		path + ",200,201,202,203,204,205,206\nreturn status 0xffffffff\n"
	if code != 255 || out != want {
		t.Errorf("%d\n%s", code, out)
	}
}

func TestGeneratedFiles(t *testing.T) {
	s := newScript(t)
	old := syscall.Umask(0) // field case 36: no write bit for others whatever the umask
	defer syscall.Umask(old)
	sys := filepath.Join(s.env.Sysfs, "class/infiniband/mlx5_0/ports")
	for p, state := range map[string]string{"1": "1: DOWN", "2": "4: ACTIVE", "10": "4: ACTIVE"} {
		if err := os.MkdirAll(filepath.Join(sys, p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(sys, p, "state"), []byte(state+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if code, out, _ := command(t, s.env, "ib_acme", "-A", "-O"); code != 0 || out != "" {
		t.Fatal(code, out)
	}
	lines, ps, err := config.LoadAddrs(filepath.Join(s.env.ConfDir, config.AddressFile), false)
	var got []string
	for _, l := range lines {
		got = append(got, fmt.Sprintf("%s %s %d", l.Addr, l.Device, l.Port))
	}
	if d := cmp.Diff([]string{"node7-1 mlx5_0 1", "node7 mlx5_0 2", "node7-2 mlx5_0 2", "node7-3 mlx5_0 10"}, got); d != "" || len(ps) != 0 || err != nil {
		t.Error(d, ps, err)
	}
	opts := filepath.Join(s.env.ConfDir, config.OptionsFile)
	set, ps, err := config.Load(opts, config.Env{ConfDir: s.env.ConfDir, RunDir: s.env.RunDir, Check: true})
	if err != nil || len(ps) != 0 || len(config.Changed(set, config.Defaults(s.env.ConfDir, s.env.RunDir))) != 0 {
		t.Error(ps, err)
	}
	if fi, err := os.Stat(opts); err != nil || fi.Mode() != 0o644 {
		t.Error(fi.Mode(), err)
	}
	if fi, err := os.Stat(s.env.ConfDir); err != nil || fi.Mode().Perm() != 0o755 {
		t.Error(fi.Mode(), err)
	}
	// Without an adapter nothing is written, not even an empty file.
	if err := os.RemoveAll(s.env.Sysfs); err != nil {
		t.Fatal(err)
	}
	code, out, _ := command(t, s.env, "ib_acme", "-A", "other.cfg")
	if _, err := os.Stat(filepath.Join(s.env.ConfDir, "other.cfg")); code != 255 || !strings.HasPrefix(out, "no InfiniBand port in ") || err == nil {
		t.Error(code, out, err)
	}
}

func TestSystemEnvironment(t *testing.T) {
	e := System()
	if e.RunDir != "/run" || e.ConfDir != "/etc/rdma" || e.Sysfs != "/sys" {
		t.Errorf("%+v", e)
	}
	if ips, err := e.Lookup(t.Context(), "127.0.0.1"); err != nil || len(ips) != 1 || ips[0].Unmap() != netip.MustParseAddr("127.0.0.1") {
		t.Error(ips, err)
	}
}
