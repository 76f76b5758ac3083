// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acmtool

import (
	"errors"
	"net/netip"
	"strconv"
	"strings"
	"syscall"

	"acmd/resolver"
	"acmd/resolver/acmsock"
)

// counterNames are in the order of the protocol.
var counterNames = [resolver.NumCounters]string{
	"Error Count", "Resolve Count", "No Data", "Addr Query Count",
	"Addr Cache Count", "Route Query Count", "Route Cache Count",
}

// counterName names counters beyond the defined ones by their number.
func counterName(i int) string {
	if i < len(counterNames) {
		return counterNames[i]
	}
	return "Counter " + strconv.Itoa(i)
}

// perfQuery prints what -P asked for.
func (a *acme) perfQuery(c *acmsock.Client, svc string) {
	switch {
	case strings.HasPrefix(a.perf, "col"):
		v, err := a.counters(c, 0)
		if err != nil {
			a.perfFailed(svc, err)
			return
		}
		a.printf("%s\n", svc)
		for i, n := range v {
			a.printf("%s : %d\n", counterName(i), n)
		}
	case strings.HasPrefix(a.perf, "all"):
		a.perfAll(c, svc)
	case a.perf == "s":
		v, err := a.perfSource(c)
		if err != nil {
			a.perfFailed(svc, err)
			return
		}
		a.perfRow(svc, v)
	default:
		n := atoi(a.perf)
		v, err := a.counters(c, n)
		if err != nil {
			a.perfFailed(svc, err)
			return
		}
		a.perfRow(svc, v)
	}
}

func (a *acme) counters(c *acmsock.Client, n int) ([]uint64, error) {
	if n > 255 {
		return nil, syscall.EADDRNOTAVAIL // more than the protocol can name
	}
	ctx, cancel := a.request()
	defer cancel()
	return c.Perf(ctx, uint8(n))
}

func (a *acme) perfFailed(svc string, err error) {
	a.printf("%s: Failed to query perf data: %s\n", svc, strerror(err))
	a.fail(-1)
}

func (a *acme) perfRow(svc string, v []uint64) {
	if !a.perfHeader {
		a.perfHeader = true
		a.printf("svc")
		for i := range v {
			a.printf(",%s", counterName(i))
		}
		a.printf("\n")
	}
	a.printf("%s", svc)
	for _, n := range v {
		a.printf(",%d", n)
	}
	a.printf("\n")
}

// perfAll prints one row for each endpoint. A service may refuse an endpoint's
// counters though it has it (ibacm does, for any whose number is not that of its
// port), so the end of the list is where there is no endpoint.
func (a *acme) perfAll(c *acmsock.Client, svc string) {
	for n := 1; n <= 255; n++ {
		v, err := a.counters(c, n)
		if err == nil {
			a.perfRow(svc, v)
			continue
		}
		ctx, cancel := a.request()
		_, exists := c.Endpoint(ctx, uint8(n), 0)
		cancel()
		if exists != nil {
			if !isStatus(exists) {
				a.perfFailed(svc, exists)
			}
			return
		}
		a.perfFailed(svc, err)
	}
}

func isStatus(err error) bool {
	var se *acmsock.StatusError
	return errors.As(err, &se)
}

// perfSource reads the counters of the endpoint that has the address of -s.
func (a *acme) perfSource(c *acmsock.Client) ([]uint64, error) {
	src := a.srcs[0]
	form := a.form
	if form == 'u' {
		form, src = a.classify(src, "")
	}
	var addr resolver.Addr
	switch form {
	case 'i':
		ip, err := netip.ParseAddr(src)
		if err != nil || ip.Zone() != "" {
			a.printf("inet_pton error on source address (%s): 0x0\n", src)
			return nil, syscall.EINVAL
		}
		addr = resolver.IPAddr(ip)
	case 'n':
		if err := checkNames(src); err != nil {
			a.printf("%v\n", err)
			return nil, syscall.EINVAL
		}
		addr = resolver.NameAddr(src)
	default:
		a.printf("Unsupported src_type %d\n", form)
		return nil, syscall.EINVAL
	}
	ctx, cancel := a.request()
	defer cancel()
	v, err := c.PerfSource(ctx, addr)
	if err != nil {
		a.printf("ib_acm_query_perf failed: %s\n", strerror(err))
	}
	return v, err
}

// endpoints prints what -e asked for, one row for each endpoint. A missing one
// alone does not end the list, two in a row do.
func (a *acme) endpoints(c *acmsock.Client, svc string) {
	if a.endpoint > 0 {
		if !a.endpointRow(c, svc, a.endpoint) {
			a.printf(" Endpoint %d is not available\n", a.endpoint)
			a.fail(-1)
		}
		return
	}
	missing := 0
	for n := 1; n <= 255 && missing < 2; n++ {
		if a.endpointRow(c, svc, n) {
			missing = 0
		} else {
			missing++
		}
	}
}

func (a *acme) endpointRow(c *acmsock.Client, svc string, n int) bool {
	if n > 255 {
		return false
	}
	ctx, cancel := a.request()
	defer cancel()
	ep, err := c.Endpoint(ctx, uint8(n), 0)
	if err != nil {
		if !isStatus(err) {
			a.printf("%s: %s\n", svc, strerror(err))
			a.fail(-1)
		}
		return false
	}
	if !a.endpointsHead {
		a.endpointsHead = true
		a.printf("svc,guid,port,pkey,ep_index,prov,addr_0,addresses\n")
	}
	a.printf("%s,0x%016x,%d,0x%04x,%d,%s", svc, uint64(ep.NodeGUID), ep.Port, uint16(ep.PKey), n, ep.Provider)
	for _, s := range ep.Addrs {
		a.printf(",%s", s)
	}
	a.printf("\n")
	return true
}
