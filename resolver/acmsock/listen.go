// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acmsock

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// backlog is how many clients may wait to be accepted: a node's ranks all start
// at once. The kernel caps it at net.core.somaxconn.
const backlog = 1024

// maxSocketPath is what sun_path has room for beside its NUL (unix(7)).
const maxSocketPath = 107

type listener struct {
	fd  int
	tcp bool
}

// rendezvous is the listening sockets and the files by which clients find them.
type rendezvous struct {
	dir       string
	listeners []listener
	noLinks   bool
	log       *slog.Logger

	fastFD   int    // listener of the fast path
	fastPort uint16 // 0: none
	fastErr  error  // why
	hasPort  bool   // the port file is there whether the fast path is or not

	mu   sync.Mutex // of the files, once there is a server
	made []madeFile
	gone bool
}

// madeFile remembers the identity of a file, so that one which somebody else
// put in its place is not removed at exit.
type madeFile struct {
	path string
	info fs.FileInfo
}

// listen opens the sockets and makes the files that cfg asks for. On failure
// nothing stays behind.
func listen(cfg *Config, log *slog.Logger) (*rendezvous, error) {
	r := &rendezvous{dir: cfg.RunDir, noLinks: cfg.NoLinks, log: log, fastErr: errors.New("not asked for")}
	var err error
	switch {
	case len(cfg.Listeners) > 0:
		err = r.adopt(cfg)
	case cfg.Mode == ModeUnix:
		err = r.listenUnix(cfg)
	default:
		err = r.listenTCP(cfg)
	}
	if err != nil {
		r.close()
		return nil, err
	}
	if cfg.Fast {
		r.listenFast(cfg)
	}
	return r, nil
}

func (r *rendezvous) path(name string) string { return filepath.Join(r.dir, name) }

// clear removes files of an earlier run. One that cannot be removed would lead
// clients astray, so that is an error.
func (r *rendezvous) clear(names ...string) error {
	for _, n := range names {
		if err := os.Remove(r.path(n)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove stale file: %w", err)
		}
	}
	return nil
}

// Vacant fails if a service answers at the unix socket of a run directory. The
// daemon's lock normally keeps a second one away, but the lock file can be set
// elsewhere. Nothing is changed.
func Vacant(runDir string) error {
	path := filepath.Join(runDir, unixSocketName)
	if len(path) > maxSocketPath {
		return fmt.Errorf("%s: %d bytes, a socket's path has at most %d", path, len(path), maxSocketPath)
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("unix socket: %w", err)
	}
	defer unix.Close(fd)
	// EAGAIN: it listens, and its backlog is full.
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: path}); err == nil || errors.Is(err, unix.EAGAIN) {
		return fmt.Errorf("%s: another service answers there", path)
	}
	return nil
}

func (r *rendezvous) listenUnix(cfg *Config) error {
	if err := Vacant(cfg.RunDir); err != nil {
		return err
	}
	if err := r.clear(portFileName, portLinkName, unixSocketName, unixLinkName); err != nil {
		return err
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("unix socket: %w", err)
	}
	r.listeners = append(r.listeners, listener{fd: fd})
	refuseDescriptors(fd)
	path := r.path(unixSocketName)
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		return fmt.Errorf("bind %s: %w", path, err)
	}
	r.remember(path)
	// Any local user may ask. The mode is set by name because a socket's
	// descriptor has none of its own, and before listen, so that no client
	// meets the wrong one.
	if err := os.Chmod(path, 0o777); err != nil {
		return fmt.Errorf("open socket to all users: %w", err)
	}
	if err := unix.Listen(fd, backlog); err != nil {
		return fmt.Errorf("listen on %s: %w", path, err)
	}
	if cfg.NoLinks {
		return nil
	}
	return r.link(unixLinkName, unixSocketName)
}

// refuseDescriptors keeps the clients of a unix socket from passing descriptors
// (SCM_RIGHTS): their send fails with EPERM. Before Linux 6.16 there is no such option;
// a client that passes one is closed then.
func refuseDescriptors(fd int) { _ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PASSRIGHTS, 0) }

func (r *rendezvous) listenTCP(cfg *Config) error {
	if err := Vacant(cfg.RunDir); err != nil {
		return err
	}
	sa := &unix.SockaddrInet4{Port: int(cfg.Port)}
	if cfg.Mode == ModeLoop {
		sa.Addr = [4]byte{127, 0, 0, 1}
	} else {
		r.log.Warn("server_mode open: every host that reaches the port may resolve and read counters", "port", cfg.Port)
	}
	fd, err := openTCP(sa)
	if err != nil {
		return err
	}
	r.listeners = append(r.listeners, listener{fd: fd, tcp: true})
	// Only now: with the port taken, the files are those of who has it.
	if err := r.clear(unixSocketName, unixLinkName, portLinkName, portFileName); err != nil {
		return err
	}
	if err := unix.Listen(fd, backlog); err != nil {
		return fmt.Errorf("listen on port %d: %w", cfg.Port, err)
	}
	r.hasPort = true
	return r.publishPort(fd, cfg.NoLinks)
}

