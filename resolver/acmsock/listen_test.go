// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acmsock

import (
	"bytes"
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// files lists a run directory: name, then the link's target, or "s" or "f" with
// the mode bits.
func files(t *testing.T, dir string) string {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range list {
		info, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case info.Mode()&fs.ModeSymlink != 0:
			to, err := os.Readlink(filepath.Join(dir, e.Name()))
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, e.Name()+">"+to)
		case info.Mode()&fs.ModeSocket != 0:
			out = append(out, e.Name()+" s"+strconv.FormatUint(uint64(info.Mode().Perm()), 8))
		default:
			out = append(out, e.Name()+" f"+strconv.FormatUint(uint64(info.Mode().Perm()), 8))
		}
	}
	return strings.Join(out, ", ")
}

func plant(t *testing.T, dir string, names ...string) {
	t.Helper()
	for _, n := range names {
		if err := os.WriteFile(filepath.Join(dir, n), []byte("stale"), 0o666); err != nil {
			t.Fatal(err)
		}
	}
}

// field cases 35 and 36: what listens, and which files there are, with modes
// that no umask spoils, and nothing left of a run in another mode.
func TestRendezvousFiles(t *testing.T) {
	all := []string{unixSocketName, unixLinkName, portFileName, portLinkName}
	for _, c := range []struct {
		mode    Mode
		noLinks bool
		want    string
	}{
		{ModeUnix, false, "ibacm-unix.sock s777, ibacm.sock>ibacm-unix.sock"},
		{ModeUnix, true, "ibacm-unix.sock s777"},
		{ModeLoop, false, "ibacm-tcp.port f644, ibacm.port>ibacm-tcp.port"},
		{ModeLoop, true, "ibacm-tcp.port f644"},
		{ModeOpen, false, "ibacm-tcp.port f644, ibacm.port>ibacm-tcp.port"},
	} {
		for _, mask := range []int{0, 0o077, 0o777} {
			dir := shortDir(t)
			plant(t, dir, all...)
			var logged bytes.Buffer
			old := unix.Umask(mask)
			s, err := New(Config{RunDir: dir, Mode: c.mode, NoLinks: c.noLinks}, newFake(), slog.New(slog.NewTextHandler(&logged, nil)))
			unix.Umask(old)
			if err != nil {
				t.Fatalf("%v: %v", c.mode, err)
			}
			if got := files(t, dir); got != c.want {
				t.Errorf("%v, umask %03o: %s, want %s", c.mode, mask, got, c.want)
			}
			if warned := strings.Contains(logged.String(), "server_mode open"); warned != (c.mode == ModeOpen) {
				t.Errorf("%v: log %q", c.mode, logged.String())
			}
			checkAddress(t, s, c.mode, dir)
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			if got := files(t, dir); got != "" {
				t.Errorf("%v: left behind: %s", c.mode, got)
			}
		}
	}
}

func checkAddress(t *testing.T, s *Server, mode Mode, dir string) {
	t.Helper()
	if len(s.Addrs()) != 1 {
		t.Fatalf("listens on %v", s.Addrs())
	}
	if mode == ModeUnix {
		if a := s.Addrs()[0].String(); a != filepath.Join(dir, unixSocketName) {
			t.Errorf("listens on %s", a)
		}
		return
	}
	a := s.Addrs()[0].(*net.TCPAddr).AddrPort()
	want := netip.MustParseAddr("127.0.0.1")
	if mode == ModeOpen {
		want = netip.IPv4Unspecified()
	}
	if a.Addr() != want {
		t.Errorf("%v listens on %v", mode, a)
	}
	b, err := os.ReadFile(filepath.Join(dir, portFileName))
	if err != nil || string(b) != strconv.Itoa(int(a.Port()))+"\n" {
		t.Errorf("port file %q, %v; listens on %v", b, err, a)
	}
}

// A link that somebody planted at the temporary name is not written through.
func TestPortFileFollowsNoLink(t *testing.T) {
	dir := shortDir(t)
	victim := filepath.Join(dir, "victim")
	plant(t, dir, "victim")
	for _, n := range []string{"." + portFileName + ".new", portFileName, portLinkName} {
		if err := os.Symlink("victim", filepath.Join(dir, n)); err != nil {
			t.Fatal(err)
		}
	}
	s, err := New(Config{RunDir: dir, Mode: ModeLoop}, newFake(), quiet())
	if err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(victim); err != nil || string(b) != "stale" {
		t.Errorf("victim: %q, %v", b, err)
	}
	if got, want := files(t, dir), "ibacm-tcp.port f644, ibacm.port>ibacm-tcp.port, victim f644"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	s.Close()
}

