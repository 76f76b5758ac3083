// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"acmd/mad/fabric"
	"acmd/mad/madtest"
	"acmd/resolver"
	"acmd/resolver/acmsock"
	"acmd/resolver/control"
	"acmd/resolver/privilege"
)

// The test binary is the daemon when this variable is set, so that signals, exit
// codes and descriptors are those of a real process.
const beDaemon = "ACMD_TEST_BE_DAEMON"

const patience = time.Minute // ends what hangs

func TestMain(m *testing.M) {
	if spec := os.Getenv(beClient); spec != "" {
		runClient(spec)
		return
	}
	if spec := os.Getenv(beBounded); spec != "" {
		runBounded(spec)
	}
	if how := os.Getenv(beTalkative); how != "" {
		talk(how)
	}
	if os.Getenv(beDaemon) != "" {
		os.Unsetenv("LISTEN_FDNAMES")
		if os.Getenv("LISTEN_FDS") != "" {
			os.Setenv("LISTEN_PID", strconv.Itoa(os.Getpid()))
		}
		main()
	}
	os.Exit(m.Run())
}

// daemon is a running process.
type daemon struct {
	*exec.Cmd
	dir  string
	out  *madtest.Output
	done chan struct{}
	err  error
}

type setup struct {
	dir    string
	opts   []string // lines of the options file
	args   []string
	env    []string
	files  []*os.File
	fabric string

	program string // "": this one
	user    uint32 // 0: ours

	bounding *privilege.Set // what root is given; nil: all
	ambient  []uintptr      // capabilities that another user starts with
}

// start runs acmd in the foreground and waits until it serves.
func start(t *testing.T, s setup) *daemon {
	t.Helper()
	d := launch(t, s)
	deadline := time.Now().Add(patience)
	for !strings.Contains(d.out.String(), "serving clients") {
		select {
		case <-d.done:
			t.Fatalf("acmd ended (%v):\n%s", d.err, d.out)
		case <-time.After(10 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			t.Fatalf("acmd does not serve:\n%s", d.out)
		}
	}
	return d
}

func launch(t *testing.T, s setup) *daemon {
	t.Helper()
	if s.dir == "" {
		s.dir = t.TempDir()
	}
	if s.fabric == "" {
		s.fabric = "embedded:nodes=16"
	}
	opts := filepath.Join(s.dir, "opts.cfg")
	text := "log_file stderr\n" + strings.Join(s.opts, "\n") + "\n"
	if !strings.Contains(text, "\nbpf_dir ") {
		text += "bpf_dir none\n" // a pin would outlive the test
	}
	if err := os.WriteFile(opts, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	args := append([]string{"-P", "-O", opts, "-A", filepath.Join(s.dir, "addr.cfg"), "--run-dir", s.dir, "--fabric", s.fabric}, s.args...)
	d := &daemon{dir: s.dir, out: &madtest.Output{}, done: make(chan struct{})}
	if s.program == "" {
		s.program = os.Args[0]
	}
	d.Cmd = exec.Command(s.program, args...)
	if s.bounding != nil {
		d.Cmd = exec.Command(os.Args[0], append([]string{s.program}, args...)...)
		s.env = append(s.env, boundBy(*s.bounding))
	}
	if s.user != 0 {
		d.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: s.user, Gid: s.user}, AmbientCaps: s.ambient}
	}
	d.Env = append(append(os.Environ(), beDaemon+"=1"), s.env...)
	d.Stdout, d.Stderr, d.ExtraFiles = d.out, d.out, s.files
	if err := d.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		d.err = d.Wait()
		close(d.done)
	}()
	t.Cleanup(func() {
		_ = d.Process.Kill() // it may have ended
		<-d.done
		if t.Failed() {
			t.Logf("acmd said:\n%s", d.out)
		}
	})
	return d
}

// end waits for the process and returns its exit status.
func (d *daemon) end(t *testing.T) int {
	t.Helper()
	select {
	case <-d.done:
	case <-time.After(patience):
		t.Fatalf("acmd does not end:\n%s", d.out)
	}
	return d.ProcessState.ExitCode()
}

