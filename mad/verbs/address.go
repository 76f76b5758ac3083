// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//go:build verbs && cgo

package verbs

// #include "shim.h"
import "C"

import "acmd/mad"

// ahGeneration is how many address handles are made before those that were not
// used meanwhile are destroyed. It is more than a queue pair has sends under way,
// so that none of these can need one that goes.
const ahGeneration = 2 * maxSendDepth

// addressCache keeps address handles, at most two generations of them: an adapter
// may need a system call to make one, and neighbours can make us need any number.
type addressCache struct {
	young, old map[C.struct_acm_address]*C.struct_ibv_ah
}

// get finds or makes the handle for where h says.
func (c *addressCache) get(p *Port, h *mad.UserHeader) (*C.struct_ibv_ah, error) {
	a := C.struct_acm_address{
		dlid: C.uint16_t(h.LID()), sl: C.uint8_t(h.SL()), path_bits: C.uint8_t(h.PathBits()), port: C.uint8_t(p.num),
		static_rate: C.uint8_t(h.StaticRate()), // the codes are those of enum ibv_rate
	}
	if h.HasGRH() {
		for i, b := range h.GID() {
			a.dgid[i] = C.uint8_t(b)
		}
		a.global, a.gid_index, a.flow_label = 1, C.uint8_t(h.GIDIndex()), C.uint32_t(h.FlowLabel())
		a.hop_limit, a.traffic_class = C.uint8_t(h.HopLimit()), C.uint8_t(h.TrafficClass())
	}
	if ah := c.young[a]; ah != nil {
		return ah, nil
	}
	ah := c.old[a]
	if ah != nil {
		delete(c.old, a)
	} else {
		var err error
		if ah, err = makeHandle(p, a); err != nil {
			return nil, err
		}
	}
	if c.young == nil || len(c.young) >= ahGeneration {
		c.drop(c.old)
		c.old, c.young = c.young, c.old
		if c.young == nil {
			c.young = make(map[C.struct_acm_address]*C.struct_ibv_ah, ahGeneration)
		}
	}
	c.young[a] = ah
	return ah, nil
}

// makeHandle takes the address by value: get's stays off the heap.
func makeHandle(p *Port, a C.struct_acm_address) (*C.struct_ibv_ah, error) {
	ah, err := C.acm_create_ah(p.dev.pd, &a)
	if ah == nil {
		return nil, call("address handle", err)
	}
	return ah, nil
}

func (c *addressCache) drop(m map[C.struct_acm_address]*C.struct_ibv_ah) {
	for _, ah := range m {
		C.ibv_destroy_ah(ah)
	}
	clear(m)
}

func (c *addressCache) clear() {
	c.drop(c.young)
	c.drop(c.old)
	c.young, c.old = nil, nil
}