// field case 77: files of another instance that took over are left alone.
func TestWithdrawOnlyOwnFiles(t *testing.T) {
	dir := shortDir(t)
	first, err := New(Config{RunDir: dir}, newFake(), quiet())
	if err != nil {
		t.Fatal(err)
	}
	if s, err := New(Config{RunDir: dir}, newFake(), quiet()); err == nil {
		s.Close()
		t.Error("a second server took the files of one that listens")
	}
	if got, want := files(t, dir), "ibacm-unix.sock s777, ibacm.sock>ibacm-unix.sock"; got != want {
		t.Errorf("after a second server: %s, want %s", got, want)
	}
	if err := os.Remove(filepath.Join(dir, unixSocketName)); err != nil {
		t.Fatal(err)
	}
	second, err := New(Config{RunDir: dir}, newFake(), quiet())
	if err != nil {
		t.Fatal(err)
	}
	first.Close()
	if got, want := files(t, dir), "ibacm-unix.sock s777, ibacm.sock>ibacm-unix.sock"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	second.Close()
}

// A port that is taken is no reason to remove the files of who has it (field
// case 77).
func TestPortTaken(t *testing.T) {
	dir := shortDir(t)
	first, err := New(Config{RunDir: dir, Mode: ModeLoop}, newFake(), quiet())
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	port := uint16(first.Addrs()[0].(*net.TCPAddr).Port)
	if s, err := New(Config{RunDir: dir, Mode: ModeLoop, Port: port}, newFake(), quiet()); err == nil {
		s.Close()
		t.Fatal("two servers on one port")
	}
	if got, want := files(t, dir), "ibacm-tcp.port f644, ibacm.port>ibacm-tcp.port"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestNewFails(t *testing.T) {
	dir := shortDir(t)
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	if err := os.MkdirAll(filepath.Join(dir, "links", unixLinkName, "x"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		cfg  Config
		want string
	}{
		{"mode", Config{RunDir: dir, Mode: 3}, "mode"},
		{"threads", Config{RunDir: dir, Threads: 65}, "threads"},
		{"negative threads", Config{RunDir: dir, Threads: -1}, "threads"},
		{"clients", Config{RunDir: dir, MaxClients: -1}, "limits"},
		{"timeout", Config{RunDir: dir, WriteTimeout: -1}, "timeouts"},
		{"no directory", Config{RunDir: filepath.Join(dir, "none")}, "bind"},
		{"name too long", Config{RunDir: filepath.Join(dir, strings.Repeat("x", 120))}, "at most 107"},
		{"stale file cannot be removed", Config{RunDir: filepath.Join(dir, "links")}, "stale"},
		{"port is taken", Config{RunDir: dir, Mode: ModeLoop, Port: uint16(busy.Addr().(*net.TCPAddr).Port)}, "bind"},
	} {
		before := openFiles(t)
		s, err := New(c.cfg, newFake(), quiet())
		if err == nil {
			s.Close()
			t.Errorf("%s: no error", c.name)
		} else if !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
		if after := openFiles(t); after != before {
			t.Errorf("%s: %d descriptors, %d before", c.name, after, before)
		}
	}
	if got := files(t, dir); got != "links f755" {
		t.Errorf("left behind: %s", got)
	}
}

// openFiles counts this process's descriptors.
func openFiles(t testing.TB) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// testNetlink stands for NETLINK_RDMA, which not every kernel has.
const testNetlink = unix.NETLINK_KOBJECT_UEVENT

// passedSockets makes sockets at consecutive descriptors, as a service manager
// does, and returns the first.
func passedSockets(t *testing.T, dir, kinds string) int {
	t.Helper()
	var made []int
	for i, k := range kinds {
		var fd int
		var err error
		switch k {
		case 'u', 'c': // c: not listening
			fd, err = unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
			if err == nil && k == 'u' {
				err = errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: filepath.Join(dir, strconv.Itoa(i)+".sock")}), unix.Listen(fd, 8))
			}
		case 't':
			fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
			if err == nil {
				err = errors.Join(unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}), unix.Listen(fd, 8))
			}
		case 'd':
			fd, err = unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM, 0)
		case 'n':
			fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW, testNetlink)
		case 'r':
			fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE)
		case 'f':
			fd, err = unix.Open("/dev/null", unix.O_RDONLY, 0)
		}
		if err != nil {
			t.Fatalf("socket %q: %v", k, err)
		}
		made = append(made, fd)
	}
	const first = 700
	for i, fd := range made {
		if err := unix.Dup3(fd, first+i, 0); err != nil {
			t.Fatal(err)
		}
		unix.Close(fd)
	}
	t.Cleanup(func() {
		for i := range made {
			unix.Close(first + i) // harmless when the server closed it
		}
	})
	return first
}

func environ(n string, pid string) func(string) string {
	return func(k string) string {
		return map[string]string{"LISTEN_FDS": n, "LISTEN_PID": pid}[k]
	}
}