func (d *daemon) sock() string { return filepath.Join(d.dir, "ibacm-unix.sock") }

// resolve asks for node 5 of the embedded fabric.
func resolve(t *testing.T, service string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c, err := acmsock.Dial(ctx, service)
	if err != nil {
		return err
	}
	defer c.Close()
	r, err := c.ResolveIP(ctx, netip.Addr{}, fabric.IPv4(5, 1), false)
	if err != nil {
		return err
	}
	if lid := r.Paths[0].Record.DLID(); lid != 6 {
		return fmt.Errorf("LID %v, want 6", lid)
	}
	return nil
}

func TestStartServeStop(t *testing.T) {
	d := start(t, setup{fabric: "embedded"}) // with no options it has 64 nodes
	if err := resolve(t, d.sock()); err != nil {
		t.Fatal(err)
	}
	if err := d.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := d.end(t); code != 0 {
		t.Errorf("exit status %d after SIGTERM", code)
	}
	for _, name := range []string{"ibacm-unix.sock", "ibacm.sock", "acmd.ctl"} {
		if _, err := os.Lstat(filepath.Join(d.dir, name)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is left behind (%v)", name, err)
		}
	}
}

// A second instance ends before it touches anything of the first, and a lock
// that a killed process left does not block (field case 77).
func TestSecondInstance(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	d := start(t, setup{})
	second := launch(t, setup{dir: d.dir, opts: []string{"log_file " + log}})
	if code := second.end(t); code != exitStart {
		t.Errorf("exit status %d, want %d", code, exitStart)
	}
	if !strings.Contains(second.out.String(), "another instance is running") {
		t.Errorf("second instance said %q", second.out)
	}
	if _, err := os.Lstat(log); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the second instance opened its log (%v)", err)
	}
	if err := resolve(t, d.sock()); err != nil {
		t.Errorf("first instance after the second: %v", err)
	}
	if err := d.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	d.end(t)
	third := start(t, setup{dir: d.dir})
	if err := resolve(t, third.sock()); err != nil {
		t.Errorf("after a kill: %v", err)
	}
}

// A lock file of its own does not let a second instance into a run directory that
// is in use: it would take the clients of the first along when it ends (field
// case 77).
func TestSecondInstanceOtherLock(t *testing.T) {
	d := start(t, setup{})
	for _, mode := range []string{"unix", "loop"} {
		lock := filepath.Join(t.TempDir(), "lock")
		second := launch(t, setup{dir: d.dir, opts: []string{"lock_file " + lock, "server_mode " + mode}})
		if code := second.end(t); code != exitStart {
			t.Errorf("%s: exit status %d, want %d", mode, code, exitStart)
		}
		if !strings.Contains(second.out.String(), "another service answers there") {
			t.Errorf("%s: second instance said %q", mode, second.out)
		}
		if err := resolve(t, d.sock()); err != nil {
			t.Errorf("%s: first instance after the second: %v", mode, err)
		}
		if _, err := os.Lstat(filepath.Join(d.dir, "acmd.ctl")); err != nil {
			t.Errorf("%s: control socket of the first: %v", mode, err)
		}
	}
}

// A start that hangs, here in a file that never ends, is still ended by SIGTERM.
func TestTermDuringStart(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mkfifo(filepath.Join(dir, "addr.cfg"), 0o600); err != nil {
		t.Fatal(err)
	}
	d := launch(t, setup{dir: dir})
	wait(t, "the lock", func() bool { _, err := os.Stat(filepath.Join(dir, "ibacm.pid")); return err == nil })
	if err := d.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	d.end(t)
	if strings.Contains(d.out.String(), "serving clients") {
		t.Error("it did not hang, this tests nothing")
	}
	if err := os.Remove(filepath.Join(dir, "addr.cfg")); err != nil {
		t.Fatal(err)
	}
	if err := resolve(t, start(t, setup{dir: dir}).sock()); err != nil {
		t.Errorf("start after that: %v", err)
	}
}

