// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package config

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"
)

// Every line that is not a comment in the file that ibacm's own generator
// writes.
const generated = `log_file /var/log/ibacm.log
log_level 0
umad_debug_level 0
lock_file /run/ibacm.pid
addr_prot acm
addr_timeout 1440
route_prot sa
route_timeout -1
loopback_prot local
server_port 6125
server_mode unix
acme_plus_kernel_only no
timeout 2000
retries 2
resolve_depth 1
sa_depth 1
send_depth 1
recv_depth 1024
min_mtu 2048
min_rate 10
route_preload none
addr_preload none
`

func read(t *testing.T, text string, env Env) (*Settings, []string) {
	t.Helper()
	s, ps, err := Read(strings.NewReader(text), "o.cfg", env)
	if s == nil {
		t.Fatal(err)
	}
	var out []string
	for _, p := range ps {
		out = append(out, p.Error())
	}
	return s, out
}

var bySettings = cmp.Options{cmpopts.IgnoreUnexported(Settings{}), cmpopts.IgnoreFields(ProviderRule{}, "Origin")}

func TestGeneratedFileOfIbacmIsTheDefault(t *testing.T) {
	s, ps := read(t, generated, Env{Check: true, Systemd: true, Activated: true})
	if len(ps) != 0 {
		t.Fatalf("problems: %q", ps)
	}
	if d := cmp.Diff(Defaults("", ""), s, bySettings); d != "" {
		t.Fatal(d)
	}
	if s.SAWindow != 0 || s.ResolveDepth != 0 {
		t.Fatal("depth 1 is not the automatic window")
	}
	for line := range strings.Lines(generated) {
		name, _, _ := strings.Cut(line, " ")
		if s.Origin(name).File == "" {
			t.Errorf("origin of %s is %s", name, s.Origin(name))
		}
	}
}

func TestMissingFileGivesDefaults(t *testing.T) {
	s, ps, err := Load(filepath.Join(t.TempDir(), "none.cfg"), Env{ConfDir: "/c", RunDir: "/r", Check: true})
	if err != nil || len(ps) != 0 {
		t.Fatal(ps, err)
	}
	if s.LockFile != "/r/ibacm.pid" || s.RouteDataFile != "/c/ibacm_route.data" || s.AddrDataFile != "/c/ibacm_hosts.data" {
		t.Fatalf("%+v", s)
	}
	if _, _, err := Load(t.TempDir(), Env{}); err == nil {
		t.Fatal("a directory was read")
	}
}

