//go:build ignore
// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * How long calls of rdma_getaddrinfo take in the programs that call it, by uprobes on librdmacm. For a tool that
 * somebody watches: a probed call costs some microseconds more.
 */
#include "acm_count.h"

char _license[] SEC("license") = "Dual BSD/GPL";

/* Where a function's result is in the registers that a probe sees; set by Go, as it depends on the machine. */
volatile const __u32 acm_result_offset;
volatile const __u64 acm_slow_ns = 10000000;

enum {
	ACM_CALLERS = 4096,
	ACM_CALLS = 16384, /* under way at a time */
};

struct acm_caller {
	__u64 calls, failed, sum, slowest; /* ns */
	__u64 bucket[ACM_LAT_BUCKETS];
	char comm[16]; /* at the first call */
};

struct acm_call {
	__u32 pid, tid;
	__u64 ns;
	__s32 result;
	__u32 pad;
	char comm[16];
};

enum acm_loss {
	ACM_LOST_CALLER, /* calls of processes beyond ACM_CALLERS */
	ACM_LOST_CALL,   /* calls that began before the probes were there, or beyond ACM_CALLS at a time */
	ACM_LOST_SLOW,   /* slow calls that nobody had room for */
	ACM_LOSSES,
};

/* By thread. What a killed thread left is evicted by the calls of others. */
ACM_MAP(acm_calls, LRU_HASH, ACM_CALLS, 0, __u64, __u64);
ACM_MAP(acm_callers, HASH, ACM_CALLERS, BPF_F_NO_PREALLOC, __u32, struct acm_caller);
ACM_MAP(acm_lost, ARRAY, ACM_LOSSES, 0, __u32, __u64);

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 256 * 1024);
} acm_slow SEC(".maps");

static const struct acm_caller none;
const struct acm_call *acm_call_type __attribute__((unused)); /* or it is not in the BTF */

static __always_inline void lost(__u32 what)
{
	__u64 *n = bpf_map_lookup_elem(&acm_lost, &what);

	if (n)
		__sync_fetch_and_add(n, 1);
}

static __always_inline int enter(void)
{
	__u64 id = bpf_get_current_pid_tgid(), now = bpf_ktime_get_ns();

	bpf_map_update_elem(&acm_calls, &id, &now, BPF_ANY);
	return 0;
}

static __always_inline void tell(__u64 id, __u64 ns, int result)
{
	struct acm_call *c = bpf_ringbuf_reserve(&acm_slow, sizeof(*c), 0);

	if (!c) {
		lost(ACM_LOST_SLOW);
		return;
	}
	c->pid = id >> 32;
	c->tid = id;
	c->ns = ns;
	c->result = result;
	c->pad = 0;
	bpf_get_current_comm(c->comm, sizeof(c->comm));
	bpf_ringbuf_submit(c, 0);
}

static __always_inline int leave(void *regs)
{
	__u64 id = bpf_get_current_pid_tgid(), now = bpf_ktime_get_ns(), *began = bpf_map_lookup_elem(&acm_calls, &id), ns;
	__u32 pid = id >> 32, b;
	struct acm_caller *c;
	int result = 0;

	if (!began) {
		lost(ACM_LOST_CALL);
		return 0;
	}
	ns = now - *began;
	bpf_map_delete_elem(&acm_calls, &id);
	bpf_probe_read_kernel(&result, sizeof(result), regs + acm_result_offset);
	c = bpf_map_lookup_elem(&acm_callers, &pid);
	if (!c) {
		bpf_map_update_elem(&acm_callers, &pid, &none, BPF_NOEXIST);
		c = bpf_map_lookup_elem(&acm_callers, &pid);
		if (c)
			bpf_get_current_comm(c->comm, sizeof(c->comm));
	}
	if (ns >= acm_slow_ns)
		tell(id, ns, result);
	if (!c) {
		lost(ACM_LOST_CALLER);
		return 0;
	}
	__sync_fetch_and_add(&c->calls, 1);
	__sync_fetch_and_add(&c->sum, ns);
	if (result)
		__sync_fetch_and_add(&c->failed, 1);
	if (ns > c->slowest) /* two at once may lose the lesser */
		c->slowest = ns;
	b = acm_bucket(ns);
	if (b < ACM_LAT_BUCKETS)
		__sync_fetch_and_add(&c->bucket[b], 1);
	return 0;
}

/* The same twice: the kernel wants to know at load how a program will be attached. */
SEC("uprobe.multi") int gai_enter(void *regs) { return enter(); }
SEC("uretprobe.multi") int gai_leave(void *regs) { return leave(regs); }
SEC("uprobe") int gai_enter_perf(void *regs) { return enter(); }
SEC("uretprobe") int gai_leave_perf(void *regs) { return leave(regs); }
