// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package hostnet

import (
	"encoding/hex"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"acmd/mad"
	"acmd/resolver"
)

// arpInfiniBand is the ARP hardware type of IPoIB interfaces (RFC 4391).
const arpInfiniBand = "32"

// maxAttr bounds what is read of one sysfs attribute.
const maxAttr = 4096

// Config says where the kernel's view is. The zero value is the running system.
type Config struct {
	Sys  string // "": /sys
	Proc string // "": /proc
	// Addrs lists the addresses of an interface by name; nil: the kernel's.
	Addrs func(ifname string) ([]netip.Addr, error)
}

// Host implements [resolver.Host] on the kernel. All methods are safe for
// concurrent use.
type Host struct {
	cfg Config

	gen atomic.Uint64

	mu    sync.Mutex
	print uint64 // of what Source depends on
	last  []resolver.HostAddr
}

var _ resolver.Host = (*Host)(nil)

// New makes a Host of the running system. It reads nothing yet.
func New() *Host { return NewWith(Config{}) }

// NewWith makes a Host that looks elsewhere.
func NewWith(cfg Config) *Host {
	if cfg.Sys == "" {
		cfg.Sys = "/sys"
	}
	if cfg.Proc == "" {
		cfg.Proc = "/proc"
	}
	if cfg.Addrs == nil {
		cfg.Addrs = kernelAddrs
	}
	return &Host{cfg: cfg}
}

// Addresses implements [resolver.Host]: the addresses of IPoIB interfaces, in
// order of interface names. A machine without any is no error. An interface that
// goes while it is looked at, or has no GID yet, is left out.
func (h *Host) Addresses() ([]resolver.HostAddr, error) {
	names, err := h.interfaces()
	if err != nil {
		return nil, err
	}
	var out []resolver.HostAddr
	for _, name := range names {
		gid, ok := h.gid(name)
		if !ok {
			continue
		}
		pkey, ok := h.pkey(name)
		if !ok {
			continue
		}
		addrs, err := h.cfg.Addrs(name)
		if err != nil {
			continue // it went meanwhile
		}
		for _, ip := range addrs {
			out = append(out, resolver.HostAddr{IP: ip.Unmap().WithZone(""), Ifname: name, GID: gid, PKey: pkey})
		}
	}
	h.update(out)
	return out, nil
}

// Generation implements [resolver.Host]. It changes when a call of Addresses
// found other addresses or other routes of the main tables than the one before.
// It is one atomic load.
func (h *Host) Generation() uint64 { return h.gen.Load() }

// interfaces lists IPoIB interfaces, bonds of them included.
func (h *Host) interfaces() ([]string, error) {
	dir := filepath.Join(h.cfg.Sys, "class/net")
	entries, err := os.ReadDir(dir)
	if os.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list network interfaces: %w", err)
	}
	var names []string
	for _, e := range entries {
		if t, ok := h.attr(e.Name(), "type"); ok && t == arpInfiniBand {
			names = append(names, e.Name())
		}
	}
	slices.Sort(names)
	return names, nil
}

// attr reads an attribute of an interface, without the white space around it.
func (h *Host) attr(ifname, name string) (string, bool) {
	f, err := os.Open(filepath.Join(h.cfg.Sys, "class/net", ifname, name))
	if err != nil {
		return "", false
	}
	defer f.Close()
	var buf [maxAttr]byte
	n, err := f.Read(buf[:])
	if err != nil || n == len(buf) {
		return "", false
	}
	return strings.TrimSpace(string(buf[:n])), true
}

// gid takes the port GID out of the hardware address.
func (h *Host) gid(ifname string) (mad.GID, bool) {
	text, _ := h.attr(ifname, "address")
	return parseHardware(text)
}

// parseHardware reads the text form of a 20-byte IPoIB hardware address: flags
// and QPN, then the port GID. A GID without a GUID is none yet.
func parseHardware(text string) (g mad.GID, ok bool) {
	if len(text) != 20*3-1 {
		return g, false
	}
	for i := 2; i < len(text); i += 3 {
		if text[i] != ':' {
			return g, false
		}
	}
	raw, err := hex.DecodeString(strings.ReplaceAll(text, ":", ""))
	if err != nil || len(raw) != 20 {
		return g, false
	}
	copy(g[:], raw[4:])
	return g, g.GUID() != 0
}

// pkey reads the partition. A bond has none of its own, it is that of the
// interface it uses now.
func (h *Host) pkey(ifname string) (mad.PKey, bool) {
	text, ok := h.attr(ifname, "pkey")
	if !ok {
		slave, found := h.attr(ifname, "bonding/active_slave")
		if !found || slave == "" || strings.ContainsAny(slave, "/\x00") {
			return 0, false
		}
		if text, ok = h.attr(slave, "pkey"); !ok {
			return 0, false
		}
	}
	n, err := strconv.ParseUint(strings.TrimPrefix(text, "0x"), 16, 16)
	if err != nil || !mad.PKey(n).IsValid() {
		return 0, false
	}
	return mad.PKey(n), true
}

// kernelAddrs lists the addresses of an interface, whatever their family: one
// family that is switched off does not hide the other (field case 45).
func kernelAddrs(ifname string) ([]netip.Addr, error) {
	ifi, err := net.InterfaceByName(ifname)
	if err != nil {
		return nil, err
	}
	addrs, err := ifi.Addrs()
	if err != nil {
		return nil, err
	}
	var out []netip.Addr
	for _, a := range addrs {
		n, ok := a.(*net.IPNet)
		if !ok {
			continue
		}
		if ip, ok := netip.AddrFromSlice(n.IP); ok {
			out = append(out, ip.Unmap())
		}
	}
	return out, nil
}
