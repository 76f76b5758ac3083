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

/* What a hit costs to count, sampling included, and an empty program to compare with. */
SEC("tc") int count_hit(struct __sk_buff *skb)
{
	__u64 begin = 0;

	if (!(bpf_get_prandom_u32() & (ACM_SAMPLE - 1)))
		begin = bpf_ktime_get_ns();
	acm_count(1, ACM_K_HIT);
	if (begin)
		acm_lat_add(ACM_LAT_KERNEL, bpf_ktime_get_ns() - begin);
	return 0;
}

SEC("tc") int count_nothing(struct __sk_buff *skb)
{
	return 0;
}
