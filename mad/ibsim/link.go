// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package ibsim

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"acmd/mad"
	"acmd/mad/transport"

	"golang.org/x/sys/unix"
)

// link is one client of the simulator: two sockets and a client number. Only the
// fabric's goroutine uses it, apart from the data socket while a port is open.
type link struct {
	ctl    net.Conn
	data   int    // non-blocking
	client uint32 // 0 until it is known
	limit  time.Duration
	node   nodeInfo
	unread atomic.Bool // no port reads the data socket
}

// role is how a client attaches.
type role struct {
	qp   mad.QPN
	issm bool
}

// bindTries is for names that are taken by somebody else.
const bindTries = 8

// errUnanswered: the simulator has not answered CONNECT, and may do so later.
var errUnanswered = errors.New("no answer yet")

// attach connects a client. On success the simulator has one slot less. With
// errUnanswered there is a link, too: see [link.settle].
func attach(cfg *Config, r role) (*link, error) {
	l, id, err := dialControl(cfg)
	if err != nil {
		return nil, fmt.Errorf("ibsim: %s is not running: %w", cfg.where(), err)
	}
	info := clientInfo(id, r.qp, r.issm, cfg.Node)
	answer, err := l.roundTrip(ctlConnect, &info, clientInfoSize)
	switch {
	case errors.Is(err, errRefused):
		err = l.whyRefused(cfg, id, r)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return l, fmt.Errorf("ibsim: %s: %w: %w", cfg.where(), errUnanswered, err)
	case err == nil:
		err = l.connected(cfg, &answer)
	}
	if err != nil {
		l.closeSockets()
		return nil, fmt.Errorf("ibsim: %s: %w", cfg.where(), err)
	}
	if answer, err = l.roundTrip(ctlGetNodeInfo, &controlData{}, 0); err != nil {
		l.detach()
		return nil, fmt.Errorf("ibsim: %s: %w", cfg.where(), err)
	}
	l.node = parseNodeInfo(&answer)
	return l, nil
}

// settle waits once more for the answer to a CONNECT and gives the slot back. A
// simulator that was stopped handles the message when it goes on, and aborts if
// the data socket is gone by then: as long as settle reports false the link must
// be kept.
func (l *link) settle(cfg *Config) bool {
	end := time.Now().Add(l.limit)
	l.ctl.SetWriteDeadline(end)
	if _, err := l.ctl.Write(appendControl(nil, 0, ctlNothing, &controlData{}, 0)); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		l.closeSockets() // it is not there any more
		return true
	}
	answer, err := l.await(ctlConnect, end)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return false
	}
	if err == nil && l.connected(cfg, &answer) == nil {
		l.detach()
	} else {
		l.closeSockets()
	}
	return true
}

// connected takes the client number and joins the data sockets.
func (l *link) connected(cfg *Config, answer *controlData) error {
	l.client = he.Uint32(answer[0:])
	if l.client >= maxClients {
		return fmt.Errorf("%w: client number %d", errBadControl, l.client)
	}
	to, err := l.dataPeer(cfg)
	if err == nil {
		err = unix.Connect(l.data, to)
	}
	if err != nil {
		l.roundTrip(ctlDisconnect, &controlData{}, 0)
		return fmt.Errorf("connect data socket of client %d: %w", l.client, err)
	}
	return nil
}

// whyRefused finds out what the simulator does not say, by asking for less.
func (l *link) whyRefused(cfg *Config, id uint32, r role) error {
	possible := func(r role, node string) bool {
		info := clientInfo(id, r.qp, r.issm, node)
		answer, err := l.roundTrip(ctlConnect, &info, clientInfoSize)
		if err != nil {
			return false
		}
		l.client = he.Uint32(answer[0:])
		l.roundTrip(ctlDisconnect, &controlData{}, 0)
		l.client = 0
		return true
	}
	switch {
	case !possible(role{}, ""):
		return fmt.Errorf("no free client slot, it has %d", maxClients)
	case r.issm && possible(role{}, cfg.Node):
		return fmt.Errorf("node %q has a subnet manager's client already", cfg.Node)
	default:
		return fmt.Errorf("no node %q in its topology", cfg.Node)
	}
}