// field case 30: any number of sockets in any order, told apart by what they
// are; what no door can use is an error that says so.
func TestPassed(t *testing.T) {
	self := strconv.Itoa(os.Getpid())
	for _, c := range []struct {
		kinds, want string // u and t are streams, n netlink
		err         string
	}{
		{"u", "u", ""}, {"t", "t", ""}, {"utn", "utn", ""}, {"unt", "utn", ""}, {"tun", "tun", ""},
		{"tnu", "tun", ""}, {"nut", "utn", ""}, {"ntu", "tun", ""}, {"n", "n", ""}, {"uu", "uu", ""},
		{"ud", "", "descriptor 701: family 1 type 2"}, {"c", "", "does not listen"},
		{"f", "", "not a socket"}, {"ur", "", "netlink protocol 0"},
	} {
		t.Run(c.kinds, func(t *testing.T) {
			first := passedSockets(t, shortDir(t), c.kinds)
			a, err := passed(environ(strconv.Itoa(len(c.kinds)), self), first, testNetlink)
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Fatalf("error %v, want %s", err, c.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			got := ""
			for _, fd := range append(a.Streams, a.Netlink...) {
				got += c.kinds[fd-first : fd-first+1]
				if fl, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || fl&unix.FD_CLOEXEC == 0 {
					t.Errorf("descriptor %d is inherited: %v", fd, err)
				}
			}
			if got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
	// Outside of the table the protocol is that of the RDMA core.
	first := passedSockets(t, shortDir(t), "n")
	if _, err := Passed(environ("1", self), first); err == nil || !strings.Contains(err.Error(), "instead of 20") {
		t.Errorf("error %v", err)
	}
	for _, c := range []struct {
		n, pid string
		fails  bool
	}{{"", "", false}, {"2", "1", false}, {"0", self, false}, {"x", self, true}, {"-1", self, true}, {"99999", self, true}, {"1", "me", true}} {
		a, err := Passed(environ(c.n, c.pid), 900)
		if (err != nil) != c.fails || len(a.Streams)+len(a.Netlink) != 0 {
			t.Errorf("LISTEN_FDS %q LISTEN_PID %q: %+v, %v", c.n, c.pid, a, err)
		}
	}
}

// Passed listeners are served; the manager's socket files stay, before and
// after; a port file is written only when TCP is the only way in.
func TestServePassed(t *testing.T) {
	for _, c := range []struct {
		kinds, running, after string
	}{
		{"u", "0.sock s755, ibacm.sock f644", "0.sock s755, ibacm.sock f644"},
		{"ut", "0.sock s755, ibacm.sock f644", "0.sock s755, ibacm.sock f644"},
		{"t", "ibacm-tcp.port f644, ibacm.port>ibacm-tcp.port, ibacm.sock f644", "ibacm.sock f644"},
	} {
		dir := shortDir(t)
		plant(t, dir, unixLinkName, portFileName)
		first := passedSockets(t, dir, c.kinds)
		a, err := Passed(environ(strconv.Itoa(len(c.kinds)), strconv.Itoa(os.Getpid())), first)
		if err != nil {
			t.Fatal(err)
		}
		s, err := New(Config{RunDir: dir, Listeners: a.Streams}, newFake(), quiet())
		if err != nil {
			t.Fatal(err)
		}
		s.Start()
		if got := files(t, dir); got != c.running {
			t.Errorf("%s: %s, want %s", c.kinds, got, c.running)
		}
		for _, addr := range s.Addrs() {
			conn, err := net.Dial(addr.Network(), addr.String())
			if err != nil {
				t.Fatal(err)
			}
			mustWrite(t, conn, ask(1, 0, 1))
			wantAnswer(t, readReply(t, conn), 1, 1)
			conn.Close()
		}
		s.Close()
		if got := files(t, dir); got != c.after {
			t.Errorf("%s after: %s, want %s", c.kinds, got, c.after)
		}
	}
}

// Nobody can make us close a descriptor, which may take as long as who passes it
// likes. A kernel that cannot be told so takes it, and the client is closed.
func TestDescriptorsRefused(t *testing.T) {
	for _, kinds := range []string{"", "u"} { // own, passed
		dir := shortDir(t)
		first := passedSockets(t, dir, kinds)
		a, err := Passed(environ(strconv.Itoa(len(kinds)), strconv.Itoa(os.Getpid())), first)
		if err != nil {
			t.Fatal(err)
		}
		s := serve(t, newFake(), func(c *Config) { c.RunDir, c.Listeners = dir, a.Streams })
		c := dialServer(t, s)
		raw, err := c.(*net.UnixConn).SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		var known, sent error
		if err := raw.Control(func(fd uintptr) {
			_, known = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PASSRIGHTS)
			sent = unix.Sendmsg(int(fd), ask(1, 0, 1), unix.UnixRights(int(fd)), nil, 0)
		}); err != nil {
			t.Fatal(err)
		}
		if known != nil { // before Linux 6.16
			if sent != nil {
				t.Errorf("%q: %v", kinds, sent)
			}
			wantClosed(t, c)
			continue
		}
		if !errors.Is(sent, unix.EPERM) {
			t.Errorf("%q: a descriptor was passed, %v", kinds, sent)
		}
		mustWrite(t, c, ask(2, 0, 2))
		wantAnswer(t, readReply(t, c), 2, 2)
	}
}
