// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acmp

import (
	"bytes"

	"acmd/cache"
	"acmd/mad/acm"
	"acmd/resolver"
)

// wireAddr reads an address field of a datagram. Names end at the first NUL and
// are folded; the others must be zero past their bytes, as two fields that
// differ there are two addresses to the reference. False: no usable address.
func wireAddr(kind uint8, b *[acm.AddrSize]byte) (a resolver.Addr, ok bool) {
	n := 0
	switch kind {
	case acm.TypeName:
		if n = bytes.IndexByte(b[:], 0); n < 0 {
			n = len(b)
		}
		for i, c := range b[:n] {
			if 'A' <= c && c <= 'Z' {
				c += 'a' - 'A'
			}
			a.Data[i] = c
		}
	case acm.TypeIPv4:
		n = 4
	case acm.TypeIPv6, acm.TypeGID:
		n = 16
	case acm.TypeLID:
		n = 2
	}
	if n == 0 {
		return a, false
	}
	if kind != acm.TypeName {
		if *(*[acm.AddrSize]byte)(b) == ([acm.AddrSize]byte{}) || !allZero(b[n:]) {
			return a, false
		}
		copy(a.Data[:], b[:n])
	}
	// Address types and cache kinds are the same numbers.
	a.Kind, a.Len = cache.Kind(kind), uint8(n)
	return a, true
}

func allZero(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}

// wireSource chooses the address that a request gives as its own, and its GID if
// it has one apart from the endpoint's. A name goes out as configured, not
// folded. An endpoint without an address gives its GID.
func wireSource(ep *resolver.Endpoint, src, dst *resolver.Addr) (kind uint8, b []byte, own *resolver.LocalAddr) {
	for i := range ep.Addrs {
		a := &ep.Addrs[i]
		if a.Addr == *src {
			own = a
			break
		}
		if src.IsZero() && (own == nil || own.Addr.Kind != dst.Kind && a.Addr.Kind == dst.Kind) {
			own = a
		}
	}
	switch {
	case own != nil && own.Addr.Kind == cache.KindName && own.Text != "" && resolver.NameAddr(own.Text) == own.Addr:
		return acm.TypeName, []byte(own.Text)[:own.Addr.Len], own
	case own != nil:
		return uint8(own.Addr.Kind), own.Addr.Bytes(), own
	case !src.IsZero():
		return uint8(src.Kind), src.Bytes(), nil
	}
	return acm.TypeGID, ep.GID[:], nil
}
