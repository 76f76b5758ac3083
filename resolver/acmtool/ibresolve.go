// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acmtool

import (
	"fmt"
	"net/netip"

	"acmd/mad"
	"acmd/mad/sa"
	"acmd/resolver"
	"acmd/resolver/acmsock"
)

// classify finds out what a destination is when -f does not say: an IP address,
// a LID (a bare number), a host name with an address, else a name that only the
// service may know. It returns the form and the text to go on with.
func (a *acme) classify(text, src string) (form byte, out string) {
	if ip, err := netip.ParseAddr(text); err == nil {
		return 'i', ip.String()
	}
	if _, err := parseLID(text); err == nil || isDigits(text) {
		return 'l', text
	}
	if ip, ok := a.hostAddr(text, src); ok {
		return 'i', ip.String()
	}
	return 'n', text
}

// hostAddr looks a host name up; with a source that is an address only an
// address of its family will do.
func (a *acme) hostAddr(host, src string) (netip.Addr, bool) {
	ctx, cancel := a.request()
	defer cancel()
	ips, err := a.Lookup(ctx, host)
	if err != nil {
		return netip.Addr{}, false
	}
	from, err := netip.ParseAddr(src)
	for _, ip := range ips {
		ip = ip.Unmap()
		if err != nil || ip.Is4() == from.Is4() {
			return ip, true
		}
	}
	return netip.Addr{}, false
}

func isDigits(s string) bool {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return s != ""
}

// resolve asks for one path and prints it.
func (a *acme) resolve(c *acmsock.Client, src, dst string) {
	form := a.form
	if form == 'u' {
		form, dst = a.classify(dst, src)
	}
	a.printf("Destination: %s\n", dst)
	if src != "" {
		a.printf("Source: %s\n", src)
	}
	defer a.printf("\n")
	record, what, err := a.records(form, src, dst)
	if err != nil {
		a.printf("%v\n", err)
		a.fail(-1)
		return
	}
	var res acmsock.Resolved
	for range a.repeat {
		ctx, cancel := a.request()
		res, err = c.Resolve(ctx, record...)
		cancel()
		if err != nil {
			a.printf("ib_acm_resolve_%s failed: %s\n", what, strerror(err))
			a.fail(-1)
			return
		}
	}
	if a.repeat == 1 && !res.Source.IsZero() {
		a.printf("Source: %s\n", addrText(&res.Source))
	}
	path := &res.Paths[0].Record
	a.printPath(path)
	if a.verify {
		a.verifyPath(c, path)
	}
}

// records builds the request; what is the word for it in messages.
func (a *acme) records(form byte, src, dst string) (rs []acmsock.Record, what string, err error) {
	switch form {
	case 'i':
		rs, err = a.ipRecords(src, dst)
		return rs, "ip", err
	case 'n':
		if err := checkNames(src, dst); err != nil {
			return nil, "", err
		}
		return addrRecords(nameOrNone(src), resolver.NameAddr(dst), a.cached), "name", nil
	}
	var p sa.PathRecord
	p.SetReversibleNumPath(true, 1)
	if form == 'l' {
		err = lidEnds(&p, src, dst)
	} else {
		err = gidEnds(&p, src, dst)
	}
	var flags uint32
	if a.cached {
		flags = acmsock.FlagNoDelay
	}
	return []acmsock.Record{acmsock.PathQuery(p, flags)}, "path", err
}

func addrRecords(src, dst resolver.Addr, cached bool) []acmsock.Record {
	to := acmsock.DestRecord(dst, cached)
	if src.IsZero() {
		return []acmsock.Record{to}
	}
	return []acmsock.Record{acmsock.SourceRecord(src), to}
}

func nameOrNone(s string) (a resolver.Addr) {
	if s == "" {
		return a
	}
	return resolver.NameAddr(s)
}

func checkNames(names ...string) error {
	for _, n := range names {
		if len(n) > acmsock.InfoSize {
			return fmt.Errorf("name of %d bytes, at most %d fit", len(n), acmsock.InfoSize)
		}
	}
	return nil
}

func (a *acme) ipRecords(src, dst string) ([]acmsock.Record, error) {
	var from netip.Addr
	if src != "" {
		ip, err := netip.ParseAddr(src)
		if err != nil && a.form == 'u' {
			if host, ok := a.hostAddr(src, dst); ok {
				ip, err = host, nil
			}
		}
		if err != nil || ip.Zone() != "" {
			return nil, fmt.Errorf("inet_pton error on source address (%s): 0x0", src)
		}
		from = ip.Unmap()
	}
	to, err := netip.ParseAddr(dst)
	if err != nil || to.Zone() != "" {
		return nil, fmt.Errorf("inet_pton error on destination address (%s): 0x0", dst)
	}
	to = to.Unmap()
	if !from.IsValid() {
		return addrRecords(resolver.Addr{}, resolver.IPAddr(to), a.cached), nil
	}
	if from.Is4() != to.Is4() {
		return nil, fmt.Errorf("source and destination address families don't match")
	}
	return addrRecords(resolver.IPAddr(from), resolver.IPAddr(to), a.cached), nil
}

func lidEnds(p *sa.PathRecord, src, dst string) error {
	if src != "" {
		l, err := parseLID(src)
		if err != nil {
			return fmt.Errorf("source %w", err)
		}
		p.SetSLID(l)
	}
	l, err := parseLID(dst)
	if err != nil {
		return fmt.Errorf("destination %w", err)
	}
	p.SetDLID(l)
	return nil
}

func gidEnds(p *sa.PathRecord, src, dst string) error {
	if src != "" {
		g, err := mad.ParseGID(src)
		if err != nil {
			return fmt.Errorf("inet_pton error on source address (%s): 0x0", src)
		}
		p.SetSGID(g)
	}
	g, err := mad.ParseGID(dst)
	if err != nil {
		return fmt.Errorf("inet_pton error on dest address (%s): 0x0", dst)
	}
	p.SetDGID(g)
	return nil
}

// printPath prints the fields that ib_acme shows. LIDs are unsigned.
func (a *acme) printPath(p *sa.PathRecord) {
	_, mtu := p.MTU()
	_, rate := p.Rate()
	_, life := p.Lifetime()
	a.printf("Path information\n")
	a.printf("  dgid: %s\n  sgid: %s\n", gidText(p.DGID()), gidText(p.SGID()))
	a.printf("  dlid: %d\n  slid: %d\n", uint16(p.DLID()), uint16(p.SLID()))
	a.printf("  flow label: 0x%x\n  hop limit: %d\n  tclass: %d\n", p.FlowLabel(), p.HopLimit(), p.TClass())
	reversible := 0
	if p.Reversible() {
		reversible = 1
	}
	a.printf("  reversible: %d\n  pkey: 0x%x\n  sl: %d\n", reversible, uint16(p.PKey()), p.SL())
	a.printf("  mtu: %d\n  rate: %d\n  packet lifetime: %d\n", mtu, rate, life)
}

// verifyPath asks the SA for the path's values and compares its record field by
// field: the SA takes a zero for "anything".
func (a *acme) verifyPath(c *acmsock.Client, p *sa.PathRecord) {
	ctx, cancel := a.request()
	defer cancel()
	got, err := c.VerifySA(ctx, *p)
	if err != nil {
		a.printf("SA verification: failed %s\n", strerror(err))
		a.fail(-1)
		return
	}
	diffs := compare(p, &got)
	if len(diffs) == 0 {
		a.printf("SA verification: success\n")
		return
	}
	a.fail(-1)
	for _, d := range diffs {
		a.printf("SA verification: failed %v\n", d)
	}
}
