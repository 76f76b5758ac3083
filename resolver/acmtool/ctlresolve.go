// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acmtool

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"acmd/cache"
	"acmd/mad"
	"acmd/mad/sa"
	"acmd/resolver"
	"acmd/resolver/acmsock"
	"acmd/resolver/config"
)

// target is an end of a path.
type target struct {
	text string
	kind string // "ipv4", "ipv6", "name", "gid", "lid"
	addr resolver.Addr
}

func (t *target) byAddress() bool { return t.kind == "ipv4" || t.kind == "ipv6" || t.kind == "name" }

// parseTarget reads an end of a path. A prefix of the text says what it is, else
// kind, which is "gid", "lid", "name" or "". Without either, IPv6 text is an
// IPv6 address, also fe80::, and a bare number is refused, since LIDs and
// numeric names look alike.
func parseTarget(s, kind string) (target, error) {
	t := target{text: s, kind: kind}
	for _, k := range []string{"gid", "lid", "name"} {
		if rest, ok := strings.CutPrefix(s, k+":"); ok {
			t.kind, s = k, rest
			break
		}
	}
	switch t.kind {
	case "gid":
		g, err := mad.ParseGID(s)
		t.addr = resolver.GIDAddr(g)
		return t, err
	case "lid":
		l, err := parseLID(s)
		t.addr = resolver.LIDAddr(l)
		return t, err
	case "":
		if ip, err := netip.ParseAddr(s); err == nil && ip.Zone() == "" {
			t.addr = resolver.IPAddr(ip)
			t.kind = map[cache.Kind]string{cache.KindIPv4: "ipv4", cache.KindIPv6: "ipv6"}[t.addr.Kind]
			return t, nil
		}
		if _, err := parseLID(s); err == nil || isDigits(s) {
			return t, fmt.Errorf("%q is ambiguous: say lid:%s or name:%s", s, s, s)
		}
	}
	t.kind = "name"
	t.addr = resolver.NameAddr(s)
	return t, config.CheckName(s)
}

// pathResult is the outcome for one destination.
type pathResult struct {
	Destination string       `json:"destination"`
	Kind        string       `json:"kind"`
	Source      string       `json:"source,omitempty"`
	SourceBy    string       `json:"source_by,omitempty"` // "request" or "service"
	Error       string       `json:"error,omitempty"`
	Status      int          `json:"status,omitempty"` // of the ACM protocol, with Error
	Reason      string       `json:"reason,omitempty"` // acmd's, with Status
	Paths       []pathFields `json:"paths,omitempty"`
	Verified    *bool        `json:"verified,omitempty"`
	VerifyError string       `json:"verify_error,omitempty"`
	Differences []difference `json:"differences,omitempty"`
}

// failed reports whether the destination counts as failed.
func (r *pathResult) failed() bool { return r.Error != "" || r.Verified != nil && !*r.Verified }

type resolveFlags struct {
	src             string
	gid, lid, name  bool
	nodelay, verify bool
	kind            string
	from            target
	destinations    []target
}

func (c *ctl) resolveArgs(args []string) (*resolveFlags, error) {
	var r resolveFlags
	c.flags.StringVar(&r.src, "src", "", "")
	c.flags.BoolVar(&r.gid, "gid", false, "")
	c.flags.BoolVar(&r.lid, "lid", false, "")
	c.flags.BoolVar(&r.name, "name", false, "")
	c.flags.BoolVar(&r.nodelay, "nodelay", false, "")
	c.flags.BoolVar(&r.verify, "verify", false, "")
	words, err := c.parse(args)
	if err != nil {
		return nil, err
	}
	if len(words) == 0 {
		return nil, usagef("resolve needs a destination")
	}
	n := 0
	for k, set := range map[string]bool{"gid": r.gid, "lid": r.lid, "name": r.name} {
		if set {
			n++
			r.kind = k
		}
	}
	if n > 1 {
		return nil, usagef("--gid, --lid and --name exclude each other")
	}
	for _, w := range words {
		t, err := parseTarget(w, r.kind)
		if err != nil {
			return nil, usagef("%w", err)
		}
		r.destinations = append(r.destinations, t)
	}
	if r.src != "" {
		if r.from, err = parseTarget(r.src, r.kind); err != nil {
			return nil, usagef("--src: %w", err)
		}
	}
	return &r, nil
}