func TestValues(t *testing.T) {
	long := "/" + strings.Repeat("x", 4000) // field case 38, and lines above 119 bytes
	for _, c := range []struct {
		line string
		get  func(*Settings) any
		want any
	}{
		{"log_file " + long, func(s *Settings) any { return s.LogFile }, long},
		{"LOG_LEVEL\t 2", func(s *Settings) any { return s.LogLevel }, 2},
		{"Route_Timeout 5", func(s *Settings) any { return s.RouteTimeout }, 5 * time.Minute},
		{"ROUTE_TIMEOUT 0", func(s *Settings) any { return s.RouteTimeout }, time.Duration(0)},
		{"addr_timeout -1", func(s *Settings) any { return s.AddrTimeout }, Forever},
		{"addr_timeout 10", func(s *Settings) any { return s.AddrTimeout }, 10 * time.Minute},
		{"timeout 750", func(s *Settings) any { return s.Timeout }, 750 * time.Millisecond},
		{"retries 0", func(s *Settings) any { return s.Retries }, 0},
		{"sa_depth 8", func(s *Settings) any { return s.SAWindow }, 8},
		{"resolve_depth 16", func(s *Settings) any { return s.ResolveDepth }, 16},
		{"min_rate 2", func(s *Settings) any { return int(s.MinRate) }, 2},
		{"min_rate 200", func(s *Settings) any { return int(s.MinRate) }, 17},
		{"min_mtu 4096", func(s *Settings) any { return int(s.MinMTU) }, 5},
		{"server_mode LOOP", func(s *Settings) any { return s.ServerMode }, ModeLoop},
		{"server_mode open", func(s *Settings) any { return s.ServerMode }, ModeOpen},
		{"acme_plus_kernel_only 3", func(s *Settings) any { return s.AcmePlusKernelOnly }, true},
		{"acme_plus_kernel_only True", func(s *Settings) any { return s.AcmePlusKernelOnly }, true},
		{"support_ips_in_addr_cfg 1", func(s *Settings) any { return s.SupportIPsInAddr }, true},
		{"route_prot acm", func(s *Settings) any { return s.RouteProt }, RouteACM},
		{"loopback_prot none", func(s *Settings) any { return s.LoopbackProt }, false},
		{"route_preload opensm_full_v1", func(s *Settings) any { return s.RoutePreload }, PreloadFile},
		{"route_preload no", func(s *Settings) any { return s.RoutePreload }, PreloadNone},
		{"route_preload SA", func(s *Settings) any { return s.RoutePreload }, PreloadSA},
		{"addr_preload ACM_HOSTS", func(s *Settings) any { return s.AddrPreload }, true},
		{"kernel_timeout 5000", func(s *Settings) any { return s.KernelTimeout }, 5 * time.Second},
		{"request_timeout 900", func(s *Settings) any { return s.RequestTimeout }, 900 * time.Millisecond},
		{"refresh 3", func(s *Settings) any { return s.Refresh }, 3 * time.Minute},
		{"negative_timeout 0", func(s *Settings) any { return s.NegativeTimeout }, time.Duration(0)},
		{"cache_size 1000", func(s *Settings) any { return s.CacheSize }, 1000},
		{"server_threads 4", func(s *Settings) any { return s.ServerThreads }, 4},
		{"max_user_clients 7", func(s *Settings) any { return s.MaxUserClients }, 7},
		{"max_clients 7", func(s *Settings) any { return s.MaxClients }, 7},
		{"poll_interval 50", func(s *Settings) any { return s.PollInterval }, 50 * time.Millisecond},
		{"sa_max_rate 500", func(s *Settings) any { return s.SAMaxRate }, 500},
		{"metrics_addr 127.0.0.1:16125", func(s *Settings) any { return s.MetricsAddr }, "127.0.0.1:16125"},
		{"metrics_addr [::1]:0", func(s *Settings) any { return s.MetricsAddr }, "[::1]:0"},
		{"metrics_addr :16125", func(s *Settings) any { return s.MetricsAddr }, ":16125"},
		{"metrics_addr /run/acmd/metrics", func(s *Settings) any { return s.MetricsAddr }, "/run/acmd/metrics"},
		{"bpf_dir /sys/fs/bpf/other", func(s *Settings) any { return s.BPFDir }, "/sys/fs/bpf/other"},
		{"bpf_dir None", func(s *Settings) any { return s.BPFDir }, ""},
		{"fast_path kernel", func(s *Settings) any { return s.FastPath }, FastPathKernel},
		{"fast_path Kernel-All", func(s *Settings) any { return s.FastPath }, FastPathAll},
		{"fast_path off", func(s *Settings) any { return s.FastPath }, FastPathOff},
		{"fast_path_port 0\nfast_path kernel", func(s *Settings) any { return s.FastPathPort }, uint16(0)},
		{"fast_path_miss wait\nfast_path kernel", func(s *Settings) any { return s.FastPathWait }, true},
		{"metrics_addr Off", func(s *Settings) any { return s.MetricsAddr }, ""},
		{"log_level 1 # more", func(s *Settings) any { return s.LogLevel }, 1},
		{"log_level 1\r", func(s *Settings) any { return s.LogLevel }, 1},
		{"addr_prot neigh,ACM", func(s *Settings) any { return strings.Join(s.AddrProt, " ") }, "neigh acm"},
	} {
		s, ps := read(t, "\n#\n"+c.line+"\n", Env{Sources: []string{"neigh", "acm"}})
		if len(ps) != 0 || c.get(s) != c.want {
			t.Errorf("%.60s: %v, %q", c.line, c.get(s), ps)
		}
		name, _, _ := strings.Cut(strings.Fields(c.line)[0], " ")
		if s.Origin(name) != (Origin{File: "o.cfg", Line: 3}) {
			t.Errorf("%.60s: origin %s", c.line, s.Origin(name))
		}
	}
}

