/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Counting in programs. The daemon's side of the same is histogram.go, and a test compares the two. */
#ifndef ACM_COUNT_H
#define ACM_COUNT_H

#define ACM_COUNT_MAPS
#include "acm_maps.h"

volatile const __u32 acm_kshards = 1; /* as in acm_meta */

/* acm_count adds to a word of an endpoint's row, on the slot of the running CPU. */
static __always_inline void acm_count(__u32 ep, enum acm_kstat_word word)
{
	__u32 k = (ep < ACM_ENDPOINTS ? ep : 0) * acm_kshards + (bpf_get_smp_processor_id() & (acm_kshards - 1));
	struct acm_kwords *s = bpf_map_lookup_elem(&acm_kstat, &k);

	if (s)
		__sync_fetch_and_add(&s->word[word & (ACM_K_WORDS - 1)], 1);
}

/*
 * acm_bucket finds the bucket of a time in ns. Bucket b ends, inclusive, at 2^(b/4 - 22) s: 0 holds what is not
 * longer than 238 ns, ACM_LAT_BUCKETS - 1 what is longer than 16 s. These are the bounds of a Prometheus native
 * histogram of schema 2 in seconds, so time is turned into units of 2^-59 s before it is cut.
 */
static __always_inline __u32 acm_bucket(__u64 ns)
{
	__u32 e = 0, q;
	__u64 v, m;

	if (ns >= 16000000000ull)
		return ns > 16000000000ull ? ACM_LAT_BUCKETS - 1 : ACM_LAT_BUCKETS - 2;
	v = ns * 576460752 + (ns * 318162 >> 20); /* 2^59 / 10^9, not quite, so that a bound itself is below it */
	m = v;
	if (!(m >> 32)) { e += 32; m <<= 32; }
	if (!(m >> 48)) { e += 16; m <<= 16; }
	if (!(m >> 56)) { e += 8; m <<= 8; }
	if (!(m >> 60)) { e += 4; m <<= 4; }
	if (!(m >> 62)) { e += 2; m <<= 2; }
	if (!(m >> 63)) { e += 1; m <<= 1; }
	e = 63 - e; /* v = m * 2^(e - 63), m in [2^63, 2^64) */
	if (e < 37)
		return 0;
	q = (m >= 0x9837f0518db8a96full) + (m >= 0xb504f333f9de6484ull) + (m >= 0xd744fccad69d6af4ull);
	return 4 * (e - 37) + q + 1;
}

/* acm_lat_add notes a time in ns. */
static __always_inline void acm_lat_add(enum acm_lat_class class, __u64 ns)
{
	__u32 k = (bpf_get_smp_processor_id() & (ACM_LAT_SHARDS - 1)) * ACM_LAT_CLASSES + class, b = acm_bucket(ns);
	struct acm_hist *h = bpf_map_lookup_elem(&acm_lat, &k);

	if (!h || b >= ACM_LAT_BUCKETS)
		return;
	__sync_fetch_and_add(&h->bucket[b], 1);
	__sync_fetch_and_add(&h->sum, ns);
}

#endif