func (c *ctl) resolve(args []string) error {
	r, err := c.resolveArgs(args)
	if err != nil {
		return err
	}
	cl, svc, err := c.dial()
	if err != nil {
		return err
	}
	defer func() { cl.Close() }()
	failed := false
	results := make([]pathResult, 0, len(r.destinations))
	for i, dst := range r.destinations {
		if err = c.ctx.Err(); err != nil {
			break
		}
		res, broken := c.resolveOne(cl, r, dst)
		failed = failed || res.failed()
		results = append(results, res)
		if !c.json {
			if i > 0 {
				c.printf("\n")
			}
			c.printResult(svc, &res)
		}
		if broken && i+1 < len(r.destinations) {
			// The connection is of no further use; the other destinations have
			// a right to their own.
			var next *acmsock.Client
			if next, svc, err = c.dial(); err != nil {
				break
			}
			cl.Close()
			cl = next
		}
	}
	if c.json { // also what was there before a destination that there was no service for
		err = errors.Join(err, c.writeJSON(results))
	}
	if err != nil {
		return err
	}
	if failed {
		return errFailed
	}
	return nil
}

// resolveOne asks for one destination. broken tells that the connection did not
// survive it.
func (c *ctl) resolveOne(cl *acmsock.Client, r *resolveFlags, dst target) (res pathResult, broken bool) {
	res = pathResult{Destination: dst.text, Kind: dst.kind}
	if r.src != "" {
		res.Source, res.SourceBy = r.src, "request"
	}
	ctx, cancel := c.request()
	defer cancel()
	records, err := query(&r.from, &dst, r.nodelay)
	var got acmsock.Resolved
	if err == nil {
		got, err = cl.Resolve(ctx, records...)
		broken = err != nil && !isStatus(err)
	}
	if err != nil {
		res.Error = c.said(err)
		var se *acmsock.StatusError
		if errors.As(err, &se) {
			res.Status = int(se.Status)
			res.Reason = c.reason(&dst)
		}
		return res, broken
	}
	if !got.Source.IsZero() {
		res.Source, res.SourceBy = addrText(&got.Source), "service"
	}
	for _, p := range got.Paths {
		res.Paths = append(res.Paths, fieldsOf(&p.Record, p.Flags))
	}
	if r.verify {
		broken = verify(c, cl, &got.Paths[0].Record, &res)
	}
	return res, broken
}

// reason is what acmd says about the last lookup of a destination that failed: the
// step, and why. It is "" where nobody says: another service has no control socket,
// and a lookup that goes on behind a time-out has no end yet.
func (c *ctl) reason(dst *target) string {
	var state struct {
		Failures []struct{ Dst, Reason string }
	}
	if c.service != "" || c.do("GET", "state", nil, &state) != nil {
		return ""
	}
	asked := addrText(&dst.addr)
	if !dst.byAddress() {
		asked = dst.kind + ":" + asked
	}
	for _, f := range state.Failures { // the last one first
		if f.Dst == asked {
			return f.Reason
		}
	}
	return ""
}

// query builds the records that ask for a path.
func query(src, dst *target, nodelay bool) ([]acmsock.Record, error) {
	if dst.byAddress() {
		if dst.kind == "name" && src.kind == "" {
			return nil, errors.New("a name is only looked up from a name: --src NAME, one that endpoints lists")
		}
		if src.kind != "" && src.kind != dst.kind {
			return nil, fmt.Errorf("source %s is %s, destination %s is %s", src.text, src.kind, dst.text, dst.kind)
		}
		return addrRecords(src.addr, dst.addr, nodelay), nil
	}
	var p sa.PathRecord
	p.SetReversibleNumPath(true, 1)
	if dst.kind == "lid" {
		p.SetDLID(dst.addr.LID())
	} else {
		p.SetDGID(mad.GID(dst.addr.Data[:16]))
	}
	switch src.kind {
	case "":
	case "lid":
		p.SetSLID(src.addr.LID())
	case "gid":
		p.SetSGID(mad.GID(src.addr.Data[:16]))
	default:
		return nil, fmt.Errorf("source %s is %s, a path to a %s needs a gid: or lid: source", src.text, src.kind, dst.kind)
	}
	var flags uint32
	if nodelay {
		flags = acmsock.FlagNoDelay
	}
	return []acmsock.Record{acmsock.PathQuery(p, flags)}, nil
}

// verify compares the path with the SA's.
func verify(c *ctl, cl *acmsock.Client, p *sa.PathRecord, res *pathResult) (broken bool) {
	ctx, cancel := c.request()
	defer cancel()
	got, err := cl.VerifySA(ctx, *p)
	ok := false
	if err != nil {
		res.VerifyError = c.said(err)
	} else {
		res.Differences = compare(p, &got)
		ok = len(res.Differences) == 0
	}
	res.Verified = &ok
	return err != nil && !isStatus(err)
}
