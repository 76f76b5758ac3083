// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package preload

import (
	"cmp"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"

	"acmd/mad"
	"acmd/resolver"
	"acmd/resolver/config"
)

// MaxHosts bounds the rows of a hosts file.
const MaxHosts = 1 << 20

// Host is a row of the hosts file.
type Host struct {
	Addr resolver.Addr // name, IPv4 or IPv6 address
	Text string        // as written
	GID  mad.GID
	Line int // 1-based
}

// Hosts is a hosts file. It is immutable.
type Hosts struct {
	rows  []Host
	index map[resolver.Addr]int32
}

// Len counts the rows that were taken.
func (h *Hosts) Len() int { return len(h.rows) }

// Rows returns the rows in file order; they must not be changed.
func (h *Hosts) Rows() []Host { return h.rows }

// Lookup returns the GID of a name or IP address.
func (h *Hosts) Lookup(a *resolver.Addr) (mad.GID, bool) {
	i, ok := h.index[*a]
	if !ok {
		return mad.GID{}, false
	}
	return h.rows[i].GID, true
}

// ReadHosts reads rows "address gid"; name stands for the file in messages. A #
// in the first column, or behind a row, begins a comment. Bad rows are problems
// and left out; of two rows for one address the first counts. Several addresses
// may have one GID.
func ReadHosts(r io.Reader, name string) (*Hosts, []config.Problem, error) {
	log := config.Problems{File: name}
	h := &Hosts{}
	full := false
	err := eachLine(r, &log, func(n int, b []byte) {
		a, rest := word(b)
		if len(a) == 0 || a[0] == '#' || full {
			return
		}
		row, err := parseHost(a, rest)
		switch {
		case err != nil:
			log.Warn(n, "%v, row ignored", err)
		case len(h.rows) == MaxHosts:
			log.Warn(n, "more than %d rows, the rest is ignored", MaxHosts)
			full = true
		default:
			row.Line = n
			h.rows = append(h.rows, row)
		}
	})
	if err != nil {
		return nil, nil, fmt.Errorf("hosts file %s: %w", name, err)
	}
	h.index = make(map[resolver.Addr]int32, len(h.rows))
	kept := h.rows[:0]
	for i := range h.rows {
		row := &h.rows[i]
		if first, ok := h.index[row.Addr]; ok {
			if old := &kept[first]; old.GID != row.GID {
				log.Warn(row.Line, "%s has GID %v in line %d already, row ignored", row.Text, old.GID, old.Line)
			}
			continue
		}
		h.index[row.Addr] = int32(len(kept))
		kept = append(kept, *row)
	}
	h.rows = kept
	list := log.Done()
	slices.SortStableFunc(list, func(a, b config.Problem) int { return cmp.Compare(uint(a.Line-1), uint(b.Line-1)) })
	return h, list, nil
}

func parseHost(a, rest []byte) (Host, error) {
	g, rest := word(rest)
	if len(g) == 0 || g[0] == '#' {
		return Host{}, fmt.Errorf("no GID for %.64q", a)
	}
	if extra, _ := word(rest); len(extra) > 0 && extra[0] != '#' {
		return Host{}, fmt.Errorf("%.64q: a third word", extra)
	}
	h := Host{Text: string(a)}
	var err error
	if h.Addr, err = ParseAddr(h.Text); err != nil {
		return h, err
	}
	h.GID, err = parseGID(g)
	return h, err
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
