// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package bpf

import "sync/atomic"

// identity is what an endpoint is known by over restarts. The membership bit of
// the P_Key is not part of it.
type identity struct {
	device string
	port   uint8
	part   uint16
}

const membership = 0x8000

func identityOf(e *endpoint) identity {
	return identity{cString(e.Device[:]), uint8(e.Port), uint16(e.Pkey) &^ membership}
}

// Endpoint is the row of an endpoint, shared by all who count there. Row 0
// belongs to what has no endpoint.
type Endpoint struct {
	Row   int // in acm_ep, and of its hits in acm_kstat
	count *[epShards][8]uint64
	mem   *arrays
}

// Add adds to one of the seven counters. hint is any number that tends to differ
// between threads, so that they write different cache lines.
func (e *Endpoint) Add(hint uintptr, counter int, n uint64) {
	atomic.AddUint64(&e.count[hint%epShards][counter&7], n)
}

// Endpoint finds the row of an endpoint, made at first sight and kept for ever,
// so that totals never go back. pkey is as in the port's table. With all rows
// taken the endpoint shares row 0, which is logged once and counted in every
// such call (EndpointsFull).
func (m *Maps) Endpoint(device string, port uint8, pkey uint16, guid uint64) *Endpoint {
	id := identity{device, port, pkey &^ membership}
	if len(id.device) > len(endpoint{}.Device)-1 {
		id.device = id.device[:len(endpoint{}.Device)-1] // longer than any device name of the kernel
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.rows[id]
	if e == nil {
		n := m.head.Endpoints
		if n >= maxEndpoints {
			m.own.Add(EndpointsFull, 1)
			if !m.full {
				m.full = true
				m.log.Warn("no counters of their own are left for endpoints", "bound", maxEndpoints-1, "device", device, "port", port)
			}
			return m.None()
		}
		putString(m.eps[n].Device[:], id.device)
		m.eps[n].Port = uint64(port)
		e = m.endpoint(int(n))
		m.rows[id] = e
		defer atomic.StoreUint32(&m.head.Endpoints, n+1) // readers look no further
	}
	r := &m.eps[e.Row]
	atomic.StoreUint64(&r.Guid, guid)
	atomic.StoreUint32(&r.Pkey, uint32(pkey))
	return e
}

// SetActive marks the endpoints that are on active ports, and no others.
func (m *Maps) SetActive(active []*Endpoint) {
	m.mu.Lock()
	defer m.mu.Unlock()
	on := make(map[int]bool, len(active))
	for _, e := range active {
		on[e.Row] = true
	}
	for i := range m.head.Endpoints {
		var v uint32
		if i > 0 && on[int(i)] {
			v = 1
		}
		atomic.StoreUint32(&m.eps[i].Active, v)
	}
}

// None is the row of what belongs to no endpoint.
func (m *Maps) None() *Endpoint { return m.endpoint(0) }

func (a *arrays) endpoint(row int) *Endpoint {
	return &Endpoint{Row: row, count: &a.eps[row].Count, mem: a}
}

// counters sums the row of an endpoint, kernel hits included.
func (a *arrays) counters(row int) (c Counters) {
	count := &a.eps[row].Count
	for s := range count {
		for i := range c {
			c[i] += load(&count[s][i])
		}
	}
	k := a.kernel(row)
	c[CountResolve] += k[KernelHit]
	c[CountRouteCache] += k[KernelHit]
	return c
}

// kernel sums what programs counted for an endpoint.
func (a *arrays) kernel(row int) (k [NumKernelWords]uint64) {
	n := int(a.head.Kshards)
	for s := row * n; s < (row+1)*n && s < len(a.kstat); s++ {
		for i := range k {
			k[i] += load(&a.kstat[s].Word[i])
		}
	}
	return k
}

// Counters reads the counters of a row, hits in the kernel included; none for a
// row that there is not.
func (m *Maps) Counters(row int) (c Counters) {
	if row >= 0 && row < len(m.eps) {
		c = m.counters(row)
	}
	return c
}

// Totals sums the counters of all endpoints that there ever were, and of
// requests that reached none.
func (m *Maps) Totals() Counters { return m.totals() }

func (a *arrays) totals() (c Counters) {
	n := min(int(atomic.LoadUint32(&a.head.Endpoints)), len(a.eps))
	for i := range n {
		row := a.counters(i)
		c.Add(&row)
	}
	for i := range a.stats {
		refused := load(&a.stats[i].Word[DoorRefused])
		c[CountError] += refused
		c[CountResolve] += refused
	}
	return c
}
