// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acmtool

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"syscall"

	"acmd/cache"
	"acmd/mad"
	"acmd/mad/sa"
	"acmd/resolver"
	"acmd/resolver/acmsock"
)

// statusErrno is what libacm makes of a status (client protocol, 2.2).
func statusErrno(s resolver.Status) syscall.Errno {
	switch s {
	case resolver.StatusNoMemory:
		return syscall.ENOMEM
	case resolver.StatusNoData:
		return syscall.ENODATA
	case resolver.StatusNotConn:
		return syscall.ENOTCONN
	case resolver.StatusTimedOut:
		return syscall.ETIMEDOUT
	case resolver.StatusSrcAddr, resolver.StatusDestAddr:
		return syscall.EADDRNOTAVAIL
	}
	return syscall.EINVAL
}

// errnoOf finds the errno that best says what an error is, 0 if none does.
func errnoOf(err error) syscall.Errno {
	var se *acmsock.StatusError
	var errno syscall.Errno
	switch {
	case errors.As(err, &se):
		return statusErrno(se.Status)
	case errors.As(err, &errno):
		return errno
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return syscall.ETIMEDOUT
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, net.ErrClosed):
		return syscall.ECONNRESET
	case errors.Is(err, acmsock.ErrProtocol):
		return syscall.EPROTO
	}
	return 0
}

// strerror is the C library's text of an error; Go has the same ones in lower
// case.
func strerror(err error) string {
	var dns *net.DNSError
	if errors.As(err, &dns) {
		return "Name or service not known"
	}
	text := err.Error()
	if n := errnoOf(err); n != 0 {
		text = n.Error()
	}
	if text == "" {
		return text
	}
	return strings.ToUpper(text[:1]) + text[1:]
}

// gidText is inet_ntop's form of a GID. It differs from netip's where the first
// twelve bytes are zero: the rest is then taken for an IPv4 address.
func gidText(g mad.GID) string {
	if [12]byte(g[:12]) == [12]byte{} && (g[12] != 0 || g[13] != 0) {
		return "::" + netip.AddrFrom4([4]byte(g[12:])).String()
	}
	return g.String()
}

// addrText prints the address of a reply.
func addrText(a *resolver.Addr) string {
	switch a.Kind {
	case cache.KindName:
		return string(a.Bytes())
	case cache.KindGID:
		return mad.GID(a.Data[:16]).String()
	case cache.KindLID:
		return a.LID().String()
	}
	return a.IP().String()
}

// parseLID reads a unicast LID, decimal or hex behind 0x.
func parseLID(s string) (mad.LID, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	if hex, ok := strings.CutPrefix(strings.ToLower(s), "0x"); ok {
		n, err = strconv.ParseUint(hex, 16, 16)
	}
	if err != nil || !mad.LID(n).IsUnicast() {
		return 0, fmt.Errorf("%q is not a unicast LID", s)
	}
	return mad.LID(n), nil
}

// difference is a field in which two paths differ.
type difference struct {
	Field string `json:"field"`
	Path  string `json:"path"`
	SA    string `json:"sa"`
}

func (d difference) String() string {
	return fmt.Sprintf("%s is %s, %s at the SA", d.Field, d.Path, d.SA)
}

// compare lists the fields in which a path differs from what the SA has for its
// ends. A zero is a value like any other. Left out are the number of paths and
// the preference, which describe an answer rather than a path, the membership
// bit of the P_Key, and a lifetime of 0: paths to oneself and paths made from
// the parameters of a multicast group have none.
func compare(p, s *sa.PathRecord) (out []difference) {
	field := func(name, a, b string) {
		if a != b {
			out = append(out, difference{name, a, b})
		}
	}
	num := func(name string, a, b uint64) { field(name, strconv.FormatUint(a, 10), strconv.FormatUint(b, 10)) }
	field("dgid", p.DGID().String(), s.DGID().String())
	field("sgid", p.SGID().String(), s.SGID().String())
	num("dlid", uint64(p.DLID()), uint64(s.DLID()))
	num("slid", uint64(p.SLID()), uint64(s.SLID()))
	num("flow label", uint64(p.FlowLabel()), uint64(s.FlowLabel()))
	num("hop limit", uint64(p.HopLimit()), uint64(s.HopLimit()))
	num("tclass", uint64(p.TClass()), uint64(s.TClass()))
	field("reversible", strconv.FormatBool(p.Reversible()), strconv.FormatBool(s.Reversible()))
	if !p.PKey().Matches(s.PKey()) {
		field("pkey", p.PKey().String(), s.PKey().String())
	}
	num("qos class", uint64(p.QoSClass()), uint64(s.QoSClass()))
	num("sl", uint64(p.SL()), uint64(s.SL()))
	_, pm := p.MTU()
	_, sm := s.MTU()
	num("mtu", uint64(pm), uint64(sm))
	_, pr := p.Rate()
	_, sr := s.Rate()
	num("rate", uint64(pr), uint64(sr))
	if _, pl := p.Lifetime(); pl != 0 {
		_, sl := s.Lifetime()
		num("packet lifetime", uint64(pl), uint64(sl))
	}
	return out
}
