// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package hostnet

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"acmd/resolver"

	"github.com/cespare/xxhash/v2"
	"golang.org/x/sys/unix"
)

// maxRoutes bounds what is read of a routing table to notice its changes.
const maxRoutes = 1 << 20

var errAmbiguous = errors.New("link-local destination without an interface, and not exactly one to take")

// Source implements [resolver.Host]: the local address of a datagram socket that
// is connected to dst. A link-local IPv6 destination has no interface in the
// client protocol; it is served where only one IPoIB interface has such an
// address.
func (h *Host) Source(dst netip.Addr) (netip.Addr, error) {
	dst = dst.Unmap()
	switch {
	case !dst.IsValid():
		return netip.Addr{}, errors.New("no destination")
	case dst.Is6() && dst.IsLinkLocalUnicast() && dst.Zone() == "":
		return h.linkLocal()
	}
	src, err := connected(dst)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("route to %s: %w", dst, err)
	}
	return src, nil
}

// linkLocal returns the only link-local IPv6 address that the last look found.
func (h *Host) linkLocal() (netip.Addr, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var found netip.Addr
	for _, a := range h.last {
		if !a.IP.Is6() || !a.IP.IsLinkLocalUnicast() || a.IP == found {
			continue
		}
		if found.IsValid() {
			return netip.Addr{}, errAmbiguous
		}
		found = a.IP
	}
	if !found.IsValid() {
		return netip.Addr{}, errAmbiguous
	}
	return found, nil
}

// connected asks the kernel's routing by connecting a datagram socket.
func connected(dst netip.Addr) (netip.Addr, error) {
	var to unix.Sockaddr
	family := unix.AF_INET
	if dst.Is4() {
		to = &unix.SockaddrInet4{Addr: dst.As4()}
	} else {
		family = unix.AF_INET6
		to6 := &unix.SockaddrInet6{Addr: dst.As16()}
		if zone := dst.Zone(); zone != "" {
			ifi, err := net.InterfaceByName(zone)
			if err != nil {
				return netip.Addr{}, err
			}
			to6.ZoneId = uint32(ifi.Index)
		}
		to = to6
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return netip.Addr{}, os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	if err := unix.Connect(fd, to); err != nil {
		return netip.Addr{}, os.NewSyscallError("connect", err)
	}
	local, err := unix.Getsockname(fd)
	if err != nil {
		return netip.Addr{}, os.NewSyscallError("getsockname", err)
	}
	switch sa := local.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrFrom4(sa.Addr), nil
	case *unix.SockaddrInet6:
		return netip.AddrFrom16(sa.Addr), nil
	}
	return netip.Addr{}, fmt.Errorf("local address of type %T", local)
}

// update takes in the addresses of a look and raises the generation if they, or
// the routes, are not those of the look before.
func (h *Host) update(addrs []resolver.HostAddr) {
	d := xxhash.New()
	h.digestRoutes(d, "net/route", 4, 5)      // RefCnt, Use
	h.digestRoutes(d, "net/ipv6_route", 6, 7) // reference count, use
	print := d.Sum64()
	h.mu.Lock()
	defer h.mu.Unlock()
	if print != h.print || !slices.Equal(addrs, h.last) {
		h.print = print
		h.last = slices.Clone(addrs)
		h.gen.Add(1)
	}
}

// digestRoutes adds a routing table to a digest, without the columns that count
// its use. A table that cannot be read is an empty one.
func (h *Host) digestRoutes(w io.Writer, name string, skip ...int) {
	f, err := os.Open(filepath.Join(h.cfg.Proc, name))
	if err != nil {
		return
	}
	defer f.Close()
	lines := bufio.NewScanner(io.LimitReader(f, maxRoutes))
	for lines.Scan() {
		for i, field := range strings.Fields(lines.Text()) {
			if !slices.Contains(skip, i) {
				io.WriteString(w, field)
				io.WriteString(w, " ")
			}
		}
		io.WriteString(w, "\n")
	}
}
