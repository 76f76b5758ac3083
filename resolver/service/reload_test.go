// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package service

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"acmd/mad"
	"acmd/mad/fabric"
	"acmd/resolver/acmp"
	"acmd/resolver/acmsock"
	"acmd/resolver/config"
	"acmd/resolver/control"
	"acmd/resolver/sa"

	"golang.org/x/sys/unix"
)

// What config says that a value counts as is what the rooms make of it.
func TestBounds(t *testing.T) {
	for _, c := range []struct {
		name      string
		said, got int
	}{
		{"retries", config.MaxRetries, sa.MaxRetries}, {"sa_depth", config.MaxSAWindow, sa.MaxDepth},
		{"resolve_depth", config.MaxResolveDepth, acmp.MaxDepth}, {"sa_max_rate", config.MaxSARate, sa.MaxRateLimit},
		{"timeout", int(config.MinSATimeout), int(sa.MinGap)},
	} {
		if c.said != c.got {
			t.Errorf("%s: %d, the room has %d", c.name, c.said, c.got)
		}
	}
}

// rewrite replaces the options file of a daemon that was started with embedded.
func rewrite(t *testing.T, o Options, lines ...string) {
	t.Helper()
	if err := os.WriteFile(o.OptionsFile, []byte(strings.Join(append(lines, "bpf_dir none"), "\n")+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
}

func reload(t *testing.T, d *Daemon) []string {
	t.Helper()
	warnings, err := d.Reload()
	if err != nil {
		t.Fatal(err)
	}
	return warnings
}

// startNamed runs a daemon that has an address file.
func startNamed(t *testing.T) (Options, *Daemon) {
	t.Helper()
	o := embedded(t)
	if err := os.WriteFile(o.AddressFile, []byte("here fab0 1 default\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	d, err := Start(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Stop() })
	return o, d
}

// What a reload cannot put into force is not said to be.
func TestReloadKeeps(t *testing.T) {
	o, d := startNamed(t)
	log := filepath.Join(o.RunDir, "log")
	at := slices.IndexFunc(d.Config(), func(s control.Setting) bool { return s.Name == "log_file" })
	before := d.Config()[at]
	rewrite(t, o, "log_file /nowhere/log", "support_ips_in_addr_cfg 1", "provider ibacmp 0x1")
	if err := os.Remove(o.AddressFile); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(o.AddressFile, 0o755); err != nil {
		t.Fatal(err)
	}
	warnings := reload(t, d)
	for _, want := range []string{"log stays where it is: ", "names stay as they were: ", fmt.Sprintf("provider has changed (%s:3)", o.OptionsFile)} {
		if !slices.ContainsFunc(warnings, func(w string) bool { return strings.HasPrefix(w, want) }) {
			t.Errorf("nobody said %q: %q", want, warnings)
		}
	}
	for _, s := range d.Config() {
		if s.Name == "log_file" && s != before || s.Name == "support_ips_in_addr_cfg" && s.Value != "0" {
			t.Errorf("said to be in force: %+v", s)
		}
	}
	if b, err := os.ReadFile(log); err != nil || !strings.Contains(string(b), "msg=reloaded") {
		t.Errorf("the log does not go on: %v\n%s", err, b)
	}
}

// A file that is not there any more takes what it said along, and that is told once.
func TestReloadFileGone(t *testing.T) {
	o, d := startNamed(t)
	if w := reload(t, d); len(w) != 0 {
		t.Errorf("nothing has changed: %q", w)
	}
	if err := os.Remove(o.AddressFile); err != nil {
		t.Fatal(err)
	}
	if w := reload(t, d); !slices.Equal(w, []string{o.AddressFile + " is gone: its names are dropped"}) {
		t.Errorf("address file: %q", w)
	}
	if w := reload(t, d); len(w) != 0 {
		t.Errorf("once more: %q", w)
	}
	if w := o.gone(foundFiles{true, true}, foundFiles{false, true}); !slices.Equal(w, []string{o.OptionsFile + " is gone: every option has its default"}) {
		t.Errorf("options file: %q", w)
	}
}

// A row that an administrator has changed holds once the file was read again, and what
// was learned from other rows stays.
func TestReloadHosts(t *testing.T) {
	o := embedded(t)
	hosts := filepath.Join(o.RunDir, "hosts")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(hosts, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	rewrite(t, o, "log_file "+filepath.Join(o.RunDir, "log"), "addr_preload acm_hosts", "addr_data_file "+hosts)
	write("")
	d, err := Start(o)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Stop()
	c, err := acmsock.Dial(t.Context(), filepath.Join(o.RunDir, "ibacm-unix.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	gid := func(node int) mad.GID {
		t.Helper()
		r, err := c.ResolveIP(t.Context(), netip.Addr{}, fabric.IPv4(node, 1), false)
		if err != nil {
			t.Fatal(err)
		}
		return r.Paths[0].Record.DGID()
	}
	is := func(name string, want mad.GID) {
		t.Helper()
		r, err := c.ResolveName(t.Context(), fabric.NodeName(0, 1), name, false)
		if err != nil {
			t.Fatal(err)
		}
		if got := r.Paths[0].Record.DGID(); got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
	write(fmt.Sprintf("moves %v\nstays %v\n", gid(3), gid(4)))
	reload(t, d)
	is("moves", gid(3))
	is("stays", gid(4))
	write(fmt.Sprintf("moves %v\nstays %v\n", gid(5), gid(4)))
	reload(t, d)
	started := d.engine.Stats().Started
	is("stays", gid(4))
	if n := d.engine.Stats().Started - started; n != 0 {
		t.Errorf("%d lookups for what has not changed", n)
	}
	is("moves", gid(5))
}

// Lines have no time where the journal reads them, and nowhere else: neither after a
// reload that leads the log elsewhere, nor in a program that was only handed the
// journal's variable.
func TestJournalStamps(t *testing.T) {
	for _, own := range []bool{true, false} {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		var st unix.Stat_t
		if err := unix.Fstat(int(w.Fd()), &st); err != nil {
			t.Fatal(err)
		}
		stream := fmt.Sprintf("%d:%d", st.Dev, st.Ino)
		if !own {
			stream = fmt.Sprintf("%d:%d", st.Dev, st.Ino+1)
		}
		stderr := os.Stderr
		os.Stderr = w
		o := embedded(t)
		rewrite(t, o, "log_file stderr")
		o.Getenv = func(name string) string { return map[string]string{"JOURNAL_STREAM": stream}[name] }
		d, err := Start(o)
		if err != nil {
			os.Stderr = stderr
			t.Fatal(err)
		}
		log := filepath.Join(o.RunDir, "log")
		rewrite(t, o, "log_file "+log)
		reload(t, d)
		err = d.Stop()
		os.Stderr = stderr
		w.Close()
		if err != nil {
			t.Fatal(err)
		}
		var said [4096]byte
		n, _ := r.Read(said[:])
		r.Close()
		if first, _, _ := strings.Cut(string(said[:n]), "\n"); strings.HasPrefix(first, "time=") == own || !strings.Contains(first, "acmd starts") {
			t.Errorf("journal %v: %q", own, first)
		}
		b, err := os.ReadFile(log)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(b)) {
			if !regexp.MustCompile(`^time=\S+ level=`).MatchString(line) {
				t.Errorf("journal %v, in a file of its own: %q", own, line)
			}
		}
	}
}

// What has to wait for the next start is told, and waits.
func TestReloadPrefetch(t *testing.T) {
	o := embedded(t)
	log := "log_file " + filepath.Join(o.RunDir, "log")
	rewrite(t, o, log)
	d, err := Start(o)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Stop()
	rewrite(t, o, log, "route_preload sa")
	want := fmt.Sprintf("route_preload has changed (%s:2); it takes effect at the next start", o.OptionsFile)
	if w := reload(t, d); !slices.Equal(w, []string{want}) {
		t.Errorf("%q, want %q", w, want)
	}
}

// Where paths do not come from the SA, or are not kept, it is not asked for all of them.
func TestPrefetchSetting(t *testing.T) {
	for text, want := range map[string]bool{
		"route_preload sa": true, "route_preload none": false, "route_preload opensm_full_v1": false, "route_preload sa\nroute_prot acm": false,
	} {
		s, _, err := config.Read(strings.NewReader(text), "o.cfg", config.Env{})
		if err != nil {
			t.Fatal(err)
		}
		if got := engineConfig(s).Prefetch; got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
}