// Field cases 3 and 39: what is ignored is said, once, with its line, and the
// value in force is named.
func TestProblems(t *testing.T) {
	for _, c := range []struct {
		name, text string
		env        Env
		want       string // the only problem; "" for none
		fatal      bool
	}{
		{"unknown", "no_such_opt 5", Env{}, `o.cfg:1: unknown option "no_such_opt", ignored`, false},
		{"sa", "addr_prot sa", Env{}, `o.cfg:1: option addr_prot: sa has no effect, the SA does not know names or IP addresses (known: acm)`, false},
		{"sa, with a neighbour table", "addr_prot acm,SA", Env{Sources: []string{"acm", "neigh"}}, `o.cfg:1: option addr_prot: sa is read as neigh: the SA does not know names or IP addresses, and the kernel's neighbour table needs no daemon on the peer either`, false},
		{"source", "addr_prot acm,dns", Env{}, `o.cfg:1: option addr_prot: unknown source "dns" (known: acm)`, true},
		{"twice", "retries 1\n\nretries 3", Env{}, "o.cfg:3: option retries was already set in line 1, this line counts", false},
		{"garbage", "timeout 2s", Env{}, `o.cfg:1: option timeout: "2s" is not a number; 2000 stays in force`, false},
		{"range", "server_port 70000\nserver_mode loop", Env{}, `o.cfg:1: option server_port: 70000 is outside 1 ... 65535; 6125 stays in force`, false},
		{"huge", "retries 99999999999999999999", Env{}, `o.cfg:1: option retries: 99999999999999999999 is outside 0 ... 1000; 2 stays in force`, false},
		{"word", "route_prot dns", Env{}, `o.cfg:1: option route_prot: "dns" is none of sa, acm; sa stays in force`, false},
		{"manual's word", "route_preload full_opensm_v1", Env{}, `o.cfg:1: option route_preload: "full_opensm_v1" is none of none, no, opensm_full_v1, sa; none stays in force`, false},
		{"no value", "timeout", Env{}, "o.cfg:1: option timeout has no value, 2000 stays in force", false},
		{"extra", "timeout 1000 ms", Env{}, `o.cfg:1: option timeout takes one value, "ms" ignored`, false},
		{"umad", "umad_debug_level 2", Env{}, "o.cfg:1: option umad_debug_level 2 has no effect: libibumad is not used", false},
		{"activated", "acme_plus_kernel_only yes", Env{Activated: true}, "o.cfg:1: option acme_plus_kernel_only yes has no effect: the socket unit makes the symbolic link that librdmacm uses; remove its Symlinks line", false},
		{"not activated", "acme_plus_kernel_only yes", Env{}, "", false},
		{"systemd", "server_mode loop", Env{Systemd: true}, "o.cfg:1: option server_mode loop has no effect: under systemd the service is reached through its unix socket", false},
		{"in the background", "log_file stderr", Env{Background: true}, "o.cfg:1: option log_file stderr has no effect: in the background that leads nowhere once clients are served; -P stays in the foreground", false},
		{"in the foreground", "log_file stderr", Env{}, "", false},
		{"queue pairs", "recv_depth 4096\nsend_depth 1", Env{NoQueues: true}, "o.cfg:1: option recv_depth 4096 has no effect: without +verbs there are no queue pairs of our own", false},
		{"sends", "send_depth 8", Env{NoQueues: true}, "o.cfg:1: option send_depth 8 has no effect: without +verbs there are no queue pairs of our own", false},
		{"with queue pairs", "recv_depth 4096\nsend_depth 8", Env{}, "", false},
		{"no kernel", "kernel_timeout 5000", Env{NoKernel: true}, "o.cfg:1: option kernel_timeout 5000 has no effect: the fabric is not the kernel's", false},
		{"fast path is off", "fast_path_port 300", Env{}, "o.cfg:1: option fast_path_port 300 has no effect: fast_path is off", false},
		{"its misses", "fast_path_miss wait", Env{}, "o.cfg:1: option fast_path_miss wait has no effect: fast_path is off", false},
		{"its port with TCP", "fast_path_port 300\nfast_path kernel\nserver_mode loop", Env{}, "o.cfg:1: option fast_path_port 300 has no effect: with server_mode loop it is server_port", false},
		{"users on TCP", "max_user_clients 5\nserver_mode loop", Env{}, "o.cfg:1: option max_user_clients 5 has no effect: only the unix socket tells whose a connection is, and server_mode is loop", false},
		{"no multicast", "resolve_depth 5\naddr_prot neigh", Env{Sources: []string{"acm", "neigh"}}, "o.cfg:1: option resolve_depth 5 has no effect: addr_prot does not name acm", false},
		{"no preload", "addr_prot preload", Env{Sources: []string{"acm", "preload"}}, "o.cfg:1: option addr_prot: preload has no effect: neither addr_preload nor route_preload names a file", false},
		{"many tries", "retries 100", Env{}, "o.cfg:1: option retries 100 counts as 32, the most there is", false},
		{"wide window", "sa_depth 5000", Env{}, "o.cfg:1: option sa_depth 5000 counts as 4096, the most there is", false},
		{"many lookups", "resolve_depth 2000", Env{}, "o.cfg:1: option resolve_depth 2000 counts as 1024, the most there is", false},
		{"high rate", "sa_max_rate 2000000", Env{}, "o.cfg:1: option sa_max_rate 2000000 counts as 1048576, the most there is", false},
		{"many sends", "send_depth 1000", Env{}, "o.cfg:1: option send_depth 1000 counts as 256, the most there is", false},
		{"many buffers", "recv_depth 10000", Env{}, "o.cfg:1: option recv_depth 10000 counts as 8192, the most there is", false},
		{"few buffers", "recv_depth 2", Env{}, "o.cfg:1: option recv_depth 2 counts as 16, the least there is", false},
		{"short time", "timeout 100", Env{}, "o.cfg:1: option timeout 100 counts as 500 for the SA, which is not asked again any sooner", false},
		{"byte order mark", "\ufeff# options", Env{}, "", false},
		{"mark and option", "\ufeffretries 3\r\n", Env{}, "", false},
		{"port", "server_port 7000", Env{}, "o.cfg:1: option server_port 7000 has no effect: server_mode is unix", false},
		{"route file", "route_data_file /x", Env{}, "o.cfg:1: option route_data_file /x has no effect: route_preload is none", false},
		{"route file beside the SA", "route_preload sa\nroute_data_file /x", Env{}, "o.cfg:2: option route_data_file /x has no effect: route_preload is sa", false},
		{"routes of the SA beside those of groups", "route_preload sa\nroute_prot acm", Env{}, "o.cfg:1: option route_preload sa has no effect: with route_prot acm paths come from the groups", false},
		{"routes of the SA, not kept", "route_preload sa\naddr_timeout 0", Env{}, "o.cfg:1: option route_preload sa has no effect: with addr_timeout 0 nothing is kept", false},
		{"routes of the SA, kept for a minute", "route_preload sa\nroute_timeout 0", Env{}, "o.cfg:1: option route_preload sa has no effect: with route_timeout 0 nothing is kept for longer than a minute", false},
		{"routes of the SA", "route_preload sa", Env{}, "", false},
		{"provider", "provider other default", Env{}, `o.cfg:1: no provider "other" here, line ignored (known: ibacmp)`, false},
		{"prefix", "provider ibacmp fe80", Env{}, `o.cfg:1: provider ibacmp: "fe80" is neither a 64-bit subnet prefix nor "default", line ignored`, false},
		{"provider words", "provider ibacmp", Env{}, `o.cfg:1: provider line needs a name and a subnet prefix or "default", ignored`, false},
		{"provider twice", "provider ibacmp 1\nprovider ibacmp 0x1", Env{}, "o.cfg:2: subnet prefix 0x1 already has a provider in line 1, line ignored", false},
		{"number of threads", "server_threads 65", Env{}, "o.cfg:1: option server_threads: 65 is outside 1 ... 64; 1 stays in force", false},
		{"long", "log_file " + strings.Repeat("x", MaxLine) + "\nretries 2", Env{}, "o.cfg:1: line longer than 65536 bytes, ignored", false},
		{"nul", "retries 2\x00", Env{}, "o.cfg:1: line has a NUL byte, ignored", false},
		{"indented comment", "  # retries 9", Env{}, "", false},
		{"fast path", "fast_path on", Env{}, `o.cfg:1: option fast_path: "on" is none of off, kernel, kernel-all; off stays in force`, false},
		{"fast path's port", "fast_path_port 65536", Env{}, `o.cfg:1: option fast_path_port: 65536 is outside 0 ... 65535; 249 stays in force`, false},
		{"relative pin directory", "bpf_dir acmd", Env{}, `o.cfg:1: option bpf_dir: "acmd" is neither none nor an absolute path; /sys/fs/bpf/acmd stays in force`, false},
		{"address", "metrics_addr metrics", Env{}, `o.cfg:1: option metrics_addr: "metrics" is none of off, HOST:PORT, an absolute path; off stays in force`, false},
		{"address without a port", "metrics_addr ::1", Env{}, `o.cfg:1: option metrics_addr: "::1" is none of off, HOST:PORT, an absolute path; off stays in force`, false},
		{"port by name", "metrics_addr localhost:http", Env{}, `o.cfg:1: option metrics_addr: port of "localhost:http": "http" is not a number; off stays in force`, false},
		{"high port", "metrics_addr :65536", Env{}, `o.cfg:1: option metrics_addr: port of ":65536": 65536 is outside 0 ... 65535; off stays in force`, false},
		{"relative path", "metrics_addr run/metrics:1", Env{}, `o.cfg:1: option metrics_addr: "run/metrics" is no host; off stays in force`, false},
		{"long path", "metrics_addr /" + strings.Repeat("x", 107), Env{}, `o.cfg:1: option metrics_addr: "/` + strings.Repeat("x", 107) + `" is longer than a socket's path can be (107 bytes); off stays in force`, false},
		{"less than the kernel takes", "kernel_timeout 99", Env{}, "o.cfg:1: option kernel_timeout: 99 is outside 100 ... 200000; 2000 stays in force", false},
		{"more than the kernel takes", "kernel_timeout 200001", Env{}, "o.cfg:1: option kernel_timeout: 200001 is outside 100 ... 200000; 2000 stays in force", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, ps, err := Read(strings.NewReader(c.text), "o.cfg", c.env)
			if c.want == "" {
				if len(ps) != 0 || err != nil {
					t.Fatal(ps, err)
				}
				return
			}
			if len(ps) != 1 || ps[0].Error() != c.want || ps[0].Fatal != c.fatal {
				t.Fatalf("problems %q", ps)
			}
			if (err != nil) != c.fatal {
				t.Fatalf("error %v", err)
			}
			c.env.Check = true
			if _, _, err = Read(strings.NewReader(c.text), "o.cfg", c.env); err == nil || err.Error() != c.want {
				t.Fatalf("check mode: %v", err)
			}
		})
	}
}

