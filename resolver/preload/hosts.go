// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package preload

import (
	"bytes"
	"fmt"
	"hash/maphash"
	"io"
	"net/netip"
	"slices"
	"strings"

	"acmd/cache"
	"acmd/mad"
	"acmd/resolver"
	"acmd/resolver/config"
)

// MaxHosts bounds the rows of a hosts file.
const MaxHosts = 1 << 20

// Hosts is a hosts file. It is immutable. A row takes some 50 bytes: sites load
// tens of thousands.
type Hosts struct {
	rows  []hostRow
	addrs []byte   // kind, length and bytes of each address, in order of rows
	index []uint32 // open addressing: row number + 1, 0 for an empty place
	seed  maphash.Seed
}

type hostRow struct {
	gid  mad.GID
	at   uint32 // of its address in addrs
	line uint32 // 1-based
}

// Len counts the rows that were taken.
func (h *Hosts) Len() int { return len(h.rows) }

// Lookup returns the GID of a name or IP address. A nil Hosts has none.
func (h *Hosts) Lookup(a *resolver.Addr) (mad.GID, bool) {
	if h == nil || len(h.rows) == 0 {
		return mad.GID{}, false
	}
	var buf [2 + cache.MaxKeyData]byte
	if n := h.index[h.place(packAddr(buf[:0], a))]; n != 0 {
		return h.rows[n-1].gid, true
	}
	return mad.GID{}, false
}

// packAddr appends an address as addrs has it.
func packAddr(b []byte, a *resolver.Addr) []byte {
	return append(append(b, byte(a.Kind), a.Len), a.Bytes()...)
}

func (h *Hosts) addr(row int) []byte {
	b := h.addrs[h.rows[row].at:]
	return b[:2+int(b[1])]
}

// place finds where in the index an address is, or would be.
func (h *Hosts) place(addr []byte) int {
	mask := len(h.index) - 1
	for i := int(maphash.Bytes(h.seed, addr)) & mask; ; i = (i + 1) & mask {
		if n := h.index[i]; n == 0 || bytes.Equal(h.addr(int(n-1)), addr) {
			return i
		}
	}
}

// add takes a row, or returns the number of the one that has its address.
func (h *Hosts) add(a *resolver.Addr, gid mad.GID, line int) (old int, ok bool) {
	if 3*len(h.index) <= 4*len(h.rows) {
		h.index = make([]uint32, max(8, 2*len(h.index)))
		for i := range h.rows {
			h.index[h.place(h.addr(i))] = uint32(i + 1)
		}
	}
	at := len(h.addrs)
	h.addrs = packAddr(h.addrs, a)
	i := h.place(h.addrs[at:])
	if n := h.index[i]; n != 0 {
		h.addrs = h.addrs[:at]
		return int(n - 1), false
	}
	h.rows = append(h.rows, hostRow{gid, uint32(at), uint32(line)})
	h.index[i] = uint32(len(h.rows))
	return 0, true
}

// ReadHosts reads rows "address gid"; name stands for the file in messages. A #
// in the first column, or behind a row, begins a comment. Bad rows are problems
// and left out; of two rows for one address the first counts. Several addresses
// may have one GID.
func ReadHosts(r io.Reader, name string) (*Hosts, []config.Problem, error) {
	log := config.Problems{File: name}
	h := &Hosts{seed: maphash.MakeSeed()}
	full := false
	err := eachLine(r, &log, func(n int, b []byte) {
		word, rest := word(b)
		if len(word) == 0 || word[0] == '#' || full {
			return
		}
		a, gid, err := parseHost(word, rest)
		if err != nil {
			log.Warn(n, "%v, row ignored", err)
			return
		}
		if len(h.rows) == MaxHosts {
			log.Warn(n, "more than %d rows, the rest is ignored", MaxHosts)
			full = true
			return
		}
		if i, ok := h.add(&a, gid, n); !ok && h.rows[i].gid != gid {
			log.Warn(n, "%s has GID %v in line %d already, row ignored", word, h.rows[i].gid, h.rows[i].line)
		}
	})
	if err != nil {
		return nil, nil, fmt.Errorf("hosts file %s: %w", name, err)
	}
	h.rows, h.addrs = slices.Clone(h.rows), slices.Clone(h.addrs) // without what growing left
	return h, log.Done(), nil
}

func parseHost(addr, rest []byte) (a resolver.Addr, gid mad.GID, err error) {
	g, rest := word(rest)
	if len(g) == 0 || g[0] == '#' {
		return a, gid, fmt.Errorf("no GID for %.64q", addr)
	}
	if extra, _ := word(rest); len(extra) > 0 && extra[0] != '#' {
		return a, gid, fmt.Errorf("%.64q: a third word", extra)
	}
	if a, err = ParseAddr(string(addr)); err != nil {
		return a, gid, err
	}
	gid, err = parseGID(g)
	return a, gid, err
}

func parseGID(b []byte) (mad.GID, error) {
	if len(b) > 45 {
		return mad.GID{}, fmt.Errorf("GID of %d characters", len(b))
	}
	g, err := mad.ParseGID(string(b))
	switch {
	case err != nil:
		return g, err
	case g.IsMulticast(), g.GUID() == 0:
		return g, fmt.Errorf("%q is not the GID of a port", b)
	}
	return g, nil
}

// ParseAddr reads a name or an IP address as the hosts file has it. Text that
// can only be meant as an IP address and is not one is an error, not a name.
func ParseAddr(s string) (resolver.Addr, error) {
	if maybeIP(s) {
		if ip, err := netip.ParseAddr(s); err == nil && ip.Zone() == "" {
			return resolver.IPAddr(ip), nil
		}
	}
	if err := config.CheckName(s); err != nil {
		return resolver.Addr{}, err
	}
	return resolver.NameAddr(s), nil
}

// maybeIP spares names the attempt to read them as an address.
func maybeIP(s string) bool {
	return len(s) > 0 && (s[0] >= '0' && s[0] <= '9' || strings.IndexByte(s, ':') >= 0)
}
