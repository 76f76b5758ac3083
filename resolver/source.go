// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package resolver

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"acmd/cache"

	"github.com/cespare/xxhash/v2"
)

// Choices of the host's routing are remembered per destination for as long as
// its generation stands, and not beyond sourceTTL: some changes (the labels of
// ip addrlabel) show in no generation.
const (
	sourceSlots = 1 << 13
	sourceTTL   = int64(30 * time.Second)
)

// sourceMemory is a direct-mapped table of immutable entries: bounded, read
// without a lock, and a collision costs a question to the kernel.
type sourceMemory struct {
	slots [sourceSlots]atomic.Pointer[sourceChoice]
}

type sourceChoice struct {
	dst, src Addr
	gen      uint64
	until    int64
}

func sourceIndex(dst *Addr) uint64 { return xxhash.Sum64(dst.Bytes()) % sourceSlots }

// recall copies the remembered source for dst into src.
func (m *sourceMemory) recall(dst *Addr, gen uint64, now int64, src *Addr) bool {
	c := m.slots[sourceIndex(dst)].Load()
	if c == nil || c.gen != gen || now >= c.until || c.dst != *dst {
		return false
	}
	*src = c.src
	return true
}

func (m *sourceMemory) remember(dst, src *Addr, gen uint64, now int64) {
	m.slots[sourceIndex(dst)].Store(&sourceChoice{dst: *dst, src: *src, gen: gen, until: now + sourceTTL})
}

var errSourceFamily = errors.New("routing chose a source of the other address family")

// chooseSource asks the host's routing for the source towards an IP destination
// and remembers it. A failure is StatusSrcAddr, never the number of an error
// (B-11). The generation is read first: a change meanwhile voids the memory.
func (e *Engine) chooseSource(dst *Addr, now int64) (Addr, error) {
	gen := e.cfg.Host.Generation().Load()
	e.stats.sourceAsks.Add(1)
	ip, err := e.cfg.Host.Source(dst.IP())
	if err != nil {
		return Addr{}, fmt.Errorf("source selection: %w", err)
	}
	src := IPAddr(ip)
	if src.Kind != dst.Kind {
		return Addr{}, fmt.Errorf("source selection: %w", errSourceFamily) // field case 45
	}
	e.sources.remember(dst, &src, gen, now)
	return src, nil
}

// isIP tells destinations whose source can be chosen.
func (a *Addr) isIP() bool { return a.Kind == cache.KindIPv4 || a.Kind == cache.KindIPv6 }
