// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acmsock

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// DefaultRunDir is where the rendezvous files are, DefaultPort the TCP port when
// no port file says otherwise.
const (
	DefaultRunDir = "/run"
	DefaultPort   = 6125
)

// Dialer connects to a service. The zero value is ready to use.
type Dialer struct {
	RunDir string // of the port file; empty: [DefaultRunDir]
}

// Dial connects with the default [Dialer].
func Dial(ctx context.Context, service string) (*Client, error) {
	var d Dialer
	return d.Dial(ctx, service)
}

// Dial connects to a service: a path (anything with a slash) or "@abstract" is a
// unix socket, anything else host[:port] over TCP, the port by default from the port file. Every
// address of the name is tried in turn, so that a "localhost" which is ::1 first
// still reaches a service on 127.0.0.1. Empty means the unix socket in RunDir.
func (d *Dialer) Dial(ctx context.Context, service string) (*Client, error) {
	if service == "" {
		service = filepath.Join(d.runDir(), unixSocketName)
	}
	if service[0] == '@' || strings.Contains(service, "/") {
		c, err := dialUnix(ctx, service)
		if err != nil {
			return nil, err
		}
		return newClient(c), nil
	}
	host, port, err := d.split(service)
	if err != nil {
		return nil, err
	}
	c, err := dialTCP(ctx, host, port)
	if err != nil {
		return nil, err
	}
	return newClient(c), nil
}

func (d *Dialer) runDir() string {
	if d.RunDir == "" {
		return DefaultRunDir
	}
	return d.RunDir
}

// split takes host[:port] apart. An IPv6 address may stand without brackets
// when it has no port.
func (d *Dialer) split(service string) (host string, port uint16, err error) {
	bare := strings.Trim(service, "[]")
	if strings.Count(service, ":") == 0 || net.ParseIP(bare) != nil {
		return bare, d.filePort(), nil
	}
	host, text, err := net.SplitHostPort(service)
	if err != nil {
		return "", 0, fmt.Errorf("service %q: %w", service, err)
	}
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n == 0 {
		return "", 0, fmt.Errorf("service %q: bad port %q", service, text)
	}
	return host, uint16(n), nil
}

// filePort reads the port file. Absent or unusable means the default, as for
// the stock tools.
func (d *Dialer) filePort() uint16 {
	b, err := os.ReadFile(filepath.Join(d.runDir(), portFileName))
	if err != nil {
		return DefaultPort
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 16)
	if err != nil || n == 0 {
		return DefaultPort
	}
	return uint16(n)
}

// dialUnix retries while the listener's backlog is full: ibacm listens with a
// backlog of 0, where a non-blocking connect is refused with EAGAIN as soon as
// two clients come at once.
func dialUnix(ctx context.Context, path string) (net.Conn, error) {
	var nd net.Dialer
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		c, err := nd.DialContext(ctx, "unix", path)
		if !errors.Is(err, syscall.EAGAIN) {
			return c, err
		}
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			t.Stop()
			return nil, fmt.Errorf("%w: %w", ctx.Err(), err)
		case <-t.C:
		}
	}
}

// dialTCP tries the addresses of host one after the other. The standard dialer
// would do, but it reports only the first failure.
func dialTCP(ctx context.Context, host string, port uint16) (net.Conn, error) {
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil, err
	}
	if len(addrs) == 0 {
		return nil, fmt.Errorf("host %q has no address", host)
	}
	return dialEach(ctx, addrs, port)
}

func dialEach(ctx context.Context, addrs []netip.Addr, port uint16) (net.Conn, error) {
	var nd net.Dialer
	var errs []error
	for _, a := range addrs {
		c, err := nd.DialContext(ctx, "tcp", net.JoinHostPort(a.Unmap().String(), strconv.Itoa(int(port))))
		if err == nil {
			return c, nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}