// dialControl makes both sockets, the data socket bound to a name or port that
// the returned id tells the simulator.
func dialControl(cfg *Config) (*link, uint32, error) {
	if cfg.Remote != "" {
		return dialRemote(cfg)
	}
	for try := 1; ; try++ {
		// A number that is no process's, for stock clients use theirs.
		id := 1<<23 | rand.Uint32N(1<<23)
		l, err := dialLocal(cfg, id)
		if err == nil {
			return l, id, nil
		}
		if !errors.Is(err, unix.EADDRINUSE) || try == bindTries {
			return nil, 0, err
		}
	}
}

// localName is an abstract socket name. The simulator counts the trailing NUL.
func localName(base, what string) string { return "@" + base + ":" + what + "\x00" }

func dialLocal(cfg *Config, id uint32) (*link, error) {
	n := strconv.FormatUint(uint64(id), 10)
	ctl, err := net.DialUnix("unixgram",
		&net.UnixAddr{Net: "unixgram", Name: localName(cfg.Base, "ctl"+n)},
		&net.UnixAddr{Net: "unixgram", Name: localName(cfg.Base, "ctl")})
	if err != nil {
		return nil, err
	}
	data, err := dataSocket(unix.AF_UNIX, &unix.SockaddrUnix{Name: localName(cfg.Base, "in"+n)})
	if err != nil {
		ctl.Close()
		return nil, err
	}
	return &link{ctl: ctl, data: data, limit: cfg.control}, nil
}

func dialRemote(cfg *Config) (*link, uint32, error) {
	ctl, err := net.Dial("udp4", cfg.Remote)
	if err != nil {
		return nil, 0, err
	}
	local := ctl.LocalAddr().(*net.UDPAddr).AddrPort().Addr()
	data, err := dataSocket(unix.AF_INET, &unix.SockaddrInet4{Addr: local.Unmap().As4()})
	if err != nil {
		ctl.Close()
		return nil, 0, err
	}
	l := &link{ctl: ctl, data: data, limit: cfg.control}
	name, err := unix.Getsockname(data)
	if err != nil {
		l.closeSockets()
		return nil, 0, err
	}
	return l, uint32(name.(*unix.SockaddrInet4).Port), nil
}

func dataSocket(family int, name unix.Sockaddr) (int, error) {
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	if err := unix.Bind(fd, name); err != nil {
		unix.Close(fd)
		return -1, os.NewSyscallError("bind", err)
	}
	return fd, nil
}

// dataPeer is the simulator's data socket for this client.
func (l *link) dataPeer(cfg *Config) (unix.Sockaddr, error) {
	if cfg.Remote == "" {
		return &unix.SockaddrUnix{Name: localName(cfg.Base, "out"+strconv.FormatUint(uint64(l.client), 10))}, nil
	}
	server, err := netip.ParseAddrPort(l.ctl.RemoteAddr().String())
	if err != nil {
		return nil, err
	}
	port := int(server.Port()) + 1 + int(l.client)
	if port > 0xffff {
		return nil, fmt.Errorf("data port %d", port)
	}
	return &unix.SockaddrInet4{Addr: server.Addr().Unmap().As4(), Port: port}, nil
}

// portInfo reads the attributes of the port as they are now.
func (l *link) portInfo() (transport.PortInfo, error) {
	info, err := l.roundTrip(ctlGetPortInfo, &controlData{}, 1)
	if err != nil {
		return transport.PortInfo{}, err
	}
	keys, err := l.roundTrip(ctlGetPKeys, &controlData{}, 0)
	if err != nil {
		return transport.PortInfo{}, err
	}
	return parsePortInfo(l.node, &info, &keys), nil
}

// detach gives the slot back and closes the sockets.
func (l *link) detach() {
	l.unread.Store(true)
	l.roundTrip(ctlDisconnect, &controlData{}, 0)
	l.closeSockets()
}

// drain throws away what waits on the data socket.
func (l *link) drain() {
	var b [packetSize]byte
	for range 1 << 10 {
		if _, err := unix.Read(l.data, b[:]); err != nil {
			return
		}
	}
}

func (l *link) closeSockets() {
	l.ctl.Close()
	unix.Close(l.data)
}

// isDown reports whether err means that nobody is at the other end.
func isDown(err error) bool {
	for _, e := range []error{unix.ECONNREFUSED, unix.ECONNRESET, unix.ENOTCONN, unix.EPIPE, os.ErrDeadlineExceeded} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
