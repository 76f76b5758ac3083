// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package hostnet

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

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
	var found netip.Addr
	for _, f := range h.Interfaces() {
		for _, ip := range f.Addrs {
			if !ip.Is6() || !ip.IsLinkLocalUnicast() || ip == found {
				continue
			}
			if found.IsValid() {
				return netip.Addr{}, errAmbiguous
			}
			found = ip
		}
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