// field case 3: who wanted to do without a daemon on the peers gets that.
func TestSAIsNeigh(t *testing.T) {
	for text, want := range map[string]string{"sa": "neigh", "sa,acm": "neigh acm", "acm,SA": "acm neigh", "sa,neigh": "neigh"} {
		s, ps := read(t, "addr_prot "+text+"\n", Env{Sources: []string{"acm", "neigh"}})
		if got := strings.Join(s.AddrProt, " "); got != want || len(ps) == 0 {
			t.Errorf("%s: %s, %q", text, got, ps)
		}
	}
}

func TestLastOfTwoLinesCounts(t *testing.T) {
	s, _ := read(t, "retries 1\nretries 3\nretries x\n", Env{})
	if s.Retries != 3 || s.Origin("retries").Line != 2 {
		t.Fatal(s.Retries, s.Origin("retries"))
	}
}

func TestProviders(t *testing.T) {
	s, ps := read(t, "provider IBACMP 0xFE80000000000000\nprovider two 18\nprovider two default\nprovider_lib_path /usr/lib/ibacm\n", Env{Providers: []string{"ibacmp", "two"}})
	if len(ps) != 1 || !strings.Contains(ps[0], "provider_lib_path /usr/lib/ibacm has no effect") {
		t.Fatalf("%q", ps)
	}
	want := []ProviderRule{{"ibacmp", 0xfe80 << 48, Origin{File: "o.cfg", Line: 1}}, {"two", 18, Origin{File: "o.cfg", Line: 2}}}
	if at := s.Origin("provider"); at.Line != 1 {
		t.Errorf("origin %s", at)
	}
	if !slices.Equal(s.Providers, want) || s.DefaultProvider != "two" {
		t.Errorf("%+v, else %s", s.Providers, s.DefaultProvider)
	}
}

