// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acmtool

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"acmd/resolver"
	"acmd/resolver/acmsock"
)

// perfResult is one row of counters.
type perfResult struct {
	Endpoint int               `json:"endpoint,omitempty"` // 0: totals
	Source   string            `json:"source,omitempty"`
	Counters map[string]uint64 `json:"counters"`
	values   []uint64
}

func newPerf(n int, src string, v []uint64) perfResult {
	p := perfResult{Endpoint: n, Source: src, Counters: map[string]uint64{}, values: v}
	for i, x := range v {
		p.Counters[strings.ReplaceAll(strings.ToLower(counterName(i)), " ", "_")] = x
	}
	return p
}

func (p *perfResult) label() string {
	switch {
	case p.Source != "":
		return p.Source
	case p.Endpoint > 0:
		return "endpoint " + strconv.Itoa(p.Endpoint)
	}
	return "total"
}

func (c *ctl) perf(args []string) error {
	n := c.flags.Uint("endpoint", 0, "")
	src := c.flags.String("src", "", "")
	all := c.flags.Bool("all", false, "")
	if err := c.noWords(args); err != nil {
		return err
	}
	if *n > 255 || *n > 0 && (*all || *src != "") || *all && *src != "" {
		return usagef("perf takes one of --endpoint (1 to 255), --src, --all")
	}
	from := target{}
	if *src != "" {
		var err error
		if from, err = parseTarget(*src, ""); err != nil || !from.byAddress() {
			return usagef("--src must be an IP address or a name")
		}
	}
	cl, svc, err := c.dial()
	if err != nil {
		return err
	}
	defer cl.Close()
	var rows []perfResult
	switch {
	case *all:
		rows, err = c.perfAll(cl)
	default:
		ctx, cancel := c.request()
		defer cancel()
		var v []uint64
		if *src != "" {
			v, err = cl.PerfSource(ctx, from.addr)
		} else {
			v, err = cl.Perf(ctx, uint8(*n))
		}
		rows = []perfResult{newPerf(int(*n), *src, v)}
	}
	var se *acmsock.StatusError
	if errors.As(err, &se) && se.Status == resolver.StatusSrcAddr && *n > 0 {
		return fmt.Errorf("%s: no endpoint %d: %w; endpoints lists them", svc, *n, err)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", svc, err)
	}
	if c.json {
		return c.writeJSON(rows)
	}
	c.table(perfTable(rows))
	return nil
}

// perfTable has a line for each counter and a column for each row.
func perfTable(rows []perfResult) [][]string {
	head := []string{"COUNTER"}
	lines := 0
	for _, r := range rows {
		head = append(head, r.label())
		lines = max(lines, len(r.values))
	}
	t := [][]string{head}
	for i := range lines {
		line := []string{counterName(i)}
		for _, r := range rows {
			if i < len(r.values) {
				line = append(line, strconv.FormatUint(r.values[i], 10))
			} else {
				line = append(line, "-")
			}
		}
		t = append(t, line)
	}
	return t
}

func (c *ctl) perfAll(cl *acmsock.Client) ([]perfResult, error) {
	eps, err := c.listEndpoints(cl)
	if err != nil {
		return nil, err
	}
	rows := []perfResult{}
	for _, e := range eps {
		ctx, cancel := c.request()
		v, err := cl.Perf(ctx, uint8(e.Index))
		cancel()
		if err != nil {
			return nil, fmt.Errorf("endpoint %d: %w", e.Index, err)
		}
		rows = append(rows, newPerf(e.Index, "", v))
	}
	return rows, nil
}

// endpointResult is one endpoint.
type endpointResult struct {
	Index     int      `json:"index"`
	NodeGUID  string   `json:"node_guid"`
	Port      int      `json:"port"`
	PhysPorts int      `json:"phys_ports"`
	PKey      string   `json:"pkey"`
	Provider  string   `json:"provider"`
	Addresses []string `json:"addresses"`
}

// listEndpoints asks by index over all ports until there is none.
func (c *ctl) listEndpoints(cl *acmsock.Client) ([]endpointResult, error) {
	out := []endpointResult{}
	for i := 1; i <= 255; i++ {
		ctx, cancel := c.request()
		e, err := cl.Endpoint(ctx, uint8(i), 0)
		cancel()
		var se *acmsock.StatusError
		if errors.As(err, &se) && se.Status == resolver.StatusInvalid {
			break
		}
		if err != nil {
			return nil, err
		}
		out = append(out, endpointResult{
			Index: i, NodeGUID: e.NodeGUID.String(), Port: int(e.Port), PhysPorts: int(e.PhysPorts),
			PKey: e.PKey.String(), Provider: e.Provider, Addresses: append([]string{}, e.Addrs...),
		})
	}
	return out, nil
}

func (c *ctl) endpoints(args []string) error {
	if err := c.noWords(args); err != nil {
		return err
	}
	cl, svc, err := c.dial()
	if err != nil {
		return err
	}
	defer cl.Close()
	eps, err := c.listEndpoints(cl)
	if err != nil {
		return fmt.Errorf("%s: %w", svc, err)
	}
	if c.json {
		return c.writeJSON(eps)
	}
	rows := [][]string{{"EP", "NODE GUID", "PORT", "PKEY", "PROVIDER", "ADDRESSES"}}
	for _, e := range eps {
		rows = append(rows, []string{
			strconv.Itoa(e.Index), e.NodeGUID, strconv.Itoa(e.Port), e.PKey, e.Provider, strings.Join(e.Addresses, " "),
		})
	}
	c.table(rows)
	return nil
}
