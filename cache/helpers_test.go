// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package cache

import (
	"encoding/binary"

	"acmd/mad"
)

func testGID(i int) mad.GID {
	vendors := [...]uint64{0x0002c90300000000, 0x506b4b0300000000, 0xb8599f0300000000}
	return mad.MakeGID(0xfe80000000000000, mad.GUID(vendors[i%3]+uint64(i)*8))
}

func gidKey(ep uint16, g mad.GID) Key { return MakeKey(ep, KindGID, g[:]) }

func lidKey(ep uint16, l mad.LID) Key {
	return MakeKey(ep, KindLID, []byte{byte(l >> 8), byte(l)})
}

// makeRecord fills the bytes of a record that the cache looks at.
func makeRecord(g mad.GID, l mad.LID) (r [64]byte) {
	copy(r[8:24], g[:])
	binary.BigEndian.PutUint16(r[40:], uint16(l))
	return r
}

// recordOf derives a whole record from a key and a generation, so that a reader
// can tell a torn or foreign one: every word depends on both.
func recordOf(k *Key, gen uint64) (r [64]byte) {
	x := uint64(k.header()) + gen*0x9e3779b97f4a7c15
	for i := 0; i < 8; i++ {
		x = fold(x^k.word(i), 0xd6e8feb86659fd93) + uint64(i)
	}
	for i := 0; i < 64; i += 8 {
		x = fold(x+1, 0xa0761d6478bd642f)
		binary.LittleEndian.PutUint64(r[i:], x)
	}
	binary.LittleEndian.PutUint64(r[0:], gen)
	if k.Kind == KindGID {
		copy(r[8:24], k.Data[:16])
	}
	return r
}

// checkRecord reports whether r is recordOf(k, g) for the g it carries.
func checkRecord(k *Key, r *[64]byte) bool {
	return recordOf(k, binary.LittleEndian.Uint64(r[0:])) == *r
}