// Field case 67: a broken file cannot flood the log.
func TestProblemsAreBounded(t *testing.T) {
	_, ps, err := Read(strings.NewReader(strings.Repeat("junk 1\n", 5000)+"addr_prot dns\n"), "o.cfg", Env{})
	if len(ps) != MaxProblems+1 || ps[MaxProblems].Text != "4901 more problems" || !ps[MaxProblems].Fatal {
		t.Fatal(len(ps), ps[len(ps)-1])
	}
	if err == nil {
		t.Fatal("the fatal problem past the bound was lost")
	}
}

// A relative path stays where it was meant, wherever the daemon goes.
func TestRelativePaths(t *testing.T) {
	s, _ := read(t, "log_file log\naddr_data_file ../hosts\nroute_data_file /r\n", Env{Dir: "/here/now"})
	if s.LogFile != "/here/now/log" || s.AddrDataFile != "/here/hosts" || s.RouteDataFile != "/r" {
		t.Errorf("%q %q %q", s.LogFile, s.AddrDataFile, s.RouteDataFile)
	}
	if s, _ := read(t, "log_file stderr\n", Env{Dir: "/here/now"}); s.LogFile != "stderr" {
		t.Errorf("standard error is %q", s.LogFile)
	}
}

// So that a line of many thousand bytes does not either.
func TestProblemsAreShort(t *testing.T) {
	junk := strings.Repeat("\x01\xffü", MaxLine/8)
	for _, text := range []string{junk + " 1", "retries " + junk, "retries 1 " + junk, "addr_prot " + junk, "provider " + junk + " 1", "log_level " + junk} {
		_, ps, _ := Read(strings.NewReader(text+"\n"), "o.cfg", Env{})
		if len(ps) != 1 || len(ps[0].Text) > maxText+10 || !utf8.ValidString(ps[0].Text) {
			t.Errorf("%.20q: %d problems, %d bytes", text, len(ps), len(ps[0].Text))
		}
	}
	_, ps, _ := Read(strings.NewReader("retries "+junk+"\n"), "o.cfg", Env{})
	if !strings.HasSuffix(ps[0].Text, "; 2 stays in force") {
		t.Errorf("the end is lost: %q", ps[0].Text)
	}
}

