// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package hostnet

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"acmd/resolver"
)

// Static is a host whose addresses are given: for the embedded fabric and tests.
// Set Addrs and Choose before use; [Static.Set] changes the addresses later. All
// methods are safe for concurrent use.
type Static struct {
	Addrs []resolver.HostAddr
	// Choose says what Source does; nil: the first address of the family.
	Choose func(dst netip.Addr) (netip.Addr, error)

	mu  sync.Mutex
	gen resolver.Generation
}

var _ resolver.Host = (*Static)(nil)

// Addresses implements [resolver.Host].
func (s *Static) Addresses() ([]resolver.HostAddr, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.Addrs), nil
}

// Set replaces the addresses and raises the generation.
func (s *Static) Set(addrs []resolver.HostAddr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Addrs = slices.Clone(addrs)
	s.gen.Raise()
}

// Generation implements [resolver.Host].
func (s *Static) Generation() *resolver.Generation { return &s.gen }

// Source implements [resolver.Host].
func (s *Static) Source(dst netip.Addr) (netip.Addr, error) {
	if s.Choose != nil {
		return s.Choose(dst)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return sameFamily(s.Addrs, dst)
}

func sameFamily(addrs []resolver.HostAddr, dst netip.Addr) (netip.Addr, error) {
	for _, a := range addrs {
		if a.IP.Is4() == dst.Unmap().Is4() {
			return a.IP, nil
		}
	}
	return netip.Addr{}, fmt.Errorf("no local address of the family of %s", dst)
}
