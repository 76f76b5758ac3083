//go:build ignore
// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* The helpers of acm_count.h, called one by one from tests. */
#include "acm_count.h"

char _license[] SEC("license") = "Dual BSD/GPL";

struct args {
	__u64 ns;
	__u32 ep, word, class, bucket;
};

SEC("syscall") int count(struct args *a)
{
	acm_count(a->ep, a->word);
	acm_lat_add(a->class & (ACM_LAT_CLASSES - 1), a->ns);
	a->bucket = acm_bucket(a->ns);
	return 0;
}