func TestEffectiveIsAnOptionsFile(t *testing.T) {
	env := Env{Sources: []string{"preload", "neigh", "acm"}, Providers: []string{"ibacmp", "two"}}
	rapid.Check(t, func(t *rapid.T) {
		var text strings.Builder
		n := rapid.IntRange(0, len(options)).Draw(t, "n")
		for range n {
			o := rapid.SampledFrom(options).Draw(t, "option")
			v := rapid.SampledFrom([]string{"0", "1", "2", "5", "10", "256", "sa", "acm", "neigh,acm", "loop", "none", "yes", "local", "-1", "acm_hosts", "/x/y", "99999"}).Draw(t, "value")
			text.WriteString(o.name + " " + v + "\n")
		}
		text.WriteString("provider two 0x12\n")
		s, _, err := Read(strings.NewReader(text.String()), "o.cfg", env)
		if s == nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		if err := s.Effective(&b); err != nil {
			t.Fatal(err)
		}
		again, _, err := Read(&b, "e.cfg", env)
		if err != nil {
			t.Fatal(err)
		}
		if c := Changed(s, again); len(c) != 0 {
			t.Fatalf("changed %v\n%s", c, b.String())
		}
		if d := cmp.Diff(s, again, bySettings); d != "" {
			t.Fatal(d)
		}
	})
}

