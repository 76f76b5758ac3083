// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acmtool

import (
	"fmt"
	"strconv"
	"time"

	"acmd/bpf"
	"acmd/resolver"
	"acmd/resolver/acmsock"
)

// head says whose counters these are.
func (v *topView) head() string {
	state := "no daemon since a clean end"
	switch {
	case v.Alive:
		state = fmt.Sprintf("acmd %d, up %v", v.PID, v.Time.Sub(v.Start).Round(time.Second))
	case v.PID != 0:
		state = fmt.Sprintf("acmd %d is gone without a clean end", v.PID)
	}
	fast := "off"
	if v.FastPath && v.Alive {
		fast = "on"
	}
	return fmt.Sprintf("%s   run directory %s   daemons so far %d   fast path %s   counters %s\n", state, v.RunDir, v.Daemons, fast, v.From)
}

// tables are the parts of the screen.
func (v *topView) tables() [][][]string {
	answered := [][]string{{"ANSWERED BY", "COUNT", "PER SECOND", "SHARE"}}
	for _, a := range v.Answered {
		answered = append(answered, append(a.cells(), fmt.Sprintf("%.1f%%", 100*a.Share)))
	}
	sa := [][]string{{"SA", "COUNT", "PER SECOND"}}
	for _, r := range v.SA {
		sa = append(sa, r.cells())
	}
	eps := [][]string{{"ENDPOINT", "PKEY", "STATE", "PER SECOND", "RESOLVES", "KERNEL", "ERRORS", "NO DATA", "SA QUERIES"}}
	for _, e := range v.Endpoints {
		name, state := fmt.Sprintf("%s/%d", e.Device, e.Port), "-"
		if e.Device == "" {
			name, e.PKey = "none", "-"
		} else if e.Active && v.Alive {
			state = "active"
		}
		eps = append(eps, []string{name, e.PKey, state, perSecond(e.PerSecond), number(e.values[bpf.CountResolve]), number(e.Kernel),
			number(e.values[bpf.CountError]), number(e.values[bpf.CountNoData]), number(e.values[bpf.CountRouteQuery])})
	}
	lat := [][]string{{"LATENCY", "COUNT", "PER SECOND", "P50", "P99", "P99.9", "MEAN", "OF"}}
	for _, l := range v.Latency {
		if l.Name == bpf.LatKernel.String() {
			l.Name += ", 1 in 64"
		}
		row := append(l.cells(), "-", "-", "-", "-", "-")
		if l.Count > 0 {
			of := "all"
			if l.Recent {
				of = "last second"
			}
			row = append(l.cells(), short(l.P50), short(l.P99), short(l.P999), short(l.Mean), of)
		}
		lat = append(lat, row)
	}
	out := [][][]string{answered, eps, lat, sa}
	if len(v.Slow) == 0 {
		return out
	}
	slow := [][]string{{"SLOWEST", "ENDED", "STATUS", "ENDPOINT", "DESTINATION"}}
	for _, s := range v.Slow {
		slow = append(slow, []string{short(s.Took), s.When.Format(time.DateTime), acmsock.Text(resolver.Status(s.Status)), s.Endpoint, s.Destination})
	}
	return append(out, slow)
}

func (r *topRate) cells() []string { return []string{r.Name, number(r.Count), perSecond(r.PerSecond)} }

func number(n uint64) string { return strconv.FormatUint(n, 10) }

func perSecond(r float64) string { return strconv.FormatFloat(r, 'f', 0, 64) }

// short prints a time to three digits.
func short(ns int64) string {
	d := time.Duration(ns)
	for unit := time.Duration(1); unit <= time.Second; unit *= 10 {
		if d < 1000*unit {
			return d.Round(unit).String()
		}
	}
	return d.Round(time.Second).String()
}