// Without any InfiniBand device the service is there and says so, and a client is
// told at once (field cases 20 and 70).
func TestNoDevice(t *testing.T) {
	if entries, err := os.ReadDir("/sys/class/infiniband"); err == nil && len(entries) > 0 {
		t.Skip("this machine has InfiniBand devices")
	}
	begin := time.Now()
	socket := filepath.Join(t.TempDir(), "metrics")
	d := start(t, setup{fabric: "umad", args: []string{"--metrics", socket}})
	if took := time.Since(begin); took > patience/2 {
		t.Errorf("ready after %v", took)
	}
	var st *acmsock.StatusError
	if err := resolve(t, d.sock()); !errors.As(err, &st) || st.Status != resolver.StatusNotConn {
		t.Errorf("resolve: %v, want status %d", err, resolver.StatusNotConn)
	}
	if n := strings.Count(d.out.String(), "no InfiniBand port yet"); n != 1 {
		t.Errorf("%d lines about it, want 1", n)
	}
	// field case 70: a scrape has the daemon's own series, and says nothing.
	said := strings.Count(d.out.String(), "\n")
	for range 20 {
		if got := page(t, socket); !strings.Contains(got, "\nacmd_service_resolves_total 1\n") || strings.Contains(got, "device=") {
			t.Fatalf("page without hardware:\n%s", got)
		}
	}
	if n := strings.Count(d.out.String(), "\n") - said; n != 0 {
		t.Errorf("%d lines in the log of 20 scrapes:\n%s", n, d.out)
	}
}

// Nothing that is made is writable by others, whatever the umask, and no link is
// followed (field case 36).
func TestFileModes(t *testing.T) {
	dir := t.TempDir()
	logPath := filepath.Join(dir, "acmd.log")
	old := syscall.Umask(0)
	d := launch(t, setup{dir: dir, opts: []string{"log_file " + logPath}})
	syscall.Umask(old)
	wait(t, "a socket", func() bool { _, err := os.Stat(d.sock()); return err == nil })
	for name, want := range map[string]fs.FileMode{"acmd.log": 0o640, "ibacm.pid": 0o640, "acmd.ctl": 0o600, "ibacm-unix.sock": 0o777} {
		wait(t, name, func() bool { _, err := os.Stat(filepath.Join(dir, name)); return err == nil })
		st, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			t.Error(err)
			continue
		}
		if st.Mode().Perm() != want {
			t.Errorf("%s has mode %v, want %v", name, st.Mode().Perm(), want)
		}
	}

	other := t.TempDir()
	target := filepath.Join(other, "precious")
	if err := os.WriteFile(target, []byte("precious"), 0o644); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(other, "log")
	if err := os.Symlink(target, link); err != nil {
		t.Fatal(err)
	}
	bad := launch(t, setup{opts: []string{"log_file " + link}})
	if code := bad.end(t); code != exitStart {
		t.Errorf("log through a link: exit status %d", code)
	}
	if b, err := os.ReadFile(target); err != nil || string(b) != "precious" {
		t.Errorf("the link's target was changed: %q, %v", b, err)
	}
}

