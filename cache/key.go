// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package cache

// Kind is what a key's bytes mean.
type Kind uint8

// The first five are the address types of the ACM protocols, so that an address
// type is its kind.
const (
	KindName Kind = 1 // folded to lower case, up to 64 bytes, no padding
	KindIPv4 Kind = 2 // 4 bytes
	KindIPv6 Kind = 3 // 16 bytes
	KindGID  Kind = 4 // 16 bytes: a path request that names only this GID
	KindLID  Kind = 5 // 2 bytes, big endian: a path request that names only this LID
	KindPath Kind = 6 // 64 bytes: a path request with further constraints, canonical form: a PathRecord whose other bytes are zero
)

// MaxKeyData is the most bytes a key can have.
const MaxKeyData = 64

// Scope numbers what can be dropped as a whole: the port that an entry's answer
// goes through. Scopes are small integers given out by the engine, below
// MaxScopes.
type Scope uint16

// MaxScopes bounds the scopes of one cache.
const MaxScopes = 1 << 14

// Key is everything that constrains an answer. Build keys with [MakeKey]; bytes
// past the meaningful ones are zero, so keys are comparable.
type Key struct {
	Endpoint uint16 // endpoint slot (device, port, P_Key) of the asker
	Kind     Kind
	Len      uint8
	Data     [MaxKeyData]byte
}

// Meta is what an entry carries beside the record. Times are nanoseconds of the
// caller's clock, the same one that Get is given.
type Meta struct {
	Deadline int64 // not served from then on; math.MaxInt64: never
	Refresh  int64 // from then on a hit should trigger a refresh; policy of the engine
	Scope    Scope
	Status   uint8 // 0, or the ACM status of a negative entry
	Origin   uint8 // who answered (engine's enumeration): SA, preload, group, loopback
}

// Epoch is a point in the order of invalidations. A flight takes one before it
// asks, and what it learned is published only if nothing that concerns it was
// invalidated since.
type Epoch uint64

// MakeKey copies data into a key and pads it with zeros. Names must already be
// folded. More than MaxKeyData bytes make the zero Key, which is never found and
// never stored: cutting them off would make two destinations one.
func MakeKey(ep uint16, kind Kind, data []byte) (k Key) {
	if len(data) > MaxKeyData {
		return Key{}
	}
	k.Endpoint, k.Kind, k.Len = ep, kind, uint8(len(data))
	copy(k.Data[:], data)
	return k
}

// Bytes returns the meaningful bytes, in place.
func (k *Key) Bytes() []byte { return k.Data[:min(k.Len, MaxKeyData)] }

func (k *Key) valid() bool { return k.Kind != 0 && k.Len <= MaxKeyData }