func TestSetFlagAndChanged(t *testing.T) {
	s := Defaults("", "")
	if err := s.SetFlag("Retries", "5"); err != nil || s.Origin("retries").String() != "flag" {
		t.Fatal(err, s.Origin("retries"))
	}
	for name, v := range map[string]string{"nope": "1", "retries": "x", "addr_prot": "dns"} {
		if err := s.SetFlag(name, v); err == nil {
			t.Errorf("%s %s was accepted", name, v)
		}
	}
	if d := cmp.Diff([]string{"retries"}, Changed(Defaults("", ""), s)); d != "" {
		t.Fatal(d)
	}
	was, _ := read(t, "retries 1\n", Env{})
	if err := s.Keep("retries", was); err != nil || s.Retries != 1 || s.Origin("retries").Line != 1 {
		t.Errorf("kept %d of %s: %v", s.Retries, s.Origin("retries"), err)
	}
	if err := s.Keep("nope", was); err == nil {
		t.Error("an unknown option was kept")
	}
	if s.Values()[0] != (Value{"log_file", "/var/log/ibacm.log", "default"}) {
		t.Fatal(s.Values()[0])
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte(generated))
	f.Add([]byte("addr_prot sa,acm,dns\nprovider a b\nprovider ibacmp 0x1\n# x\n a\x00\n"))
	f.Add([]byte("timeout 99999999999999999999999\nroute_timeout -2"))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, ps, err := Read(bytes.NewReader(b), "o.cfg", Env{})
		if s == nil {
			t.Fatal(err)
		}
		if len(ps) > MaxProblems+1 {
			t.Fatal("no bound on problems")
		}
		var out bytes.Buffer
		if err := s.Effective(&out); err != nil {
			t.Fatal(err)
		}
		if again, _, err := Read(&out, "e.cfg", Env{}); err != nil || len(Changed(s, again)) != 0 {
			t.Fatal(err, Changed(s, again))
		}
	})
}

func TestLoadReadsTheFile(t *testing.T) {
	p := filepath.Join(t.TempDir(), "o.cfg")
	if err := os.WriteFile(p, []byte("retries 4\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s, _, err := Load(p, Env{})
	if err != nil || s.Retries != 4 || s.Origin("retries").String() != p+":1" {
		t.Fatal(err, s)
	}
}

// endless is a device that never ends.
type endless struct{}

func (endless) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = '#'
	}
	return len(b), nil
}

// A file that does not end is refused, not read for ever.
func TestEndlessFile(t *testing.T) {
	if _, _, err := Read(endless{}, "o.cfg", Env{}); err == nil || !strings.Contains(err.Error(), "longer than") {
		t.Errorf("options: %v", err)
	}
	if _, _, err := ReadAddrs(endless{}, "a.cfg", true); err == nil || !strings.Contains(err.Error(), "longer than") {
		t.Errorf("addresses: %v", err)
	}
}
