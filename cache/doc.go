// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

// Package cache is the sharded path cache: from a [Key], which holds everything
// that constrains an answer, to a 64-byte path record in wire form.
//
// A hit costs two cache misses. The index is an array of buckets of eight slots,
// half a line each; a slot is one 32-bit word, fingerprint and entry number, so
// that publishing is one atomic store. An entry is two adjacent lines: version, used
// mark, meta data and the first 24 key bytes in one, the record in the other.
// Longer keys continue in a pool of their own. None of these arrays holds a
// pointer, so the garbage collector does not look into them.
//
// Readers take no lock and write nothing but the used mark, and that only when
// they found it clear. An entry is never changed while a slot leads to it: an
// update fills a fresh entry and swings the slot. What a reader must fear is
// only that the entry was freed and filled again under its eyes; an entry's
// version, odd while it is free, is read before and after the atomic loads of
// its words and tells. A reader tries a fixed number of times and then reports a
// miss: reads are wait-free.
//
// Writers lock one shard. A full shard evicts by CLOCK over the used marks.
//
// Invalidations have one global order, the [Epoch]. Each scope, and each hash
// bucket of GIDs, LIDs and keys, remembers its last one. Put refuses what was
// asked before the last invalidation that concerns it; Get compares an entry's
// epoch with its scope's, so that dropping a scope is one store.
package cache