func wait(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

// SIGHUP reads the files again; settings that wait for a restart are named.
func TestReload(t *testing.T) {
	dir := t.TempDir()
	d := start(t, setup{dir: dir})
	text := "log_file stderr\nlog_level 1\nsa_depth 7\n"
	if err := os.WriteFile(filepath.Join(dir, "opts.cfg"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "addr.cfg"), []byte("newname fab0 1 default\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := d.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	wait(t, "the reload", func() bool { return strings.Contains(d.out.String(), "msg=reloaded") })
	if !strings.Contains(d.out.String(), "sa_depth has changed") {
		t.Error("nobody said that sa_depth takes effect later")
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var reply control.ConfigReply
	if err := control.NewClient(d.dir).Do(ctx, "GET", "config", nil, &reply); err != nil {
		t.Fatal(err)
	}
	inForce := map[string]string{}
	for _, v := range reply.Settings {
		inForce[v.Name] = v.Value
	}
	if inForce["sa_depth"] != "1" || inForce["log_level"] != "1" {
		t.Errorf("said to be in force: sa_depth %s, log_level %s", inForce["sa_depth"], inForce["log_level"])
	}
	c, err := acmsock.Dial(ctx, d.sock())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	wait(t, "the new name", func() bool {
		r, err := c.ResolveName(ctx, "NewName", fabric.NodeName(5, 1), false)
		return err == nil && r.Paths[0].Record.DLID() == 6
	})
}

// What is wrong with any of the files is told to who asked for the reload, and a
// file that cannot be read takes nothing away.
func TestReloadSaysAll(t *testing.T) {
	dir := t.TempDir()
	addr, hosts := filepath.Join(dir, "addr.cfg"), filepath.Join(dir, "hosts")
	write := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write(addr, "here fab0 1 default\n")
	write(hosts, "there fe80::1\n")
	d := start(t, setup{dir: dir, opts: []string{"addr_preload acm_hosts", "addr_data_file " + hosts}})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	reload := func() (r control.ReloadReply) {
		t.Helper()
		if err := control.NewClient(d.dir).Do(ctx, "POST", "reload", nil, &r); err != nil {
			t.Fatal(err)
		}
		return r
	}
	said := func(r control.ReloadReply, want string) {
		t.Helper()
		if !slices.ContainsFunc(r.Warnings, func(w string) bool { return strings.Contains(w, want) }) {
			t.Errorf("nobody said %q: %q", want, r.Warnings)
		}
	}
	write(addr, "here fab0 1 default\nhere\n")
	write(hosts, "there fe80::1\nthere\n")
	r := reload()
	said(r, "addr.cfg:2: ")
	said(r, "hosts:2: ")
	for _, path := range []string{addr, hosts} {
		if err := errors.Join(os.Remove(path), os.Mkdir(path, 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(filepath.Join(dir, "opts.cfg"))
	if err != nil {
		t.Fatal(err)
	}
	write(filepath.Join(dir, "opts.cfg"), strings.Replace(string(text), "addr_data_file "+hosts, "addr_data_file "+hosts+"2", 1))
	r = reload()
	said(r, "names stay as they were: ")
	said(r, "what was preloaded stays as it was: ")
	said(r, "addr_data_file has changed")
	c, err := acmsock.Dial(ctx, d.sock())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if e, err := c.Endpoint(ctx, 1, 0); err != nil || !slices.Contains(e.Addrs, "here") {
		t.Errorf("endpoint has %q, %v", e.Addrs, err)
	}
}

func TestCheckConfig(t *testing.T) {
	dir := t.TempDir()
	check := func(text string) (string, int) {
		t.Helper()
		opts := filepath.Join(dir, "opts.cfg")
		if err := os.WriteFile(opts, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		var out, errs bytes.Buffer
		code := run([]string{"--check-config", "-O", opts, "-A", os.DevNull}, &out, &errs)
		return out.String() + errs.String(), code
	}
	out, code := check("timeout 1500\n")
	if code != 0 || !regexp.MustCompile(`(?m)^timeout +1500 `).MatchString(out) || !strings.Contains(out, "opts.cfg:1") {
		t.Errorf("good file: status %d\n%s", code, out)
	}
	// field case 39
	for _, bad := range []string{"addr_prot sa\n", "no_such_opt 5\n", "retries 1\nretries 2\n"} {
		if out, code := check(bad); code != 1 || !strings.Contains(out, "opts.cfg:") {
			t.Errorf("%q: status %d\n%s", bad, code, out)
		}
	}
	// All that is wrong is said, also beside what keeps the service from starting.
	out, code = check("no_such_opt 5\naddr_prot carrierpigeon\nretries x\n")
	for n := 1; n <= 3; n++ {
		if code != 1 || !strings.Contains(out, fmt.Sprintf("opts.cfg:%d: ", n)) {
			t.Errorf("line %d: status %d\n%s", n, code, out)
		}
	}
	// A file that is named is there; else the line that names it is wrong.
	none := filepath.Join(dir, "none")
	for text, line := range map[string]string{
		"addr_preload acm_hosts\naddr_data_file " + none:             "2: preload file " + none,
		"route_data_file " + none + "\nroute_preload opensm_full_v1": "1: preload file " + none,
	} {
		if out, code := check(text); code != 1 || !strings.Contains(out, "opts.cfg:"+line) {
			t.Errorf("no preload file: status %d\n%s", code, out)
		}
	}
	for _, c := range []struct {
		want string
		args []string
	}{
		{"-O " + none + ": ", []string{"-O", none, "-A", os.DevNull}},
		{"-A " + none + ": ", []string{"-O", os.DevNull, "-A", none}},
		{"--fabric \"carrierpigeon\": ", []string{"-O", os.DevNull, "-A", os.DevNull, "--fabric", "carrierpigeon+verbs"}},
		{"--fabric embedded: ", []string{"-O", os.DevNull, "-A", os.DevNull, "--fabric", "embedded:nodes=x"}},
		{"--metrics: ", []string{"-O", os.DevNull, "-A", os.DevNull, "--metrics", "here"}},
	} {
		var out, errs bytes.Buffer
		if code := run(append(c.args, "--check-config"), &out, &errs); code != 1 || !strings.HasPrefix(errs.String(), c.want) {
			t.Errorf("%q: status %d, %q", c.args, code, errs.String())
		}
	}
}

func TestUsage(t *testing.T) {
	for _, args := range [][]string{{"--nosuch"}, {"extra"}, {"--fabric"}} {
		var out, errs bytes.Buffer
		if code := run(args, &out, &errs); code != exitUsage || out.Len() > 0 || !strings.HasSuffix(errs.String(), "; acmd -h tells more\n") {
			t.Errorf("%q: status %d, %q", args, code, errs.String())
		}
	}
	var help, errs bytes.Buffer
	if code := run([]string{"-h"}, &help, &errs); code != 0 || errs.Len() > 0 {
		t.Errorf("-h: status %d, %q", code, errs.String())
	}
	// What the source declares as a flag is in the help.
	source, err := os.ReadFile("main.go")
	if err != nil {
		t.Fatal(err)
	}
	flags := regexp.MustCompile(`fs\.(?:Bool|StringVar|BoolVar)\((?:&o\.\w+, )?"([\w-]+)"`).FindAllSubmatch(source, -1)
	if len(flags) < 10 {
		t.Fatalf("found %d flags in main.go", len(flags))
	}
	for _, f := range flags {
		name := "-" + string(f[1])
		if len(name) > 2 {
			name = "-" + name
		}
		if !strings.Contains(help.String(), "\n  "+name+" ") {
			t.Errorf("the help does not have %s", name)
		}
	}
	d := launch(t, setup{fabric: "carrierpigeon"})
	if code := d.end(t); code != exitStart || !strings.Contains(d.out.String(), "carrierpigeon") {
		t.Errorf("unknown fabric: status %d, %q", code, d.out)
	}
}

// Started by hand without -P it goes to the background once it serves.
func TestBackground(t *testing.T) {
	dir := t.TempDir()
	opts := filepath.Join(dir, "opts.cfg")
	if err := os.WriteFile(opts, []byte("log_file log\nbpf_dir none\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	args := []string{"-O", "opts.cfg", "-A", "addr.cfg", "--run-dir", ".", "--fabric", "embedded:nodes=16"}
	self, err := filepath.Abs(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, args...)
	cmd.Env, cmd.Dir = append(os.Environ(), beDaemon+"=1"), dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	b, err := os.ReadFile(filepath.Join(dir, "ibacm.pid"))
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil || pid <= 1 {
		t.Fatalf("lock file has %q", b)
	}
	if err := resolve(t, filepath.Join(dir, "ibacm-unix.sock")); err != nil {
		t.Error(err)
	}
	// It keeps nobody from unmounting where it was started, and finds its files still.
	if cwd, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", pid)); err != nil || cwd != "/" {
		t.Errorf("it stays in %q, %v", cwd, err)
	}
	log := filepath.Join(dir, "log")
	if err := os.Remove(log); err != nil {
		t.Fatal(err)
	}
	var reply control.ReloadReply
	if err := control.NewClient(dir).Do(t.Context(), "POST", "reload", nil, &reply); err != nil || len(reply.Warnings) != 0 {
		t.Errorf("reload: %q, %v", reply.Warnings, err)
	}
	if _, err := os.Stat(log); err != nil {
		t.Errorf("log after a reload: %v", err)
	}
	again := exec.Command(self, args...)
	again.Env, again.Dir = cmd.Env, dir
	if out, err := again.CombinedOutput(); err == nil || !strings.Contains(string(out), "another instance") {
		t.Errorf("second start: %v, %s", err, out)
	}
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	wait(t, "the end", func() bool {
		_, err := os.Lstat(filepath.Join(dir, "ibacm-unix.sock"))
		return errors.Is(err, fs.ErrNotExist)
	})
}

// Sockets that the service manager passes are served, in any order, and readiness
// is told once clients are (field case 30).
func TestActivation(t *testing.T) {
	for _, order := range []string{"unix tcp", "tcp unix", "unix", "tcp"} {
		t.Run(order, func(t *testing.T) {
			dir := t.TempDir()
			notify, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(dir, "notify"), Net: "unixgram"})
			if err != nil {
				t.Fatal(err)
			}
			defer notify.Close()
			var files []*os.File
			var services []string
			for _, kind := range strings.Fields(order) {
				f, service := passedListener(t, dir, kind)
				files, services = append(files, f), append(services, service)
			}
			d := launch(t, setup{dir: dir, args: []string{"--systemd"}, files: files,
				env: []string{"LISTEN_FDS=" + strconv.Itoa(len(files)), "NOTIFY_SOCKET=" + filepath.Join(dir, "notify")}})
			if err := notify.SetReadDeadline(time.Now().Add(patience)); err != nil {
				t.Fatal(err)
			}
			buf := make([]byte, 4096)
			n, err := notify.Read(buf)
			if err != nil || !strings.Contains(string(buf[:n]), "READY=1") {
				t.Fatalf("readiness: %q, %v", buf[:n], err)
			}
			for _, s := range services {
				if err := resolve(t, s); err != nil {
					t.Errorf("%s: %v", s, err)
				}
			}
			if err := d.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			if code := d.end(t); code != 0 {
				t.Errorf("exit status %d", code)
			}
			if strings.Contains(order, "unix") {
				if _, err := os.Lstat(filepath.Join(dir, "ibacm-unix.sock")); err != nil {
					t.Errorf("the service manager's socket file was removed: %v", err)
				}
			}
		})
	}
}

func passedListener(t *testing.T, dir, kind string) (*os.File, string) {
	t.Helper()
	if kind == "tcp" {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		f, err := l.(*net.TCPListener).File()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f, l.Addr().String()
	}
	path := filepath.Join(dir, "ibacm-unix.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	t.Cleanup(func() { l.Close() })
	f, err := l.File()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f, path
}

func TestActivationRefusesDatagram(t *testing.T) {
	dir := t.TempDir()
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(dir, "dgram"), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	f, err := c.File()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	d := launch(t, setup{dir: dir, files: []*os.File{f}, env: []string{"LISTEN_FDS=1"}})
	if code := d.end(t); code != exitStart || !strings.Contains(d.out.String(), "descriptor 3") {
		t.Errorf("status %d, %q", code, d.out)
	}
}

// One user's connections are bounded when the options say so, and the operator
// sees how many were turned away (B-09).
func TestUserBound(t *testing.T) {
	d := start(t, setup{opts: []string{"max_user_clients 2"}})
	var held []*acmsock.Client
	for range 2 {
		c, err := acmsock.Dial(t.Context(), d.sock())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := c.ResolveIP(t.Context(), netip.Addr{}, fabric.IPv4(5, 1), false); err != nil {
			t.Fatal(err)
		}
		held = append(held, c)
	}
	if err := resolve(t, d.sock()); err == nil {
		t.Error("a third connection was served")
	}
	held[0].Close()
	wait(t, "a free place", func() bool { return resolve(t, d.sock()) == nil })
	var state struct {
		Clients struct{ Rejected map[string]uint64 } `json:"clients"`
	}
	if err := control.NewClient(d.dir).Do(t.Context(), "GET", "state", nil, &state); err != nil {
		t.Fatal(err)
	}
	if state.Clients.Rejected["user"] == 0 {
		t.Errorf("state does not tell: %v", state.Clients.Rejected)
	}
}
