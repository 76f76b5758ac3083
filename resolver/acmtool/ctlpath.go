// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acmtool

import (
	"fmt"
	"strings"
	"time"

	"acmd/mad"
	"acmd/mad/sa"
	"acmd/resolver/acmsock"
	"acmd/resolver/config"
)

// pathFields is every field of a path. Numbers are in host order, MTU, rate and
// lifetime are the codes of the path record with their meaning beside them.
type pathFields struct {
	Flags        []string `json:"flags"`
	ServiceID    string   `json:"service_id"`
	DGID         string   `json:"dgid"`
	SGID         string   `json:"sgid"`
	DLID         uint16   `json:"dlid"`
	SLID         uint16   `json:"slid"`
	RawTraffic   bool     `json:"raw_traffic"`
	FlowLabel    uint32   `json:"flow_label"`
	HopLimit     uint8    `json:"hop_limit"`
	TClass       uint8    `json:"tclass"`
	Reversible   bool     `json:"reversible"`
	NumPath      uint8    `json:"num_path"`
	PKey         string   `json:"pkey"`
	QoSClass     uint16   `json:"qos_class"`
	SL           uint8    `json:"sl"`
	MTU          coded    `json:"mtu"`
	Rate         coded    `json:"rate"`
	LifetimeCode coded    `json:"packet_lifetime"`
	Preference   uint8    `json:"preference"`
}

// coded is a selector, a code and what it stands for, "" if unknown.
type coded struct {
	Selector string `json:"selector"`
	Code     uint8  `json:"code"`
	Means    string `json:"means,omitempty"`
}

func (c coded) String() string {
	if c.Means == "" {
		return fmt.Sprintf("%d (%s)", c.Code, c.Selector)
	}
	return fmt.Sprintf("%d (%s %s)", c.Code, c.Selector, c.Means)
}

func selectorText(s sa.Selector) string {
	return [...]string{"greater than", "less than", "exactly", "best"}[s&3]
}

var pathFlags = []struct {
	bit  uint32
	name string
}{
	{acmsock.PathGMP, "gmp"}, {acmsock.PathPrimary, "primary"}, {acmsock.PathAlternate, "alternate"},
	{acmsock.PathOutbound, "outbound"}, {acmsock.PathInbound, "inbound"}, {acmsock.PathInboundReverse, "inbound-reverse"},
}

func fieldsOf(p *sa.PathRecord, flags uint32) pathFields {
	f := pathFields{
		Flags:      []string{},
		ServiceID:  fmt.Sprintf("0x%016x", p.ServiceID()),
		DGID:       p.DGID().String(),
		SGID:       p.SGID().String(),
		DLID:       uint16(p.DLID()),
		SLID:       uint16(p.SLID()),
		RawTraffic: p.RawTraffic(),
		FlowLabel:  p.FlowLabel(),
		HopLimit:   p.HopLimit(),
		TClass:     p.TClass(),
		Reversible: p.Reversible(),
		NumPath:    p.NumPath(),
		PKey:       p.PKey().String(),
		QoSClass:   p.QoSClass(),
		SL:         p.SL(),
		Preference: p.Preference(),
	}
	for _, b := range pathFlags {
		if flags&b.bit != 0 {
			f.Flags = append(f.Flags, b.name)
			flags &^= b.bit
		}
	}
	if flags != 0 {
		f.Flags = append(f.Flags, fmt.Sprintf("0x%x", flags))
	}
	s, mtu := p.MTU()
	f.MTU = coded{selectorText(s), uint8(mtu), mtuText(mtu)}
	s, rate := p.Rate()
	f.Rate = coded{selectorText(s), uint8(rate), rateText(rate)}
	s, life := p.Lifetime()
	f.LifetimeCode = coded{selectorText(s), life, lifeText(life)}
	return f
}

func mtuText(m mad.MTU) string {
	if m < 1 || m > 5 {
		return ""
	}
	return fmt.Sprintf("%d bytes", 128<<m)
}

func rateText(r mad.Rate) string {
	switch w := config.RateGbps(r); w {
	case "":
		return ""
	case "2":
		return "2.5 Gb/s"
	default:
		return w + " Gb/s"
	}
}

// lifeText is 4.096 us x 2^n (IBTA vol. 1, PathRecord).
func lifeText(n uint8) string {
	d := 4096 * time.Nanosecond << min(n, 31)
	if n > 31 {
		return ""
	}
	switch {
	case d >= time.Second:
		d = d.Round(time.Millisecond)
	case d >= time.Millisecond:
		d = d.Round(time.Microsecond)
	}
	return d.String()
}

// printResult prints one destination for people.
func (c *ctl) printResult(service string, r *pathResult) {
	c.printf("%s\n", r.Destination)
	line := func(name, format string, a ...any) { c.printf("  %-16s %s\n", name, fmt.Sprintf(format, a...)) }
	line("service", "%s", service)
	switch r.SourceBy {
	case "request":
		line("source", "%s (as asked)", r.Source)
	case "service":
		line("source", "%s (chosen by the service)", r.Source)
	}
	if r.Error != "" {
		line("failed", "%s", r.Error)
		if r.Reason != "" {
			line("reason", "%s", r.Reason)
		}
		return
	}
	for i := range r.Paths {
		p := &r.Paths[i]
		if len(r.Paths) > 1 {
			line("path", "%d of %d", i+1, len(r.Paths))
		}
		line("dgid", "%s", p.DGID)
		line("sgid", "%s", p.SGID)
		line("dlid", "%d", p.DLID)
		line("slid", "%d", p.SLID)
		line("pkey", "%s", p.PKey)
		line("sl", "%d", p.SL)
		line("mtu", "%v", p.MTU)
		line("rate", "%v", p.Rate)
		line("packet lifetime", "%v", p.LifetimeCode)
		line("reversible", "%v", p.Reversible)
		line("num path", "%d", p.NumPath)
		line("hop limit", "%d", p.HopLimit)
		line("flow label", "0x%05x", p.FlowLabel)
		line("tclass", "%d", p.TClass)
		line("qos class", "%d", p.QoSClass)
		line("service id", "%s", p.ServiceID)
		line("raw traffic", "%v", p.RawTraffic)
		line("preference", "%d", p.Preference)
		line("flags", "%s", strings.Join(p.Flags, " "))
	}
	switch {
	case r.Verified == nil:
	case *r.Verified:
		line("SA", "has the same path")
	case r.VerifyError != "":
		line("SA", "failed: %s", r.VerifyError)
	default:
		for _, d := range r.Differences {
			line("SA", "%v", d)
		}
	}
}