// openTCP makes a socket that is bound and does not listen yet.
func openTCP(sa *unix.SockaddrInet4) (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, fmt.Errorf("tcp socket: %w", err)
	}
	// Connections of an earlier run that linger in TIME_WAIT must not keep a
	// restart from binding.
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("tcp socket: %w", err)
	}
	if err := unix.Bind(fd, sa); err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("bind %s: %w", netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port)), err)
	}
	return fd, nil
}

// adopt takes the service manager's sockets. Its files stay as they are; a port
// file, which no unit makes, is written when TCP is the only way in, and removed
// otherwise: librdmacm looks at it first.
func (r *rendezvous) adopt(cfg *Config) error {
	tcp, unixToo := -1, false
	for _, fd := range cfg.Listeners {
		family, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
		if err != nil {
			return fmt.Errorf("passed socket %d: %w", fd, err)
		}
		l := listener{fd: fd, tcp: family != unix.AF_UNIX}
		if l.tcp {
			tcp = fd
		} else {
			unixToo = true
			refuseDescriptors(fd)
		}
		r.listeners = append(r.listeners, l)
	}
	if err := r.clear(portFileName, portLinkName); err != nil {
		return err
	}
	if unixToo || tcp < 0 {
		return nil
	}
	r.hasPort = true
	return r.publishPort(tcp, cfg.NoLinks)
}

// publishPort writes the port file of a listener and, if wanted, librdmacm's
// link to it. Without the link stock programs fall back to the unix socket, so
// its failure is only logged, as in ibacm.
func (r *rendezvous) publishPort(fd int, noLinks bool) error {
	port := localPort(fd)
	if port == 0 {
		return errors.New("tcp listener has no port")
	}
	if err := r.writeFile(portFileName, strconv.Itoa(port)+"\n"); err != nil {
		return err
	}
	if noLinks {
		return nil
	}
	if err := r.link(portLinkName, portFileName); err != nil {
		r.log.Error("librdmacm will not find the service", "err", err)
	}
	return nil
}

func localPort(fd int) int {
	sa, err := unix.Getsockname(fd)
	if err != nil {
		return 0
	}
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return sa.Port
	case *unix.SockaddrInet6:
		return sa.Port
	}
	return 0
}

// writeFile makes a file of mode 0644, whatever the umask, in one step: readers
// see all of it or the one before. A link that somebody planted is not followed.
func (r *rendezvous) writeFile(name, content string) error {
	tmp := r.path("." + name + ".new")
	if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("write %s: %w", name, err)
	}
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o644)
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	_, err = f.WriteString(content)
	err = errors.Join(err, f.Chmod(0o644), f.Close())
	if err == nil {
		err = os.Rename(tmp, r.path(name))
	}
	if err != nil {
		os.Remove(tmp)
		return fmt.Errorf("write %s: %w", name, err)
	}
	r.remember(r.path(name))
	return nil
}

// link makes name point at target in the same directory.
func (r *rendezvous) link(name, target string) error {
	if err := os.Symlink(target, r.path(name)); err != nil {
		return fmt.Errorf("link %s to %s: %w", name, target, err)
	}
	r.remember(r.path(name))
	return nil
}

func (r *rendezvous) remember(path string) {
	if info, err := os.Lstat(path); err == nil {
		r.made = slices.DeleteFunc(r.made, func(m madeFile) bool { return m.path == path }) // of an earlier announcement
		r.made = append(r.made, madeFile{path, info})
	}
}

// withdraw removes the files that this server made, if they still are its own.
func (r *rendezvous) withdraw() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.gone = true
	for _, m := range r.made {
		if info, err := os.Lstat(m.path); err == nil && os.SameFile(info, m.info) {
			os.Remove(m.path)
		}
	}
	r.made = nil
}

// close ends listening, files first: a client then finds no service rather than
// one that refuses.
func (r *rendezvous) close() {
	r.withdraw()
	for _, l := range r.listeners {
		unix.Close(l.fd)
	}
	r.listeners = nil
}

// addrs are the listening addresses, for logs and tests.
func (r *rendezvous) addrs() []net.Addr {
	var out []net.Addr
	for _, l := range r.listeners {
		sa, err := unix.Getsockname(l.fd)
		if err != nil {
			continue
		}
		switch sa := sa.(type) {
		case *unix.SockaddrUnix:
			out = append(out, &net.UnixAddr{Name: sa.Name, Net: "unix"})
		case *unix.SockaddrInet4:
			out = append(out, net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port))))
		case *unix.SockaddrInet6:
			out = append(out, net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.AddrFrom16(sa.Addr), uint16(sa.Port))))
		}
	}
	return out
}
