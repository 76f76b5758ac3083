// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package cache

import (
	"encoding/binary"
	"math/bits"
	"math/rand/v2"
)

// Keys are chosen by clients (names, constraints) and by the fabric (GIDs), so
// the hash is keyed with secret words of the cache. Each pair of key words is
// xored with two secrets and multiplied to 128 bits, the halves are folded; a
// second multiplication mixes in the third word and the header. A key of up to
// 24 bytes takes two multiplications, a longer one five.

// hasher holds the secrets. It is immutable after newHasher.
type hasher struct{ k [10]uint64 }

// newHasher expands a seed; 0 draws the secrets from the system's randomness.
func newHasher(seed uint64) (h hasher) {
	next := rand.Uint64 // ChaCha8 with a key from the operating system
	if seed != 0 {
		next = rand.NewPCG(seed, 0x9e3779b97f4a7c15).Uint64
	}
	for i := range h.k {
		h.k[i] = next()
	}
	return h
}

func fold(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	return hi ^ lo
}

// short hashes a key whose bytes all lie in the first three words.
func (h *hasher) short(hdr uint32, w0, w1, w2 uint64) uint64 {
	return fold(fold(w0^h.k[0], w1^h.k[1])^w2^h.k[2], uint64(hdr)^h.k[3])
}

// long hashes a key of any length; it differs from short for the same key, so
// the length alone decides which of the two is used.
func (h *hasher) long(hdr uint32, w *[keyWords]uint64) uint64 {
	x := fold(w[0]^h.k[0], w[1]^h.k[1]) ^ fold(w[2]^h.k[4], w[3]^h.k[5]) ^
		fold(w[4]^h.k[6], w[5]^h.k[7]) ^ fold(w[6]^h.k[8], w[7]^h.k[9])
	return fold(x^h.k[2], uint64(hdr)^h.k[3])
}

func (h *hasher) words(hdr uint32, w *[keyWords]uint64) uint64 {
	if hdr>>24 > inlineKey {
		return h.long(hdr, w)
	}
	return h.short(hdr, w[0], w[1], w[2])
}

// gid and lid choose the chains of the secondary index and the epoch buckets.
func (h *hasher) gid(g gidWords) uint32 {
	return uint32(fold(fold(g[0]^h.k[4], g[1]^h.k[5])^h.k[6], h.k[7]))
}

func (h *hasher) lid(l uint16) uint32 { return uint32(l) * uint32(h.k[8]|1) >> 3 }

func (k *Key) word(i int) uint64 { return binary.NativeEndian.Uint64(k.Data[i*8:]) }

// header packs everything of a key but its bytes: endpoint, kind, length.
func (k *Key) header() uint32 {
	return uint32(k.Endpoint) | uint32(k.Kind)<<16 | uint32(k.Len)<<24
}
